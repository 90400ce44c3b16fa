//! The states of a task. A variant carries only what is true in that state.

use super::ErrorClass;
use crate::aggregate::named;
use crate::id::{AccountId, AssetId, AttemptId, TaskId, TenantId};
use crate::money::Credits;
use crate::outcome::StoredObject;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// What was ordered: fixed when the task is submitted. The prompt is not here: it stays in the stored request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The task.
    pub task: TaskId,
    /// Its owner.
    pub tenant: TenantId,
    /// Who pays.
    pub account: AccountId,
    /// The provider that is to do it.
    pub provider: String,
    /// The model at the provider.
    pub model: String,
    /// Length asked for, in seconds.
    pub duration_seconds: u32,
    /// Uploaded input images.
    pub input_assets: Vec<AssetId>,
    /// Where the full request is stored: `generation_request/{task}`.
    pub request_ref: String,
    /// Credits held while it runs: the most it can cost.
    pub hold: Credits,
    /// Credits for each started second of the finished video.
    pub price_per_second: Credits,
    /// When the user asked.
    pub submitted_at: Timestamp,
    /// When waiting for a provider to take it ends.
    pub give_up_at: Timestamp,
}

/// A task whose work is at an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// What was ordered.
    pub order: Order,
    /// Number of the current attempt, from 1.
    pub attempt_no: u32,
}

impl Live {
    /// The current attempt.
    #[must_use]
    pub fn attempt(&self) -> AttemptId {
        AttemptId::of(self.order.task, self.attempt_no)
    }
}

/// The stored video of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Video {
    /// Its asset id.
    pub asset: AssetId,
    /// Its object.
    pub object: StoredObject,
}

/// A task, as far as its history goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Nothing happened yet.
    Absent,
    /// Accepted from the user; nobody has been asked yet.
    Queued(Order),
    /// An attempt is being submitted.
    Submitting(Live),
    /// The provider could not take it: another try at `retry_at`.
    WaitingRetry {
        /// The task.
        live: Live,
        /// When to try again.
        retry_at: Timestamp,
    },
    /// A provider works on it.
    ProviderRunning(Live),
    /// The provider may or may not have it: being looked up, never submitted again meanwhile.
    Reconciling(Live),
    /// The user wants it cancelled; what the provider makes of it is being found out.
    CancelReconciling(Live),
    /// The provider has finished; the output is being fetched.
    Fetching {
        /// The task.
        live: Live,
        /// How often the fetch was put off.
        delays: u32,
        /// Not before this time.
        not_before: Timestamp,
    },
    /// The video is stored and is being probed.
    MediaProcessing {
        /// The task.
        live: Live,
        /// The stored video.
        video: Video,
        /// Since when.
        since: Timestamp,
    },
    /// The outcome is beyond what the machine may decide; a person has been asked. The hold stays.
    ManualReview {
        /// The task.
        live: Live,
        /// Whether the user wants it cancelled.
        canceling: bool,
    },
    /// End: the video is ready.
    Succeeded {
        /// The task.
        live: Live,
        /// What it costs.
        charge: Credits,
    },
    /// End: no video.
    Failed {
        /// What was ordered.
        order: Order,
        /// Why.
        class: ErrorClass,
    },
    /// End: cancelled before there was any output.
    Canceled(Order),
    /// End: cancelled, though the provider had finished; the output was not delivered.
    CanceledWithOutput(Order),
}

named! {
    /// The names of the states, as frontends see them (chapter 7.7 to 7.9).
    State {
        /// No history.
        Absent = "ABSENT",
        /// See [`Task::Queued`].
        Queued = "QUEUED",
        /// See [`Task::Submitting`].
        Submitting = "SUBMITTING",
        /// See [`Task::WaitingRetry`].
        WaitingRetry = "WAITING_RETRY",
        /// See [`Task::ProviderRunning`].
        ProviderRunning = "PROVIDER_RUNNING",
        /// See [`Task::Reconciling`].
        Reconciling = "RECONCILING",
        /// See [`Task::CancelReconciling`].
        CancelReconciling = "CANCEL_RECONCILING",
        /// See [`Task::Fetching`].
        Fetching = "FETCHING",
        /// See [`Task::MediaProcessing`].
        MediaProcessing = "MEDIA_PROCESSING",
        /// See [`Task::ManualReview`].
        ManualReview = "MANUAL_REVIEW",
        /// See [`Task::Succeeded`].
        Succeeded = "SUCCEEDED",
        /// See [`Task::Failed`].
        Failed = "FAILED",
        /// See [`Task::Canceled`].
        Canceled = "CANCELED",
        /// See [`Task::CanceledWithOutput`].
        CanceledWithOutput = "CANCELED_WITH_OUTPUT",
    }
}

impl State {
    /// Whether a task in this state stays in it for ever.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Canceled | Self::CanceledWithOutput)
    }
}

impl Task {
    /// The name of the state.
    #[must_use]
    pub const fn state(&self) -> State {
        match self {
            Self::Absent => State::Absent,
            Self::Queued(_) => State::Queued,
            Self::Submitting(_) => State::Submitting,
            Self::WaitingRetry { .. } => State::WaitingRetry,
            Self::ProviderRunning(_) => State::ProviderRunning,
            Self::Reconciling(_) => State::Reconciling,
            Self::CancelReconciling(_) => State::CancelReconciling,
            Self::Fetching { .. } => State::Fetching,
            Self::MediaProcessing { .. } => State::MediaProcessing,
            Self::ManualReview { .. } => State::ManualReview,
            Self::Succeeded { .. } => State::Succeeded,
            Self::Failed { .. } => State::Failed,
            Self::Canceled(_) => State::Canceled,
            Self::CanceledWithOutput(_) => State::CanceledWithOutput,
        }
    }

    /// What was ordered, once there is an order.
    #[must_use]
    pub const fn order(&self) -> Option<&Order> {
        match self {
            Self::Absent => None,
            Self::Queued(order)
            | Self::Failed { order, .. }
            | Self::Canceled(order)
            | Self::CanceledWithOutput(order) => Some(order),
            Self::Submitting(live)
            | Self::WaitingRetry { live, .. }
            | Self::ProviderRunning(live)
            | Self::Reconciling(live)
            | Self::CancelReconciling(live)
            | Self::Fetching { live, .. }
            | Self::MediaProcessing { live, .. }
            | Self::ManualReview { live, .. }
            | Self::Succeeded { live, .. } => Some(&live.order),
        }
    }

    /// The attempt that the work is at, while it is at one.
    #[must_use]
    pub const fn live(&self) -> Option<&Live> {
        match self {
            Self::Submitting(live)
            | Self::WaitingRetry { live, .. }
            | Self::ProviderRunning(live)
            | Self::Reconciling(live)
            | Self::CancelReconciling(live)
            | Self::Fetching { live, .. }
            | Self::MediaProcessing { live, .. }
            | Self::ManualReview { live, .. }
            | Self::Succeeded { live, .. } => Some(live),
            Self::Absent | Self::Queued(_) | Self::Failed { .. } | Self::Canceled(_) | Self::CanceledWithOutput(_) => {
                None
            }
        }
    }
}
