//! Fetches a finished job's output into the object store (group `cg.asset.fetch.v1`), under a key that is the same however
//! often it is tried.

use super::turn::{Declined, Turn, too_early};
use super::{Next, ProcessManager};
use crate::attempt::Attempt;
use crate::id::AssetId;
use crate::message::Message;
use crate::outcome::{Answer, Call, Fetched};
use crate::task::{self, ErrorClass, Task, Video};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct FetchOutput;

impl ProcessManager for FetchOutput {
    fn name(&self) -> &'static str {
        "cg.asset.fetch.v1"
    }

    fn react(&self, message: &Message, turn: &mut Turn<'_>) -> Result<Next, Declined> {
        let Task::Fetching { live, not_before, .. } = &turn.case.task.state.clone() else {
            return Err(Declined::stale(format!("the task is {}", turn.case.task.state.state().name())));
        };
        if message.attempt_id() != Some(live.attempt()) {
            return Err(Declined::stale("another attempt delivers this task"));
        }
        if *not_before > turn.now {
            let newest = matches!(message, Message::FetchDue(due) if due.version == turn.case.task.version);
            return too_early(message, newest, *not_before, turn);
        }
        let Attempt::Succeeded { job, .. } = &turn.case.attempt.state else {
            return Err(Declined::stale(format!("the attempt is {}", turn.case.attempt.state.state().name())));
        };
        let key = live.object_key("video.mp4");
        Ok(Next::Call(Call::Fetch { job: job.clone(), key }))
    }

    fn conclude(
        &self,
        _message: &Message,
        _call: &Call,
        answer: Answer,
        turn: &mut Turn<'_>,
    ) -> Result<Next, Declined> {
        let Answer::Fetched(fetched) = answer else {
            return Err(Declined::stale("not the answer to a fetch"));
        };
        let Task::Fetching { live, delays, not_before } = turn.case.task.state.clone() else {
            return Err(Declined::stale(format!("the task is {}", turn.case.task.state.state().name())));
        };
        match fetched {
            Fetched::Stored(object) if !object.content_type.starts_with("video/") => {
                let message = format!("the provider's output is {}, not a video", object.content_type);
                fail(turn, "not_a_video", message)?;
            }
            Fetched::Stored(object) => {
                let asset = AssetId::of(live.attempt(), "video");
                turn.task(task::Command::StoreVideo(Video { asset, object }))?;
            }
            // Another fetch of the same output, begun meanwhile, has put it off already.
            Fetched::NotNow { .. } if not_before > turn.now => return Err(Declined::stale("already put off")),
            Fetched::NotNow { cause } if delays >= turn.policy.max_fetch_delays => {
                fail(turn, "output_unavailable", format!("the output could not be fetched: {cause}"))?;
            }
            Fetched::NotNow { cause } => {
                let retry_at = turn.now + turn.policy.backoff(delays, live.attempt().0);
                turn.task(task::Command::DelayFetch { retry_at, cause })?;
            }
            Fetched::Never { code, cause } => fail(turn, code, cause)?,
        }
        Ok(Next::Done)
    }
}

/// Ends the task: the provider's output can not be had, or is of no use.
pub(super) fn fail(turn: &mut Turn<'_>, code: &str, message: String) -> Result<(), Declined> {
    turn.task(task::Command::Fail { class: ErrorClass::Output, code: code.to_owned(), message })?;
    Ok(())
}
