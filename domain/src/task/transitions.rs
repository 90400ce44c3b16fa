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
        /// See [`super::Command::Wait`].
        Wait = "Wait",
        /// See [`super::Command::Replace`].
        Replace = "Replace",
        /// See [`super::Command::LoseTrack`].
        LoseTrack = "LoseTrack",
        /// See [`super::Command::BeginFetch`].
        BeginFetch = "BeginFetch",
        /// See [`super::Command::DelayFetch`].
        DelayFetch = "DelayFetch",
        /// See [`super::Command::BeginRender`].
        BeginRender = "BeginRender",
        /// See [`super::Command::DelayRender`].
        DelayRender = "DelayRender",
        /// See [`super::Command::StoreVideo`].
        StoreVideo = "StoreVideo",
        /// See [`super::Command::BeginProcessing`].
        BeginProcessing = "BeginProcessing",
        /// See [`super::Command::DelayProcessing`].
        DelayProcessing = "DelayProcessing",
        /// See [`super::Command::FinishVideo`].
        FinishVideo = "FinishVideo",
        /// See [`super::Command::Finish`].
        Finish = "Finish",
        /// See [`super::Command::ForgoExtras`].
        ForgoExtras = "ForgoExtras",
        /// See [`super::Command::Fail`].
        Fail = "Fail",
        /// See [`super::Command::Cancel`].
        Cancel = "Cancel",
        /// See [`super::Command::Retry`].
        Retry = "Retry",
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
            Self::Wait { .. } => On::Wait,
            Self::Replace { .. } => On::Replace,
            Self::LoseTrack => On::LoseTrack,
            Self::BeginFetch => On::BeginFetch,
            Self::DelayFetch { .. } => On::DelayFetch,
            Self::BeginRender => On::BeginRender,
            Self::DelayRender { .. } => On::DelayRender,
            Self::StoreVideo(_) => On::StoreVideo,
            Self::BeginProcessing { .. } => On::BeginProcessing,
            Self::DelayProcessing { .. } => On::DelayProcessing,
            Self::FinishVideo { .. } => On::FinishVideo,
            Self::Finish { .. } => On::Finish,
            Self::ForgoExtras => On::ForgoExtras,
            Self::Fail { .. } => On::Fail,
            Self::Cancel { .. } => On::Cancel,
            Self::Retry { .. } => On::Retry,
            Self::ConfirmCancel => On::ConfirmCancel,
            Self::DiscardOutput => On::DiscardOutput,
            Self::AskPerson { .. } => On::AskPerson,
        }
    }
}

/// Every legal transition. A pair of state and command without a row is refused for every input.
pub const TRANSITIONS: &[Row<State, On>] = &[
    row(State::Absent, On::Submit, State::Queued, "an export can be rendered as it is asked for"),
    row(State::Queued, On::BeginSubmission, State::Submitting, "to generate, and it is attempt 1"),
    row(State::WaitingRetry, On::BeginSubmission, State::Submitting, "the retry is due, and it is the next attempt"),
    row(State::Submitting, On::Accept, State::ProviderRunning, ""),
    row(State::Reconciling, On::Accept, State::ProviderRunning, "found at the provider"),
    row(State::WaitingRetry, On::Accept, State::ProviderRunning, "it had been created after all"),
    row(State::ManualReview, On::Accept, State::ProviderRunning, "found at the provider after all"),
    row(State::ManualReview, On::Accept, State::CancelReconciling, "found after all, and to be cancelled"),
    row(State::Submitting, On::Defer, State::WaitingRetry, "nothing was created"),
    row(State::Reconciling, On::Defer, State::WaitingRetry, "known absent at the provider"),
    row(State::Queued, On::Wait, State::WaitingRetry, "to generate, and no slot is free"),
    row(State::WaitingRetry, On::Wait, State::WaitingRetry, "the retry is due, and no slot is free"),
    row(State::Submitting, On::Replace, State::WaitingRetry, "attempts are left"),
    row(State::Reconciling, On::Replace, State::WaitingRetry, "attempts are left"),
    row(State::ProviderRunning, On::Replace, State::WaitingRetry, "attempts are left"),
    row(State::Submitting, On::LoseTrack, State::Reconciling, ""),
    row(State::ProviderRunning, On::BeginFetch, State::Fetching, ""),
    row(State::CancelReconciling, On::BeginFetch, State::Fetching, "the product rule keeps the output"),
    row(State::Fetching, On::DelayFetch, State::Fetching, ""),
    row(State::Fetching, On::StoreVideo, State::MediaProcessing, ""),
    row(State::Queued, On::BeginRender, State::Rendering, "it is an export"),
    row(State::Rendering, On::BeginProcessing, State::Rendering, "tries are left, and no try's lease runs"),
    row(State::Rendering, On::DelayRender, State::Rendering, ""),
    row(State::Rendering, On::StoreVideo, State::MediaProcessing, ""),
    row(State::MediaProcessing, On::BeginProcessing, State::MediaProcessing, "tries are left, and no try's lease runs"),
    row(State::MediaProcessing, On::DelayProcessing, State::MediaProcessing, ""),
    row(State::MediaProcessing, On::FinishVideo, State::PartiallyReady, "the charge is within the hold"),
    row(State::MediaProcessing, On::Finish, State::Succeeded, "the charge is within the hold"),
    row(State::PartiallyReady, On::BeginProcessing, State::PartiallyReady, "tries are left, and no try's lease runs"),
    row(State::PartiallyReady, On::DelayProcessing, State::PartiallyReady, ""),
    row(State::PartiallyReady, On::Finish, State::Succeeded, "the charge is the one that is known"),
    row(State::PartiallyReady, On::ForgoExtras, State::Succeeded, "a limit was reached"),
    row(State::Submitting, On::Fail, State::Failed, "the provider said no"),
    row(State::WaitingRetry, On::Fail, State::Failed, ""),
    row(State::ProviderRunning, On::Fail, State::Failed, ""),
    row(State::Fetching, On::Fail, State::Failed, ""),
    row(State::Rendering, On::Fail, State::Failed, ""),
    row(State::MediaProcessing, On::Fail, State::Failed, ""),
    row(State::ManualReview, On::Fail, State::Failed, "a person decided"),
    row(State::Queued, On::Cancel, State::Canceled, "nobody was asked yet"),
    row(State::WaitingRetry, On::Cancel, State::Canceled, "nobody has it"),
    row(State::Rendering, On::Cancel, State::Canceled, "the render is ours"),
    row(State::Submitting, On::Cancel, State::CancelReconciling, ""),
    row(State::ProviderRunning, On::Cancel, State::CancelReconciling, ""),
    row(State::Reconciling, On::Cancel, State::CancelReconciling, ""),
    row(State::ManualReview, On::Cancel, State::ManualReview, "the person in charge sees it"),
    row(State::WaitingRetry, On::Retry, State::WaitingRetry, "it was not due yet"),
    row(
        State::ManualReview,
        On::Retry,
        State::WaitingRetry,
        "a person is certain that nothing runs; no cancel was asked for",
    ),
    row(State::CancelReconciling, On::ConfirmCancel, State::Canceled, ""),
    row(State::ManualReview, On::ConfirmCancel, State::Canceled, "a cancel was asked for"),
    row(State::CancelReconciling, On::DiscardOutput, State::CanceledWithOutput, "the product rule drops the output"),
    row(State::Reconciling, On::AskPerson, State::ManualReview, ""),
    row(State::ProviderRunning, On::AskPerson, State::ManualReview, "the provider says what nobody understands"),
    row(State::CancelReconciling, On::AskPerson, State::ManualReview, ""),
];
