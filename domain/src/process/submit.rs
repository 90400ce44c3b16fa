//! Submits a task to its provider (group `cg.scheduler.submit.v1`).
//!
//! "It will be submitted" (`attempt.planned`) and "the request may have left" (`attempt.submission_begun`) are two facts, both
//! durable before the call. A redelivered message goes on from where they are: not begun, then begin; begun and unanswered,
//! then the answer is lost once the worker's lease is over, and it is looked up. Nothing is submitted again on a guess.

use super::turn::{Declined, Turn, too_early};
use super::{Case, Entry, Next, ProcessManager, Slot, Why, elsewhere};
use crate::attempt::{self, Attempt, Heard};
use crate::id::AttemptId;
use crate::message::Message;
use crate::mutant::{self, Mutant};
use crate::outcome::{Answer, Call, Created, FaultClass, ProviderFault};
use crate::task::{self, ErrorClass, Task, Work};
use crate::time::Timestamp;
use std::time::Duration;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct SubmitTask;

impl ProcessManager for SubmitTask {
    fn name(&self) -> &'static str {
        "cg.scheduler.submit.v1"
    }

    /// A slot for the attempt whose submission would begin.
    fn needs_slot(&self, _message: &Message, case: &Case, now: Timestamp) -> Option<Slot> {
        match &case.task.state {
            Task::Queued(order) if order.work == Work::Generate => Some(Slot::of(order, 1, 1)),
            Task::WaitingRetry { live, next_attempt, retry_at } if *retry_at <= now && now < live.give_up_at => {
                let before = case.attempt.state.core().filter(|core| core.number == *next_attempt);
                Some(Slot::of(&live.order, *next_attempt, before.map_or(0, |core| core.round) + 1))
            }
            _ => None,
        }
    }

    fn react(&self, message: &Message, turn: &mut Turn<'_>) -> Result<Next, Declined> {
        match turn.case.task.state.clone() {
            Task::Queued(order) => {
                if let Some(Entry::Wait { after, why }) = turn.entry {
                    wait(turn, order.give_up_at, after, why)?;
                    turn.attempt(attempt::Command::Plan { task: order.task, number: 1, provider: order.provider })?;
                    return Ok(Next::Done);
                }
                turn.task(task::Command::BeginSubmission { attempt_no: 1 })?;
                turn.attempt(attempt::Command::Plan { task: order.task, number: 1, provider: order.provider })?;
                go_on(turn)
            }
            Task::WaitingRetry { retry_at, .. } if retry_at > turn.now => {
                let newest = matches!(message, Message::SubmitDue(due) if due.task_version == turn.case.task.version);
                too_early(message, newest, retry_at, turn)
            }
            Task::WaitingRetry { live, .. } if turn.now >= live.give_up_at => give_up_waiting(turn),
            Task::WaitingRetry { live, next_attempt, .. } => {
                if let Some(Entry::Wait { after, why }) = turn.entry {
                    wait(turn, live.give_up_at, after, why)?;
                    return Ok(Next::Done);
                }
                turn.task(task::Command::BeginSubmission { attempt_no: next_attempt })?;
                if next_attempt != live.attempt_no {
                    let (task, provider) = (live.order.task, live.order.place(next_attempt).provider);
                    turn.case.turn_to_new_attempt();
                    turn.attempt(attempt::Command::Plan { task, number: next_attempt, provider })?;
                }
                go_on(turn)
            }
            Task::Submitting(_) => go_on(turn),
            other => Err(Declined::stale(format!("the task is {}", other.state().name()))),
        }
    }

    fn conclude(&self, _message: &Message, call: &Call, answer: Answer, turn: &mut Turn<'_>) -> Result<Next, Declined> {
        let (Call::Create { attempt, round, .. }, Answer::Created(created)) = (call, answer) else {
            return Err(Declined::stale("not the answer to a create call"));
        };
        if turn.case.attempt_id() != Some(*attempt) {
            return Err(Declined::stale("the answer is about another attempt"));
        }
        conclude_create(*round, created, turn)?;
        Ok(Next::Done)
    }
}

/// There is no slot: it waits. A free slot is called out sooner, so each wait is long and leaves one event; at the task's own limit
/// it is looked at in any case, and given up.
fn wait(turn: &mut Turn<'_>, give_up_at: Timestamp, after: Duration, why: Why) -> Result<(), Declined> {
    let salt = turn.case.task_id().map(|id| id.0).unwrap_or_default();
    let retry_at = (turn.now + turn.policy.slot_pause(after, salt)).min(give_up_at);
    turn.task(task::Command::Wait { retry_at, reason: why.name().to_owned() })?;
    Ok(())
}

