//! The port to providers of generations.

use super::{CancelAsked, Capabilities, Created, Found, Polled};
use crate::catalogue::Model;
use domain::id::AttemptId;
use domain::time::Timestamp;
use futures_util::future::BoxFuture;
use serde_json::{Map, Value};
use std::time::{Duration, SystemTime};

/// What a provider is asked to make. Loaded from the stored request at the moment of the call; never put in a message.
#[derive(Clone)]
pub struct GenerationRequest {
    /// Model name as the provider knows it.
    pub model: String,
    /// What the catalogue adds to every request for this model, such as a size: fields of the provider's own body.
    pub parameters: Map<String, Value>,
    /// Whether the model takes a seed: some look-ups recognise a job by it.
    pub accepts_seed: bool,
    /// The user's text. Not `Debug`: it must not reach a log.
    pub prompt: String,
    /// Length of the video in whole seconds.
    pub duration_seconds: u32,
    /// A short-lived URL of the input image, where the task has one.
    pub image_url: Option<String>,
}

/// A create call: the request, and what makes it recognisable afterwards.
#[derive(Clone)]
pub struct CreateOrder {
    /// The attempt, which is the client reference that the provider sees (in the callback address, which it echoes).
    pub attempt: AttemptId,
    /// What to make.
    pub request: GenerationRequest,
    /// How long the whole call may take. The attempt's lease ends no sooner.
    pub timeout: Duration,
}

/// A look-up: what makes an attempt's job recognisable.
#[derive(Clone, Debug)]
pub struct FindOrder {
    /// The attempt, which is the client reference that the provider saw.
    pub attempt: AttemptId,
    /// Model name as the provider knows it.
    pub model: String,
    /// Whether the model takes a seed, so that the job carries one that follows from the attempt.
    pub accepts_seed: bool,
    /// Length of the video in whole seconds.
    pub duration_seconds: u32,
    /// When the task was submitted, by the database's clock: no job of it is older.
    pub not_before: Timestamp,
    /// Since when nobody knows whether there is a job, by the database's clock: what is not shown at once may be shown by now.
    pub lost_at: Timestamp,
}

/// What a callback told, after its signature was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callback {
    /// The provider's id of this delivery: the same when it is sent again.
    pub delivery: String,
    /// The attempt it is about, from our own reference in the callback address.
    pub attempt: AttemptId,
    /// The provider's job id.
    pub job: String,
}

/// A callback that is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallbackRefused {
    /// A header is missing or malformed.
    #[error("a signature header is missing or malformed")]
    Unsigned,
    /// The signature does not match the raw body.
    #[error("the signature does not match")]
    Forged,
    /// Too old, or from the future.
    #[error("the timestamp is outside the accepted window")]
    Stale,
    /// The keys that it is signed with can not be had just now.
    #[error("the keys that callbacks are signed with can not be had now")]
    NoKeys,
    /// Signed, but not a body we can read.
    #[error("the body is not a known callback")]
    Unreadable,
}

/// A provider that fails, and is left alone by this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Since when, by this machine's clock.
    pub since: SystemTime,
    /// When it is looked at again.
    pub until: SystemTime,
    /// A short cause without addresses or secrets.
    pub cause: String,
}

/// A provider of generations. One implementation per provider's own wire format.
pub trait Provider: Send + Sync {
    /// The stored name, as the configuration has it.
    fn name(&self) -> &str;
    /// What it can do. The same for the life of the process.
    fn capabilities(&self) -> &Capabilities;
    /// Whether it fails, and is left alone for a while. A provider that knows of no such state never does.
    fn outage(&self) -> Option<Outage> {
        None
    }
    /// Whether requests for a model can be made from what the catalogue says. `name` is its name there.
    ///
    /// # Errors
    /// A sentence that says what to change in the catalogue.
    fn check_model(&self, name: &str, model: &Model) -> Result<(), String>;
    /// Asks for a job. Never retried inside.
    fn create<'a>(&'a self, order: &'a CreateOrder) -> BoxFuture<'a, Created>;
    /// Looks a job up by the client reference, or by what else makes it recognisable.
    fn find<'a>(&'a self, order: &'a FindOrder) -> BoxFuture<'a, Found>;
    /// Asks how a job is doing.
    fn poll<'a>(&'a self, job: &'a str) -> BoxFuture<'a, Polled>;
    /// Asks for a job to be cancelled.
    fn cancel<'a>(&'a self, job: &'a str) -> BoxFuture<'a, CancelAsked>;
    /// Brings up to date what the check of callbacks needs from elsewhere, such as published keys. `changed`: a signature did not
    /// fit, so the keys may have changed. Most providers need nothing.
    fn renew_keys(&self, _changed: bool) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
    /// Checks and reads a callback. `header` looks a request header up by its lower-case name; `query` is the raw query string.
    ///
    /// # Errors
    /// [`CallbackRefused`] says why it is not believed.
    fn callback(
        &self,
        header: &dyn Fn(&str) -> Option<String>,
        query: &str,
        body: &[u8],
        now: Timestamp,
    ) -> Result<Callback, CallbackRefused>;
}
