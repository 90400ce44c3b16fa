//! One change of a task.

use crate::query::TaskRow;
use domain::time::Timestamp;
use std::any::Any;
use std::sync::{Arc, OnceLock};

/// What has changed of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A new version: this happened to it.
    Event {
        /// The event's stored name.
        name: String,
        /// When it was recorded.
        at: Timestamp,
    },
    /// No new version: one of its attempts got on.
    Progress,
}

/// A change of a task, shared by all who are told of it.
pub struct Change {
    /// The position in the log of what made it.
    pub position: i64,
    /// What it was.
    pub what: What,
    /// The task as it is then. What the projector made of later events is not in it.
    pub row: TaskRow,
    beside: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl Change {
    pub(super) const fn new(position: i64, what: What, row: TaskRow) -> Self {
        Self { position, what, row, beside: OnceLock::new() }
    }

    /// Something that all who are told of the change share, such as what is read for the first of them. One kind of thing is kept.
    pub fn beside<T: Any + Send + Sync>(&self, make: impl Fn(&TaskRow) -> Arc<T>) -> Arc<T> {
        let kept = Arc::clone(self.beside.get_or_init(|| make(&self.row)));
        kept.downcast().unwrap_or_else(|_| make(&self.row))
    }
}
