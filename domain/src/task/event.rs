//! What may have happened to a task.

use super::{ErrorClass, Order, Video};
use crate::money::Credits;
use crate::outcome::{Probe, StoredObject};
use crate::stored::{Upcaster, stored_events};
use crate::time::Timestamp;
use serde_json::Value;

/// Steps from older versions of these events' bodies.
pub const UPCASTERS: &[Upcaster] = &[
    Upcaster { name: "task.submitted", from: 1, step: submitted_v2 },
    Upcaster { name: "task.submitted", from: 2, step: submitted_v3 },
    // A task could only succeed with a thumbnail: what was written is a body of version 2 as it is.
    Upcaster { name: "task.succeeded", from: 1, step: std::convert::identity },
];

/// Before there were exports and retries, every order was to generate, and the first of its kind.
fn submitted_v2(mut body: Value) -> Value {
    if let Some(order) = body.get_mut("order").and_then(Value::as_object_mut) {
        order.insert("retry_of".to_owned(), Value::Null);
        order.insert("work".to_owned(), serde_json::json!({ "kind": "generate" }));
    }
    body
}

/// No order could be carried out elsewhere than where it was given, and whether its requests had a seed is not known: then it
/// proves nothing. Who of the tenant asked was in the event's metadata only, and all of a tenant's tasks waited alike.
fn submitted_v3(mut body: Value) -> Value {
    if let Some(order) = body.get_mut("order").and_then(Value::as_object_mut) {
        order.insert("seeded".to_owned(), Value::Bool(false));
        order.insert("alternatives".to_owned(), Value::Array(Vec::new()));
        order.insert("user".to_owned(), Value::from(""));
        order.insert("priority".to_owned(), Value::from(0));
    }
    body
}

stored_events! {
    /// A task's events. Golden files of every version ever written are in `domain/golden/`.
    Event, upcasters = UPCASTERS, {
        /// The user asked.
        Submitted = "task.submitted" v 3 {
            /// What was ordered.
            order: Order,
        },
        /// An attempt is being submitted.
        SubmissionBegun = "task.submission_begun" v 1 {
            /// Number of the attempt.
            attempt_no: u32,
        },
        /// The provider has the job.
        Accepted = "task.accepted" v 1 {},
        /// Put off: the provider could not take it, or there was no slot for it.
        Deferred = "task.deferred" v 1 {
            /// When to try again.
            retry_at: Timestamp,
            /// Why.
            reason: String,
        },
        /// The current attempt is over; the next one follows.
        AttemptReplaced = "task.attempt_replaced" v 1 {
            /// When.
            retry_at: Timestamp,
            /// Why.
            reason: String,
        },
        /// A person wants the next try, or a slot is free for it.
        RetryRequested = "task.retry_requested" v 1 {
            /// Who asked.
            by: String,
            /// When to try.
            retry_at: Timestamp,
            /// When waiting for a provider to take it ends.
            give_up_at: Timestamp,
        },
        /// The answer to the submit was lost.
        TrackLost = "task.track_lost" v 1 {},
        /// The provider has finished; fetching began.
        FetchBegun = "task.fetch_begun" v 1 {
            /// When.
            at: Timestamp,
        },
        /// The fetch was put off.
        FetchDelayed = "task.fetch_delayed" v 1 {
            /// When to try again.
            retry_at: Timestamp,
            /// Why.
            cause: String,
        },
        /// An export is to be rendered.
        RenderBegun = "task.render_begun" v 1 {
            /// When.
            at: Timestamp,
        },
        /// The render was put off.
        RenderDelayed = "task.render_delayed" v 1 {
            /// When to try again.
            retry_at: Timestamp,
            /// Why.
            cause: String,
        },
        /// Work on media began in a worker.
        ProcessingBegun = "task.processing_begun" v 1 {
            /// How often it has begun without an answer, this time included.
            count: u32,
            /// When the worker's lease ends: until then nobody else begins.
            busy_until: Timestamp,
        },
        /// Probing or the thumbnail was put off.
        ProcessingDelayed = "task.processing_delayed" v 1 {
            /// When to try again.
            retry_at: Timestamp,
            /// Why.
            cause: String,
        },
        /// The video can be played; its thumbnail is still to come.
        VideoReady = "task.video_ready" v 1 {
            /// What the probe said.
            probe: Probe,
            /// What it costs.
            charge: Credits,
            /// When.
            at: Timestamp,
            /// When to try for the thumbnail again.
            retry_at: Timestamp,
            /// Why it is missing.
            cause: String,
        },
        /// The video is in the object store.
        VideoStored = "task.video_stored" v 1 {
            /// The video.
            video: Video,
            /// When.
            at: Timestamp,
        },
        /// Everything is ready.
        Succeeded = "task.succeeded" v 2 {
            /// What the probe said.
            probe: Probe,
            /// The thumbnail; none where it was waited for in vain.
            thumbnail: Option<StoredObject>,
            /// What it costs.
            charge: Credits,
        },
        /// It can not be done.
        Failed = "task.failed" v 1 {
            /// Why.
            class: ErrorClass,
            /// A stable code.
            code: String,
            /// A sentence for people.
            message: String,
        },
        /// The user no longer wants it, and somebody may be working on it.
        CancelRequested = "task.cancel_requested" v 1 {
            /// Who asked.
            by: String,
        },
        /// Cancelled for good.
        Canceled = "task.canceled" v 1 {
            /// Who asked; empty where an earlier event says so.
            by: String,
        },
        /// Cancelled for good, and the output that came too late was not delivered.
        CanceledWithOutput = "task.canceled_with_output" v 1 {},
        /// A person has been asked.
        ReviewRequested = "task.review_requested" v 1 {
            /// What they need to know.
            reason: String,
        },
    }
}
