//! What providers can do, as data: the code that calls them asks this, never a provider's name.

use serde::Serialize;
use std::time::Duration;

/// What one provider can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// What a second create call with the same id does.
    pub dedupe: Dedupe,
    /// Where our reference can be seen again.
    pub reference: ClientReference,
    /// How a job is found whose id was lost.
    pub look_up: LookUp,
    /// What can be cancelled.
    pub cancel: CancelKind,
    /// Whether a job that was cancelled can not be asked about afterwards.
    pub cancel_forgets: bool,
    /// How callbacks prove where they come from.
    pub webhook: WebhookScheme,
    /// What is said about progress.
    pub progress: Progress,
    /// Where a finished video is.
    pub output: Output,
    /// In which unit consumption is reported.
    pub usage: Usage,
    /// How too many requests are answered.
    pub throttle: Throttle,
    /// Shortest time between two polls of a job.
    pub min_poll_interval: Duration,
    /// How long a finished job can be asked about; `None`: not said.
    pub record_retention: Option<Duration>,
}

/// What a second create call with the same id does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dedupe {
    /// It makes a second job, which is paid for.
    None,
    /// It is refused, and the refusal names the first job.
    RefusesDuplicate,
}

/// Where our reference can be seen again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientReference {
    /// Nowhere.
    None,
    /// It is the job's id.
    JobId,
    /// In the callback address, which the job shows.
    CallbackAddressShown,
    /// In the callback address, which is called and not shown.
    CallbackAddressCalled,
}

/// How a job is found whose id was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LookUp {
    /// Not at all: an unclear submit is for a person.
    None,
    /// Not by asking; a callback may still tell.
    CallbackOnly,
    /// By asking for the id that we chose.
    ByReference,
    /// By reading the list for our reference.
    ListByReference,
    /// By reading the list for jobs that look alike; only an echoed seed makes one ours.
    ListByLikeness,
}

/// What can be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelKind {
    /// Nothing.
    None,
    /// What has not started.
    QueuedOnly,
    /// Whatever has not ended.
    Unfinished,
}

/// How callbacks prove where they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WebhookScheme {
    /// There are no callbacks.
    None,
    /// By a key in the address, which only we and the provider know.
    AddressKey,
    /// By HMAC-SHA256 with a shared secret.
    Hmac,
    /// By Ed25519 with published keys, which sign for every customer: the key in the address says that it is ours.
    Ed25519,
}

/// What is said about progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// Nothing.
    None,
    /// A fraction of one.
    Fraction,
    /// The place in the queue.
    QueuePosition,
}

/// Where a finished video is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// At an address that ends, and of which asking again gives a fresh one.
    RefreshableAddress,
    /// At an address that ends with the file.
    Address,
}

/// In which unit consumption is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Usage {
    /// It is not.
    None,
    /// Seconds of work.
    Seconds,
    /// Tokens.
    Tokens,
    /// Money.
    Money,
}

/// How too many requests are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Throttle {
    /// They are refused with 429.
    Refuses,
    /// They are taken and wait inside.
    Queues,
    /// Either, by which limit was met.
    Both,
}
