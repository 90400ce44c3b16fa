//! Finds out what became of an unclear submit or of a cancel (group `cg.reconcile.v1`).

use super::poll::{cancel_confirmed, conclude_poll};
use super::submit::{accept, lose_answer, put_off};
use super::turn::{Declined, Turn, too_early};
use super::{Next, ProcessManager};
use crate::attempt::{self, Attempt, Core, Heard};
use crate::message::Message;
use crate::mutant::{self, Mutant};
use crate::outcome::{Answer, Call, CancelAsked, Found};
use crate::task::{self, Task};
use crate::time::{Timestamp, seconds};
use chrono::SecondsFormat;

/// How many of several jobs are named to a person.
const NAMED_JOBS: usize = 5;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reconcile;

impl ProcessManager for Reconcile {
    fn name(&self) -> &'static str {
        "cg.reconcile.v1"
    }

    fn react(&self, message: &Message, turn: &mut Turn<'_>) -> Result<Next, Declined> {
        let canceling = match turn.case.task.state {
            Task::CancelReconciling(_) => true,
            Task::Reconciling(_) | Task::Submitting(_) => false,
            _ => return Err(Declined::stale(format!("the task is {}", turn.case.task.state.state().name()))),
        };
        if !turn.speaks_for_task() {
            return Err(Declined::stale("the task is at another attempt"));
        }
        match turn.case.attempt.state.clone() {
            Attempt::Unclear { next_lookup_at, .. } if next_lookup_at > turn.now => {
                let newest = matches!(message, Message::ReconcileDue(due) if due.version == turn.case.attempt.version);
                too_early(message, newest, next_lookup_at, turn)
            }
            Attempt::Unclear { core, since, lookups, .. } => {
                Ok(Next::Call(Call::Find { attempt: core.id(), round: core.round, lookup: lookups, since }))
            }
            Attempt::Submitting { give_up_at, .. } if give_up_at > turn.now => {
                turn.rearm(message.clone(), give_up_at);
                Ok(Next::Done)
            }
            Attempt::Submitting { core, .. } => {
                lose_answer(turn, core.round, "the worker's lease ended without an answer")?;
                Ok(Next::Done)
            }
            Attempt::Planned(_) if canceling => {
                turn.attempt(attempt::Command::ConfirmCancel)?;
                turn.task(task::Command::ConfirmCancel)?;
                Ok(Next::Done)
            }
            Attempt::Running { job, .. } if canceling => Ok(Next::Call(Call::Cancel { job })),
            other => Err(Declined::stale(format!("the attempt is {}", other.state().name()))),
        }
    }

    fn conclude(&self, _message: &Message, call: &Call, answer: Answer, turn: &mut Turn<'_>) -> Result<Next, Declined> {
        match (call, answer) {
            (Call::Find { round, lookup, .. }, Answer::Found(found)) => conclude_find((*round, *lookup), found, turn),
            (Call::Cancel { job }, Answer::CancelAsked(asked)) => conclude_cancel(job, asked, turn),
            (Call::Poll { job, poll }, Answer::Polled(polled)) => {
                match conclude_poll(job, Some(*poll), polled, turn)? {
                    // The cancel has just been asked for: the next poll asks again if it was lost.
                    Next::Call(Call::Cancel { .. }) => Ok(Next::Done),
                    next => Ok(next),
                }
            }
            _ => Err(Declined::stale("not the answer to this call")),
        }
    }
}

/// An unclear attempt, as the look-up met it that its answer is about.
struct Unclear {
    core: Core,
    since: Timestamp,
    lookups: u32,
    absences: u32,
}

/// Fencing: two look-ups at the same moment say "absent" once, and one of an earlier round says nothing about this one.
fn still_asked(asked: (u32, u32), turn: &Turn<'_>) -> Result<Unclear, Declined> {
    let Attempt::Unclear { core, since, lookups, absences, .. } = turn.case.attempt.state.clone() else {
        return Err(Declined::stale(format!("the attempt is {}", turn.case.attempt.state.state().name())));
    };
    if asked != (core.round, lookups) {
        return Err(Declined::stale("an older look-up"));
    }
    if !turn.speaks_for_task() {
        return Err(Declined::stale("the task is at another attempt"));
    }
    Ok(Unclear { core, since, lookups, absences })
}

