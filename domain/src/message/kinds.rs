//! The kinds of message, each with its stored name, version and logical topic.

use super::envelope::{BadMessage, Envelope};
use crate::id::{AttemptId, TaskId};
use serde::{Deserialize, Serialize};

/// Logical topics (chapter 7.5.1). `messaging::catalogue` maps each to the physical names and types at the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Topic {
    /// Commands to submit a task to a provider: costly, throttled.
    GenerationSubmit,
    /// Delayed wake-ups of tasks that wait for a provider to take them (429, busy).
    GenerationSubmitDelay,
    /// Delayed wake-ups to ask a provider how a job is doing.
    GenerationPollDelay,
    /// What providers told us by callback.
    GenerationCallback,
    /// Outputs to be fetched into the object store.
    AssetFetch,
    /// Delayed wake-ups of fetches whose output was not ready.
    AssetFetchDelay,
    /// Probing and thumbnails.
    AssetPostprocess,
    /// Delayed wake-ups of probing and thumbnails.
    AssetPostprocessDelay,
    /// Exports to be rendered.
    RenderExport,
    /// Delayed wake-ups of renders that could not be done.
    RenderExportDelay,
    /// Settling or releasing a task's hold.
    BillingSettle,
    /// News for people; may lag or be lost without harm to a task.
    NotificationEvent,
    /// Delayed wake-ups of tasks whose state at the provider is unclear.
    CompensationReconcileDelay,
}

impl Topic {
    /// Every topic.
    pub const ALL: [Self; 13] = [
        Self::GenerationSubmit,
        Self::GenerationSubmitDelay,
        Self::GenerationPollDelay,
        Self::GenerationCallback,
        Self::AssetFetch,
        Self::AssetFetchDelay,
        Self::AssetPostprocess,
        Self::AssetPostprocessDelay,
        Self::RenderExport,
        Self::RenderExportDelay,
        Self::BillingSettle,
        Self::NotificationEvent,
        Self::CompensationReconcileDelay,
    ];

    /// The logical name, stored in outbox rows.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GenerationSubmit => "generation.submit",
            Self::GenerationSubmitDelay => "generation.submit.delay",
            Self::GenerationPollDelay => "generation.poll.delay",
            Self::GenerationCallback => "generation.callback",
            Self::AssetFetch => "asset.fetch",
            Self::AssetFetchDelay => "asset.fetch.delay",
            Self::AssetPostprocess => "asset.postprocess",
            Self::AssetPostprocessDelay => "asset.postprocess.delay",
            Self::RenderExport => "render.export",
            Self::RenderExportDelay => "render.export.delay",
            Self::BillingSettle => "billing.settle",
            Self::NotificationEvent => "notification.event",
            Self::CompensationReconcileDelay => "compensation.reconcile.delay",
        }
    }

    /// Whether its messages are delivered at a time of their own (the broker's DELAY type).
    #[must_use]
    pub const fn is_delayed(self) -> bool {
        matches!(
            self,
            Self::GenerationSubmitDelay
                | Self::GenerationPollDelay
                | Self::AssetFetchDelay
                | Self::AssetPostprocessDelay
                | Self::RenderExportDelay
                | Self::CompensationReconcileDelay
        )
    }

    /// The topic of a logical name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|topic| topic.name() == name)
    }
}

/// What a message asks for or tells. Every field is an id or a number: see the module's rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Submit this task (the first time).
    SubmitRequested(TaskRef),
    /// A task that was told to wait may try to be submitted again.
    SubmitDue(TaskRef),
    /// It is time to ask the provider about this attempt.
    PollDue(AttemptRef),
    /// A provider called back about this attempt; what it said is a stored fact.
    CallbackReceived(CallbackRef),
    /// The provider has finished: fetch the output.
    FetchRequested(AttemptRef),
    /// A fetch that was put off may try again.
    FetchDue(AttemptRef),
    /// The output is in the object store: probe it and make a thumbnail.
    PostprocessRequested(AttemptRef),
    /// An export's video is in the object store, or a thumbnail is still missing: probe it and make a thumbnail.
    PostprocessDue(TaskRef),
    /// Render this export (the first time).
    RenderRequested(TaskRef),
    /// A render that was put off may try again.
    RenderDue(TaskRef),
    /// The task has ended: settle or release its hold.
    SettleRequested(TaskRef),
    /// The task's state has changed.
    StateChanged(TaskRef),
    /// It is time to find out what became of an unclear submit or cancel.
    ReconcileDue(AttemptRef),
}

