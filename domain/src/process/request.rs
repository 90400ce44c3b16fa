//! What people ask for: submit, cancel, grant. Used by the API, in one transaction each.

use super::credits::hold_expires_at;
use super::turn::Turn;
use crate::aggregate::Refusal;
use crate::attempt::{self, Attempt};
use crate::ledger;
use crate::money::Credits;
use crate::task::{self, ErrorClass, Order, Task};

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

/// An operator ends a task that is in review: it failed, its hold is released.
///
/// # Errors
/// The task is not in a state that an operator may end.
pub fn resolve_failed(turn: &mut Turn<'_>, by: &str) -> Result<(), Refusal> {
    if !matches!(turn.case.task.state, Task::ManualReview { .. } | Task::Absent) {
        return Err(Refusal {
            aggregate: "task",
            state: turn.case.task.state.state().name(),
            command: "Resolve",
            code: "not_in_review",
            message: "only a task in MANUAL_REVIEW can be resolved by hand".to_owned(),
        });
    }
    turn.task(task::Command::Fail {
        class: ErrorClass::Operator,
        code: "resolved_by_operator".to_owned(),
        message: format!("ended by {by} after review"),
    })?;
    if turn.case.attempt.state.core().is_some() {
        // Whatever still turns up at the provider is then an orphan, not a result.
        turn.attempt(attempt::Command::GiveUp { reason: "resolved by an operator".to_owned() }).ok();
    }
    Ok(())
}
