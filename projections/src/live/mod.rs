//! Changes of tasks as they happen, for many who watch.
//!
//! One reader per process goes along the log, up to what the projector has folded: what a subscriber is told, a query shows. It reads
//! each event once, folds it into the task's row in memory, and hands the result to everybody who watches the task or its tenant. No
//! subscriber costs a statement: the number of statements goes by what happens, not by who watches.
//!
//! Everything has a position in the log, so a snapshot and what follows fit together without a gap or a repeat: whoever begins joins
//! first, reads the snapshot with the position that it shows, and drops what comes from before it. A queue is bounded: one that
//! overflows is emptied, and its reader is told so and begins with a snapshot again.

mod change;
mod feed;
mod hub;
mod mailbox;
mod read;

pub use change::{Change, What};
pub use feed::{Begin, Feed, Item};
pub use hub::{Hub, Subscriber, Topic};
pub use mailbox::Told;
pub(crate) use read::checkpoint;
