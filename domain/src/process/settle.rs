//! Settles or releases the hold of a task that has ended (group `cg.billing.settle.v1`). One posting per task, ever.

use super::turn::{Declined, Turn};
use super::{Next, ProcessManager};
use crate::ledger;
use crate::message::Message;
use crate::task::Task;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct SettleHold;

impl ProcessManager for SettleHold {
    fn name(&self) -> &'static str {
        "cg.billing.settle.v1"
    }

    fn needs_account(&self) -> bool {
        true
    }

    fn react(&self, message: &Message, turn: &mut Turn<'_>) -> Result<Next, Declined> {
        let task = message.task_id();
        match &turn.case.task.state {
            Task::Succeeded { charge, .. } => {
                let charge = *charge;
                turn.account(ledger::Command::Settle { task, charge })?;
            }
            Task::Failed { .. } | Task::Canceled(_) | Task::CanceledWithOutput(_) => {
                turn.account(ledger::Command::Release { task })?;
            }
            open => return Err(Declined::stale(format!("the task is {}, not at its end", open.state().name()))),
        }
        Ok(Next::Done)
    }
}