/// The task is being submitted: what exactly is to be done depends on how far the attempt got.
fn go_on(turn: &mut Turn<'_>) -> Result<Next, Declined> {
    match turn.case.attempt.state.clone() {
        Attempt::Planned(core) => {
            let give_up_at = turn.policy.answer_deadline(turn.now);
            turn.attempt(attempt::Command::BeginSubmission { give_up_at })?;
            let timeout = Duration::from_millis(turn.policy.submit_timeout_ms);
            Ok(Next::Call(Call::Create { attempt: core.id(), round: core.round + 1, timeout }))
        }
        Attempt::Submitting { give_up_at, .. } if give_up_at > turn.now => {
            Err(Declined::early("a worker is at it; if it is gone, the scan takes over when its lease ends"))
        }
        Attempt::Submitting { core, .. } => {
            lose_answer(turn, core.round, "the worker's lease ended without an answer")?;
            Ok(Next::Done)
        }
        Attempt::Running { .. } => {
            turn.task(task::Command::Accept)?;
            Ok(Next::Done)
        }
        other => Err(Declined::stale(format!("the attempt is {}", other.state().name()))),
    }
}

pub(super) fn lose_answer(turn: &mut Turn<'_>, round: u32, cause: &str) -> Result<(), Declined> {
    let delay = if mutant::on(Mutant::NoSettleDelay) { 0 } else { turn.policy.settle_delay_ms };
    let next_lookup_at = turn.now + super::policy::millis(delay);
    turn.attempt(attempt::Command::LoseAnswer { round, next_lookup_at, cause: cause.to_owned() })?;
    if turn.speaks_for_task() && matches!(turn.case.task.state, Task::Submitting(_)) {
        turn.task(task::Command::LoseTrack)?;
    }
    Ok(())
}

/// The provider has the job: the attempt runs. Whoever hears of it first (the answer, a callback, a look-up, an operator)
/// records it.
pub(super) fn accept(turn: &mut Turn<'_>, job: String, how: Heard) -> Result<(), Declined> {
    if !turn.speaks_for_task() {
        // The task is at another attempt, or at its end: the job's cost must not be lost from sight, and it moves nothing.
        turn.attempt(attempt::Command::RecordOrphan { job })?;
        return Ok(());
    }
    let now = turn.now;
    let accepted = turn.attempt(attempt::Command::Accept {
        job: job.clone(),
        how,
        next_poll_at: now + turn.poll_pause(0, None),
        give_up_at: turn.policy.running_deadline(now),
    });
    if accepted.is_err() {
        // Another job is known for this attempt, or nobody waits any more: its cost must not be lost from sight.
        turn.attempt(attempt::Command::RecordOrphan { job })?;
        return Ok(());
    }
    if matches!(
        turn.case.task.state,
        Task::Submitting(_) | Task::WaitingRetry { .. } | Task::Reconciling(_) | Task::ManualReview { .. }
    ) {
        turn.task(task::Command::Accept)?;
    }
    Ok(())
}

/// Nothing was created: the attempt may be begun again, unless the user wants it cancelled.
pub(super) fn put_off(turn: &mut Turn<'_>, round: u32, reason: &str, asked: Option<Duration>) -> Result<(), Declined> {
    turn.attempt(attempt::Command::Defer { reason: reason.to_owned(), round })?;
    if !turn.speaks_for_task() {
        return Ok(());
    }
    if matches!(turn.case.task.state, Task::CancelReconciling(_)) {
        turn.attempt(attempt::Command::ConfirmCancel)?;
        turn.task(task::Command::ConfirmCancel)?;
        return Ok(());
    }
    if go_elsewhere(turn, reason)? {
        return Ok(());
    }
    let salt = turn.case.attempt_id().unwrap_or(AttemptId(uuid::Uuid::nil())).0;
    let retry_at = turn.now + turn.policy.retry_pause(asked, round.saturating_sub(1), salt);
    turn.task(task::Command::Defer { retry_at, reason: reason.to_owned() })?;
    Ok(())
}

