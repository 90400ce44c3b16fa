//! What may be asked of an account, and the one table of legal transitions: of the account for grants, of one hold for the rest.

use crate::aggregate::{Row, named, row};
use crate::id::TaskId;
use crate::money::Credits;

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Credits come in.
    Grant {
        /// Business key.
        key: String,
        /// How much, more than nothing.
        amount: Credits,
    },
    /// Set credits aside for a task.
    Hold {
        /// Business key.
        task: TaskId,
        /// How much, more than nothing.
        amount: Credits,
    },
    /// Charge a task's hold; the rest is free again.
    Settle {
        /// Business key.
        task: TaskId,
        /// Charge, from nothing to what is held.
        charge: Credits,
    },
    /// Free a task's hold.
    Release {
        /// Business key.
        task: TaskId,
    },
}

named! {
    /// The kinds of command.
    On {
        /// See [`Command::Grant`].
        Grant = "Grant",
        /// See [`Command::Hold`].
        Hold = "Hold",
        /// See [`Command::Settle`].
        Settle = "Settle",
        /// See [`Command::Release`].
        Release = "Release",
    }
}

impl Command {
    /// The kind of this command.
    #[must_use]
    pub const fn on(&self) -> On {
        match self {
            Self::Grant { .. } => On::Grant,
            Self::Hold { .. } => On::Hold,
            Self::Settle { .. } => On::Settle,
            Self::Release { .. } => On::Release,
        }
    }
}

named! {
    /// What a command meets: for a grant whether its key is new, for the others the state of the task's hold.
    State {
        /// No posting has this key.
        NoPosting = "NO_POSTING",
        /// A grant with this key is posted.
        Granted = "GRANTED",
        /// Credits are set aside for the task.
        Open = "OPEN",
        /// The task's hold was charged.
        Settled = "SETTLED",
        /// The task's hold was freed.
        Released = "RELEASED",
    }
}

/// Every legal transition. An open hold is closed once, one way: there is no row out of `SETTLED` or `RELEASED`.
pub const TRANSITIONS: &[Row<State, On>] = &[
    row(State::NoPosting, On::Grant, State::Granted, "the amount is more than nothing"),
    row(State::NoPosting, On::Hold, State::Open, "so much is available"),
    row(State::Open, On::Settle, State::Settled, "the charge is within the hold"),
    row(State::Open, On::Release, State::Released, ""),
];
