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
    /// The output is in the object store.
    StoreVideo(Video),
    /// Everything that is required is ready.
    Finish {
        /// What the probe said.
        probe: Probe,
        /// The thumbnail.
        thumbnail: StoredObject,
        /// What the task costs, at most what is held.
        charge: Credits,
    },
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
    /// It is certain that nothing runs and nothing will come.
    ConfirmCancel,
    /// The provider had finished before it could be cancelled, and the product rule says that the output is not delivered.
    DiscardOutput,
    /// A person has to look at it.
    AskPerson {
        /// What they need to know.
        reason: String,
    },
}
