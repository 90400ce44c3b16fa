//! The account's state, and what can be asked of it.

use super::keyed::Keyed;
use super::transitions::{Command, State};
use crate::id::TaskId;
use crate::money::Credits;
use crate::time::Timestamp;
use serde::Serialize;

/// An open hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Reserve {
    /// Set aside.
    pub amount: Credits,
    /// From when on it may expire; `None`: never.
    pub expires_at: Option<Timestamp>,
}

/// A settled hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Charge {
    /// Charged.
    pub charged: Credits,
    /// Given back of it so far, at most all of it.
    pub refunded: Credits,
}

/// What became of the credits set aside for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Hold {
    /// Still set aside.
    Open(Reserve),
    /// Charged.
    Settled(Charge),
    /// Freed.
    Released,
    /// Outlived its time, and freed.
    Expired,
}

impl Hold {
    /// The name of its state.
    #[must_use]
    pub const fn state(&self) -> State {
        match self {
            Self::Open(_) => State::Open,
            Self::Settled(_) => State::Settled,
            Self::Released => State::Released,
            Self::Expired => State::Expired,
        }
    }
}

/// What was given back under one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Refund {
    /// Whose charge it was taken from.
    pub task: TaskId,
    /// How much.
    pub amount: Credits,
}

/// A credit account. An account with no history is an empty one: there is nothing to create.
///
/// Clones share what they have in common: a folded account is kept in memory and cloned for each decision. As JSON it is for
/// people; snapshots have a denser form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Free to be held.
    pub available: Credits,
    /// Set aside by open holds.
    pub held: Credits,
    /// Charged so far, refunds not taken off.
    pub charged: Credits,
    /// Given back of what was charged.
    pub refunded: Credits,
    /// Granted so far.
    pub granted: Credits,
    /// Sum of the adjustments; less than nothing where more was taken away.
    pub adjusted: Credits,
    /// Business keys of the grants, with their amounts.
    pub(super) grants: Keyed<String, Credits>,
    /// Business keys of the adjustments, with their amounts.
    pub(super) adjustments: Keyed<String, Credits>,
    /// Business keys of the refunds.
    pub(super) refunds: Keyed<String, Refund>,
    /// Holds by task, closed ones included: a second posting for the same task must be recognised for ever.
    pub(super) holds: Keyed<TaskId, Hold>,
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
            Command::Grant { key, .. } if self.grants.get(key).is_some() => State::Granted,
            Command::Adjust { key, .. } if self.adjustments.get(key).is_some() => State::Adjusted,
            Command::Grant { .. } | Command::Adjust { .. } => State::NoPosting,
            Command::Hold { task, .. }
            | Command::Settle { task, .. }
            | Command::Release { task }
            | Command::Expire { task }
            | Command::Refund { task, .. } => self.hold(*task).as_ref().map_or(State::NoPosting, Hold::state),
        }
    }

    /// What came in is what is there: `granted + adjusted = available + held + charged - refunded`, nothing available or held
    /// is less than nothing, and no more was given back than charged. Worked out in wider integers: it can not overflow.
    #[must_use]
    pub fn is_conserved(&self) -> bool {
        let wide = |it: Credits| i128::from(it.0);
        let came_in = wide(self.granted) + wide(self.adjusted);
        let is_there = wide(self.available) + wide(self.held) + wide(self.charged) - wide(self.refunded);
        came_in == is_there
            && self.available >= Credits::ZERO
            && self.held >= Credits::ZERO
            && self.refunded >= Credits::ZERO
            && self.refunded <= self.charged
    }
}
