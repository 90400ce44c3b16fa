//! Records news for people (group `cg.notification.push.v1`). It may lag or be repeated; it changes no task.
//!
//! People are told what is so by now: news that is late tells of the newer state, once a version.

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
        if !matches!(message, Message::StateChanged(_)) {
            return Err(Declined::stale("not a change of state"));
        }
        let state = turn.case.task.state.state();
        if !state.is_news() {
            return Err(Declined::stale(format!("the task is {} again, which is no news", state.name())));
        }
        let Some(order) = turn.case.task.state.order() else {
            return Err(Declined::stale("the task has no history"));
        };
        let notice = Notice { tenant: order.tenant, task: order.task, version: turn.case.task.version, state };
        turn.notices.push(notice);
        Ok(Next::Done)
    }
}