/// Gives the attempt up, which waits to be submitted again, for one at another provider, where the order and the policy want
/// that. Whether they did.
fn go_elsewhere(turn: &mut Turn<'_>, reason: &str) -> Result<bool, Declined> {
    let (Attempt::Planned(core), Task::Submitting(live)) = (&turn.case.attempt.state, &turn.case.task.state) else {
        return Ok(false);
    };
    if !elsewhere::instead_of_waiting(core, live, turn.policy, turn.now) {
        return Ok(false);
    }
    let max_attempts = live.order.attempts(turn.policy.max_attempts);
    let given_up = format!("{} did not take it ({reason}): the next attempt is made elsewhere", core.provider);
    turn.attempt(attempt::Command::GiveUp { reason: given_up })?;
    turn.task(task::Command::Replace { retry_at: turn.now, reason: reason.to_owned(), max_attempts })?;
    Ok(true)
}

fn conclude_create(round: u32, created: Created, turn: &mut Turn<'_>) -> Result<(), Declined> {
    match created {
        // The id is derived from the attempt, so only a create call of this attempt can have brought it: the job is ours, also
        // where the facts of that call were lost with a database.
        Created::Accepted { job } | Created::DuplicateOf { job } => accept(turn, job, Heard::Answer),
        Created::Throttled { retry_after } => put_off(turn, round, "throttled", retry_after),
        Created::NotSent { .. } => put_off(turn, round, "not_sent", None),
        Created::Unavailable { retry_after } => put_off(turn, round, "provider_down", Some(retry_after)),
        Created::Unknown { .. } if mutant::on(Mutant::ResubmitUnclear) => put_off(turn, round, "timeout", None),
        Created::Unknown { cause } => lose_answer(turn, round, &cause),
        // The job of a lost answer may be what used the account up: this round made nothing, and the one before it is as unclear as
        // it was.
        Created::Rejected(fault) if fault.class == FaultClass::Account && was_unclear(turn) => {
            lose_answer(turn, round, "refused for our account, after an answer was lost")
        }
        Created::Rejected(fault) => {
            let (class, code, message) = described(fault);
            turn.attempt(attempt::Command::Fail {
                round: Some(round),
                class,
                code: code.clone(),
                message: message.clone(),
            })?;
            end(turn, class, code, message)
        }
    }
}

fn was_unclear(turn: &Turn<'_>) -> bool {
    turn.case.attempt.state.core().is_some_and(|core| core.unclear_once)
}

/// The attempt is over without an output. The task goes on to another attempt where the provider broke and the policy allows
/// one; otherwise it ends: cancelled where the user wanted that, failed where not.
pub(super) fn end(turn: &mut Turn<'_>, class: ErrorClass, code: String, message: String) -> Result<(), Declined> {
    if !turn.speaks_for_task() {
        return Ok(());
    }
    let (policy, now) = (turn.policy, turn.now);
    match &turn.case.task.state {
        Task::CancelReconciling(_) | Task::ManualReview { canceling: true, .. } => {
            turn.task(task::Command::ConfirmCancel)?;
        }
        Task::Submitting(live) | Task::Reconciling(live) | Task::ProviderRunning(live)
            if elsewhere::after_the_end(class, live, policy, now) =>
        {
            let max_attempts = live.order.attempts(policy.max_attempts);
            let retry_at = turn.now + turn.policy.backoff(live.attempt_no - 1, live.order.task.0);
            turn.task(task::Command::Replace { retry_at, reason: code, max_attempts })?;
        }
        // Said before, and the answer to that commit was lost: another attempt follows.
        Task::WaitingRetry { live, next_attempt, .. } if *next_attempt != live.attempt_no => {}
        Task::Reconciling(_) => {
            // The provider's no came late, after the answer was given up for lost: it is an answer all the same.
            turn.task(task::Command::Defer { retry_at: turn.now, reason: "late_refusal".to_owned() })?;
            turn.task(task::Command::Fail { class, code, message })?;
        }
        _ => turn.task(task::Command::Fail { class, code, message })?,
    }
    Ok(())
}

pub(super) fn described(fault: ProviderFault) -> (ErrorClass, String, String) {
    let class = match fault.class {
        FaultClass::Moderation => ErrorClass::Moderation,
        FaultClass::BadRequest => ErrorClass::BadRequest,
        FaultClass::Account => ErrorClass::ProviderAccount,
        FaultClass::Internal => ErrorClass::Provider,
    };
    (class, fault.code, fault.message)
}

fn give_up_waiting(turn: &mut Turn<'_>) -> Result<Next, Declined> {
    if matches!(turn.case.attempt.state, Attempt::Planned(_)) {
        turn.attempt(attempt::Command::GiveUp { reason: "no provider took it in time".to_owned() })?;
    }
    turn.task(task::Command::Fail {
        class: ErrorClass::Timeout,
        code: "waited_too_long".to_owned(),
        message: "no provider took the task in time".to_owned(),
    })?;
    Ok(Next::Done)
}
