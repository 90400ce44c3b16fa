//! Which message would set a stalled task going again. The scan that finds such tasks needs no rules of its own.

use super::case::Case;
use crate::attempt::Attempt;
use crate::ledger::Hold;
use crate::message::Message;
use crate::message::kinds::{AttemptRef, TaskRef};
use crate::task::{Task, Work};
use crate::time::Timestamp;

/// The message that the task is waiting for, as of its facts; `None` where it waits for nothing a machine can do, or where
/// it is not time yet. The account has to be part of the case: a task that has ended may still wait for its settlement.
#[must_use]
pub fn wake_up(case: &Case, now: Timestamp) -> Option<Message> {
    let task_id = case.task_id()?;
    if not_before(case).is_some_and(|due| due > now) {
        return None;
    }
    let about = TaskRef { task_id, task_version: case.task.version };
    let attempt = |version| case.attempt_id().map(|attempt_id| AttemptRef { task_id, attempt_id, version });
    match (&case.task.state, &case.attempt.state) {
        (Task::Queued(order), _) => Some(match order.work {
            Work::Generate => Message::SubmitRequested(about),
            Work::Export { .. } => Message::RenderRequested(about),
        }),
        (Task::WaitingRetry { .. }, _) => Some(Message::SubmitDue(about)),
        (Task::Submitting(_), _) => Some(Message::SubmitRequested(about)),
        (Task::CancelReconciling(_), Attempt::Running { .. }) | (Task::ProviderRunning(_), _) => {
            attempt(case.attempt.version).map(Message::PollDue)
        }
        (Task::Reconciling(_) | Task::CancelReconciling(_), _) => {
            attempt(case.attempt.version).map(Message::ReconcileDue)
        }
        (Task::Fetching { .. }, _) => attempt(case.task.version).map(Message::FetchDue),
        (Task::Rendering { .. }, _) => Some(Message::RenderDue(about)),
        (Task::MediaProcessing { .. } | Task::PartiallyReady { .. }, _) => Some(Message::PostprocessDue(about)),
        (Task::Succeeded { .. } | Task::Failed { .. } | Task::Canceled(_) | Task::CanceledWithOutput(_), _) => {
            matches!(case.account.state.hold(task_id), Some(Hold::Open(_))).then_some(Message::SettleRequested(about))
        }
        (Task::Absent | Task::ManualReview { .. }, _) => None,
    }
}

/// When the facts say that the task goes on by itself.
fn not_before(case: &Case) -> Option<Timestamp> {
    match (&case.task.state, &case.attempt.state) {
        (Task::WaitingRetry { retry_at, .. }, _) => Some(*retry_at),
        (Task::Fetching { not_before, .. }, _) => Some(*not_before),
        (
            Task::Rendering { tries, .. } | Task::MediaProcessing { tries, .. } | Task::PartiallyReady { tries, .. },
            _,
        ) => Some(tries.due()),
        (
            Task::Submitting(_) | Task::ProviderRunning(_) | Task::Reconciling(_) | Task::CancelReconciling(_),
            attempt,
        ) => match attempt {
            Attempt::Submitting { give_up_at, .. } => Some(*give_up_at),
            Attempt::Running { next_poll_at, .. } => Some(*next_poll_at),
            Attempt::Unclear { next_lookup_at, .. } => Some(*next_lookup_at),
            _ => None,
        },
        _ => None,
    }
}
