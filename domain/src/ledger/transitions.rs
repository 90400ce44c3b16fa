//! What may be asked of an account, and the one table of legal transitions: of the key for grants and adjustments, of one hold
//! for the rest.

use crate::aggregate::{Row, named, row};
use crate::id::TaskId;
use crate::money::Credits;
use crate::time::Timestamp;

/// The code of a refusal to settle or release a hold that has expired: the verdict came too late.
pub const HOLD_EXPIRED: &str = "hold_expired";

/// The code of a refusal of a business key that stands for another posting.
pub const KEY_TAKEN: &str = "key_taken";

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
        /// From when on the hold may expire; `None`: it never does. Where the command is repeated, the first time stands.
        expires_at: Option<Timestamp>,
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
    /// Free a task's hold whose time is over.
    Expire {
        /// Business key.
        task: TaskId,
    },
    /// Give back part of what a task was charged.
    Refund {
        /// The task.
        task: TaskId,
        /// Business key, such as the support case: one refund per key in the whole account.
        key: String,
        /// How much, more than nothing; all refunds of a task together are at most its charge.
        amount: Credits,
        /// Why, for auditors; not blank.
        reason: String,
    },
    /// Correct what is available.
    Adjust {
        /// Business key.
        key: String,
        /// How much, not nothing; less than nothing takes away, at most what is available.
        amount: Credits,
        /// Why, for auditors; not blank.
        reason: String,
        /// Who does it; not blank.
        by: String,
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
        /// See [`Command::Expire`].
        Expire = "Expire",
        /// See [`Command::Refund`].
        Refund = "Refund",
        /// See [`Command::Adjust`].
        Adjust = "Adjust",
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
            Self::Expire { .. } => On::Expire,
            Self::Refund { .. } => On::Refund,
            Self::Adjust { .. } => On::Adjust,
        }
    }
}

named! {
    /// What a command meets: for a grant or an adjustment whether its key is new, for the others the state of the task's hold.
    State {
        /// No posting has this key.
        NoPosting = "NO_POSTING",
        /// A grant with this key is posted.
        Granted = "GRANTED",
        /// An adjustment with this key is posted.
        Adjusted = "ADJUSTED",
        /// Credits are set aside for the task.
        Open = "OPEN",
        /// The task's hold was charged.
        Settled = "SETTLED",
        /// The task's hold was freed.
        Released = "RELEASED",
        /// The task's hold outlived its time and was freed.
        Expired = "EXPIRED",
    }
}

/// Every legal transition. An open hold is closed once, one way: there is no row out of `RELEASED` or `EXPIRED`, and out of
/// `SETTLED` only refunds. A pair without a row is refused for every input, as `not_from_this_state`, [`HOLD_EXPIRED`] or
/// [`KEY_TAKEN`].
pub const TRANSITIONS: &[Row<State, On>] = &[
    row(State::NoPosting, On::Grant, State::Granted, "the amount is more than nothing"),
    row(State::NoPosting, On::Adjust, State::Adjusted, "so much is available, where it takes away"),
    row(State::NoPosting, On::Hold, State::Open, "so much is available"),
    row(State::Open, On::Settle, State::Settled, "the charge is within the hold"),
    row(State::Open, On::Release, State::Released, ""),
    row(State::Open, On::Expire, State::Expired, "its time is over"),
    row(State::Settled, On::Refund, State::Settled, "all refunds together are within the charge"),
];
