//! What may have happened to a task.

use super::{ErrorClass, Order, Video};
use crate::money::Credits;
use crate::outcome::{Probe, StoredObject};
use crate::stored::{Upcaster, stored_events};
use crate::time::Timestamp;

/// Steps from older versions of these events' bodies. None yet: every event is at version 1.
pub const UPCASTERS: &[Upcaster] = &[];

stored_events! {
    /// A task's events. Golden files of every version ever written are in `domain/golden/`.
    Event, upcasters = UPCASTERS, {
        /// The user asked.
        Submitted = "task.submitted" v 1 {
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
        /// Put off.
        Deferred = "task.deferred" v 1 {
            /// When to try again.
            retry_at: Timestamp,
            /// Why.
            reason: String,
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
        /// The video is in the object store.
        VideoStored = "task.video_stored" v 1 {
            /// The video.
            video: Video,
            /// When.
            at: Timestamp,
        },
        /// Everything is ready.
        Succeeded = "task.succeeded" v 1 {
            /// What the probe said.
            probe: Probe,
            /// The thumbnail.
            thumbnail: StoredObject,
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
