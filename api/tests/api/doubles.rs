//! Doubles of the ports: objects in memory, a provider that signs with a word, links that are signed with another.

use api::{LinkRefused, LinkVerifier, Readiness};
use bytes::Bytes;
use domain::time::Timestamp;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use workers::catalogue::Model;
use workers::ports::{
    Callback, CallbackRefused, CancelAsked, CancelKind, Capabilities, ClientReference, CreateOrder, Created, Dedupe,
    FindOrder, Found, LookUp, ObjectStore, Output, Polled, Progress, Provider, StoredObject, Throttle, TransferError,
    TransferLimits, Usage, WebhookScheme,
};

/// A PNG's first bytes and some more.
pub fn png(extra: usize) -> Vec<u8> {
    let mut image = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
    image.resize(image.len() + extra, 7);
    image
}

#[derive(Default)]
pub struct MemoryObjects {
    kept: Mutex<HashMap<String, Bytes>>,
}

impl MemoryObjects {
    pub fn keep(&self, key: &str, content: impl Into<Bytes>) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), content.into());
    }

    pub fn keys(&self) -> Vec<String> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    fn get(&self, key: &str) -> Result<Bytes, TransferError> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(key).cloned().ok_or_else(|| TransferError::Permanent("no such object".to_owned()))
    }
}

fn measured(key: &str, content: &[u8]) -> StoredObject {
    StoredObject {
        key: key.to_owned(),
        bytes: content.len() as u64,
        sha256: hex::encode(Sha256::digest(content)),
        content_type: if content.starts_with(b"\x89PNG") { "image/png" } else { "video/mp4" }.to_owned(),
    }
}

impl ObjectStore for MemoryObjects {
    fn fetch<'a>(
        &'a self,
        _url: &'a str,
        _key: &'a str,
        _limits: TransferLimits,
    ) -> BoxFuture<'a, Result<StoredObject, TransferError>> {
        async { Err(TransferError::Permanent("the API fetches nothing".to_owned())) }.boxed()
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        content: BoxStream<'a, Result<Bytes, std::io::Error>>,
        _limits: TransferLimits,
    ) -> BoxFuture<'a, Result<StoredObject, TransferError>> {
        async move {
            let broke_off = |_| TransferError::Transient("broke off".to_owned());
            let chunks: Vec<Bytes> = content.try_collect().await.map_err(broke_off)?;
            let whole = chunks.concat();
            let object = measured(key, &whole);
            self.keep(key, whole);
            Ok(object)
        }
        .boxed()
    }

    fn download<'a>(&'a self, _key: &'a str, _to: &'a Path) -> BoxFuture<'a, Result<(), TransferError>> {
        async { Err(TransferError::Permanent("the API downloads nothing".to_owned())) }.boxed()
    }

    fn measure<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<StoredObject>, TransferError>> {
        async move { Ok(self.get(key).ok().map(|content| measured(key, &content))) }.boxed()
    }

    fn signed_url<'a>(&'a self, key: &'a str, ttl: Duration) -> BoxFuture<'a, Result<String, TransferError>> {
        async move { Ok(format!("http://objects.test/{key}?ttl={}", ttl.as_secs())) }.boxed()
    }

    fn read<'a>(
        &'a self,
        key: &'a str,
        range: Option<(u64, u64)>,
    ) -> BoxFuture<'a, Result<(u64, BoxStream<'static, Result<Bytes, std::io::Error>>), TransferError>> {
        async move {
            let content = self.get(key)?;
            let size = content.len();
            let at = |place: u64| usize::try_from(place).unwrap_or(size).min(size);
            let part = range.map_or(content.clone(), |(from, to)| content.slice(at(from)..at(to)));
            // In small chunks, as a real store sends.
            let chunks: Vec<_> = part.chunks(7).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
            Ok((size as u64, stream::iter(chunks).boxed()))
        }
        .boxed()
    }
}

const NOTHING: Capabilities = Capabilities {
    dedupe: Dedupe::None,
    reference: ClientReference::CallbackAddressCalled,
    look_up: LookUp::CallbackOnly,
    cancel: CancelKind::None,
    cancel_forgets: false,
    webhook: WebhookScheme::AddressKey,
    progress: Progress::None,
    output: Output::Address,
    usage: Usage::None,
    throttle: Throttle::Refuses,
    min_poll_interval: Duration::ZERO,
    record_retention: None,
};

/// Believes callbacks whose header `x-signed` is `yes`. The body is the delivery's id, a space and the job.
pub struct WordProvider;

impl Provider for WordProvider {
    fn name(&self) -> &str {
        "replicate"
    }

    fn capabilities(&self) -> &Capabilities {
        &NOTHING
    }

    fn check_model(&self, _name: &str, _model: &Model) -> Result<(), String> {
        Ok(())
    }

    fn create<'a>(&'a self, _order: &'a CreateOrder) -> BoxFuture<'a, Created> {
        async { Created::NotSent { cause: "the API creates nothing".to_owned() } }.boxed()
    }

    fn find<'a>(&'a self, _order: &'a FindOrder) -> BoxFuture<'a, Found> {
        async { Found::Absent }.boxed()
    }

    fn poll<'a>(&'a self, _job: &'a str) -> BoxFuture<'a, Polled> {
        async { Polled::Unavailable { cause: "the API polls nothing".to_owned(), retry_after: None } }.boxed()
    }

    fn cancel<'a>(&'a self, _job: &'a str) -> BoxFuture<'a, CancelAsked> {
        async { CancelAsked::Unknown }.boxed()
    }

    fn callback(
        &self,
        header: &dyn Fn(&str) -> Option<String>,
        query: &str,
        body: &[u8],
        _now: Timestamp,
    ) -> Result<Callback, CallbackRefused> {
        match header("x-signed").as_deref() {
            None => return Err(CallbackRefused::Unsigned),
            Some("yes") => {}
            Some(_) => return Err(CallbackRefused::Forged),
        }
        let attempt = query.strip_prefix("ref=").and_then(|it| it.parse().ok());
        let body = std::str::from_utf8(body).ok().and_then(|body| body.split_once(' '));
        let (Some(attempt), Some((delivery, job))) = (attempt, body) else {
            return Err(CallbackRefused::Unreadable);
        };
        Ok(Callback { delivery: delivery.to_owned(), attempt, job: job.to_owned() })
    }
}

/// Honours links signed `good` until they expire.
pub struct WordLinks;

impl LinkVerifier for WordLinks {
    fn verify(&self, _key: &str, expires: u64, signature: &str, now: Timestamp) -> Result<(), LinkRefused> {
        if signature != "good" {
            return Err(LinkRefused::Forged);
        }
        let running = i64::try_from(expires).is_ok_and(|expires| now.timestamp() < expires);
        if running { Ok(()) } else { Err(LinkRefused::Expired) }
    }
}

/// Not ready for the reasons given.
pub struct Reasons(pub Vec<String>);

impl Readiness for Reasons {
    fn reasons(&self) -> BoxFuture<'_, Vec<String>> {
        async { self.0.clone() }.boxed()
    }
}
