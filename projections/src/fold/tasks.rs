//! `read_tasks`: one row a task.

use super::rows::Rows;
use super::tables::TaskRow;
use super::{At, array, integer};
use crate::error::FoldCause;
use domain::task::{Event, Order, State};
use domain::time::{Timestamp, seconds};

// How long after an event a task that hears nothing counts as stalled. Where the event itself names a time, that counts.
const QUEUED_SECONDS: u64 = 30;
/// Exports wait for our own workers, minutes each, and a backlog is ordinary: were they woken as soon as generations, each of them
/// would get one repair message after the other while its own still waits in line, and the line would grow by them.
const QUEUED_EXPORT_SECONDS: u64 = 600;
const SUBMITTING_SECONDS: u64 = 60;
/// Longer than a fetch may take (`limits.transfer_seconds`, twice): one that runs well is not begun again beside itself.
const FETCHING_SECONDS: u64 = 300;
/// Before work on media has begun: how long its message may wait in line. Once it has begun, its lease says.
const PROCESSING_SECONDS: u64 = 600;
const CANCELING_SECONDS: u64 = 10;
const SETTLING_SECONDS: u64 = 30;

/// What an event does to `wake_at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wake {
    /// The attempt's own events say when it goes on.
    Keep,
    /// At this time at the latest.
    At(Timestamp),
    /// Not by itself.
    Never,
}

impl Wake {
    const fn instant(self) -> Option<Timestamp> {
        match self {
            Self::At(instant) => Some(instant),
            Self::Keep | Self::Never => None,
        }
    }
}

/// What an event changes in a task's row.
struct Change<'a> {
    /// The new state; `None`: it stays as it is.
    state: Option<State>,
    /// The state instead, where the user wants the task cancelled.
    if_canceled: Option<State>,
    wake: Wake,
    attempt_no: Option<u32>,
    charge: Option<i64>,
    error: Option<(&'static str, &'a str, &'a str)>,
    review_reason: Option<&'a str>,
    canceled_by: Option<&'a str>,
    /// A task in review stays there, and goes on waiting for the person.
    not_in_review: bool,
}

impl Change<'_> {
    const fn to(state: State, wake: Wake) -> Self {
        Self {
            state: Some(state),
            if_canceled: None,
            wake,
            attempt_no: None,
            charge: None,
            error: None,
            review_reason: None,
            canceled_by: None,
            not_in_review: false,
        }
    }

    const fn waking(wake: Wake) -> Self {
        Self { state: None, ..Self::to(State::Absent, wake) }
    }
}

pub(super) fn fold(rows: &mut Rows, at: At, event: &Event) -> Result<(), FoldCause> {
    let change = change(event, at.recorded_at);
    if let Event::Submitted { order } = event {
        return insert(rows, at, order, &change);
    }
    let row = rows.tasks.change(&at.stream).filter(|row| row.version == at.version - 1);
    update(row.ok_or(FoldCause::OutOfOrder)?, at, &change);
    Ok(())
}

