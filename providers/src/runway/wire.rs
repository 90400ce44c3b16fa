//! The provider's JSON, read leniently.

use crate::shared::{Refusal, Reply, Service, media_address, text};
use serde::Deserialize;
use serde_json::Value;
use workers::ports::{FaultClass, JobState};

/// A task. Each state has fields of its own.
#[derive(Deserialize)]
pub(super) struct Task {
    pub(super) id: String,
    status: String,
    #[serde(default)]
    progress: Option<f64>,
    #[serde(default)]
    output: Value,
    #[serde(default)]
    failure: Option<String>,
    #[serde(rename = "failureCode", default)]
    failure_code: Option<String>,
}

impl Task {
    pub(super) fn state(&self, service: &Service) -> JobState {
        match self.status.as_str() {
            // Throttled is accepted, and waits for one of ours to end.
            "PENDING" | "THROTTLED" => JobState::Queued,
            "RUNNING" => JobState::Running { percent: self.percent() },
            "SUCCEEDED" => match self.output.get(0).and_then(media_address) {
                Some(output_url) => JobState::Succeeded { output_url, usage_millis: None },
                None => {
                    let said = "the provider says succeeded, but gives no video";
                    JobState::Failed(service.fault(FaultClass::Internal, "output_missing", said, &[]))
                }
            },
            "FAILED" => {
                let code = self.failure_code.as_deref().unwrap_or("failed");
                JobState::Failed(service.fault(
                    FaultClass::Internal,
                    code,
                    self.failure.as_deref().unwrap_or_default(),
                    &[],
                ))
            }
            "CANCELLED" => JobState::Canceled,
            other => JobState::Unrecognised { raw: text::code(other) },
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.status.as_str(), "SUCCEEDED" | "FAILED" | "CANCELLED")
    }

    fn percent(&self) -> Option<u8> {
        let share = self.progress.filter(|it| (0.0..=1.0).contains(it))?;
        Some((share * 100.0).floor() as u8)
    }
}

/// The provider's own error document.
pub(super) fn refusal(reply: &Reply) -> Option<Refusal> {
    let body: Value = reply.json()?;
    let said = body.get("error")?.as_str()?.to_owned();
    Some(Refusal { code: format!("http_{}", reply.status.as_u16()), said, retry_after: None })
}
