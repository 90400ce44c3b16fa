//! Which consumer group handles which kind of message: the process managers of the domain, as `messaging` subscribes them.

use domain::message::{Message, Topic};
use domain::process::{
    ApplyCallback, FetchOutput, Notify, PollProvider, ProcessManager, ProcessMedia, Reconcile, RenderExport,
    SettleHold, SubmitTask,
};

/// Every group's process manager. A group is named by its place here.
pub(crate) static GROUPS: [&dyn ProcessManager; 9] = [
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

/// The group that a message goes to.
pub(crate) const fn of(message: &Message) -> u8 {
    match message.topic() {
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
