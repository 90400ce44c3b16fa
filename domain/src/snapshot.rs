//! States put aside, so that a long stream need not be folded from its first event. Only ever a shortcut: whatever can not be
//! read is folded again.

use crate::aggregate::Category;
use crate::attempt::Attempt;
use crate::ledger::Account;
use crate::process::{Folded, Versioned};
use crate::task::Task;
use serde_json::Value;

/// A state that can be put aside and taken up again.
pub trait Snapshot: Sized {
    /// The stamp of today's encoding. It is raised when a state is encoded otherwise than before, and when the same events fold to
    /// another state than before: snapshots with another stamp are not read. A golden file per stamp holds the encoding fast
    /// (`golden_states/`).
    const SHAPE: i16;
    /// Its encoding.
    ///
    /// # Errors
    /// serde's own error; states are plain data, so this does not happen in practice.
    fn to_snapshot(&self) -> Result<Value, serde_json::Error>;
    /// Reads an encoding of this shape; `None` where it is none.
    fn from_snapshot(state: Value) -> Option<Self>;
}

macro_rules! as_it_is_in_json {
    ($($aggregate:ty = $shape:literal),+) => {
        $(impl Snapshot for $aggregate {
            const SHAPE: i16 = $shape;

            fn to_snapshot(&self) -> Result<Value, serde_json::Error> {
                serde_json::to_value(self)
            }

            fn from_snapshot(state: Value) -> Option<Self> {
                serde_json::from_value(state).ok()
            }
        })+
    };
}

as_it_is_in_json!(Task = 2, Attempt = 1);

impl Folded {
    /// The stamp of a category's encoding, see [`Snapshot::SHAPE`].
    #[must_use]
    pub const fn shape(category: Category) -> i16 {
        match category {
            Category::Account => Account::SHAPE,
            Category::Attempt => Attempt::SHAPE,
            Category::Task => Task::SHAPE,
        }
    }

    /// Its encoding for a snapshot, without the version.
    ///
    /// # Errors
    /// See [`Snapshot::to_snapshot`].
    pub fn to_snapshot(&self) -> Result<Value, serde_json::Error> {
        match self {
            Self::Account(it) => it.state.to_snapshot(),
            Self::Attempt(it) => it.state.to_snapshot(),
            Self::Task(it) => it.state.to_snapshot(),
        }
    }

    /// Reads an encoding of today's shape; `None` where it is none.
    #[must_use]
    pub fn from_snapshot(category: Category, version: i64, state: Value) -> Option<Self> {
        Some(match category {
            Category::Account => Self::Account(Versioned { state: Account::from_snapshot(state)?, version }),
            Category::Attempt => Self::Attempt(Versioned { state: Attempt::from_snapshot(state)?, version }),
            Category::Task => Self::Task(Versioned { state: Task::from_snapshot(state)?, version }),
        })
    }

    /// The state as JSON that people can read: amounts are in minor units, and the name of the state is under `state`.
    ///
    /// # Errors
    /// See [`Snapshot::to_snapshot`].
    pub fn to_readable(&self) -> Result<Value, serde_json::Error> {
        match self {
            Self::Account(it) => serde_json::to_value(&it.state),
            Self::Attempt(it) => serde_json::to_value(&it.state),
            Self::Task(it) => serde_json::to_value(&it.state),
        }
    }
}
