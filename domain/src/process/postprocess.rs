//! Probes a stored video and makes its thumbnail (group `cg.asset.postprocess.v1`); then the task has succeeded.

use super::fetch::{fail, object_key};
use super::policy::charge;
use super::turn::{Declined, Turn};
use super::{Next, ProcessManager};
use crate::message::Message;
use crate::outcome::{Answer, Call, Processed};
use crate::task::{self, Task};
use crate::time::seconds;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessMedia;

impl ProcessManager for ProcessMedia {
    fn name(&self) -> &'static str {
        "cg.asset.postprocess.v1"
    }

    fn react(&self, message: &Message, turn: &mut Turn<'_>) -> Result<Next, Declined> {
        let Task::MediaProcessing { live, video, .. } = &turn.case.task.state else {
            return Err(Declined::stale(format!("the task is {}", turn.case.task.state.state().name())));
        };
        if message.attempt_id() != Some(live.attempt()) {
            return Err(Declined::stale("another attempt delivers this task"));
        }
        let thumbnail_key = object_key(live.order.tenant, live.order.task, live.attempt(), "thumbnail.jpg");
        Ok(Next::Call(Call::Process { key: video.object.key.clone(), thumbnail_key }))
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
        let Task::MediaProcessing { live, since, .. } = turn.case.task.state.clone() else {
            return Err(Declined::stale(format!("the task is {}", turn.case.task.state.state().name())));
        };
        match processed {
            Processed::Ready { probe, thumbnail } => {
                let charge = charge(&live.order, probe.duration_millis);
                turn.task(task::Command::Finish { probe, thumbnail, charge })?;
            }
            Processed::Corrupt { cause } => fail(turn, "corrupt_video", cause)?,
            Processed::NotNow { cause } if turn.now >= since + seconds(turn.policy.max_processing_seconds) => {
                fail(turn, "processing_failed", cause)?;
            }
            // Changes nothing: the broker brings the message again, and the scan does when the broker gives up.
            Processed::NotNow { cause } => return Ok(Next::Retry(cause)),
        }
        Ok(Next::Done)
    }
}
