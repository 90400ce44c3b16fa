//! The states of a task. A variant carries only what is true in that state.

use super::ErrorClass;
use super::order::{Export, Live, Maker, Order};
use crate::aggregate::named;
use crate::id::AssetId;
use crate::money::Credits;
use crate::outcome::{Probe, StoredObject};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The stored video of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Video {
    /// Its asset id.
    pub asset: AssetId,
    /// Its object.
    pub object: StoredObject,
}

/// How work on media that is done here is getting on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tries {
    /// Since when there is this work to do.
    pub since: Timestamp,
    /// Begun in a row without any answer: an input that kills the worker shows here and nowhere else.
    pub unanswered: u32,
    /// How often it was put off.
    pub delays: u32,
    /// Put off: not before this time.
    pub not_before: Timestamp,
    /// When the lease of the newest try ends, while that try has no answer. Until then a worker is taken to be at work.
    pub busy_until: Option<Timestamp>,
}

impl Tries {
    pub(super) const fn none(since: Timestamp, not_before: Timestamp) -> Self {
        Self { since, unanswered: 0, delays: 0, not_before, busy_until: None }
    }

    pub(super) const fn put_off(self, not_before: Timestamp) -> Self {
        Self { unanswered: 0, delays: self.delays + 1, not_before, busy_until: None, ..self }
    }

    pub(super) const fn begun(self, unanswered: u32, busy_until: Timestamp) -> Self {
        Self { unanswered, busy_until: Some(busy_until), ..self }
    }

    /// When the next try may begin: neither sooner than it was put off to, nor beside one that may still be at work.
    #[must_use]
    pub fn due(&self) -> Timestamp {
        self.busy_until.map_or(self.not_before, |lease| lease.max(self.not_before))
    }
}

/// A task, as far as its history goes. As JSON it is for people and for snapshots: see [`crate::snapshot`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Task {
    /// Nothing happened yet.
    Absent,
    /// Accepted from the user; nobody has been asked yet.
    Queued(#[serde(with = "under_order")] Order),
    /// An attempt is being submitted.
    Submitting(Live),
    /// The provider could not take it, or an attempt failed: another try at `retry_at`.
    WaitingRetry {
        /// The task.
        #[serde(flatten)]
        live: Live,
        /// Number of the attempt that is submitted next: the current one, or the one after it where the current one is over.
        next_attempt: u32,
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
        #[serde(flatten)]
        live: Live,
        /// How often the fetch was put off.
        delays: u32,
        /// Not before this time.
        not_before: Timestamp,
    },
    /// An export is being rendered here. It has no attempt: no provider is asked.
    Rendering {
        /// The export.
        #[serde(flatten)]
        export: Export,
        /// How it is getting on.
        tries: Tries,
    },
    /// The video is stored and is being probed.
    MediaProcessing {
        /// Who made it.
        #[serde(flatten)]
        maker: Maker,
        /// The stored video.
        video: Video,
        /// How it is getting on.
        tries: Tries,
    },
    /// The video can be played; its thumbnail is still to come (chapter 7.14.3).
    PartiallyReady {
        /// Who made it.
        #[serde(flatten)]
        maker: Maker,
        /// The stored video.
        video: Video,
        /// What the probe said.
        probe: Probe,
        /// What the task costs.
        charge: Credits,
        /// How the thumbnail is getting on.
        tries: Tries,
    },
    /// The outcome is beyond what the machine may decide; a person has been asked. The hold stays.
    ManualReview {
        /// The task.
        #[serde(flatten)]
        live: Live,
        /// Whether the user wants it cancelled.
        canceling: bool,
    },
    /// End: the video is ready.
    Succeeded {
        /// Who made it.
        #[serde(flatten)]
        maker: Maker,
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
    Canceled(#[serde(with = "under_order")] Order),
    /// End: cancelled, though the provider had finished; the output was not delivered.
    CanceledWithOutput(#[serde(with = "under_order")] Order),
}

/// In every state the order is found in the same place, so that two states can be compared.
mod under_order {
    use super::Order;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize)]
    struct Written<'a> {
        order: &'a Order,
    }

    #[derive(Deserialize)]
    struct Read {
        order: Order,
    }

    pub(super) fn serialize<S: Serializer>(order: &Order, to: S) -> Result<S::Ok, S::Error> {
        Written { order }.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Order, D::Error> {
        Read::deserialize(from).map(|it| it.order)
    }
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
        /// See [`Task::Rendering`].
        Rendering = "RENDERING",
        /// See [`Task::MediaProcessing`].
        MediaProcessing = "MEDIA_PROCESSING",
        /// See [`Task::PartiallyReady`].
        PartiallyReady = "PARTIALLY_READY",
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
    /// Whether people are told that a task came into this state. Not that it waits to be submitted or is being submitted: who
    /// asked for it a moment ago knows, and each telling is a message. Whoever watches a task sees every step all the same.
    #[must_use]
    pub const fn is_news(self) -> bool {
        !matches!(self, Self::Absent | Self::Queued | Self::Submitting)
    }

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
            Self::Rendering { .. } => State::Rendering,
            Self::MediaProcessing { .. } => State::MediaProcessing,
            Self::PartiallyReady { .. } => State::PartiallyReady,
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
            | Self::ManualReview { live, .. } => Some(&live.order),
            Self::Rendering { export, .. } => Some(&export.order),
            Self::MediaProcessing { maker, .. }
            | Self::PartiallyReady { maker, .. }
            | Self::Succeeded { maker, .. } => Some(maker.order()),
        }
    }

    /// The attempt that the work is at, while it is at one. Exports never are.
    #[must_use]
    pub const fn live(&self) -> Option<&Live> {
        match self {
            Self::Submitting(live)
            | Self::WaitingRetry { live, .. }
            | Self::ProviderRunning(live)
            | Self::Reconciling(live)
            | Self::CancelReconciling(live)
            | Self::Fetching { live, .. }
            | Self::ManualReview { live, .. } => Some(live),
            Self::MediaProcessing { maker, .. }
            | Self::PartiallyReady { maker, .. }
            | Self::Succeeded { maker, .. } => maker.live(),
            Self::Absent
            | Self::Queued(_)
            | Self::Rendering { .. }
            | Self::Failed { .. }
            | Self::Canceled(_)
            | Self::CanceledWithOutput(_) => None,
        }
    }

    /// How work on media that is done here is getting on, while there is some.
    #[must_use]
    pub const fn tries(&self) -> Option<&Tries> {
        match self {
            Self::Rendering { tries, .. }
            | Self::MediaProcessing { tries, .. }
            | Self::PartiallyReady { tries, .. } => Some(tries),
            _ => None,
        }
    }
}
