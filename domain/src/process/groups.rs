//! Which process manager handles which messages: one for each consumer group, as `messaging` subscribes them.

use super::{
    ApplyCallback, FetchOutput, Notify, PollProvider, ProcessManager, ProcessMedia, Reconcile, RenderExport,
    SettleHold, SubmitTask,
};
use crate::message::Topic;

/// Every process manager. Its name is the logical name of its consumer group.
pub static MANAGERS: [&dyn ProcessManager; 9] = [
    &SubmitTask,
    &PollProvider,
    &ApplyCallback,
    &FetchOutput,
    &ProcessMedia,
    &SettleHold,
    &Notify,
    &Reconcile,
    &RenderExport,
];

/// The place among [`MANAGERS`] of the one that a topic's messages are for.
#[must_use]
pub const fn manager_index(topic: Topic) -> usize {
    match topic {
        Topic::GenerationSubmit | Topic::GenerationSubmitDelay => 0,
        Topic::GenerationPollDelay => 1,
        Topic::GenerationCallback => 2,
        Topic::AssetFetch | Topic::AssetFetchDelay => 3,
        Topic::AssetPostprocess | Topic::AssetPostprocessDelay => 4,
        Topic::BillingSettle => 5,
        Topic::NotificationEvent => 6,
        Topic::CompensationReconcileDelay => 7,
        Topic::RenderExport | Topic::RenderExportDelay => 8,
    }
}

/// The process manager that a topic's messages are for.
#[must_use]
pub fn manager_of(topic: Topic) -> &'static dyn ProcessManager {
    MANAGERS[manager_index(topic)]
}
