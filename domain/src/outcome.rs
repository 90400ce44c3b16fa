//! What the world may answer: the outcomes of outside calls, as the domain sees them.
//!
//! "Nobody knows" is always a variant of its own, never an error that `?` could carry away.

use crate::id::AttemptId;
use crate::task::ExportSpec;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What came of a create call. The adapter maps each failure by whether the request may have left this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created {
    /// The provider took the job and named it.
    Accepted {
        /// The provider's id of the job.
        job: String,
    },
    /// The provider already has a job under the id that this attempt chose: an earlier create call of the same attempt had
    /// arrived, and nothing was created a second time. Only providers that let the caller choose the id answer so.
    DuplicateOf {
        /// The provider's id of the job.
        job: String,
    },
    /// The provider said no; nothing was created.
    Rejected(ProviderFault),
    /// The provider is busy or throttles us; nothing was created.
    Throttled {
        /// What the provider asked for, already parsed and bounded; `None` if it said nothing usable.
        retry_after: Option<Duration>,
    },
    /// The provider was not asked: it has been failing, and is left alone for a while. Nothing was created.
    Unavailable {
        /// How long it is left alone from now on.
        retry_after: Duration,
    },
    /// The request never left this machine (refused connection, DNS): nothing was created.
    NotSent {
        /// A short cause without addresses or secrets.
        cause: String,
    },
    /// Nobody knows whether a job was created.
    Unknown {
        /// A short cause without addresses or secrets.
        cause: String,
    },
}

/// What a look-up by client reference found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Exactly one job carries the reference.
    Job {
        /// The provider's id of the job.
        job: String,
    },
    /// No job carries it, and the look-up covers everything that could (running jobs included).
    Absent,
    /// Nothing can be said now: the look-up failed, or its answer is not conclusive.
    Inconclusive {
        /// A short cause.
        cause: String,
    },
    /// This provider has no look-up, and no later call of its own could tell either: for a person to look at.
    Impossible,
    /// Several jobs carry the reference: for a person to look at.
    Ambiguous {
        /// Their ids.
        jobs: Vec<String>,
    },
}

/// How a job is doing.
#[derive(Clone, Debug, PartialEq)]
pub enum JobState {
    /// Accepted, not started.
    Queued,
    /// Working.
    Running {
        /// Done so far, 0 to 100, where the provider says.
        percent: Option<u8>,
    },
    /// Finished.
    Succeeded {
        /// Where the output is now; may carry a credential and expires: used at once, never stored or logged.
        output_url: String,
        /// What the provider says it used, in milliseconds of its own time, where it says.
        usage_millis: Option<u64>,
    },
    /// Ended without output.
    Failed(ProviderFault),
    /// Ended because it was cancelled.
    Canceled,
    /// The provider does not know the job.
    NotFound,
    /// A word we do not know: keep asking until the deadline, never guess.
    Unrecognised {
        /// The provider's own word, cut to 64 characters.
        raw: String,
    },
}

/// What came of asking about a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Polled {
    /// The provider answered.
    State(JobState),
    /// It did not, or not usefully: ask again later.
    Unavailable {
        /// A short cause.
        cause: String,
        /// What the provider asked for, where it said.
        retry_after: Option<Duration>,
    },
}

/// What came of asking a provider to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelAsked {
    /// It will; ask for the job's state to see.
    Requested,
    /// The job had already ended: ask for its state.
    AlreadyEnded,
    /// The provider does not know the job.
    NotFound,
    /// It is cancelled, and the provider forgets cancelled jobs: asking for its state would find nothing.
    Gone,
    /// The provider does not cancel, or not what has started: the job runs to its end.
    NotPossible,
    /// No answer, or not a useful one: ask again later.
    Unknown,
}

/// Why a provider said no, or why a job failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderFault {
    /// What kind of failure it is.
    pub class: FaultClass,
    /// The provider's own code, cut to 64 characters.
    pub code: String,
    /// Readable text, cut to 500 characters, without U+0000; never a prompt or a URL.
    pub message: String,
}

/// Kinds of provider failure (chapter 7.10.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultClass {
    /// The content was refused. Never tried again elsewhere.
    Moderation,
    /// A parameter is wrong.
    BadRequest,
    /// Our credentials or our money at the provider: an operator's business.
    Account,
    /// The provider broke.
    Internal,
}

