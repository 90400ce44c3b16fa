//! The ledger aggregate: a credit account and the holds on it. Integer minor units, overflow refused.

mod event;
mod rules;
mod transitions;

pub use event::{Event, UPCASTERS};
pub use rules::{Account, Hold};
pub use transitions::{Command, On, State, TRANSITIONS};
