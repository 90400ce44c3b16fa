//! What a command leads to.

use super::transitions::{Command, HOLD_EXPIRED, KEY_TAKEN};
use super::{Account, Charge, Event, Hold, Refund};
use crate::aggregate::{Aggregate, Category, Decision, Misfit, NOT_FROM_THIS_STATE, Refusal};
use crate::id::TaskId;
use crate::money::Credits;
use crate::mutant::{self, Mutant};
use crate::stored::StoredEvent;
use crate::time::Timestamp;

type Decided = Result<Decision<Event>, Refusal>;

impl Aggregate for Account {
    const CATEGORY: Category = Category::Account;
    type Command = Command;
    type Event = Event;

    fn absent() -> Self {
        Self::default()
    }

    fn decide(&self, command: Command, now: Timestamp) -> Decided {
        match &command {
            Command::Grant { key, amount } => self.grant(&command, key, *amount),
            Command::Hold { task, amount, expires_at } => self.set_aside(&command, *task, *amount, *expires_at),
            Command::Settle { task, charge } => self.settle(&command, *task, *charge),
            Command::Release { task } => self.release(&command, *task),
            Command::Expire { task } => self.expire(&command, *task, now),
            Command::Refund { task, key, amount, reason } => self.refund(&command, *task, key, *amount, reason),
            Command::Adjust { key, amount, reason, by } => self.adjust(&command, key, *amount, reason, by),
        }
    }

    fn evolve(mut self, event: &Event) -> Result<Self, Misfit> {
        match self.post(event) {
            Some(()) => Ok(self),
            None => Err(Misfit { aggregate: "account", state: "ANY", event: event.name() }),
        }
    }
}

impl Account {
    fn refuse(&self, command: &Command, code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal {
            aggregate: "account",
            state: self.state_for(command).name(),
            command: command.on().name(),
            code,
            message: message.into(),
        }
    }

    /// What came in so far must fit with this amount added: then every other balance fits, for none is greater.
    fn check_capacity(&self, command: &Command, amount: Credits) -> Result<(), Refusal> {
        let came_in = self.granted.plus(self.adjusted).and_then(|sum| sum.plus(amount));
        let counter = match command {
            Command::Adjust { .. } => self.adjusted.plus(amount),
            _ => self.granted.plus(amount),
        };
        match (came_in, counter) {
            (Some(_), Some(_)) => Ok(()),
            _ => Err(self.refuse(command, "overflow", "the account can not carry so much")),
        }
    }

    fn check_words(&self, command: &Command, words: &[&str]) -> Result<(), Refusal> {
        if words.iter().any(|word| word.trim().is_empty()) {
            return Err(self.refuse(command, "blank", "who gives or takes credits by hand says why"));
        }
        Ok(())
    }

    fn check_available(&self, command: &Command, amount: Credits) -> Result<(), Refusal> {
        if amount > self.available {
            let message = format!("{} credits are needed, {} are available", amount, self.available);
            return Err(self.refuse(command, "insufficient_credits", message));
        }
        Ok(())
    }

    fn grant(&self, command: &Command, key: &str, amount: Credits) -> Decided {
        match self.grants.get(key) {
            Some(known) if *known == amount => return Ok(Decision::AlreadySo),
            Some(_) => return Err(self.refuse(command, KEY_TAKEN, "the key stands for another grant")),
            None => {}
        }
        if !amount.is_positive() {
            return Err(self.refuse(command, "not_positive", "a grant is more than nothing"));
        }
        self.check_capacity(command, amount)?;
        Ok(Decision::one(Event::Granted { key: key.to_owned(), amount }))
    }

    fn set_aside(&self, command: &Command, task: TaskId, amount: Credits, expires_at: Option<Timestamp>) -> Decided {
        match self.hold(task) {
            Some(Hold::Open(held)) if held.amount == amount => return Ok(Decision::AlreadySo),
            Some(_) => return Err(self.refuse(command, NOT_FROM_THIS_STATE, "the task has had its hold")),
            None => {}
        }
        if !amount.is_positive() {
            return Err(self.refuse(command, "not_positive", "a hold is more than nothing"));
        }
        self.check_available(command, amount)?;
        Ok(Decision::one(Event::Held { task, amount, expires_at }))
    }

