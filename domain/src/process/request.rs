//! What people ask for, in one transaction each. The API offers [`submit`], [`cancel`], [`retry`], [`export`], [`grant`] and
//! [`resolve_failed`]. The others are rules that nothing outside of tests and the simulation asks for yet: [`retry_now`],
//! [`resolve_adopt`], [`resolve_retry`] and [`resolve_canceled`].

use super::credits::hold_expires_at;
use super::turn::Turn;
use crate::aggregate::Refusal;
use crate::attempt::{self, Attempt, Heard};
use crate::ledger;
use crate::money::Credits;
use crate::mutant::{self, Mutant};
use crate::task::{self, ErrorClass, Order, Task, Work};
use crate::time::seconds;

/// Submits a task and sets its credits aside; both or neither.
///
/// # Errors
/// `insufficient_credits`, or the task exists with another order.
pub fn submit(turn: &mut Turn<'_>, order: Order) -> Result<(), Refusal> {
    let expires_at = Some(hold_expires_at(&order, turn.policy));
    turn.account(ledger::Command::Hold { task: order.task, amount: order.hold, expires_at })?;
    turn.task(task::Command::Submit(order))
}

/// Asks for a task to be cancelled.
///
/// # Errors
/// The provider has finished (`FETCHING` and later), or the task has ended otherwise.
pub fn cancel(turn: &mut Turn<'_>, by: String) -> Result<(), Refusal> {
    turn.task(task::Command::Cancel { by })?;
    if mutant::on(Mutant::CancelAtOnce) && matches!(turn.case.task.state, Task::CancelReconciling(_)) {
        return turn.task(task::Command::ConfirmCancel);
    }
    if matches!((&turn.case.task.state, &turn.case.attempt.state), (Task::Canceled(_), Attempt::Planned(_))) {
        turn.attempt(attempt::Command::ConfirmCancel)?;
    }
    Ok(())
}

/// Puts credits into an account.
///
/// # Errors
/// The amount is not more than nothing, or the account can not carry it.
pub fn grant(turn: &mut Turn<'_>, key: String, amount: Credits) -> Result<(), Refusal> {
    turn.account(ledger::Command::Grant { key, amount })
}

/// Orders an export of a finished video, and sets its credits aside; both or neither. An export is a task of its own: the task
/// that it is made from has ended, and stays as it is. The caller has checked that the source succeeded and belongs to the tenant;
/// the order carries the source's object key, so nothing of it has to be looked up later.
///
/// # Errors
/// `insufficient_credits`, `bad_export`, `not_an_export` for an order to generate, or the task exists with another order.
pub fn export(turn: &mut Turn<'_>, order: Order) -> Result<(), Refusal> {
    if order.work == Work::Generate {
        let state = turn.case.task.state.state().name();
        return Err(refusal(state, "Export", "not_an_export", "the order is to generate"));
    }
    submit(turn, order)
}

/// Tries a task again that ended without a video: as a new task with a hold of its own, because the old one has ended and its
/// credits are back with the user. The case's `origin` is the task in `retry_of`.
///
/// # Errors
/// `not_retryable`: the old task is not the tenant's, did not fail and was not cancelled, or its content was refused; and what
/// [`submit`] refuses.
pub fn retry(turn: &mut Turn<'_>, order: Order) -> Result<(), Refusal> {
    let old = &turn.case.origin.state;
    let ended = match old {
        Task::Failed { class, .. } => *class != ErrorClass::Moderation,
        Task::Canceled(_) => true,
        _ => false,
    };
    let same = old.order().is_some_and(|it| it.tenant == order.tenant && order.retry_of == Some(it.task));
    if !ended || !same {
        let message =
            "only a task of your own that failed (other than for its content) or was cancelled is tried again";
        return Err(refusal(old.state().name(), "Retry", "not_retryable", message));
    }
    submit(turn, order)
}

/// Lets a task that waits for its next try go on now: it only ever comes sooner.
///
/// # Errors
/// The task does not wait.
pub fn retry_now(turn: &mut Turn<'_>, by: String) -> Result<(), Refusal> {
    if matches!(turn.case.task.state, Task::ManualReview { .. }) {
        let message = "a task in review goes on by an operator's word only";
        return Err(refusal(turn.case.task.state.state().name(), "Retry", "in_review", message));
    }
    let give_up_at = turn.now;
    turn.task(task::Command::Retry { by, give_up_at })
}

/// An operator ends a task that is in review: it failed, its hold is released.
///
/// # Errors
/// `not_in_review`.
pub fn resolve_failed(turn: &mut Turn<'_>, by: &str) -> Result<(), Refusal> {
    in_review(turn)?;
    turn.task(task::Command::Fail {
        class: ErrorClass::Operator,
        code: "resolved_by_operator".to_owned(),
        message: format!("ended by {by} after review"),
    })?;
    give_up(turn, format!("ended by {by} after review"))
}

/// An operator ends a task that is in review as cancelled: they are certain that nothing runs, or bear what it costs.
///
/// # Errors
/// `not_in_review`.
pub fn resolve_canceled(turn: &mut Turn<'_>, by: &str) -> Result<(), Refusal> {
    in_review(turn)?;
    turn.task(task::Command::Cancel { by: by.to_owned() })?;
    turn.task(task::Command::ConfirmCancel)?;
    give_up(turn, format!("cancelled by {by} after review"))
}

/// An operator names the job at the provider that belongs to a task in review: the task goes on with it.
///
/// # Errors
/// `not_in_review`, or the attempt is over and can not take a job.
pub fn resolve_adopt(turn: &mut Turn<'_>, job: String, by: String) -> Result<(), Refusal> {
    in_review(turn)?;
    turn.attempt(attempt::Command::Accept {
        job,
        how: Heard::Operator { by },
        next_poll_at: turn.now + turn.poll_pause(0, None),
        give_up_at: turn.policy.running_deadline(turn.now),
    })?;
    turn.task(task::Command::Accept)
}

/// An operator is certain that nothing runs for a task in review: it goes on with a new attempt. Should a job of the old one turn up
/// all the same, it is an orphan.
///
/// # Errors
/// `not_in_review`, or the user wants the task cancelled.
pub fn resolve_retry(turn: &mut Turn<'_>, by: &str) -> Result<(), Refusal> {
    in_review(turn)?;
    let give_up_at = turn.now + seconds(turn.policy.max_waiting_seconds);
    turn.task(task::Command::Retry { by: by.to_owned(), give_up_at })?;
    give_up(turn, format!("{by} is certain that nothing runs"))
}

fn in_review(turn: &Turn<'_>) -> Result<(), Refusal> {
    if matches!(turn.case.task.state, Task::ManualReview { .. }) {
        return Ok(());
    }
    let message = "only a task in MANUAL_REVIEW can be resolved by hand";
    Err(refusal(turn.case.task.state.state().name(), "Resolve", "not_in_review", message))
}

/// Whatever still turns up at the provider is then an orphan, not a result.
fn give_up(turn: &mut Turn<'_>, reason: String) -> Result<(), Refusal> {
    turn.attempt(attempt::Command::GiveUp { reason })
}

fn refusal(state: &'static str, command: &'static str, code: &'static str, message: &str) -> Refusal {
    Refusal { aggregate: "task", state, command, code, message: message.to_owned() }
}
