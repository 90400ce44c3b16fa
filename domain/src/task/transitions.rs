//! The legal transitions of a task: the one table that the code, the tests and the diagrams read.

use super::{Command, State};
use crate::aggregate::{Row, named, row};

named! {
    /// The kinds of command, for the transition table.
    On {
        /// See [`super::Command::Submit`].
        Submit = "Submit",
        /// See [`super::Command::BeginSubmission`].
        BeginSubmission = "BeginSubmission",
        /// See [`super::Command::Accept`].
        Accept = "Accept",
        /// See [`super::Command::Defer`].
        Defer = "Defer",
        /// See [`super::Command::LoseTrack`].
        LoseTrack = "LoseTrack",
        /// See [`super::Command::BeginFetch`].
        BeginFetch = "BeginFetch",
        /// See [`super::Command::DelayFetch`].
        DelayFetch = "DelayFetch",
        /// See [`super::Command::StoreVideo`].
        StoreVideo = "StoreVideo",
        /// See [`super::Command::Finish`].
        Finish = "Finish",
        /// See [`super::Command::Fail`].
        Fail = "Fail",
        /// See [`super::Command::Cancel`].
        Cancel = "Cancel",
        /// See [`super::Command::ConfirmCancel`].
        ConfirmCancel = "ConfirmCancel",
        /// See [`super::Command::DiscardOutput`].
        DiscardOutput = "DiscardOutput",
        /// See [`super::Command::AskPerson`].
        AskPerson = "AskPerson",
    }
}

impl Command {
    /// The kind of this command.
    #[must_use]
    pub const fn on(&self) -> On {
        match self {
            Self::Submit(_) => On::Submit,
            Self::BeginSubmission { .. } => On::BeginSubmission,
            Self::Accept => On::Accept,
            Self::Defer { .. } => On::Defer,
            Self::LoseTrack => On::LoseTrack,
            Self::BeginFetch => On::BeginFetch,
            Self::DelayFetch { .. } => On::DelayFetch,
            Self::StoreVideo(_) => On::StoreVideo,
            Self::Finish { .. } => On::Finish,
            Self::Fail { .. } => On::Fail,
            Self::Cancel { .. } => On::Cancel,
            Self::ConfirmCancel => On::ConfirmCancel,
            Self::DiscardOutput => On::DiscardOutput,
            Self::AskPerson { .. } => On::AskPerson,
        }
    }
}

/// Every legal transition. A pair of state and command without a row is refused for every input.
pub const TRANSITIONS: &[Row<State, On>] = &[
    row(State::Absent, On::Submit, State::Queued, ""),
    row(State::Queued, On::BeginSubmission, State::Submitting, "it is attempt 1"),
    row(State::WaitingRetry, On::BeginSubmission, State::Submitting, "the retry is due"),
    row(State::Submitting, On::Accept, State::ProviderRunning, ""),
    row(State::Reconciling, On::Accept, State::ProviderRunning, "found at the provider"),
    row(State::WaitingRetry, On::Accept, State::ProviderRunning, "it had been created after all"),
    row(State::ManualReview, On::Accept, State::ProviderRunning, "found at the provider after all"),
    row(State::ManualReview, On::Accept, State::CancelReconciling, "found after all, and to be cancelled"),
    row(State::Submitting, On::Defer, State::WaitingRetry, "nothing was created"),
    row(State::Reconciling, On::Defer, State::WaitingRetry, "known absent at the provider"),
    row(State::Submitting, On::LoseTrack, State::Reconciling, ""),
    row(State::ProviderRunning, On::BeginFetch, State::Fetching, ""),
    row(State::CancelReconciling, On::BeginFetch, State::Fetching, "the product rule keeps the output"),
    row(State::Fetching, On::DelayFetch, State::Fetching, ""),
    row(State::Fetching, On::StoreVideo, State::MediaProcessing, ""),
    row(State::MediaProcessing, On::Finish, State::Succeeded, "the charge is within the hold"),
    row(State::Queued, On::Fail, State::Failed, ""),
    row(State::Submitting, On::Fail, State::Failed, "the provider said no"),
    row(State::WaitingRetry, On::Fail, State::Failed, ""),
    row(State::ProviderRunning, On::Fail, State::Failed, ""),
    row(State::Fetching, On::Fail, State::Failed, ""),
    row(State::MediaProcessing, On::Fail, State::Failed, ""),
    row(State::ManualReview, On::Fail, State::Failed, "a person decided"),
    row(State::Queued, On::Cancel, State::Canceled, "nobody was asked yet"),
    row(State::WaitingRetry, On::Cancel, State::Canceled, "nobody has it"),
    row(State::Submitting, On::Cancel, State::CancelReconciling, ""),
    row(State::ProviderRunning, On::Cancel, State::CancelReconciling, ""),
    row(State::Reconciling, On::Cancel, State::CancelReconciling, ""),
    row(State::CancelReconciling, On::ConfirmCancel, State::Canceled, ""),
    row(State::CancelReconciling, On::DiscardOutput, State::CanceledWithOutput, "the product rule drops the output"),
    row(State::Reconciling, On::AskPerson, State::ManualReview, ""),
    row(State::CancelReconciling, On::AskPerson, State::ManualReview, ""),
];
