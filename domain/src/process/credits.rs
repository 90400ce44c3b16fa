//! What operators do to an account, in one transaction each, like [`super::submit`]: [`refund`] and [`adjust`], both offered by the
//! command line. [`expire_hold`] is the rule for a sweep over holds that nobody closed; no such sweep runs yet.

use super::policy::Policy;
use super::turn::Turn;
use crate::aggregate::Refusal;
use crate::id::TaskId;
use crate::ledger;
use crate::money::Credits;
use crate::task::{Order, Task};
use crate::time::{Timestamp, seconds};

/// Gives back part of what a task was charged. Whether it is owed is the business's to say; that it is never more than was
/// charged is the ledger's.
///
/// # Errors
/// `refund_exceeds_charge`, `key_taken`, or the task was never charged.
pub fn refund(turn: &mut Turn<'_>, task: TaskId, key: String, amount: Credits, reason: String) -> Result<(), Refusal> {
    turn.account(ledger::Command::Refund { task, key, amount, reason })
}

/// Corrects what is available, up or down.
///
/// # Errors
/// `insufficient_credits` where it would take away more than is available, `key_taken`, or an empty amount or reason.
pub fn adjust(turn: &mut Turn<'_>, key: String, amount: Credits, reason: String, by: String) -> Result<(), Refusal> {
    turn.account(ledger::Command::Adjust { key, amount, reason, by })
}

/// Frees the hold of the case's task once its time is over. The verdict comes first: a task that has not ended keeps its
/// hold, however late it is, and one that succeeded owes its charge. What is left is a hold that nobody closed though nothing
/// is owed. The case must have its account.
///
/// # Errors
/// `no_verdict`, `charge_is_due`, `not_expired`, or the hold is closed already.
pub fn expire_hold(turn: &mut Turn<'_>) -> Result<(), Refusal> {
    let task = &turn.case.task.state;
    let refuse = |code, message: &str| Refusal {
        aggregate: "task",
        state: task.state().name(),
        command: "Expire",
        code,
        message: message.to_owned(),
    };
    let Some(id) = turn.case.task_id() else {
        return Err(refuse("nothing_there", "the case has no task"));
    };
    match task {
        Task::Succeeded { .. } => {
            return Err(refuse("charge_is_due", "the task succeeded: its hold is settled, not freed"));
        }
        // A hold and its task are recorded together: one without the other is stranded, and no verdict will come.
        Task::Absent => {}
        other if !other.state().is_terminal() => {
            return Err(refuse("no_verdict", "the hold stays until the task has ended"));
        }
        _ => {}
    }
    turn.account(ledger::Command::Expire { task: id })
}

/// When the hold of an order may expire: when the task has used up every wait that the rules allow it, one after the other,
/// counted from the end of its wait for a provider. Only then can a hold without a verdict be a mistake.
#[must_use]
pub fn hold_expires_at(order: &Order, policy: &Policy) -> Timestamp {
    let pause = policy.backoff_cap_ms / 1_000;
    let fetching = u64::from(policy.max_fetch_delays).saturating_mul(pause);
    // The last tries of media work may begin just before its time is over, and each may end with its lease only.
    let unanswered =
        u64::from(policy.max_processing_tries).saturating_mul(policy.processing_lease_seconds.saturating_add(pause));
    let waits = [policy.max_running_seconds, policy.max_unclear_seconds, policy.max_processing_seconds, unanswered];
    let longest = waits.iter().fold(fetching, |sum, wait| sum.saturating_add(*wait));
    order.give_up_at.checked_add_signed(seconds(longest)).unwrap_or(order.give_up_at)
}
