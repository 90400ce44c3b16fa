//! Which process manager handles which consumer group.

use crate::calls::Outside;
use domain::process::{
    ApplyCallback, FetchOutput, Notify, PollProvider, ProcessManager, ProcessMedia, Reconcile, RenderExport,
    SettleHold, SubmitTask,
};
use eventstore::{Ack, Again, Delivery, Store};
use std::sync::Arc;

/// Every process manager. Its name is the logical name of its consumer group.
#[must_use]
pub fn process_managers() -> Vec<Arc<dyn ProcessManager>> {
    vec![
        Arc::new(SubmitTask),
        Arc::new(PollProvider),
        Arc::new(ApplyCallback),
        Arc::new(FetchOutput),
        Arc::new(ProcessMedia),
        Arc::new(RenderExport),
        Arc::new(SettleHold),
        Arc::new(Notify),
        Arc::new(Reconcile),
    ]
}

/// Handles the deliveries of one consumer group.
#[derive(Clone)]
pub struct Worker {
    store: Store,
    manager: Arc<dyn ProcessManager>,
    outside: Arc<Outside>,
}

impl Worker {
    /// A worker for the group that `manager` is named after.
    #[must_use]
    pub fn new(store: Store, manager: Arc<dyn ProcessManager>, outside: Arc<Outside>) -> Self {
        Self { store, manager, outside }
    }

    /// Handles one delivery to its end.
    ///
    /// # Errors
    /// [`Again`]: it is not acknowledged and comes again.
    pub async fn handle(&self, delivery: &Delivery) -> Result<Ack, Again> {
        self.store.consume(self.manager.as_ref(), self.outside.as_ref(), delivery).await
    }
}
