//! Renders an export (group `cg.render.export.v1`), under a key that is the same however often it is tried. The work is ours:
//! no provider is asked, so a cancel is final at once and a result that comes after it is recorded nowhere.

use super::fetch::fail;
use super::turn::{Declined, Turn, too_early};
use super::{Next, ProcessManager};
use crate::message::Message;
use crate::outcome::{Answer, Call, Rendered};
use crate::task::{self, Export, Maker, Task, Tries, Video};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct RenderExport;

impl ProcessManager for RenderExport {
    fn name(&self) -> &'static str {
        "cg.render.export.v1"
    }

    fn react(&self, message: &Message, turn: &mut Turn<'_>) -> Result<Next, Declined> {
        if matches!(turn.case.task.state, Task::Queued(_)) {
            turn.task(task::Command::BeginRender)?;
        }
        let (export, tries) = rendering(turn)?;
        // Put off, or a worker is at it; if that is gone, the scan takes over when its lease ends.
        if tries.due() > turn.now {
            let newest = matches!(message, Message::RenderDue(due) if due.task_version == turn.case.task.version);
            return too_early(message, newest, tries.due(), turn);
        }
        let max_tries = turn.policy.max_processing_tries;
        if tries.unanswered >= max_tries {
            fail(turn, "render_failed", format!("the render began {max_tries} times and never ended"))?;
            return Ok(Next::Done);
        }
        let busy_until = turn.policy.processing_lease(turn.now, tries.unanswered, export.order.task.0);
        turn.task(task::Command::BeginProcessing { max_tries, busy_until })?;
        let Export { source_key, spec, .. } = export.clone();
        let key = Maker::Render(export).object_key("video.mp4");
        Ok(Next::Call(Call::Render { source_key, key, spec }))
    }

    fn conclude(
        &self,
        _message: &Message,
        _call: &Call,
        answer: Answer,
        turn: &mut Turn<'_>,
    ) -> Result<Next, Declined> {
        let Answer::Rendered(rendered) = answer else {
            return Err(Declined::stale("not the answer to a render"));
        };
        let (export, tries) = rendering(turn)?;
        match rendered {
            Rendered::Stored(object) => {
                let asset = Maker::Render(export).asset("video");
                turn.task(task::Command::StoreVideo(Video { asset, object }))?;
            }
            // Another render, begun meanwhile, has put it off already.
            Rendered::NotNow { .. } if tries.not_before > turn.now => return Err(Declined::stale("already put off")),
            Rendered::NotNow { cause } if tries.delays >= turn.policy.max_render_delays => {
                fail(turn, "render_failed", format!("the export could not be rendered: {cause}"))?;
            }
            Rendered::NotNow { cause } => {
                let retry_at = turn.now + turn.policy.backoff(tries.delays, export.order.task.0);
                turn.task(task::Command::DelayRender { retry_at, cause })?;
            }
            Rendered::Never { code, cause } => fail(turn, code, cause)?,
        }
        Ok(Next::Done)
    }
}

fn rendering(turn: &Turn<'_>) -> Result<(Export, Tries), Declined> {
    match turn.case.task.state.clone() {
        Task::Rendering { export, tries } => Ok((export, tries)),
        other => Err(Declined::stale(format!("the task is {}", other.state().name()))),
    }
}