/// A stored object's facts, measured while its bytes went by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StoredObject {
    /// Key in the object store.
    pub key: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the content, lower-case hex.
    pub sha256: String,
    /// Media type as sniffed from the first bytes, such as `video/mp4`.
    pub content_type: String,
}

/// What a probe of a video said. Sizes are as displayed (rotation applied).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Probe {
    /// Length in milliseconds; `None` when the file does not say and it could not be computed.
    pub duration_millis: Option<u64>,
    /// Width in pixels as displayed.
    pub width: u32,
    /// Height in pixels as displayed.
    pub height: u32,
    /// Codec name, such as `h264`.
    pub video_codec: String,
    /// Audio codec name, where there is sound.
    pub audio_codec: Option<String>,
    /// Frames per 1000 seconds, so that 29.97 stays exact enough as an integer.
    pub millihertz: Option<u64>,
}

/// What came of fetching a job's output into the object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// It is stored, whole.
    Stored(StoredObject),
    /// Not now: try again later.
    NotNow {
        /// A short cause.
        cause: String,
    },
    /// It will not work however often it is tried.
    Never {
        /// A stable code.
        code: &'static str,
        /// A short cause.
        cause: String,
    },
}

/// What came of probing a video and making its thumbnail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Processed {
    /// Both are done.
    Ready {
        /// The probe.
        probe: Probe,
        /// The thumbnail.
        thumbnail: StoredObject,
    },
    /// The video can be played, but its thumbnail could not be made this time.
    Partial {
        /// The probe.
        probe: Probe,
        /// A short cause.
        cause: String,
    },
    /// The file is not a video we can use.
    Corrupt {
        /// A short cause.
        cause: String,
    },
    /// The tool or the store could not do it this time.
    NotNow {
        /// A short cause.
        cause: String,
    },
}

/// What came of rendering an export into the object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendered {
    /// It is stored, whole.
    Stored(StoredObject),
    /// The tool or the store could not do it this time.
    NotNow {
        /// A short cause.
        cause: String,
    },
    /// It will not work however often it is tried.
    Never {
        /// A stable code.
        code: &'static str,
        /// A short cause.
        cause: String,
    },
}

/// An outside call that a process manager wants made, after its intent is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Ask the provider for a job.
    Create {
        /// The attempt.
        attempt: AttemptId,
        /// Which round of submitting this is: the fencing token of the answer.
        round: u32,
        /// How long the call may take.
        timeout: Duration,
    },
    /// Look the attempt's job up at the provider.
    Find {
        /// The attempt.
        attempt: AttemptId,
        /// The round of submitting whose job is looked for.
        round: u32,
        /// How many look-ups there were before: with the round, the fencing token of the answer.
        lookup: u32,
        /// Since when nobody knows: what a provider does not show at once it may show by now.
        since: Timestamp,
    },
    /// Ask how a job is doing.
    Poll {
        /// The provider's job id.
        job: String,
        /// How many polls there were before: the fencing token of an answer that is no end.
        poll: u32,
    },
    /// Ask for a job to be cancelled.
    Cancel {
        /// The provider's job id.
        job: String,
    },
    /// Fetch a finished job's output into the object store.
    Fetch {
        /// The provider's job id.
        job: String,
        /// The object key to store it under.
        key: String,
    },
    /// Probe a stored video and make its thumbnail.
    Process {
        /// The video's object key.
        key: String,
        /// The object key for the thumbnail.
        thumbnail_key: String,
    },
    /// Render a stored video in another size.
    Render {
        /// The source's object key.
        source_key: String,
        /// The object key to store the result under.
        key: String,
        /// What is wanted.
        spec: ExportSpec,
    },
}

impl Call {
    /// The attempt that the answer is about, where the call names one: by the time it comes, the task may be at another.
    #[must_use]
    pub const fn attempt_id(&self) -> Option<AttemptId> {
        match self {
            Self::Create { attempt, .. } | Self::Find { attempt, .. } => Some(*attempt),
            Self::Poll { .. }
            | Self::Cancel { .. }
            | Self::Fetch { .. }
            | Self::Process { .. }
            | Self::Render { .. } => None,
        }
    }
}

/// The answer to a [`Call`].
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// To `Create`.
    Created(Created),
    /// To `Find`.
    Found(Found),
    /// To `Poll`.
    Polled(Polled),
    /// To `Cancel`.
    CancelAsked(CancelAsked),
    /// To `Fetch`.
    Fetched(Fetched),
    /// To `Process`.
    Processed(Processed),
    /// To `Render`.
    Rendered(Rendered),
}
