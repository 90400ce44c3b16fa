//! What may be asked of an attempt, and the one table of legal transitions.

use super::{Heard, State};
use crate::aggregate::{Row, named, row};
use crate::id::TaskId;
use crate::task::ErrorClass;
use crate::time::Timestamp;

/// A command. Times come in with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Decide to make this attempt.
    Plan {
        /// The task.
        task: TaskId,
        /// Number among the task's attempts.
        number: u32,
        /// The provider.
        provider: String,
    },
    /// A request is about to leave.
    BeginSubmission {
        /// When the answer counts as lost.
        give_up_at: Timestamp,
    },
    /// The provider has the job.
    Accept {
        /// The provider's job id.
        job: String,
        /// How that became known.
        how: Heard,
        /// When to ask how it is doing.
        next_poll_at: Timestamp,
        /// When to stop waiting.
        give_up_at: Timestamp,
    },
    /// Nothing was created.
    Defer {
        /// A stable word.
        reason: String,
        /// The round that this is the answer to: an answer to an older one says nothing about this one.
        round: u32,
    },
    /// The answer was lost.
    LoseAnswer {
        /// The round whose answer was lost.
        round: u32,
        /// When to look the job up.
        next_lookup_at: Timestamp,
        /// A short cause.
        cause: String,
    },
    /// A look-up did not settle it.
    NoteLookup {
        /// Whether it was conclusive that no job exists.
        absent: bool,
        /// When to look again.
        next_lookup_at: Timestamp,
        /// What it said.
        finding: String,
    },
    /// The provider was asked, and is not done.
    NotePoll {
        /// Done so far.
        percent: Option<u8>,
        /// When to ask again.
        next_poll_at: Timestamp,
        /// What it said, in a word.
        finding: String,
    },
    /// The provider has finished.
    Succeed {
        /// What it used.
        usage_millis: Option<u64>,
    },
    /// The provider refused, or the job failed.
    Fail {
        /// The round that this is the answer to; `None` for a job that failed later.
        round: Option<u32>,
        /// Why.
        class: ErrorClass,
        /// The provider's code.
        code: String,
        /// A sentence.
        message: String,
    },
    /// Cancelled, or certain never to have left.
    ConfirmCancel,
    /// Nobody waits for it any more.
    GiveUp {
        /// Why.
        reason: String,
    },
    /// A job that carries this attempt's reference turned up beside the one it works with, or after the end.
    RecordOrphan {
        /// The provider's job id.
        job: String,
    },
}

named! {
    /// The kinds of command.
    On {
        /// See [`Command::Plan`].
        Plan = "Plan",
        /// See [`Command::BeginSubmission`].
        BeginSubmission = "BeginSubmission",
        /// See [`Command::Accept`].
        Accept = "Accept",
        /// See [`Command::Defer`].
        Defer = "Defer",
        /// See [`Command::LoseAnswer`].
        LoseAnswer = "LoseAnswer",
        /// See [`Command::NoteLookup`].
        NoteLookup = "NoteLookup",
        /// See [`Command::NotePoll`].
        NotePoll = "NotePoll",
        /// See [`Command::Succeed`].
        Succeed = "Succeed",
        /// See [`Command::Fail`].
        Fail = "Fail",
        /// See [`Command::ConfirmCancel`].
        ConfirmCancel = "ConfirmCancel",
        /// See [`Command::GiveUp`].
        GiveUp = "GiveUp",
        /// See [`Command::RecordOrphan`].
        RecordOrphan = "RecordOrphan",
    }
}

impl Command {
    /// The kind of this command.
    #[must_use]
    pub const fn on(&self) -> On {
        match self {
            Self::Plan { .. } => On::Plan,
            Self::BeginSubmission { .. } => On::BeginSubmission,
            Self::Accept { .. } => On::Accept,
            Self::Defer { .. } => On::Defer,
            Self::LoseAnswer { .. } => On::LoseAnswer,
            Self::NoteLookup { .. } => On::NoteLookup,
            Self::NotePoll { .. } => On::NotePoll,
            Self::Succeed { .. } => On::Succeed,
            Self::Fail { .. } => On::Fail,
            Self::ConfirmCancel => On::ConfirmCancel,
            Self::GiveUp { .. } => On::GiveUp,
            Self::RecordOrphan { .. } => On::RecordOrphan,
        }
    }
}

/// Every legal transition.
pub const TRANSITIONS: &[Row<State, On>] = &[
    row(State::Absent, On::Plan, State::Planned, ""),
    row(State::Planned, On::BeginSubmission, State::Submitting, "the deadline is ahead"),
    row(State::Submitting, On::Accept, State::Running, ""),
    row(State::Unclear, On::Accept, State::Running, "found at the provider, it called back, or a person says so"),
    row(State::Planned, On::Accept, State::Running, "it had been submitted, and was taken for not created"),
    row(State::Submitting, On::Defer, State::Planned, "nothing was created, in this round"),
    row(State::Unclear, On::Defer, State::Planned, "known absent at the provider, in this round"),
    row(State::Submitting, On::LoseAnswer, State::Unclear, "in this round"),
    row(State::Unclear, On::NoteLookup, State::Unclear, ""),
    row(State::Running, On::NotePoll, State::Running, ""),
    row(State::Running, On::Succeed, State::Succeeded, ""),
    row(State::Submitting, On::Fail, State::Failed, "the provider said no, in this round"),
    row(State::Unclear, On::Fail, State::Failed, "the provider's no arrived late, in this round"),
    row(State::Running, On::Fail, State::Failed, ""),
    row(State::Planned, On::ConfirmCancel, State::Canceled, "it never left"),
    row(State::Running, On::ConfirmCancel, State::Canceled, ""),
    row(State::Running, On::GiveUp, State::GivenUp, ""),
    row(State::Unclear, On::GiveUp, State::GivenUp, "a person decided"),
    row(State::Planned, On::GiveUp, State::GivenUp, "a limit was reached before it left"),
    row(State::Running, On::RecordOrphan, State::Running, "another job carries the same reference"),
    row(State::Succeeded, On::RecordOrphan, State::Succeeded, "another job carries the same reference"),
    row(State::Failed, On::RecordOrphan, State::Failed, ""),
    row(State::Canceled, On::RecordOrphan, State::Canceled, ""),
    row(State::GivenUp, On::RecordOrphan, State::GivenUp, ""),
];
