//! The provider's JSON, read leniently.

use crate::shared::{Refusal, Reply, Service, media_address, text};
use serde::Deserialize;
use serde_json::Value;
use workers::ports::{FaultClass, JobState};

/// A task. What is not set is left out.
#[derive(Deserialize)]
pub(super) struct Task {
    pub(super) id: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    error: Value,
    #[serde(default)]
    content: Value,
    #[serde(default)]
    pub(super) model: Option<String>,
    #[serde(default)]
    pub(super) seed: Option<i64>,
    #[serde(default)]
    pub(super) duration: Option<i64>,
    /// Unix time in seconds.
    #[serde(default)]
    pub(super) created_at: Option<i64>,
}

/// A page of the list.
#[derive(Deserialize)]
pub(super) struct Page {
    /// How many tasks there are in all.
    pub(super) total: u64,
    pub(super) items: Vec<Task>,
}

impl Task {
    pub(super) fn state(&self, service: &Service) -> JobState {
        match self.status.as_str() {
            "queued" => JobState::Queued,
            "running" => JobState::Running { percent: None },
            "succeeded" => match self.content.get("video_url").and_then(media_address) {
                Some(output_url) => JobState::Succeeded { output_url, usage_millis: None },
                None => {
                    let said = "the provider says succeeded, but gives no video";
                    JobState::Failed(service.fault(FaultClass::Internal, "output_missing", said, &[]))
                }
            },
            "failed" => {
                let part = |name: &str| self.error.get(name).and_then(Value::as_str);
                let (code, said) = (part("code").unwrap_or("failed"), part("message").unwrap_or_default());
                JobState::Failed(service.fault(FaultClass::Internal, code, said, &[]))
            }
            "expired" => {
                let said = "the provider did not begin the task in time";
                JobState::Failed(service.fault(FaultClass::Internal, "expired", said, &[]))
            }
            "cancelled" => JobState::Canceled,
            other => JobState::Unrecognised { raw: text::code(other) },
        }
    }
}

/// The provider's own error document.
pub(super) fn refusal(reply: &Reply) -> Option<Refusal> {
    let body: Value = reply.json()?;
    let part = |name: &str| body.pointer(name).and_then(Value::as_str);
    let code = part("/error/code")?.to_owned();
    Some(Refusal { code, said: part("/error/message").unwrap_or_default().to_owned(), retry_after: None })
}
