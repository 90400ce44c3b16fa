//! The ledger aggregate: a credit account and the holds on it.
//!
//! - **Integers.** Every amount is a whole number of minor units. An amount that does not fit is refused, never wrapped.
//! - **Rounding.** There is one place that rounds: the price of a task, worked out once from whole started seconds
//!   ([`crate::process::charge`]) and rounded up there. The ledger only adds and subtracts what it is given, so a thousand
//!   settlements come to exactly the sum of their charges, and a charge and its refund cancel to the unit.
//! - **One posting per business key.** A grant, a refund and an adjustment carry a key of their own; a hold and the one
//!   posting that closes it are keyed by the task. A repeated command is `AlreadySo`; the same key for another amount is
//!   refused.
//! - **A hold is closed once, one way.** Settled (part is charged, the rest is free again in the same posting), released,
//!   or expired. After that only refunds follow, and only of what was charged.
//! - **Expiry is an event, not a clock.** A hold past its time is open until `Expire` is recorded: a verdict that comes first
//!   wins, and one that comes later is refused as [`HOLD_EXPIRED`].
//! - **Conserved.** `granted + adjusted = available + held + charged - refunded`, see [`Account::is_conserved`].

mod decide;
mod event;
mod evolve;
mod keyed;
mod snapshot;
mod state;
mod transitions;

pub use event::{Event, UPCASTERS};
pub use state::{Account, Charge, Hold, Refund, Reserve};
pub use transitions::{Command, HOLD_EXPIRED, KEY_TAKEN, On, State, TRANSITIONS};
