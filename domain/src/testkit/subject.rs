//! What the test kit needs to know of an aggregate.

use crate::aggregate::{Aggregate, Row};
use crate::attempt::{self, Attempt};
use crate::ledger::{self, Account};
use crate::stored::StoredEvent;
use crate::task::{self, Task};
use proptest::strategy::BoxedStrategy;
use std::fmt::Debug;
use std::hash::Hash;

/// An aggregate that the test kit can tell stories of and make histories for.
pub trait Subject: Aggregate<Command: Clone + Debug + PartialEq, Event: StoredEvent + PartialEq + Debug> {
    /// The names of its states.
    type State: Copy + Eq + Hash + Debug + 'static;
    /// The kinds of its commands.
    type On: Copy + Eq + Hash + Debug + 'static;
    /// Its transition table.
    const TABLE: &'static [Row<Self::State, Self::On>];
    /// Every kind of command.
    const EVERY_ON: &'static [Self::On];

    /// The kind of a command.
    fn on(command: &Self::Command) -> Self::On;
    /// The state that a command meets; an account is in as many states as it has business keys.
    fn state_met(&self, command: &Self::Command) -> Self::State;
    /// A state's name.
    fn state_name(state: Self::State) -> &'static str;
    /// Commands that make sense somewhere, from so small a world that they meet: the same few ids, keys and rounds.
    fn commands() -> BoxedStrategy<Self::Command>;
    /// Commands that nobody should send: amounts and counters at their ends, empty and strange words, times of other ages.
    fn hostile_commands() -> BoxedStrategy<Self::Command>;
}

macro_rules! subject {
    ($aggregate:ty, $module:ident, $state_met:expr, $strategies:ident) => {
        impl Subject for $aggregate {
            type State = $module::State;
            type On = $module::On;
            const TABLE: &'static [Row<Self::State, Self::On>] = $module::TRANSITIONS;
            const EVERY_ON: &'static [Self::On] = $module::On::ALL;

            fn on(command: &Self::Command) -> Self::On {
                command.on()
            }

            fn state_met(&self, command: &Self::Command) -> Self::State {
                ($state_met)(self, command)
            }

            fn state_name(state: Self::State) -> &'static str {
                state.name()
            }

            fn commands() -> BoxedStrategy<Self::Command> {
                super::strategies::$strategies::commands()
            }

            fn hostile_commands() -> BoxedStrategy<Self::Command> {
                super::strategies::$strategies::hostile_commands()
            }
        }
    };
}

subject!(Task, task, |task: &Task, _: &task::Command| task.state(), task);
subject!(Attempt, attempt, |attempt: &Attempt, _: &attempt::Command| attempt.state(), attempt);
subject!(Account, ledger, Account::state_for, account);
