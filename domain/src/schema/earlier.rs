//! Bodies of earlier versions. Nothing writes them any more, but logs hold them. The types here are kept for their schemas only;
//! reading goes by the upcasters. Each was written down when its version was no longer written, from the upcaster and the
//! golden file, and the tests hold it to that file.

use crate::id::{AccountId, AssetId, TaskId, TenantId};
use crate::money::Credits;
use crate::outcome::{Probe, StoredObject};
use crate::task::Work;
use crate::time::Timestamp;
use schemars::{JsonSchema, Schema};

/// Each earlier version that can still be read.
pub(super) fn schemas() -> Vec<(&'static str, i16, Schema)> {
    vec![
        ("task.submitted", 1, super::of::<SubmittedV1>()),
        ("task.submitted", 2, super::of::<SubmittedV2>()),
        ("task.succeeded", 1, super::of::<SucceededV1>()),
        ("attempt.accepted", 1, super::of::<AcceptedV1>()),
        ("account.held", 1, super::of::<HeldV1>()),
    ]
}

macro_rules! shapes {
    ($($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident : $type:ty),* $(,)? })+) => {
        $(
            #[derive(JsonSchema)]
            $(#[$doc])*
            #[expect(dead_code, reason = "a shape without values")]
            struct $name { $($(#[$fdoc])* $field: $type),* }
        )+
    };
}

shapes! {
    /// The user asked. Every order was to generate, and the first of its kind.
    SubmittedV1 {
        /// What was ordered.
        order: OrderV1,
    }

    /// What was ordered: fixed when the task is submitted. The prompt is not here: it stays in the stored request.
    OrderV1 {
        /// The task.
        task: TaskId,
        /// Its owner.
        tenant: TenantId,
        /// Who pays.
        account: AccountId,
        /// The provider that is to do it.
        provider: String,
        /// The model at the provider.
        model: String,
        /// Length asked for, in seconds.
        duration_seconds: u32,
        /// Uploaded input images.
        input_assets: Vec<AssetId>,
        /// Where the full request is stored: `generation_request/{task}`.
        request_ref: String,
        /// Credits held while it runs: the most it can cost.
        hold: Credits,
        /// Credits for each started second of the finished video.
        price_per_second: Credits,
        /// When the user asked.
        submitted_at: Timestamp,
        /// When waiting for a provider to take it ends.
        give_up_at: Timestamp,
    }

    /// The user asked.
    SubmittedV2 {
        /// What was ordered.
        order: OrderV2,
    }

    /// What was ordered: fixed when the task is submitted. The prompt is not here: it stays in the stored request.
    #[schemars(rename = "Order")]
    OrderV2 {
        /// The task.
        task: TaskId,
        /// Its owner.
        tenant: TenantId,
        /// Who pays.
        account: AccountId,
        /// The provider that is to do it.
        provider: String,
        /// The model at the provider.
        model: String,
        /// Length asked for, in seconds.
        duration_seconds: u32,
        /// Uploaded input images.
        input_assets: Vec<AssetId>,
        /// Where the full request is stored: `generation_request/{task}`.
        request_ref: String,
        /// Credits held while it runs: the most it can cost.
        hold: Credits,
        /// Credits for each started second of the finished video.
        price_per_second: Credits,
        /// When the user asked.
        submitted_at: Timestamp,
        /// When waiting for a provider to take it ends.
        give_up_at: Timestamp,
        /// The task that this one tries again, where the user asked for that.
        retry_of: Option<TaskId>,
        /// What is to be done.
        work: Work,
    }

    /// Everything is ready.
    SucceededV1 {
        /// What the probe said.
        probe: Probe,
        /// The thumbnail.
        thumbnail: StoredObject,
        /// What it costs.
        charge: Credits,
    }

    /// The provider has the job. How that became known was not written down.
    AcceptedV1 {
        /// The provider's job id.
        job: String,
        /// When to ask how it is doing.
        next_poll_at: Timestamp,
        /// When to stop waiting.
        give_up_at: Timestamp,
    }

    /// Credits were set aside for a task, until its verdict.
    HeldV1 {
        /// Business key.
        task: TaskId,
        /// How much.
        amount: Credits,
    }
}