    fn settle(&self, command: &Command, task: TaskId, charge: Credits) -> Decided {
        let held = match self.hold(task) {
            Some(Hold::Open(held)) => held.amount,
            Some(Hold::Settled(_)) if mutant::on(Mutant::SettleTwice) => charge,
            Some(Hold::Settled(Charge { charged, .. })) if charged == charge => return Ok(Decision::AlreadySo),
            closed => return Err(self.no_open_hold(command, closed)),
        };
        let Some(released) = held.minus(charge).filter(|rest| charge >= Credits::ZERO && *rest >= Credits::ZERO) else {
            return Err(self.refuse(command, "charge_exceeds_hold", format!("{held} credits are held")));
        };
        if self.charged.plus(charge).is_none() {
            return Err(self.refuse(command, "overflow", "the account can not count so much"));
        }
        Ok(Decision::one(Event::Settled { task, charged: charge, released }))
    }

    fn release(&self, command: &Command, task: TaskId) -> Decided {
        match self.hold(task) {
            Some(Hold::Open(held)) => Ok(Decision::one(Event::Released { task, released: held.amount })),
            Some(Hold::Released) if mutant::on(Mutant::ReleaseTwice) => {
                Ok(Decision::one(Event::Released { task, released: Credits(1) }))
            }
            Some(Hold::Released) => Ok(Decision::AlreadySo),
            closed => Err(self.no_open_hold(command, closed)),
        }
    }

    fn expire(&self, command: &Command, task: TaskId, now: Timestamp) -> Decided {
        match self.hold(task) {
            Some(Hold::Open(held)) if held.expires_at.is_some_and(|at| at <= now) => {
                Ok(Decision::one(Event::HoldExpired { task, released: held.amount, at: now }))
            }
            Some(Hold::Open(_)) => Err(self.refuse(command, "not_expired", "the hold's time is not over")),
            Some(Hold::Expired) => Ok(Decision::AlreadySo),
            closed => Err(self.no_open_hold(command, closed)),
        }
    }

    fn refund(&self, command: &Command, task: TaskId, key: &str, amount: Credits, reason: &str) -> Decided {
        let Some(Hold::Settled(Charge { charged, refunded })) = self.hold(task) else {
            return Err(self.refuse(command, NOT_FROM_THIS_STATE, "only what was charged is given back"));
        };
        match self.refunds.get(key) {
            Some(known) if *known == (Refund { task, amount }) => return Ok(Decision::AlreadySo),
            Some(_) => return Err(self.refuse(command, KEY_TAKEN, "the key stands for another refund")),
            None => {}
        }
        if !amount.is_positive() {
            return Err(self.refuse(command, "not_positive", "a refund is more than nothing"));
        }
        self.check_words(command, &[key, reason])?;
        // Against what is left of the charge, never against the charge or the hold: refunds in steps add up.
        if charged.minus(refunded).is_none_or(|left| amount > left) {
            let message = format!("{charged} credits were charged, {refunded} of them are refunded");
            return Err(self.refuse(command, "refund_exceeds_charge", message));
        }
        Ok(Decision::one(Event::Refunded { task, key: key.to_owned(), amount, reason: reason.to_owned() }))
    }

    fn adjust(&self, command: &Command, key: &str, amount: Credits, reason: &str, by: &str) -> Decided {
        match self.adjustments.get(key) {
            Some(known) if *known == amount => return Ok(Decision::AlreadySo),
            Some(_) => return Err(self.refuse(command, KEY_TAKEN, "the key stands for another adjustment")),
            None => {}
        }
        if amount == Credits::ZERO {
            return Err(self.refuse(command, "not_an_amount", "an adjustment is more or less than nothing"));
        }
        self.check_words(command, &[key, reason, by])?;
        self.check_capacity(command, amount)?;
        // `amount` is the lesser one: what is taken away always fits, for nothing available is less than nothing.
        if self.available.plus(amount).is_none_or(|left| left < Credits::ZERO) {
            let message = format!("{} credits are available", self.available);
            return Err(self.refuse(command, "insufficient_credits", message));
        }
        let (key, reason, by) = (key.to_owned(), reason.to_owned(), by.to_owned());
        Ok(Decision::one(Event::Adjusted { key, amount, reason, by }))
    }

    fn no_open_hold(&self, command: &Command, closed: Option<Hold>) -> Refusal {
        match closed {
            Some(Hold::Expired) => self.refuse(command, HOLD_EXPIRED, "the hold had expired before the verdict came"),
            _ => self.refuse(command, NOT_FROM_THIS_STATE, "there is no open hold"),
        }
    }
}
