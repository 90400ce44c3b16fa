//! Asks the provider how a job is doing (group `cg.provider.poll.v1`). Early, late, stale and repeated wake-ups are no-ops.

use super::submit::{described, end};
use super::turn::{Declined, Turn};
use super::{CancelRule, Next, ProcessManager};
use crate::attempt::{self, Attempt};
use crate::message::Message;
use crate::mutant::{self, Mutant};
use crate::outcome::{Answer, Call, CancelAsked, JobState, Polled};
use crate::task::{self, ErrorClass, Task};
use std::time::Duration;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct PollProvider;

impl ProcessManager for PollProvider {
    fn name(&self) -> &'static str {
        "cg.provider.poll.v1"
    }

    fn react(&self, message: &Message, turn: &mut Turn<'_>) -> Result<Next, Declined> {
        let Message::PollDue(due) = message else {
            return Err(Declined::stale("not a poll"));
        };
        let (job, poll, next_poll_at) = match turn.case.attempt.state.clone() {
            Attempt::Running { job, polls, next_poll_at, .. } => (job, polls, next_poll_at),
            // The process that gave it up died before it asked the provider to cancel: the job must not go on costing money.
            Attempt::GivenUp { job: Some(job), .. } if due.version + 1 == turn.case.attempt.version => {
                return Ok(Next::Call(Call::Cancel { job }));
            }
            other => return Err(Declined::stale(format!("the attempt is {}", other.state().name()))),
        };
        if due.version != turn.case.attempt.version {
            return Err(Declined::stale("a later wake-up exists"));
        }
        if next_poll_at > turn.now {
            // This is the one wake-up for that time, and it came early: without another one nobody would ask.
            turn.rearm(message.clone(), next_poll_at);
            return Ok(Next::Done);
        }
        Ok(Next::Call(Call::Poll { job, poll }))
    }

    fn conclude(&self, _message: &Message, call: &Call, answer: Answer, turn: &mut Turn<'_>) -> Result<Next, Declined> {
        match (call, answer) {
            (Call::Poll { job, poll }, Answer::Polled(polled)) => conclude_poll(job, Some(*poll), polled, turn),
            (Call::Cancel { job }, Answer::CancelAsked(CancelAsked::Gone))
                if matches!(turn.case.attempt.state, Attempt::Running { .. }) =>
            {
                cancel_confirmed(job, turn)
            }
            (Call::Cancel { .. }, Answer::CancelAsked(_)) => Ok(Next::Done),
            _ => Err(Declined::stale("not the answer to this call")),
        }
    }
}

/// The provider confirmed the cancel and forgets the job: nobody will see it as cancelled, so this is its last word.
pub(super) fn cancel_confirmed(job: &str, turn: &mut Turn<'_>) -> Result<Next, Declined> {
    conclude_poll(job, None, Polled::State(JobState::Canceled), turn)
}

/// What an answer about a job leads to, whoever asked. `poll` is the number that the question had; none for what is no answer to a
/// poll. The end of a job is true whenever it is told; that it was not done yet is news only until others have asked again: a
/// worker that slept must neither put the next poll off nor give the job up.
pub(super) fn conclude_poll(
    asked: &str,
    poll: Option<u32>,
    polled: Polled,
    turn: &mut Turn<'_>,
) -> Result<Next, Declined> {
    let Attempt::Running { job, give_up_at, polls, .. } = turn.case.attempt.state.clone() else {
        return Err(Declined::stale(format!("the attempt is {}", turn.case.attempt.state.state().name())));
    };
    if job != asked {
        return Err(Declined::stale("the answer is about another job"));
    }
    match polled {
        Polled::State(JobState::Succeeded { usage_millis, .. }) => {
            turn.attempt(attempt::Command::Succeed { usage_millis })?;
            finished(turn)?;
            Ok(Next::Done)
        }
        Polled::State(JobState::Failed(fault)) => {
            let (class, code, message) = described(fault);
            turn.attempt(attempt::Command::Fail { round: None, class, code: code.clone(), message: message.clone() })?;
            end(turn, class, code, message)?;
            Ok(Next::Done)
        }
        Polled::State(JobState::Canceled) => {
            turn.attempt(attempt::Command::ConfirmCancel)?;
            end(
                turn,
                ErrorClass::Provider,
                "canceled_by_provider".to_owned(),
                "the provider ended the job".to_owned(),
            )?;
            Ok(Next::Done)
        }
        _ if poll.is_some_and(|poll| poll != polls) => Err(Declined::stale("others have asked meanwhile")),
        not_done if turn.now >= give_up_at => give_up(turn, job, &not_done),
        not_done => keep_waiting(turn, job, polls, &not_done),
    }
}

