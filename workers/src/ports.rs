//! The ports: what the workers need from the outside world. `providers` and `media` implement them.
//!
//! Every operation says in its return type what may have happened, including "nobody knows": an ambiguous outcome is a
//! variant, never an error that `?` could carry away.

mod capabilities;
mod provider;

pub use capabilities::{
    CancelKind, Capabilities, ClientReference, Dedupe, LookUp, Output, Progress, Throttle, Usage, WebhookScheme,
};
pub use provider::{Callback, CallbackRefused, CreateOrder, FindOrder, GenerationRequest, Outage, Provider};

use bytes::Bytes;
pub use domain::outcome::{
    CancelAsked, Created, FaultClass, Found, JobState, Polled, Probe, ProviderFault, StoredObject,
};
pub use domain::task::{Container, ExportSpec};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use std::path::Path;
use std::time::Duration;

/// Limits of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct TransferLimits {
    /// The most bytes that are read.
    pub max_bytes: u64,
    /// The longest the whole transfer may take.
    pub deadline: Duration,
}

/// Why a transfer or an object operation did not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// Try again later: cut short, refused for now, the store is busy.
    #[error("not now: {0}")]
    Transient(String),
    /// The address has expired or is forbidden: ask the provider for a fresh one.
    #[error("the address has expired")]
    Expired,
    /// It will not work however often it is tried: too large, forbidden address, not the kind of file promised.
    #[error("refused: {0}")]
    Permanent(String),
}

/// An object opened for reading: its whole size, and the bytes that were asked for.
pub type OpenObject = (u64, BoxStream<'static, Result<Bytes, std::io::Error>>);

/// Bytes in a stable place. Keys are deterministic, so a repeated put is the same put.
pub trait ObjectStore: Send + Sync {
    /// Streams the content of a URL to `key` and measures it. Nothing is visible under the key unless the whole body arrived.
    fn fetch<'a>(
        &'a self,
        url: &'a str,
        key: &'a str,
        limits: TransferLimits,
    ) -> BoxFuture<'a, Result<StoredObject, TransferError>>;
    /// Stores a stream of bytes under `key` and measures it.
    fn put<'a>(
        &'a self,
        key: &'a str,
        content: BoxStream<'a, Result<Bytes, std::io::Error>>,
        limits: TransferLimits,
    ) -> BoxFuture<'a, Result<StoredObject, TransferError>>;
    /// Copies an object to a local file, checking nothing but that it is whole.
    fn download<'a>(&'a self, key: &'a str, to: &'a Path) -> BoxFuture<'a, Result<(), TransferError>>;
    /// Measures what is stored under `key`: `None` if nothing is.
    fn measure<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<StoredObject>, TransferError>>;
    /// A URL under which `key` can be read until `ttl` from now.
    fn signed_url<'a>(&'a self, key: &'a str, ttl: Duration) -> BoxFuture<'a, Result<String, TransferError>>;
    /// Opens an object for reading: its size and its bytes from `range.0` up to, not including, `range.1`.
    fn read<'a>(&'a self, key: &'a str, range: Option<(u64, u64)>) -> BoxFuture<'a, Result<OpenObject, TransferError>>;
}

/// Why media work failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MediaError {
    /// The file is not a video we can use; trying again will not help.
    #[error("not a usable video: {0}")]
    Corrupt(String),
    /// The tool could not do its work this time (killed, out of time, out of disk).
    #[error("the media tool failed: {0}")]
    Tool(String),
    /// What was made is larger than this many bytes, and was not made to its end; trying again will not help.
    #[error("larger than {0} bytes")]
    TooLarge(u64),
}

/// Probing and deriving.
pub trait Media: Send + Sync {
    /// Reads a local file's facts.
    fn probe<'a>(&'a self, file: &'a Path) -> BoxFuture<'a, Result<Probe, MediaError>>;
    /// Writes a JPEG thumbnail of a video to `to`.
    fn thumbnail<'a>(&'a self, file: &'a Path, probe: &'a Probe, to: &'a Path)
    -> BoxFuture<'a, Result<(), MediaError>>;
    /// Writes a video in another size to `to`, of at most `max_bytes`. `probe` is the source's; the width follows from it.
    fn render<'a>(
        &'a self,
        file: &'a Path,
        probe: &'a Probe,
        spec: ExportSpec,
        to: &'a Path,
        max_bytes: u64,
    ) -> BoxFuture<'a, Result<(), MediaError>>;
}
