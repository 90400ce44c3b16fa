//! `read_tasks`: one row a task.

use super::{At, Fault, integer, one};
use crate::error::FoldCause;
use domain::task::{Event, Order, State};
use domain::time::{Timestamp, seconds};
use sqlx::PgConnection;

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

pub(super) async fn fold(connection: &mut PgConnection, at: At, event: &Event) -> Result<(), Fault> {
    let change = change(event, at.recorded_at);
    match event {
        Event::Submitted { order } => insert(connection, at, order, &change).await,
        _ => update(connection, at, &change).await,
    }
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

async fn insert(connection: &mut PgConnection, at: At, order: &Order, change: &Change<'_>) -> Result<(), Fault> {
    if at.version != 1 {
        return Err(FoldCause::OutOfOrder.into());
    }
    sqlx::query(
        "/* fold.task_submitted */
         INSERT INTO read_tasks (task_id, tenant_id, version, state, provider, model, duration_seconds, input_assets, hold,
                                 wake_at, created_at, updated_at, position)
         VALUES ($1, $2, 1, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
    )
    .bind(at.stream)
    .bind(order.tenant.0)
    .bind(change.state.map(State::name))
    .bind(&order.provider)
    .bind(&order.model)
    .bind(integer(order.duration_seconds))
    .bind(order.input_assets.iter().map(|asset| asset.0).collect::<Vec<_>>())
    .bind(order.hold.0)
    .bind(change.wake.instant())
    .bind(order.submitted_at)
    .bind(at.recorded_at)
    .bind(at.position)
    .execute(connection)
    .await?;
    Ok(())
}

async fn update(connection: &mut PgConnection, at: At, change: &Change<'_>) -> Result<(), Fault> {
    let (class, code, message) = match change.error {
        Some((class, code, message)) => (Some(class), Some(code), Some(message)),
        None => (None, None, None),
    };
    let updated = sqlx::query(
        "/* fold.task_changed */
         UPDATE read_tasks
            SET version = $2,
                state = CASE WHEN $3::text IS NULL OR stays THEN read_tasks.state
                             WHEN canceled_by IS NULL THEN $3 ELSE coalesce($16, $3) END,
                wake_at = CASE WHEN $4 OR stays THEN wake_at ELSE $5 END,
                attempt_no = coalesce($6, attempt_no), charge = coalesce($7, charge),
                error_class = coalesce($8, error_class), error_code = coalesce($9, error_code),
                error_message = coalesce($10, error_message),
                review_reason = CASE WHEN stays THEN review_reason ELSE $11 END,
                canceled_by = coalesce($12, canceled_by), updated_at = $13,
                finished_at = CASE WHEN $14 THEN $13 ELSE finished_at END, position = $15
           FROM (SELECT $17 AND state = $18 AS stays FROM read_tasks WHERE task_id = $1) review
          WHERE task_id = $1 AND version = $2 - 1",
    )
    .bind(at.stream)
    .bind(at.version)
    .bind(change.state.map(State::name))
    .bind(change.wake == Wake::Keep)
    .bind(change.wake.instant())
    .bind(change.attempt_no.map(integer))
    .bind(change.charge)
    .bind(class)
    .bind(code)
    .bind(message)
    .bind(change.review_reason)
    .bind(change.canceled_by)
    .bind(at.recorded_at)
    .bind(change.state.is_some_and(State::is_terminal))
    .bind(at.position)
    .bind(change.if_canceled.map(State::name))
    .bind(change.not_in_review)
    .bind(State::ManualReview.name())
    .execute(connection)
    .await?;
    one(updated.rows_affected(), FoldCause::OutOfOrder)
}
