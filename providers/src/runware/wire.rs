//! The provider's JSON, read leniently.

use crate::shared::{Service, media_address, text};
use serde::Deserialize;
use serde_json::Value;
use workers::ports::{FaultClass, JobState, ProviderFault};

/// What comes back: an entry for each task, in one list or the other.
#[derive(Deserialize)]
pub(super) struct Answers {
    #[serde(default)]
    data: Vec<Answer>,
    #[serde(default)]
    errors: Vec<TaskError>,
}

/// A task that was taken, works or is done.
#[derive(Deserialize)]
pub(super) struct Answer {
    #[serde(rename = "taskUUID", default)]
    task: Option<String>,
    #[serde(default)]
    status: Value,
    #[serde(rename = "videoURL", default)]
    video: Value,
    #[serde(rename = "mediaURL", default)]
    media: Value,
}

/// A task that was not taken, or failed.
#[derive(Deserialize)]
pub(super) struct TaskError {
    #[serde(rename = "taskUUID", default)]
    task: Option<String>,
    /// `error` where the task itself has failed.
    #[serde(default)]
    status: Value,
    #[serde(default)]
    code: Option<String>,
    #[serde(default)]
    message: Option<String>,
}

impl Answers {
    pub(super) fn answer(&self, task: &str) -> Option<&Answer> {
        self.data.iter().find(|it| it.task.as_deref() == Some(task))
    }

    /// The error about a task. We send one task at a time, so one without an id, alone, is about it as well.
    pub(super) fn error(&self, task: &str) -> Option<&TaskError> {
        let ours = self.errors.iter().find(|it| it.task.as_deref() == Some(task));
        let only = match self.errors.as_slice() {
            [error] if error.task.is_none() => Some(error),
            _ => None,
        };
        ours.or(only).filter(|error| !error.code().is_empty())
    }
}

impl TaskError {
    pub(super) fn code(&self) -> &str {
        self.code.as_deref().unwrap_or_default()
    }

    /// Whether it says that the task has failed, and not that it can not be told about just now.
    pub(super) fn is_failure_of(&self, task: &str) -> bool {
        self.task.as_deref() == Some(task) && self.status.as_str() == Some("error")
    }
}

impl Answer {
    pub(super) fn state(&self, service: &Service) -> JobState {
        match self.status.as_str() {
            Some("processing") => JobState::Running { percent: None },
            Some("success") => match media_address(&self.video).or_else(|| media_address(&self.media)) {
                Some(output_url) => JobState::Succeeded { output_url, usage_millis: None },
                None => JobState::Unrecognised { raw: "success without a video".to_owned() },
            },
            Some("error") => JobState::Failed(service.fault(FaultClass::Internal, "failed", "", &[])),
            Some(other) => JobState::Unrecognised { raw: text::code(other) },
            // The bare acknowledgement of the create call.
            None => JobState::Queued,
        }
    }
}

impl TaskError {
    /// As the reason why a task was not taken.
    pub(super) fn fault(&self, service: &Service, account_codes: &[String], private: &[&str]) -> ProviderFault {
        let is_account = account_codes.iter().any(|it| it == self.code());
        let class = if is_account { FaultClass::Account } else { FaultClass::BadRequest };
        service.fault(class, self.code(), self.message.as_deref().unwrap_or_default(), private)
    }

    /// As the reason why a task failed that had been taken.
    pub(super) fn failure(&self, service: &Service) -> ProviderFault {
        service.fault(FaultClass::Internal, self.code(), self.message.as_deref().unwrap_or_default(), &[])
    }
}

/// Whether a callback's body tells about a task: the entry itself, or the lists that a poll gives.
pub(super) fn is_about(told: &Value, task: &str) -> bool {
    let is_it = |entry: &Value| entry.get("taskUUID").and_then(Value::as_str) == Some(task);
    let in_list = |name: &str| told.get(name).and_then(Value::as_array).is_some_and(|list| list.iter().any(is_it));
    is_it(told) || in_list("data") || in_list("errors") || told.as_array().is_some_and(|list| list.iter().any(is_it))
}
