//! What travels over the broker: the envelope, the kinds of message, and the logical topics they belong to.
//!
//! Messages carry ids, versions and object keys only: no prompt, no URL, no media.

pub mod envelope;
pub mod kinds;

pub use envelope::{BadMessage, Envelope};
pub use kinds::{Message, Topic};
