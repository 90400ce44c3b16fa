//! What may be asked of a task.

use super::{ErrorClass, Order, Video};
use crate::money::Credits;
use crate::outcome::{Probe, StoredObject};
use crate::time::Timestamp;

/// A command. Times and prices come in with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The user asks.
    Submit(Order),
    /// An attempt is about to be submitted.
    BeginSubmission {
        /// Number of the attempt.
        attempt_no: u32,
    },
    /// The provider has the job.
    Accept,
    /// The provider can not take it now, or said that it does not have it.
    Defer {
        /// When to try again.
        retry_at: Timestamp,
        /// A stable word: `throttled`, `not_sent`, `known_absent`.
        reason: String,
    },
    /// Admission has no slot for it now.
    Wait {
        /// When to ask again.
        retry_at: Timestamp,
        /// A stable word, see [`crate::process::Why`].
        reason: String,
    },
    /// The current attempt is over without an output, and another one will be made.
    Replace {
        /// When to make it.
        retry_at: Timestamp,
        /// A stable code: the provider's.
        reason: String,
        /// How many attempts the policy allows.
        max_attempts: u32,
    },
    /// The answer to the submit was lost.
    LoseTrack,
    /// The provider has finished.
    BeginFetch,
    /// The output can not be had yet.
    DelayFetch {
        /// When to try again.
        retry_at: Timestamp,
        /// A short cause.
        cause: String,
    },
    /// An export is about to be rendered.
    BeginRender,
    /// The render can not be done now.
    DelayRender {
        /// When to try again.
        retry_at: Timestamp,
        /// A short cause.
        cause: String,
    },
    /// The video is in the object store.
    StoreVideo(Video),
    /// Work on media is about to begin in a worker, which may not survive it.
    BeginProcessing {
        /// How often it may be begun in a row without an answer.
        max_tries: u32,
        /// When the worker's lease ends: until then nobody else begins.
        busy_until: Timestamp,
    },
    /// Probing or the thumbnail can not be done now.
    DelayProcessing {
        /// When to try again.
        retry_at: Timestamp,
        /// A short cause.
        cause: String,
    },
    /// The video can be played; the thumbnail is missing.
    FinishVideo {
        /// What the probe said.
        probe: Probe,
        /// What the task costs, at most what is held.
        charge: Credits,
        /// When to try for the thumbnail again.
        retry_at: Timestamp,
        /// Why it is missing.
        cause: String,
    },
    /// Everything that is required is ready.
    Finish {
        /// What the probe said.
        probe: Probe,
        /// The thumbnail.
        thumbnail: StoredObject,
        /// What the task costs, at most what is held.
        charge: Credits,
    },
    /// The thumbnail was waited for long enough: the task succeeds without it.
    ForgoExtras,
    /// It can not be done.
    Fail {
        /// Why.
        class: ErrorClass,
        /// A stable code.
        code: String,
        /// A sentence for people, without prompt, URL or secret.
        message: String,
    },
    /// The user no longer wants it.
    Cancel {
        /// Who asked: the caller's name, for the history.
        by: String,
    },
    /// A person (or admission, which has a slot now) wants the next try: of a task that waits, now; of one in review, with a new attempt, because they are certain that
    /// nothing runs.
    Retry {
        /// Who asked.
        by: String,
        /// When waiting for a provider to take it ends; never sooner than it did.
        give_up_at: Timestamp,
    },
    /// It is certain that nothing runs and nothing will come; out of a review, a person says so.
    ConfirmCancel,
    /// The provider had finished before it could be cancelled, and the product rule says that the output is not delivered.
    DiscardOutput,
    /// A person has to look at it.
    AskPerson {
        /// What they need to know.
        reason: String,
    },
}