fn change(event: &Event, recorded_at: Timestamp) -> Change<'_> {
    let after = |count| Wake::At(recorded_at + seconds(count));
    let ended = |state| Change::to(state, after(SETTLING_SECONDS));
    match event {
        Event::Submitted { order } => {
            let waits = if order.export().is_some() { QUEUED_EXPORT_SECONDS } else { QUEUED_SECONDS };
            Change::to(State::Queued, after(waits))
        }
        Event::SubmissionBegun { attempt_no } => {
            Change { attempt_no: Some(*attempt_no), ..Change::to(State::Submitting, after(SUBMITTING_SECONDS)) }
        }
        // After a review, a cancel that was asked for before it goes on.
        Event::Accepted {} => {
            Change { if_canceled: Some(State::CancelReconciling), ..Change::to(State::ProviderRunning, Wake::Keep) }
        }
        Event::Deferred { retry_at, .. }
        | Event::AttemptReplaced { retry_at, .. }
        | Event::RetryRequested { retry_at, .. } => Change::to(State::WaitingRetry, Wake::At(*retry_at)),
        Event::TrackLost {} => Change::to(State::Reconciling, Wake::Keep),
        Event::FetchBegun { at } => Change::to(State::Fetching, Wake::At(*at + seconds(FETCHING_SECONDS))),
        Event::FetchDelayed { retry_at, .. } => {
            Change::to(State::Fetching, Wake::At(*retry_at + seconds(FETCHING_SECONDS)))
        }
        Event::RenderBegun { .. } => Change::to(State::Rendering, after(PROCESSING_SECONDS)),
        Event::VideoStored { at, .. } => {
            Change::to(State::MediaProcessing, Wake::At(*at + seconds(PROCESSING_SECONDS)))
        }
        // Exactly when the worker's lease ends.
        Event::ProcessingBegun { busy_until, .. } => Change::waking(Wake::At(*busy_until)),
        Event::RenderDelayed { retry_at, .. } | Event::ProcessingDelayed { retry_at, .. } => {
            Change::waking(Wake::At(*retry_at))
        }
        Event::VideoReady { charge, retry_at, .. } => {
            Change { charge: Some(charge.0), ..Change::to(State::PartiallyReady, Wake::At(*retry_at)) }
        }
        Event::Succeeded { charge, .. } => Change { charge: Some(charge.0), ..ended(State::Succeeded) },
        Event::Failed { class, code, message } => {
            Change { error: Some((class.name(), code, message)), ..ended(State::Failed) }
        }
        Event::CancelRequested { by } => Change {
            canceled_by: Some(by),
            not_in_review: true,
            ..Change::to(State::CancelReconciling, after(CANCELING_SECONDS))
        },
        Event::Canceled { by } => {
            Change { canceled_by: Some(by.as_str()).filter(|by| !by.is_empty()), ..ended(State::Canceled) }
        }
        Event::CanceledWithOutput {} => ended(State::CanceledWithOutput),
        Event::ReviewRequested { reason } => {
            Change { review_reason: Some(reason), ..Change::to(State::ManualReview, Wake::Never) }
        }
    }
}

fn insert(rows: &mut Rows, at: At, order: &Order, change: &Change<'_>) -> Result<(), FoldCause> {
    if at.version != 1 {
        return Err(FoldCause::OutOfOrder);
    }
    if rows.tasks.get(&at.stream).is_some() {
        return Err(FoldCause::Repeated("read_tasks_pkey".to_owned()));
    }
    let row = TaskRow {
        task_id: at.stream,
        tenant_id: order.tenant.0,
        version: 1,
        state: State::Queued.name().to_owned(),
        provider: order.provider.clone(),
        model: order.model.clone(),
        duration_seconds: integer(order.duration_seconds),
        input_assets: array(order.input_assets.iter().map(|asset| asset.0.to_string())),
        hold: order.hold.0,
        charge: None,
        attempt_no: 0,
        error_class: None,
        error_code: None,
        error_message: None,
        review_reason: None,
        canceled_by: None,
        wake_at: change.wake.instant(),
        created_at: order.submitted_at,
        updated_at: at.recorded_at,
        finished_at: None,
        position: at.position,
    };
    rows.tasks.add(at.stream, row);
    Ok(())
}

fn update(row: &mut TaskRow, at: At, change: &Change<'_>) {
    let stays = change.not_in_review && row.state == State::ManualReview.name();
    if !stays {
        if let Some(state) = change.state {
            // Whether a cancel was asked for before this event.
            let instead = change.if_canceled.filter(|_| row.canceled_by.is_some());
            row.state = instead.unwrap_or(state).name().to_owned();
        }
        if change.wake != Wake::Keep {
            row.wake_at = change.wake.instant();
        }
        row.review_reason = change.review_reason.map(str::to_owned);
    }
    if let Some(number) = change.attempt_no {
        row.attempt_no = integer(number);
    }
    row.charge = change.charge.or(row.charge);
    if let Some((class, code, message)) = change.error {
        row.error_class = Some(class.to_owned());
        row.error_code = Some(code.to_owned());
        row.error_message = Some(message.to_owned());
    }
    if let Some(by) = change.canceled_by {
        row.canceled_by = Some(by.to_owned());
    }
    if change.state.is_some_and(State::is_terminal) {
        row.finished_at = Some(at.recorded_at);
    }
    row.version = at.version;
    row.updated_at = at.recorded_at;
    row.position = at.position;
}
