//! What may have happened to an attempt.

use crate::id::TaskId;
use crate::stored::{Upcaster, stored_events};
use crate::task::ErrorClass;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Steps from older versions of these events' bodies.
pub const UPCASTERS: &[Upcaster] = &[Upcaster { name: "attempt.accepted", from: 1, step: accepted_v2 }];

/// Nothing was written down about how a job became known; nearly always it was the answer.
fn accepted_v2(mut body: Value) -> Value {
    if let Some(body) = body.as_object_mut() {
        body.insert("how".to_owned(), Value::from("answer"));
    }
    body
}

/// How it became known that the provider has the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Heard {
    /// From the answer to the create call.
    Answer,
    /// From a signed callback.
    Callback,
    /// From a look-up by our reference.
    LookUp,
    /// An operator named the job.
    Operator {
        /// Who.
        by: String,
    },
}

stored_events! {
    /// An attempt's events.
    Event, upcasters = UPCASTERS, {
        /// It was decided to make this attempt.
        Planned = "attempt.planned" v 1 {
            /// The task.
            task: TaskId,
            /// Number among the task's attempts.
            number: u32,
            /// The provider.
            provider: String,
        },
        /// A request is about to leave.
        SubmissionBegun = "attempt.submission_begun" v 1 {
            /// How often it has been begun, this time included.
            round: u32,
            /// When the answer counts as lost.
            give_up_at: Timestamp,
        },
        /// The provider has the job.
        Accepted = "attempt.accepted" v 2 {
            /// The provider's job id.
            job: String,
            /// How that became known.
            how: Heard,
            /// When to ask how it is doing.
            next_poll_at: Timestamp,
            /// When to stop waiting.
            give_up_at: Timestamp,
        },
        /// Nothing was created; it may be begun again.
        Deferred = "attempt.deferred" v 1 {
            /// A stable word: `throttled`, `not_sent`, `known_absent`.
            reason: String,
        },
        /// The answer was lost.
        AnswerLost = "attempt.answer_lost" v 1 {
            /// When.
            at: Timestamp,
            /// When to look the job up.
            next_lookup_at: Timestamp,
            /// A short cause.
            cause: String,
        },
        /// A look-up did not settle it.
        LookedUp = "attempt.looked_up" v 1 {
            /// Whether the look-up was conclusive that no job exists.
            absent: bool,
            /// When to look again.
            next_lookup_at: Timestamp,
            /// What it said.
            finding: String,
        },
        /// The provider was asked, and is not done.
        Polled = "attempt.polled" v 1 {
            /// Done so far, where the provider says.
            percent: Option<u8>,
            /// When to ask again.
            next_poll_at: Timestamp,
            /// What it said, in a word.
            finding: String,
        },
        /// The provider has finished.
        Succeeded = "attempt.succeeded" v 1 {
            /// What it used, in milliseconds of its own time, where it says.
            usage_millis: Option<u64>,
        },
        /// The provider refused, or the job failed.
        Failed = "attempt.failed" v 1 {
            /// Why.
            class: ErrorClass,
            /// The provider's code.
            code: String,
            /// A sentence.
            message: String,
        },
        /// Cancelled, or never left.
        Canceled = "attempt.canceled" v 1 {},
        /// Nobody waits for it any more.
        GivenUp = "attempt.given_up" v 1 {
            /// Why.
            reason: String,
        },
        /// A job that carries this attempt's reference, but is not the one it works with. Its cost is ours.
        OrphanRecorded = "attempt.orphan_recorded" v 1 {
            /// The provider's job id.
            job: String,
        },
    }
}
