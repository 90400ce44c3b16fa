//! The account's state and rules.

use super::Event;
use super::transitions::{Command, State};
use crate::aggregate::{Aggregate, Category, Decision, Misfit, NOT_FROM_THIS_STATE, Refusal};
use crate::id::TaskId;
use crate::money::Credits;
use crate::stored::StoredEvent;
use crate::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What became of the credits set aside for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Still set aside.
    Open(Credits),
    /// Charged.
    Settled(Credits),
    /// Freed.
    Released,
}

/// A credit account. An account with no history is an empty one: there is nothing to create.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Free to be held.
    pub available: Credits,
    /// Set aside by open holds.
    pub held: Credits,
    /// Charged so far.
    pub charged: Credits,
    /// Business keys of the grants. Shared between clones: a folded account is kept in memory and cloned for each decision.
    grants: Arc<BTreeSet<String>>,
    /// Holds by task, closed ones included: a second posting for the same task must be recognised for ever.
    holds: Arc<BTreeMap<TaskId, Hold>>,
}

impl Account {
    /// The hold of a task.
    #[must_use]
    pub fn hold(&self, task: TaskId) -> Option<Hold> {
        self.holds.get(&task).copied()
    }

    /// The state that a command meets.
    #[must_use]
    pub fn state_for(&self, command: &Command) -> State {
        match command {
            Command::Grant { key, .. } if self.grants.contains(key) => State::Granted,
            Command::Grant { .. } => State::NoPosting,
            Command::Hold { task, .. } | Command::Settle { task, .. } | Command::Release { task } => {
                match self.hold(*task) {
                    None => State::NoPosting,
                    Some(Hold::Open(_)) => State::Open,
                    Some(Hold::Settled(_)) => State::Settled,
                    Some(Hold::Released) => State::Released,
                }
            }
        }
    }

    fn refuse(state: State, command: &Command, code: &'static str, message: String) -> Refusal {
        Refusal { aggregate: "account", state: state.name(), command: command.on().name(), code, message }
    }

    fn grant(&self, state: State, command: &Command, key: &str, amount: Credits) -> Result<Decision<Event>, Refusal> {
        if state == State::Granted {
            return Ok(Decision::AlreadySo);
        }
        if !amount.is_positive() {
            return Err(Self::refuse(state, command, "not_positive", "a grant is more than nothing".into()));
        }
        let total =
            self.available.plus(self.held).and_then(|sum| sum.plus(self.charged)).and_then(|sum| sum.plus(amount));
        if total.is_none() {
            return Err(Self::refuse(state, command, "overflow", "the account can not carry so much".into()));
        }
        Ok(Decision::one(Event::Granted { key: key.to_owned(), amount }))
    }

    fn set_aside(&self, command: &Command, task: TaskId, amount: Credits) -> Result<Decision<Event>, Refusal> {
        let state = self.state_for(command);
        match self.hold(task) {
            Some(Hold::Open(held)) if held == amount => return Ok(Decision::AlreadySo),
            Some(_) => {
                return Err(Self::refuse(state, command, NOT_FROM_THIS_STATE, "the task has had its hold".into()));
            }
            None => {}
        }
        if !amount.is_positive() {
            return Err(Self::refuse(state, command, "not_positive", "a hold is more than nothing".into()));
        }
        if amount > self.available {
            let message = format!("{} credits are needed, {} are available", amount, self.available);
            return Err(Self::refuse(state, command, "insufficient_credits", message));
        }
        Ok(Decision::one(Event::Held { task, amount }))
    }

    fn settle(&self, command: &Command, task: TaskId, charge: Credits) -> Result<Decision<Event>, Refusal> {
        let state = self.state_for(command);
        match self.hold(task) {
            Some(Hold::Open(held)) => match held.minus(charge) {
                Some(released) if charge >= Credits::ZERO && released >= Credits::ZERO => {
                    Ok(Decision::one(Event::Settled { task, charged: charge, released }))
                }
                _ => Err(Self::refuse(state, command, "charge_exceeds_hold", format!("{held} credits are held"))),
            },
            Some(Hold::Settled(charged)) if charged == charge => Ok(Decision::AlreadySo),
            _ => Err(Self::refuse(state, command, NOT_FROM_THIS_STATE, "there is no open hold".into())),
        }
    }

    fn release(&self, command: &Command, task: TaskId) -> Result<Decision<Event>, Refusal> {
        let state = self.state_for(command);
        match self.hold(task) {
            Some(Hold::Open(released)) => Ok(Decision::one(Event::Released { task, released })),
            Some(Hold::Released) => Ok(Decision::AlreadySo),
            _ => Err(Self::refuse(state, command, NOT_FROM_THIS_STATE, "there is no open hold".into())),
        }
    }

    /// Moves amounts; `None` where the history would break the account's arithmetic.
    fn post(&mut self, event: &Event) -> Option<()> {
        match event {
            Event::Granted { key, amount } => {
                self.available = self.available.plus(*amount)?;
                Arc::make_mut(&mut self.grants).insert(key.clone()).then_some(())?;
            }
            Event::Held { task, amount } => {
                self.available = self.available.minus(*amount).filter(|left| *left >= Credits::ZERO)?;
                self.held = self.held.plus(*amount)?;
                Arc::make_mut(&mut self.holds).insert(*task, Hold::Open(*amount)).is_none().then_some(())?;
            }
            Event::Settled { task, charged, released } => {
                self.close(*task, charged.plus(*released)?, Hold::Settled(*charged))?;
                self.charged = self.charged.plus(*charged)?;
                self.available = self.available.plus(*released)?;
            }
            Event::Released { task, released } => {
                self.close(*task, *released, Hold::Released)?;
                self.available = self.available.plus(*released)?;
            }
        }
        Some(())
    }

    fn close(&mut self, task: TaskId, amount: Credits, how: Hold) -> Option<()> {
        (self.hold(task)? == Hold::Open(amount)).then_some(())?;
        self.held = self.held.minus(amount)?;
        Arc::make_mut(&mut self.holds).insert(task, how);
        Some(())
    }
}

impl Aggregate for Account {
    const CATEGORY: Category = Category::Account;
    type Command = Command;
    type Event = Event;

    fn absent() -> Self {
        Self::default()
    }

    fn decide(&self, command: Command, _now: Timestamp) -> Result<Decision<Event>, Refusal> {
        let state = self.state_for(&command);
        match &command {
            Command::Grant { key, amount } => self.grant(state, &command, key, *amount),
            Command::Hold { task, amount } => self.set_aside(&command, *task, *amount),
            Command::Settle { task, charge } => self.settle(&command, *task, *charge),
            Command::Release { task } => self.release(&command, *task),
        }
    }

    fn evolve(mut self, event: &Event) -> Result<Self, Misfit> {
        match self.post(event) {
            Some(()) => Ok(self),
            None => Err(Misfit { aggregate: "account", state: "ANY", event: event.name() }),
        }
    }
}