/// A message about a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TaskRef {
    /// The task.
    pub task_id: TaskId,
    /// The task's version when the message was written: tells a late reader how old the news is.
    pub task_version: i64,
}

/// A message about an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AttemptRef {
    /// The task.
    pub task_id: TaskId,
    /// The attempt.
    pub attempt_id: AttemptId,
    /// The version of the stream (task or attempt) whose event announced it: a wake-up whose version is no longer the
    /// stream's has been overtaken.
    pub version: i64,
}

/// A provider's callback about an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallbackRef {
    /// The task.
    pub task_id: TaskId,
    /// The attempt.
    pub attempt_id: AttemptId,
    /// The provider's id of the job, from a body whose signature was checked.
    pub job: String,
}

/// A message's payload, whatever the message says about it.
enum About<'a> {
    Task(&'a TaskRef),
    Attempt(&'a AttemptRef),
    Callback(&'a CallbackRef),
}

impl Message {
    /// The stored name: written once, never derived from the Rust name.
    #[must_use]
    pub const fn event_type(&self) -> &'static str {
        match self {
            Self::SubmitRequested(_) => "generation.submit.requested",
            Self::SubmitDue(_) => "generation.submit.due",
            Self::PollDue(_) => "generation.poll.due",
            Self::CallbackReceived(_) => "provider.callback.received",
            Self::FetchRequested(_) => "asset.fetch.requested",
            Self::FetchDue(_) => "asset.fetch.due",
            Self::PostprocessRequested(_) => "asset.postprocess.requested",
            Self::PostprocessDue(_) => "asset.postprocess.due",
            Self::RenderRequested(_) => "render.export.requested",
            Self::RenderDue(_) => "render.export.due",
            Self::SettleRequested(_) => "billing.settle.requested",
            Self::StateChanged(_) => "task.state.changed",
            Self::ReconcileDue(_) => "task.reconcile.due",
        }
    }

    /// The payload's schema version that this build writes.
    #[must_use]
    pub const fn schema_version(&self) -> u16 {
        1
    }

    /// Where it is published.
    #[must_use]
    pub const fn topic(&self) -> Topic {
        match self {
            Self::SubmitRequested(_) => Topic::GenerationSubmit,
            Self::SubmitDue(_) => Topic::GenerationSubmitDelay,
            Self::PollDue(_) => Topic::GenerationPollDelay,
            Self::CallbackReceived(_) => Topic::GenerationCallback,
            Self::FetchRequested(_) => Topic::AssetFetch,
            Self::FetchDue(_) => Topic::AssetFetchDelay,
            Self::PostprocessRequested(_) => Topic::AssetPostprocess,
            Self::PostprocessDue(_) => Topic::AssetPostprocessDelay,
            Self::RenderRequested(_) => Topic::RenderExport,
            Self::RenderDue(_) => Topic::RenderExportDelay,
            Self::SettleRequested(_) => Topic::BillingSettle,
            Self::StateChanged(_) => Topic::NotificationEvent,
            Self::ReconcileDue(_) => Topic::CompensationReconcileDelay,
        }
    }

    /// The broker tag: the last word but one of the event type, for filters and for people reading a console.
    #[must_use]
    pub const fn tag(&self) -> &'static str {
        match self {
            Self::SubmitRequested(_) | Self::SubmitDue(_) => "SUBMIT",
            Self::PollDue(_) => "POLL",
            Self::CallbackReceived(_) => "CALLBACK",
            Self::FetchRequested(_) | Self::FetchDue(_) => "FETCH",
            Self::PostprocessRequested(_) | Self::PostprocessDue(_) => "PROBE_THUMBNAIL",
            Self::RenderRequested(_) | Self::RenderDue(_) => "RENDER",
            Self::SettleRequested(_) => "SETTLE",
            Self::StateChanged(_) => "STATE",
            Self::ReconcileDue(_) => "RECONCILE",
        }
    }

    /// The task it is about.
    #[must_use]
    pub const fn task_id(&self) -> TaskId {
        match self.about() {
            About::Task(it) => it.task_id,
            About::Attempt(it) => it.task_id,
            About::Callback(it) => it.task_id,
        }
    }

    /// The attempt it is about, where it is about one.
    #[must_use]
    pub const fn attempt_id(&self) -> Option<AttemptId> {
        match self.about() {
            About::Task(_) => None,
            About::Attempt(it) => Some(it.attempt_id),
            About::Callback(it) => Some(it.attempt_id),
        }
    }

    const fn about(&self) -> About<'_> {
        match self {
            Self::SubmitRequested(it)
            | Self::SubmitDue(it)
            | Self::PostprocessDue(it)
            | Self::RenderRequested(it)
            | Self::RenderDue(it)
            | Self::SettleRequested(it)
            | Self::StateChanged(it) => About::Task(it),
            Self::PollDue(it)
            | Self::FetchRequested(it)
            | Self::FetchDue(it)
            | Self::PostprocessRequested(it)
            | Self::ReconcileDue(it) => About::Attempt(it),
            Self::CallbackReceived(it) => About::Callback(it),
        }
    }

    /// The payload as JSON.
    ///
    /// # Errors
    /// Never in practice; serde's own error type, because ids and integers always encode.
    pub fn payload(&self) -> Result<serde_json::Value, serde_json::Error> {
        match self.about() {
            About::Task(it) => serde_json::to_value(it),
            About::Attempt(it) => serde_json::to_value(it),
            About::Callback(it) => serde_json::to_value(it),
        }
    }

    /// The JSON Schema of its payload.
    #[cfg(feature = "schema")]
    pub(crate) fn payload_schema(&self) -> schemars::Schema {
        match self.about() {
            About::Task(_) => crate::schema::of::<TaskRef>(),
            About::Attempt(_) => crate::schema::of::<AttemptRef>(),
            About::Callback(_) => crate::schema::of::<CallbackRef>(),
        }
    }

    /// Reads the message inside an envelope.
    ///
    /// # Errors
    /// [`BadMessage`]: an unknown type, a version this build does not read, or a payload of another shape.
    pub fn read(envelope: &Envelope) -> Result<Self, BadMessage> {
        if envelope.schema_version != 1 {
            return Err(BadMessage::UnsupportedVersion {
                event_type: envelope.event_type.clone(),
                version: envelope.schema_version,
            });
        }
        let task = || TaskRef::deserialize(&envelope.payload).map_err(malformed);
        let attempt = || AttemptRef::deserialize(&envelope.payload).map_err(malformed);
        Ok(match envelope.event_type.as_str() {
            "generation.submit.requested" => Self::SubmitRequested(task()?),
            "generation.submit.due" => Self::SubmitDue(task()?),
            "generation.poll.due" => Self::PollDue(attempt()?),
            "provider.callback.received" => {
                Self::CallbackReceived(CallbackRef::deserialize(&envelope.payload).map_err(malformed)?)
            }
            "asset.fetch.requested" => Self::FetchRequested(attempt()?),
            "asset.fetch.due" => Self::FetchDue(attempt()?),
            "asset.postprocess.requested" => Self::PostprocessRequested(attempt()?),
            "asset.postprocess.due" => Self::PostprocessDue(task()?),
            "render.export.requested" => Self::RenderRequested(task()?),
            "render.export.due" => Self::RenderDue(task()?),
            "billing.settle.requested" => Self::SettleRequested(task()?),
            "task.state.changed" => Self::StateChanged(task()?),
            "task.reconcile.due" => Self::ReconcileDue(attempt()?),
            other => return Err(BadMessage::UnknownType(other.to_owned())),
        })
    }
}

// Not a `map_err` closure at each call: one place decides that the payload's content stays out of the text.
fn malformed(error: serde_json::Error) -> BadMessage {
    BadMessage::Malformed(format!("payload: {:?} error", error.classify()))
}
