//! `read_attempts`: one row an attempt; and when its task goes on, which the current attempt's events say.

use super::{At, Fault, integer, one};
use crate::error::FoldCause;
use domain::attempt::{Event, State};
use domain::time::Timestamp;
use sqlx::PgConnection;
use uuid::Uuid;

/// The end states of a task: nothing wakes it any more, late news of an attempt included.
const ENDED: [&str; 4] = {
    use domain::task::State;
    [State::Succeeded.name(), State::Failed.name(), State::Canceled.name(), State::CanceledWithOutput.name()]
};

/// What an event changes in an attempt's row; what it does not name stays.
#[derive(Default)]
struct Change<'a> {
    state: Option<State>,
    wake_at: Option<Timestamp>,
    round: Option<u32>,
    job: Option<&'a str>,
    percent: Option<u8>,
    polls: i32,
    orphan: Option<&'a str>,
    error: Option<(Option<&'static str>, &'a str, &'a str)>,
    /// A submission leaves now.
    starts: bool,
    /// It is now known what came of the submission.
    ends: bool,
}

/// The attempt's task.
pub(super) async fn fold(connection: &mut PgConnection, at: At, event: &Event) -> Result<Option<Uuid>, Fault> {
    if let Event::Planned { task, number, provider } = event {
        insert(connection, at, task.0, *number, provider).await?;
        return Ok(Some(task.0));
    }
    let change = change(event);
    let (task, number) = update(connection, at, &change).await?;
    if let Some(wake_at) = change.wake_at {
        wake_task(connection, task, number, wake_at).await?;
    }
    Ok(Some(task))
}

fn change(event: &Event) -> Change<'_> {
    let to = |state| Change { state: Some(state), ..Change::default() };
    match event {
        Event::Planned { .. } => to(State::Planned),
        Event::SubmissionBegun { round, give_up_at } => {
            Change { round: Some(*round), wake_at: Some(*give_up_at), starts: true, ..to(State::Submitting) }
        }
        Event::Accepted { job, next_poll_at, .. } => {
            Change { job: Some(job), wake_at: Some(*next_poll_at), ends: true, ..to(State::Running) }
        }
        Event::Deferred { .. } => Change { ends: true, ..to(State::Planned) },
        Event::AnswerLost { next_lookup_at, .. } | Event::LookedUp { next_lookup_at, .. } => {
            Change { wake_at: Some(*next_lookup_at), ..to(State::Unclear) }
        }
        Event::Polled { percent, next_poll_at, .. } => {
            Change { percent: *percent, polls: 1, wake_at: Some(*next_poll_at), ..to(State::Running) }
        }
        Event::Succeeded { .. } => to(State::Succeeded),
        Event::Failed { class, code, message } => {
            Change { error: Some((Some(class.name()), code, message)), ends: true, ..to(State::Failed) }
        }
        Event::Canceled {} => to(State::Canceled),
        Event::GivenUp { reason } => Change { error: Some((None, "given_up", reason)), ..to(State::GivenUp) },
        Event::OrphanRecorded { job } => Change { orphan: Some(job), ..Change::default() },
    }
}

async fn insert(connection: &mut PgConnection, at: At, task: Uuid, number: u32, provider: &str) -> Result<(), Fault> {
    if at.version != 1 {
        return Err(FoldCause::OutOfOrder.into());
    }
    sqlx::query(
        "/* fold.attempt_planned */
         INSERT INTO read_attempts (attempt_id, task_id, tenant_id, version, number, provider, state, created_at, updated_at,
                                    position)
         VALUES ($1, $2, $3, 1, $4, $5, $6, $7, $7, $8)",
    )
    .bind(at.stream)
    .bind(task)
    .bind(at.tenant)
    .bind(integer(number))
    .bind(provider)
    .bind(State::Planned.name())
    .bind(at.recorded_at)
    .bind(at.position)
    .execute(connection)
    .await?;
    Ok(())
}

/// The attempt's task and number.
async fn update(connection: &mut PgConnection, at: At, change: &Change<'_>) -> Result<(Uuid, i32), Fault> {
    let (class, code, message) = match change.error {
        Some((class, code, message)) => (class, Some(code), Some(message)),
        None => (None, None, None),
    };
    let updated: Option<(Uuid, i32)> = sqlx::query_as(
        "/* fold.attempt_changed */
         UPDATE read_attempts
            SET version = $2, state = coalesce($3, state), wake_at = CASE WHEN $3 IS NULL THEN wake_at ELSE $4 END,
                round = coalesce($5, round), provider_job_id = coalesce($6, provider_job_id),
                -- Progress never goes back, whatever a provider says.
                percent = greatest(percent, $7), polls = polls + $8,
                orphans = CASE WHEN $9::text IS NULL THEN orphans ELSE orphans || $9 END,
                error_class = coalesce($10, error_class), error_code = coalesce($11, error_code),
                error_message = coalesce($12, error_message),
                submit_started_at = CASE WHEN $13 THEN $15 ELSE submit_started_at END,
                submit_finished_at = CASE WHEN $13 THEN NULL WHEN $14 THEN coalesce(submit_finished_at, $15)
                                          ELSE submit_finished_at END,
                updated_at = $15, position = $16
          WHERE attempt_id = $1 AND version = $2 - 1
         RETURNING task_id, number",
    )
    .bind(at.stream)
    .bind(at.version)
    .bind(change.state.map(State::name))
    .bind(change.wake_at)
    .bind(change.round.map(integer))
    .bind(change.job)
    .bind(change.percent.map(i32::from))
    .bind(change.polls)
    .bind(change.orphan)
    .bind(class)
    .bind(code)
    .bind(message)
    .bind(change.starts)
    .bind(change.ends)
    .bind(at.recorded_at)
    .bind(at.position)
    .fetch_optional(connection)
    .await?;
    updated.ok_or_else(|| FoldCause::OutOfOrder.into())
}

async fn wake_task(connection: &mut PgConnection, task: Uuid, number: i32, wake_at: Timestamp) -> Result<(), Fault> {
    let updated = sqlx::query(
        "/* fold.wake_task */
         UPDATE read_tasks
            SET wake_at = CASE WHEN attempt_no = $2 AND state <> ALL ($4) THEN $3 ELSE wake_at END
          WHERE task_id = $1",
    )
    .bind(task)
    .bind(number)
    .bind(wake_at)
    .bind(ENDED.as_slice())
    .execute(connection)
    .await?;
    one(updated.rows_affected(), FoldCause::Dangling("task"))
}
