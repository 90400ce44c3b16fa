//! What holds between a task and the account that pays for it.

use super::{Recorded, Violation, Watch};
use crate::id::TaskId;
use crate::ledger;
use crate::money::Credits;
use crate::process::{Change, StreamId};
use crate::task::{self, Order};
use std::collections::HashMap;

/// conserved-credits, between streams: a task is submitted with its hold, what is charged is what the task came to and what the
/// user was told with the video, what has not succeeded is not charged, and no hold is freed before the task's end. At rest, the
/// hold of a task that ended is closed.
///
/// A grant or an account on its own says nothing here: the history has to have the tasks' streams too.
#[derive(Debug, Default)]
pub struct SettledByVerdict {
    tasks: HashMap<TaskId, Payment>,
}

#[derive(Debug, Default)]
struct Payment {
    held: Option<Credits>,
    closed: bool,
    submitted: bool,
    /// The charge that was told with a video that was handed out before its thumbnail.
    told: Option<Credits>,
    /// The charge; nothing for a task that ended without its video.
    verdict: Option<Verdict>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Charge(Credits),
    Nothing,
}

impl SettledByVerdict {
    fn submitted(&mut self, order: &Order) -> Result<(), String> {
        let payment = self.tasks.entry(order.task).or_default();
        payment.submitted = true;
        match payment.held {
            Some(held) if held == order.hold => Ok(()),
            Some(held) => Err(format!("the order is to hold {}, and {held} are held", order.hold)),
            None => Err(format!("the order is to hold {}, and nothing is held", order.hold)),
        }
    }

    fn ended(&mut self, task: TaskId, verdict: Verdict) -> Result<(), String> {
        let payment = self.tasks.entry(task).or_default();
        payment.verdict = Some(verdict);
        match (verdict, payment.held) {
            (Verdict::Charge(charge), _) if payment.told.is_some_and(|told| told != charge) => {
                Err(format!("the task costs {charge}, and the user was told otherwise"))
            }
            (Verdict::Charge(charge), Some(held)) if charge > held => {
                Err(format!("the task costs {charge}, and {held} are held"))
            }
            _ if payment.closed => Err("the hold was closed before the task had ended".to_owned()),
            _ => Ok(()),
        }
    }

    /// `charged`: `None` where the hold is freed.
    fn closed(&mut self, task: TaskId, charged: Option<Credits>) -> Result<(), String> {
        let payment = self.tasks.entry(task).or_default();
        payment.closed = true;
        match (charged, payment.verdict) {
            (Some(charged), Some(Verdict::Charge(due))) if charged == due => Ok(()),
            (Some(charged), Some(Verdict::Charge(due))) => {
                Err(format!("{charged} are charged, and the task came to {due}"))
            }
            (Some(charged), _) => Err(format!("{charged} are charged for a task that has not succeeded")),
            (None, Some(Verdict::Charge(due))) => Err(format!("the hold is freed, and {due} are due")),
            (None, Some(Verdict::Nothing)) => Ok(()),
            (None, None) if payment.submitted => Err("the hold is freed before the task has ended".to_owned()),
            // Stranded: a hold without its task.
            (None, None) => Ok(()),
        }
    }

    fn of_task(&mut self, id: TaskId, event: &task::Event) -> Result<(), String> {
        match event {
            task::Event::Submitted { order } => self.submitted(order),
            task::Event::VideoReady { charge, .. } => {
                self.tasks.entry(id).or_default().told = Some(*charge);
                Ok(())
            }
            task::Event::Succeeded { charge, .. } => self.ended(id, Verdict::Charge(*charge)),
            task::Event::Failed { .. } | task::Event::Canceled { .. } | task::Event::CanceledWithOutput {} => {
                self.ended(id, Verdict::Nothing)
            }
            _ => Ok(()),
        }
    }

    fn of_account(&mut self, event: &ledger::Event) -> Result<(), String> {
        match event {
            ledger::Event::Held { task, amount, .. } => {
                self.tasks.entry(*task).or_default().held = Some(*amount);
                Ok(())
            }
            ledger::Event::Settled { task, charged, .. } => self.closed(*task, Some(*charged)),
            ledger::Event::Released { task, .. } | ledger::Event::HoldExpired { task, .. } => self.closed(*task, None),
            _ => Ok(()),
        }
    }
}

impl Watch for SettledByVerdict {
    fn invariant(&self) -> &'static str {
        "settled-by-verdict"
    }

    fn observe(&mut self, recorded: &Recorded) -> Result<(), Violation> {
        match &recorded.change {
            Change::Task(id, event) => self.of_task(*id, event),
            Change::Account(_, event) => self.of_account(event),
            Change::Attempt(..) => Ok(()),
        }
        .map_err(|sentence| self.broken(recorded, sentence))
    }

    fn at_rest(&self) -> Result<(), Violation> {
        let open = self.tasks.iter().filter(|(_, it)| it.verdict.is_some() && !it.closed).map(|(id, _)| *id).min();
        match open {
            None => Ok(()),
            Some(id) => Err(Violation {
                invariant: self.invariant(),
                stream: StreamId::task(id),
                version: 0,
                sentence: "the task has ended, and its hold is still open".to_owned(),
            }),
        }
    }
}
