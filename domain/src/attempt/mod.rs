//! The attempt aggregate: one try to have a provider carry out a task. At most one job at the provider belongs to it.

mod decide;
mod event;
mod evolve;
mod state;
mod transitions;

pub use event::{Event, Heard, UPCASTERS};
pub use state::{Attempt, Core, State};
pub use transitions::{Command, On, TRANSITIONS};
