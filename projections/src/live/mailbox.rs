//! What waits for one subscriber: a bounded queue.

use super::Change;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Changes that wait for a subscriber. They are shared, so each costs a pointer.
pub(super) const CAPACITY: usize = 256;

/// What a subscriber is told next.
pub enum Told {
    /// This happened.
    Change(Arc<Change>),
    /// It was too slow: changes were dropped. What waits now came after them.
    Lagged,
    /// Nobody reads the log here any more: the process stops.
    Closed,
}

#[derive(Default)]
struct Waiting {
    changes: VecDeque<Arc<Change>>,
    lagged: bool,
    closed: bool,
}

#[derive(Default)]
pub(super) struct Mailbox {
    waiting: Mutex<Waiting>,
    ring: Notify,
}

impl Mailbox {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Never waits: what does not fit empties the queue.
    pub(super) fn put(&self, change: &Arc<Change>) {
        {
            let mut waiting = self.waiting();
            if waiting.changes.len() >= CAPACITY {
                waiting.changes = VecDeque::new();
                waiting.lagged = true;
            }
            waiting.changes.push_back(Arc::clone(change));
        }
        self.ring.notify_one();
    }

    /// Something was left out.
    pub(super) fn lag(&self) {
        {
            let mut waiting = self.waiting();
            waiting.changes = VecDeque::new();
            waiting.lagged = true;
        }
        self.ring.notify_one();
    }

    /// Nothing comes any more.
    pub(super) fn close(&self) {
        self.waiting().closed = true;
        self.ring.notify_one();
    }

    pub(super) async fn take(&self) -> Told {
        loop {
            if let Some(told) = self.first() {
                return told;
            }
            self.ring.notified().await;
        }
    }

    fn first(&self) -> Option<Told> {
        let mut waiting = self.waiting();
        if std::mem::take(&mut waiting.lagged) {
            return Some(Told::Lagged);
        }
        let change = waiting.changes.pop_front().map(Told::Change);
        change.or_else(|| waiting.closed.then_some(Told::Closed))
    }
}
