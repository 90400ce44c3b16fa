//! What every aggregate is: a value that decides and evolves, and one table of legal transitions.

use crate::time::Timestamp;
use std::fmt::Debug;

/// The kinds of stream. The names are stored for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Category {
    /// A credit account with its holds.
    Account,
    /// One try at a provider.
    Attempt,
    /// One generation a user asked for.
    Task,
}

impl Category {
    /// The stored name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::Attempt => "attempt",
            Self::Task => "task",
        }
    }

    /// The category of a stored name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Account, Self::Attempt, Self::Task].into_iter().find(|category| category.name() == name)
    }
}

/// An aggregate: pure, synchronous, and total over its commands.
///
/// `decide` says what a command leads to; `evolve` folds a recorded event. Ids, prices and times come in with the command, so
/// that any history can be generated and replayed.
pub trait Aggregate: Clone + PartialEq + Debug + Send + Sync + Sized + 'static {
    /// First half of the stream's name.
    const CATEGORY: Category;
    /// What may be asked of it.
    type Command;
    /// What may have happened to it.
    type Event: Clone;
    /// The state before anything happened: creation is an ordinary transition.
    fn absent() -> Self;
    /// What a command leads to in this state at this time.
    ///
    /// # Errors
    /// [`Refusal`]: the command is not legal here, or a guard of its table row does not hold.
    fn decide(&self, command: Self::Command, now: Timestamp) -> Result<Decision<Self::Event>, Refusal>;
    /// The state after a recorded event.
    ///
    /// # Errors
    /// [`Misfit`]: the event can not have happened in this state; the history is corrupt.
    fn evolve(self, event: &Self::Event) -> Result<Self, Misfit>;
}

/// What a legal command leads to.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<E> {
    /// These events, in this order, at least one.
    Record(Vec<E>),
    /// The command had been carried out before: neither an error nor an event.
    AlreadySo,
}

impl<E> Decision<E> {
    /// One event.
    pub fn one(event: E) -> Self {
        Self::Record(vec![event])
    }
}

/// A business "no". It names the state it met and the command, and is data for the caller, not a fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{aggregate} in state {state} refuses {command}: {message}")]
pub struct Refusal {
    /// Which kind of aggregate.
    pub aggregate: &'static str,
    /// The state it met.
    pub state: &'static str,
    /// The command.
    pub command: &'static str,
    /// A stable code: `not_from_this_state`, or the guard's own, such as `insufficient_credits`.
    pub code: &'static str,
    /// A sentence for people.
    pub message: String,
}

/// The code of a refusal for which the transition table has no row.
pub const NOT_FROM_THIS_STATE: &str = "not_from_this_state";

/// An event that does not fit the state: the stored history can not be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event {event} does not fit {aggregate} in state {state}")]
pub struct Misfit {
    /// Which kind of aggregate.
    pub aggregate: &'static str,
    /// The state.
    pub state: &'static str,
    /// The event's stored name.
    pub event: &'static str,
}

/// One legal transition: in state `from`, command `on` may lead to state `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row<S, C> {
    /// State before.
    pub from: S,
    /// Command.
    pub on: C,
    /// State after.
    pub to: S,
    /// For readers: under which condition. The guard itself is in `decide`.
    pub when: &'static str,
}

/// Writes a table row.
pub const fn row<S, C>(from: S, on: C, to: S, when: &'static str) -> Row<S, C> {
    Row { from, on, to, when }
}

/// Declares a field-less enum with a name for each variant: the words used in tables, errors, read models and diagrams.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }
        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
            /// The value of a name.
            #[must_use]
            pub fn parse(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| it.name() == name)
            }
        }
    };
}
pub(crate) use named;