/// The provider has finished: fetch it, unless the user cancelled and the product rule drops it.
fn finished(turn: &mut Turn<'_>) -> Result<(), Declined> {
    match (&turn.case.task.state, turn.policy.cancel_rule) {
        _ if !turn.speaks_for_task() => {}
        (Task::CancelReconciling(_), CancelRule::Discard) => turn.task(task::Command::DiscardOutput)?,
        _ => turn.task(task::Command::BeginFetch)?,
    }
    Ok(())
}

fn keep_waiting(turn: &mut Turn<'_>, job: String, polls: u32, answer: &Polled) -> Result<Next, Declined> {
    let (finding, percent, asked) = reading(answer);
    let canceling = matches!(turn.case.task.state, Task::CancelReconciling(_));
    let pause = if canceling { turn.cancel_pause(polls) } else { turn.poll_pause(polls + 1, percent) };
    let pause = asked.map_or(pause, |asked| {
        let asked = u64::try_from(asked.as_millis()).unwrap_or(u64::MAX).min(turn.policy.backoff_cap_ms);
        pause.max(super::policy::millis(asked))
    });
    turn.attempt(attempt::Command::NotePoll { percent, next_poll_at: turn.now + pause, finding })?;
    if mutant::on(Mutant::ReplacedWhileRunning) && polls > 2 {
        // Taken for dead, though it is only slow.
        end(turn, ErrorClass::Provider, "slow".to_owned(), "the provider is slow".to_owned())?;
    }
    // A cancel that the provider has not carried out is asked for again: the first one may have been lost.
    Ok(if canceling { Next::Call(Call::Cancel { job }) } else { Next::Done })
}

fn give_up(turn: &mut Turn<'_>, job: String, answer: &Polled) -> Result<Next, Declined> {
    let (finding, ..) = reading(answer);
    turn.attempt(attempt::Command::GiveUp { reason: format!("not done in time, last seen {finding}") })?;
    if matches!(turn.case.task.state, Task::CancelReconciling(_)) && turn.speaks_for_task() {
        // It is not cancelled as long as the provider has not said so: the job may still run, and cost.
        let reason = format!("the cancel of job {job} was never confirmed, last seen {finding}");
        turn.task(task::Command::AskPerson { reason })?;
    } else if is_riddle(answer) && turn.speaks_for_task() {
        // It may be done, and paid for, under a word that nobody here knows: it is neither cancelled nor given back on a guess.
        let waited = turn.policy.max_running_seconds;
        let core = turn.case.attempt.state.core().map(|core| (core.number, core.provider.clone()));
        let (number, provider) = core.unwrap_or_default();
        let reason =
            format!("job {job} of attempt {number} at {provider} is not done after {waited} s, last seen {finding}");
        turn.task(task::Command::AskPerson { reason })?;
        return Ok(Next::Done);
    } else {
        end(
            turn,
            ErrorClass::Timeout,
            "provider_never_finished".to_owned(),
            "the provider did not finish in time".to_owned(),
        )?;
    }
    // So that it does not go on costing money; the task does not wait for it any more, whatever comes of it.
    Ok(Next::Call(Call::Cancel { job }))
}

/// Whether an answer tells nothing about how the job is doing: a word that we do not know, or a job that the provider does not.
const fn is_riddle(polled: &Polled) -> bool {
    matches!(polled, Polled::State(JobState::Unrecognised { .. } | JobState::NotFound))
}

fn reading(polled: &Polled) -> (String, Option<u8>, Option<Duration>) {
    match polled {
        Polled::State(JobState::Queued) => ("queued".to_owned(), None, None),
        Polled::State(JobState::Running { percent }) => ("running".to_owned(), *percent, None),
        Polled::State(JobState::NotFound) => ("not found".to_owned(), None, None),
        Polled::State(JobState::Unrecognised { raw }) => (format!("unrecognised: {raw}"), None, None),
        Polled::State(other) => (format!("{other:?}").chars().take(32).collect(), None, None),
        Polled::Unavailable { cause, retry_after } => (format!("unavailable: {cause}"), None, *retry_after),
    }
}
