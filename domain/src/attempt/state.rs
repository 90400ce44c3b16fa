//! The states of an attempt.

use crate::aggregate::named;
use crate::id::{AttemptId, TaskId};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// What is true of an attempt in every state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Core {
    /// The task it is for.
    pub task: TaskId,
    /// Its number among the task's attempts, from 1.
    pub number: u32,
    /// The provider.
    pub provider: String,
    /// How often its submission has been begun: the fencing token of the answers to a create call.
    pub round: u32,
    /// The job it works or worked with, once one is known: it stays known when the attempt is over.
    pub job: Option<String>,
    /// Whether the answer to one of its submissions was ever lost.
    pub unclear_once: bool,
    /// Jobs found at the provider that carry this attempt's reference but are not the one it works with.
    pub orphans: Vec<String>,
}

impl Core {
    /// Its id, which is also the client reference at the provider.
    #[must_use]
    pub fn id(&self) -> AttemptId {
        AttemptId::of(self.task, self.number)
    }
}

/// An attempt, as far as its history goes. As JSON it is for people and for snapshots: see [`crate::snapshot`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Attempt {
    /// Nothing happened yet.
    Absent,
    /// It is decided that this attempt will be submitted; no request has left.
    Planned(Core),
    /// A request may be on its way; its answer is awaited until `give_up_at`.
    Submitting {
        /// The attempt.
        core: Core,
        /// From then on the answer counts as lost: the end of the worker's lease.
        give_up_at: Timestamp,
    },
    /// The answer was lost (`SUBMIT_UNKNOWN`): only a look-up, a callback or a late answer leaves this state.
    #[serde(rename = "SUBMIT_UNKNOWN")]
    Unclear {
        /// The attempt.
        core: Core,
        /// Since when.
        since: Timestamp,
        /// Look-ups made.
        lookups: u32,
        /// Look-ups in a row that found nothing at the provider.
        absences: u32,
        /// When to look again.
        next_lookup_at: Timestamp,
    },
    /// The provider has the job.
    Running {
        /// The attempt.
        core: Core,
        /// The provider's job id.
        job: String,
        /// Times the provider was asked.
        polls: u32,
        /// When to ask again.
        next_poll_at: Timestamp,
        /// When to stop waiting.
        give_up_at: Timestamp,
        /// Done so far, 0 to 100, where the provider says.
        percent: Option<u8>,
    },
    /// The provider has finished the job.
    Succeeded {
        /// The attempt.
        core: Core,
        /// The provider's job id.
        job: String,
    },
    /// The provider refused it, or the job failed.
    Failed(Core),
    /// The job was cancelled, or never left.
    Canceled(Core),
    /// Nobody waits for it any more, though it may still run.
    GivenUp {
        /// The attempt.
        core: Core,
        /// The provider's job id, where there is a job.
        job: Option<String>,
    },
}

named! {
    /// The names of the states (chapter 7.7.2).
    State {
        /// No history.
        Absent = "ABSENT",
        /// See [`Attempt::Planned`].
        Planned = "PLANNED",
        /// See [`Attempt::Submitting`].
        Submitting = "SUBMITTING",
        /// See [`Attempt::Unclear`].
        Unclear = "SUBMIT_UNKNOWN",
        /// See [`Attempt::Running`].
        Running = "RUNNING",
        /// See [`Attempt::Succeeded`].
        Succeeded = "SUCCEEDED",
        /// See [`Attempt::Failed`].
        Failed = "FAILED",
        /// See [`Attempt::Canceled`].
        Canceled = "CANCELED",
        /// See [`Attempt::GivenUp`].
        GivenUp = "GIVEN_UP",
    }
}

impl Attempt {
    /// The name of the state.
    #[must_use]
    pub const fn state(&self) -> State {
        match self {
            Self::Absent => State::Absent,
            Self::Planned(_) => State::Planned,
            Self::Submitting { .. } => State::Submitting,
            Self::Unclear { .. } => State::Unclear,
            Self::Running { .. } => State::Running,
            Self::Succeeded { .. } => State::Succeeded,
            Self::Failed(_) => State::Failed,
            Self::Canceled(_) => State::Canceled,
            Self::GivenUp { .. } => State::GivenUp,
        }
    }

    /// What is true in every state but `Absent`.
    #[must_use]
    pub const fn core(&self) -> Option<&Core> {
        match self {
            Self::Absent => None,
            Self::Planned(core)
            | Self::Submitting { core, .. }
            | Self::Unclear { core, .. }
            | Self::Running { core, .. }
            | Self::Succeeded { core, .. }
            | Self::Failed(core)
            | Self::Canceled(core)
            | Self::GivenUp { core, .. } => Some(core),
        }
    }
}
