//! What holds for accounts. Books of their own, in wider integers: not the aggregate's arithmetic once more.

use super::{Recorded, Violation, Watch};
use crate::id::{AccountId, TaskId};
use crate::ledger::Event;
use crate::money::Credits;
use crate::process::Change;
use std::collections::{HashMap, HashSet};

/// conserved-credits: per task reserved = settled + released + open, and refunds are within what was settled; per account what
/// came in = available + held + charged - refunded, and none of them is ever less than nothing.
#[derive(Debug, Default)]
pub struct ConservedCredits {
    books: HashMap<AccountId, Book>,
}

#[derive(Debug, Default)]
struct Book {
    came_in: i128,
    available: i128,
    held: i128,
    charged: i128,
    refunded: i128,
    holds: HashMap<TaskId, Entry>,
}

#[derive(Debug, Default)]
struct Entry {
    open: i128,
    settled: i128,
    refunded: i128,
}

const fn wide(amount: Credits) -> i128 {
    amount.0 as i128
}

impl Book {
    fn post(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::Granted { amount, .. } | Event::Adjusted { amount, .. } => {
                self.came_in += wide(*amount);
                self.available += wide(*amount);
            }
            Event::Held { task, amount, .. } => {
                self.available -= wide(*amount);
                self.held += wide(*amount);
                let open = wide(*amount);
                if self.holds.insert(*task, Entry { open, ..Entry::default() }).is_some() {
                    return Err(format!("a second hold for task {task}"));
                }
            }
            Event::Settled { task, charged, released } => self.close(*task, wide(*charged), wide(*released))?,
            Event::Released { task, released } | Event::HoldExpired { task, released, .. } => {
                self.close(*task, 0, wide(*released))?;
            }
            Event::Refunded { task, amount, .. } => self.give_back(*task, wide(*amount))?,
        }
        self.balance()
    }

    fn close(&mut self, task: TaskId, settled: i128, released: i128) -> Result<(), String> {
        let entry = self.holds.get_mut(&task).ok_or_else(|| format!("task {task} has no hold to close"))?;
        let reserved = std::mem::take(&mut entry.open);
        if reserved != settled + released || settled < 0 || released < 0 || reserved == 0 {
            return Err(format!("task {task} has {reserved} open, and {settled} are settled, {released} released"));
        }
        entry.settled = settled;
        self.held -= reserved;
        self.available += released;
        self.charged += settled;
        Ok(())
    }

    fn give_back(&mut self, task: TaskId, amount: i128) -> Result<(), String> {
        let entry = self.holds.get_mut(&task).ok_or_else(|| format!("task {task} was never charged"))?;
        entry.refunded += amount;
        if amount <= 0 || entry.refunded > entry.settled {
            return Err(format!("task {task} was charged {}, and {} are refunded", entry.settled, entry.refunded));
        }
        self.refunded += amount;
        self.available += amount;
        Ok(())
    }

    fn balance(&self) -> Result<(), String> {
        let Self { came_in, available, held, charged, refunded, .. } = self;
        if *available < 0 || *held < 0 {
            return Err(format!("{available} credits are available, {held} are held"));
        }
        if *came_in != available + held + charged - refunded {
            return Err(format!(
                "{came_in} came in, and there are {available} available, {held} held, {charged} charged less {refunded} refunded"
            ));
        }
        Ok(())
    }
}

impl Watch for ConservedCredits {
    fn invariant(&self) -> &'static str {
        "conserved-credits"
    }

    fn observe(&mut self, recorded: &Recorded) -> Result<(), Violation> {
        let Change::Account(account, event) = &recorded.change else { return Ok(()) };
        let posted = self.books.entry(*account).or_default().post(event);
        posted.map_err(|sentence| self.broken(recorded, sentence))
    }
}

/// conserved-credits, its last part: one posting per business key, ever; of the three that close a hold, one.
#[derive(Debug, Default)]
pub struct OnePostingPerKey {
    words: HashSet<(AccountId, &'static str, String)>,
    tasks: HashSet<(AccountId, &'static str, TaskId)>,
}

impl Watch for OnePostingPerKey {
    fn invariant(&self) -> &'static str {
        "one-posting-per-key"
    }

    fn observe(&mut self, recorded: &Recorded) -> Result<(), Violation> {
        let Change::Account(account, event) = &recorded.change else { return Ok(()) };
        let account = *account;
        let (first, key) = match event {
            Event::Granted { key, .. } => (self.words.insert((account, "grant", key.clone())), key.clone()),
            Event::Adjusted { key, .. } => (self.words.insert((account, "adjust", key.clone())), key.clone()),
            Event::Refunded { key, .. } => (self.words.insert((account, "refund", key.clone())), key.clone()),
            Event::Held { task, .. } => (self.tasks.insert((account, "hold", *task)), task.to_string()),
            Event::Settled { task, .. } | Event::Released { task, .. } | Event::HoldExpired { task, .. } => {
                (self.tasks.insert((account, "close", *task)), task.to_string())
            }
        };
        if first { Ok(()) } else { Err(self.broken(recorded, format!("key {key} is posted a second time"))) }
    }
}
