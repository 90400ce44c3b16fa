//! Probes a stored video and makes its thumbnail (group `cg.asset.postprocess.v1`); then the task has succeeded. A video whose
//! thumbnail can not be had yet is handed out without it, and the thumbnail is tried for until a limit.
//!
//! Every try is counted before it begins: an input that kills the worker each time would otherwise come back for ever. It has a
//! lease: a message that meets a running try begins no other beside it, and counts nothing.

use super::fetch::fail;
use super::policy::charge;
use super::turn::{Declined, Turn, too_early};
use super::{Next, ProcessManager};
use crate::message::Message;
use crate::outcome::{Answer, Call, Probe, Processed, StoredObject};
use crate::task::{self, Maker, Task, Tries, Video};
use crate::time::seconds;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessMedia;

impl ProcessManager for ProcessMedia {
    fn name(&self) -> &'static str {
        "cg.asset.postprocess.v1"
    }

    fn react(&self, message: &Message, turn: &mut Turn<'_>) -> Result<Next, Declined> {
        let (maker, video, tries, partial) = at_work(turn)?;
        if message.attempt_id().is_some_and(|attempt| maker.live().map(task::Live::attempt) != Some(attempt)) {
            return Err(Declined::stale("another attempt delivers this task"));
        }
        // Put off, or a worker is at it; if that is gone, the scan takes over when its lease ends.
        if tries.due() > turn.now {
            let newest = matches!(message, Message::PostprocessDue(due) if due.task_version == turn.case.task.version);
            return too_early(message, newest, tries.due(), turn);
        }
        let max_tries = turn.policy.max_processing_tries;
        if tries.unanswered >= max_tries {
            out_of_tries(turn, partial, max_tries)?;
            return Ok(Next::Done);
        }
        if partial && turn.now >= partial_until(tries, turn) {
            turn.task(task::Command::ForgoExtras)?;
            return Ok(Next::Done);
        }
        let busy_until = turn.policy.processing_lease(turn.now, tries.unanswered, maker.order().task.0);
        turn.task(task::Command::BeginProcessing { max_tries, busy_until })?;
        let thumbnail_key = maker.object_key("thumbnail.jpg");
        Ok(Next::Call(Call::Process { key: video.object.key, thumbnail_key }))
    }

    fn conclude(
        &self,
        _message: &Message,
        _call: &Call,
        answer: Answer,
        turn: &mut Turn<'_>,
    ) -> Result<Next, Declined> {
        let Answer::Processed(processed) = answer else {
            return Err(Declined::stale("not the answer to media processing"));
        };
        match turn.case.task.state.clone() {
            Task::MediaProcessing { maker, tries, .. } => conclude_whole(&maker, tries, processed, turn)?,
            Task::PartiallyReady { tries, probe, charge, .. } => {
                conclude_extras(tries, processed, (probe, charge), turn)?;
            }
            other => return Err(Declined::stale(format!("the task is {}", other.state().name()))),
        }
        Ok(Next::Done)
    }
}

/// Who made the video, the video, how the work gets on, and whether only the thumbnail is missing.
fn at_work(turn: &Turn<'_>) -> Result<(Maker, Video, Tries, bool), Declined> {
    match turn.case.task.state.clone() {
        Task::MediaProcessing { maker, video, tries } => Ok((maker, video, tries, false)),
        Task::PartiallyReady { maker, video, tries, .. } => Ok((maker, video, tries, true)),
        other => Err(Declined::stale(format!("the task is {}", other.state().name()))),
    }
}

/// The work was begun that often and no worker lived to answer.
fn out_of_tries(turn: &mut Turn<'_>, partial: bool, tries: u32) -> Result<(), Declined> {
    if partial {
        turn.task(task::Command::ForgoExtras)?;
        return Ok(());
    }
    fail(turn, "processing_failed", format!("media processing began {tries} times and never ended"))
}

fn conclude_whole(maker: &Maker, tries: Tries, processed: Processed, turn: &mut Turn<'_>) -> Result<(), Declined> {
    match processed {
        Processed::Ready { probe, thumbnail } => {
            let charge = charge(maker.order(), probe.duration_millis);
            turn.task(task::Command::Finish { probe, thumbnail, charge })?;
        }
        Processed::Partial { probe, cause } => {
            let charge = charge(maker.order(), probe.duration_millis);
            let retry_at = turn.now + pause(tries, turn);
            turn.task(task::Command::FinishVideo { probe, charge, retry_at, cause })?;
        }
        Processed::Corrupt { cause } => fail(turn, "corrupt_video", cause)?,
        Processed::NotNow { cause } if turn.now >= tries.since + seconds(turn.policy.max_processing_seconds) => {
            fail(turn, "processing_failed", cause)?;
        }
        Processed::NotNow { cause } => put_off(tries, cause, turn)?,
    }
    Ok(())
}

/// The user has the video: whatever happens to the thumbnail, the task succeeds.
fn conclude_extras(
    tries: Tries,
    processed: Processed,
    known: (Probe, crate::money::Credits),
    turn: &mut Turn<'_>,
) -> Result<(), Declined> {
    let finish = |(probe, charge), thumbnail: StoredObject| task::Command::Finish { probe, thumbnail, charge };
    match processed {
        Processed::Ready { thumbnail, .. } => turn.task(finish(known, thumbnail))?,
        Processed::Corrupt { .. } => turn.task(task::Command::ForgoExtras)?,
        Processed::Partial { .. } | Processed::NotNow { .. } if turn.now >= partial_until(tries, turn) => {
            turn.task(task::Command::ForgoExtras)?;
        }
        Processed::Partial { cause, .. } | Processed::NotNow { cause } => put_off(tries, cause, turn)?,
    }
    Ok(())
}

fn put_off(tries: Tries, cause: String, turn: &mut Turn<'_>) -> Result<(), Declined> {
    if tries.not_before > turn.now {
        return Err(Declined::stale("already put off"));
    }
    let retry_at = turn.now + pause(tries, turn);
    turn.task(task::Command::DelayProcessing { retry_at, cause })?;
    Ok(())
}

fn pause(tries: Tries, turn: &Turn<'_>) -> chrono::TimeDelta {
    turn.policy.backoff(tries.delays, turn.case.task_id().map(|id| id.0).unwrap_or_default())
}

fn partial_until(tries: Tries, turn: &Turn<'_>) -> crate::time::Timestamp {
    tries.since + seconds(turn.policy.max_partial_seconds)
}
