//! The provider's JSON, read leniently.

use crate::shared::{Refusal, Reply, Service, is_job_id, media_address, text};
use serde::Deserialize;
use serde_json::Value;
use workers::ports::{FaultClass, JobState};

#[derive(Deserialize)]
struct Created {
    id: String,
}

/// The task that a create reply names.
pub(super) fn accepted(reply: &Reply) -> Option<String> {
    reply.json::<Created>().map(|created| created.id).filter(|id| is_job_id(id))
}

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
    model: Value,
    #[serde(default)]
    seed: Value,
    #[serde(default)]
    duration: Value,
    /// Unix time in seconds.
    #[serde(default)]
    created_at: Value,
}

/// A page of the list.
#[derive(Deserialize)]
pub(super) struct Page {
    /// How many tasks there are in all.
    pub(super) total: u64,
    /// Each is read for itself: one that looks odd must not hide the others.
    pub(super) items: Vec<Value>,
}

/// A whole number, however it is written.
fn whole(value: &Value) -> Option<i64> {
    match value {
        Value::String(text) => text.trim().parse().ok(),
        other => other
            .as_i64()
            .or_else(|| other.as_f64().filter(|it| it.fract() == 0.0 && it.abs() < 1e15).map(|it| it as i64)),
    }
}

impl Task {
    /// One of a page; `None` where it has no id.
    pub(super) fn of_page(item: Value) -> Option<Self> {
        serde_json::from_value(item).ok()
    }

    pub(super) fn seed(&self) -> Option<i64> {
        whole(&self.seed)
    }

    pub(super) fn created_at(&self) -> Option<i64> {
        whole(&self.created_at)
    }

    /// Whether it may be a task for this model and length, as far as it says.
    pub(super) fn is_like(&self, model: &str, seconds: u32) -> bool {
        whole(&self.duration).is_none_or(|it| it == i64::from(seconds))
            && self.model.as_str().is_none_or(|it| it == model)
    }

    pub(super) fn state(&self, service: &Service) -> JobState {
        match self.status.as_str() {
            "queued" => JobState::Queued,
            "running" => JobState::Running { percent: None },
            "succeeded" => match self.content.get("video_url").and_then(media_address) {
                Some(output_url) => JobState::Succeeded { output_url, usage_millis: None },
                None => JobState::Unrecognised { raw: "succeeded without a video".to_owned() },
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
