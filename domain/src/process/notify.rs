//! Records news for people (group `cg.notification.push.v1`). It may lag or be repeated; it changes no task.

use super::turn::{Declined, Notice, Turn};
use super::{Next, ProcessManager};
use crate::message::Message;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Notify;

impl ProcessManager for Notify {
    fn name(&self) -> &'static str {
        "cg.notification.push.v1"
    }

    fn react(&self, message: &Message, turn: &mut Turn<'_>) -> Result<Next, Declined> {
        let Message::StateChanged(changed) = message else {
            return Err(Declined::stale("not a change of state"));
        };
        if changed.task_version < turn.case.task.version {
            return Err(Declined::stale("newer news is on its way"));
        }
        let Some(order) = turn.case.task.state.order() else {
            return Err(Declined::stale("the task has no history"));
        };
        let notice = Notice {
            tenant: order.tenant,
            task: order.task,
            version: turn.case.task.version,
            state: turn.case.task.state.state(),
        };
        turn.notices.push(notice);
        Ok(Next::Done)
    }
}
