//! Applies a provider's callback (group `cg.callback.apply.v1`).
//!
//! A callback is a wake-up and a proof that the job exists; what the job is at is then asked for, so that callbacks out of
//! order or repeated can not mislead.

use super::poll::conclude_poll;
use super::submit::accept;
use super::turn::{Declined, Turn};
use super::{Next, ProcessManager};
use crate::attempt::{self, Attempt, Heard};
use crate::message::Message;
use crate::mutant::{self, Mutant};
use crate::outcome::{Answer, Call};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApplyCallback;

impl ProcessManager for ApplyCallback {
    fn name(&self) -> &'static str {
        "cg.callback.apply.v1"
    }

    fn react(&self, message: &Message, turn: &mut Turn<'_>) -> Result<Next, Declined> {
        let Message::CallbackReceived(callback) = message else {
            return Err(Declined::stale("not a callback"));
        };
        match turn.case.attempt.state.clone() {
            Attempt::Unclear { .. } if mutant::on(Mutant::CallbackDropped) => Err(Declined::stale("not running")),
            Attempt::Submitting { .. } | Attempt::Unclear { .. } => {
                accept(turn, callback.job.clone(), Heard::Callback)?;
                Ok(Next::Again)
            }
            // Taken for not created, and about to be submitted again: the signed callback knows better.
            Attempt::Planned(core) if core.round > 0 => {
                accept(turn, callback.job.clone(), Heard::Callback)?;
                Ok(Next::Again)
            }
            Attempt::Running { job, polls, .. } if job == callback.job => {
                Ok(Next::Call(Call::Poll { job, poll: polls }))
            }
            Attempt::Succeeded { job, .. } if job == callback.job => Err(Declined::stale("the job's end is known")),
            Attempt::Absent | Attempt::Planned(_) => {
                Err(Declined::stale("nothing was submitted for this attempt in its present round"))
            }
            _ => {
                turn.attempt(attempt::Command::RecordOrphan { job: callback.job.clone() })?;
                Ok(Next::Done)
            }
        }
    }

    fn conclude(&self, _message: &Message, call: &Call, answer: Answer, turn: &mut Turn<'_>) -> Result<Next, Declined> {
        match (call, answer) {
            (Call::Poll { job, poll }, Answer::Polled(polled)) => conclude_poll(job, Some(*poll), polled, turn),
            (Call::Cancel { .. }, Answer::CancelAsked(_)) => Ok(Next::Done),
            _ => Err(Declined::stale("not the answer to this call")),
        }
    }
}
