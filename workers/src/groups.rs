//! One consumer group at work: its process manager on the store, with the outside calls.

use crate::calls::Outside;
use domain::process::ProcessManager;
use eventstore::{Ack, Again, Delivery, Store};
use std::sync::Arc;

/// Handles the deliveries of one consumer group.
#[derive(Clone)]
pub struct Worker {
    store: Store,
    manager: &'static dyn ProcessManager,
    outside: Arc<Outside>,
}

impl Worker {
    /// A worker for the group that `manager` is named after.
    #[must_use]
    pub fn new(store: Store, manager: &'static dyn ProcessManager, outside: Arc<Outside>) -> Self {
        Self { store, manager, outside }
    }

    /// Handles one delivery to its end.
    ///
    /// # Errors
    /// [`Again`]: it is not acknowledged and comes again.
    pub async fn handle(&self, delivery: &Delivery) -> Result<Ack, Again> {
        self.store.consume(self.manager, self.outside.as_ref(), delivery).await
    }
}
