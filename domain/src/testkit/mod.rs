//! For whoever changes a state machine, or builds on one: inputs to try it with, stories to tell about it, and the named
//! invariants to hold it against. Feature `testkit`, also from another crate:
//!
//! ```toml
//! [dev-dependencies]
//! domain = { workspace = true, features = ["testkit"] }
//! ```
//!
//! - [`strategies`]: proptest strategies for ids, amounts, times, orders, commands, histories and schedules of messages.
//! - [`story`]: given, when, then, for any aggregate.
//! - [`invariants`]: what must stay true, as functions over a history, and as watchers that are asked after each event.
//!
//! A new command of an aggregate is added in one place, its file in `strategies/`. A test fails for as long as it is not.
//!
//! ```
//! use domain::ledger::{Account, Command, Event, State};
//! use domain::money::Credits;
//! use domain::testkit::story::given;
//!
//! given::<Account>([Event::Granted { key: "welcome".to_owned(), amount: Credits(100) }])
//!     .when(Command::Grant { key: "welcome".to_owned(), amount: Credits(100) })
//!     .then_already_so()
//!     .then_state(State::Granted);
//! ```

pub mod invariants;
pub mod story;
pub mod strategies;
mod subject;

pub use subject::Subject;