fn conclude_find(asked: (u32, u32), found: Found, turn: &mut Turn<'_>) -> Result<Next, Declined> {
    match (found, still_asked(asked, turn)) {
        // True however late it is told: also where others have taken the job for absent meanwhile, and submitted again.
        (Found::Job { job }, _) => {
            accept(turn, job, Heard::LookUp)?;
            // A cancel goes on with the job that was found.
            return Ok(if matches!(turn.case.task.state, Task::CancelReconciling(_)) {
                Next::Again
            } else {
                Next::Done
            });
        }
        (_, Err(declined)) => return Err(declined),
        (Found::Absent, Ok(it))
            if it.absences + 1 >= turn.policy.absences_needed || mutant::on(Mutant::OneAbsenceIsEnough) =>
        {
            put_off(turn, it.core.round, "known_absent", None)?;
        }
        (Found::Absent, Ok(it)) => note(turn, true, it.lookups, "no job carries the reference".to_owned())?,
        (Found::Ambiguous { jobs }, Ok(it)) => {
            note(turn, false, it.lookups, format!("{} jobs carry the reference", jobs.len()))?;
            let jobs = jobs.iter().map(String::as_str).take(NAMED_JOBS).collect::<Vec<_>>().join(", ");
            ask_person(turn, &it, &format!("several jobs at the provider carry its reference: {jobs}"))?;
        }
        (Found::Impossible, Ok(it)) => {
            note(turn, false, it.lookups, "the provider has no look-up".to_owned())?;
            ask_person(turn, &it, "nobody can look up what became of it")?;
        }
        (Found::Inconclusive { cause }, Ok(it)) => {
            note(turn, false, it.lookups, cause.clone())?;
            if turn.now >= it.since + seconds(turn.policy.max_unclear_seconds) {
                ask_person(turn, &it, &format!("it stayed unclear for too long, and the last look-up says: {cause}"))?;
            }
        }
    }
    Ok(Next::Done)
}

fn note(turn: &mut Turn<'_>, absent: bool, lookups: u32, finding: String) -> Result<(), Declined> {
    let salt = turn.case.attempt_id().map(|id| id.0).unwrap_or_default();
    let settle = if mutant::on(Mutant::NoSettleDelay) { 0 } else { turn.policy.settle_delay_ms };
    let pause = if absent { super::policy::millis(settle) } else { turn.policy.backoff(lookups, salt) };
    turn.attempt(attempt::Command::NoteLookup { absent, next_lookup_at: turn.now + pause, finding })?;
    Ok(())
}

/// All that an operator needs to find out: which attempt, where, since when, how often it was looked up, and why that is no answer.
fn ask_person(turn: &mut Turn<'_>, it: &Unclear, why: &str) -> Result<(), Declined> {
    let Core { provider, number, round, .. } = &it.core;
    let reason = format!(
        "attempt {number} ({}) at {provider}: the answer to submission {round} was lost at {}, and after {} look-ups {why}",
        it.core.id(),
        it.since.to_rfc3339_opts(SecondsFormat::Secs, true),
        it.lookups + 1,
    );
    turn.task(task::Command::AskPerson { reason })?;
    Ok(())
}

fn conclude_cancel(job: &str, asked: CancelAsked, turn: &mut Turn<'_>) -> Result<Next, Declined> {
    let Attempt::Running { polls, .. } = turn.case.attempt.state else {
        return Err(Declined::stale(format!("the attempt is {}", turn.case.attempt.state.state().name())));
    };
    if asked == CancelAsked::Gone {
        return cancel_confirmed(job, turn);
    }
    // Whatever else it said, only the job's own state tells what came of it.
    Ok(Next::Call(Call::Poll { job: job.to_owned(), poll: polls }))
}
