//! Inputs by chance. Sensible ones come from a small world (a few ids, a few keys, one afternoon), so that they meet;
//! `hostile` ones come from its edges.
//!
//! ```
//! use domain::ledger::Account;
//! use domain::testkit::strategies::{histories, sessions};
//! use proptest::prelude::*;
//!
//! proptest!(|(history in histories::<Account>(8))| {
//!     prop_assert!(history.state.is_conserved());
//! });
//! // A session is what callers send: repeated, stale, refused commands included.
//! proptest!(|(session in sessions::<Account>(20))| prop_assert!(session.len() <= 20));
//! ```

pub(super) mod account;
pub(super) mod attempt;
mod basics;
mod history;
mod schedule;
pub(super) mod task;

pub use basics::{
    START, attempt_ids, credits, hostile_credits, hostile_text, hostile_timestamps, keys, orders, start, task_ids,
    tenant_ids, timestamps, usual_order, words, works,
};
pub use history::{History, Step, histories, sessions};
pub use schedule::{Delivery, schedules};
