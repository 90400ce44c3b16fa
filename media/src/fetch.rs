//! Downloads: from an address that a provider named into the object store, believing nothing the other side says.

use crate::config::ObjectsConfig;
use crate::guard::{GuardedResolver, Lookup, NotPublic, is_public};
use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use futures_util::{Stream, StreamExt, stream};
use reqwest::header::{ACCEPT_ENCODING, CONTENT_ENCODING, LOCATION};
use reqwest::{Client, Response, StatusCode, Url, redirect};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use url::Host;
use workers::ports::TransferError;

/// Redirects that are followed.
const MAX_REDIRECTS: usize = 3;

/// How much of an error page is read to see whether it speaks of expiry.
const ERROR_PAGE: usize = 4096;

/// How much compressed data is decompressed at once: deflate grows at most a thousandfold, so at most 4 MiB appear between
/// two looks at the cap.
const INFLATE_STEP: usize = 4096;

/// Opens downloads.
pub(crate) struct Fetcher {
    /// Connects to public addresses only.
    guarded: Client,
    /// Connects anywhere: for the hosts an operator allowed.
    open: Client,
    allow_hosts: Vec<String>,
    idle: Duration,
    room: Arc<Semaphore>,
}

impl Fetcher {
    pub(crate) fn new(config: &ObjectsConfig, lookup: Arc<dyn Lookup>) -> reqwest::Result<Self> {
        let client = |public_only| {
            Client::builder()
                .dns_resolver(GuardedResolver { lookup: Arc::clone(&lookup), public_only })
                // Every hop is checked here, so the client must not follow one by itself.
                .redirect(redirect::Policy::none())
                // A proxy would resolve the name itself, behind the guard's back.
                .no_proxy()
                .referer(false)
                .connect_timeout(Duration::from_secs(config.connect_timeout_seconds))
                // Decompression happens here, under the cap, whatever features another crate turns on.
                .no_gzip()
                .no_brotli()
                .no_zstd()
                .no_deflate()
                .build()
        };
        Ok(Self {
            guarded: client(true)?,
            open: client(false)?,
            allow_hosts: config.allow_hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
            idle: Duration::from_secs(config.idle_timeout_seconds),
            room: Arc::new(Semaphore::new(usize::try_from(config.max_downloads.max(1)).unwrap_or(1))),
        })
    }

    /// Asks for the address, following redirects, and answers the body of a 200. The caller bounds the total time.
    pub(crate) async fn open(&self, address: &str, max_bytes: u64) -> Result<Body, TransferError> {
        let mut url = Url::parse(address).map_err(|_| refused("not a URL"))?;
        // Waiting for room is part of the download's time.
        let room = Arc::clone(&self.room).acquire_owned().await.map_err(|_| later("no download is begun any more"))?;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.ask(&url).await?;
            if !response.status().is_redirection() {
                return self.body(response, max_bytes, room).await;
            }
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            url = next_hop(&url, location.ok_or_else(|| refused("a redirect without a target"))?)?;
        }
        Err(refused("too many redirects"))
    }

    async fn ask(&self, url: &Url) -> Result<Response, TransferError> {
        // A `Range` header is never sent, and the identity encoding asked for: the body is the whole file as it is.
        let request = self.admit(url)?.get(url.clone()).header(ACCEPT_ENCODING, "identity");
        timeout(self.idle, request.send()).await.map_err(|_| later("no answer"))?.map_err(|error| send_error(&error))
    }

    /// The client that may be used for a hop; the address itself is checked as it connects.
    fn admit(&self, url: &Url) -> Result<&Client, TransferError> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(refused("not an http or https address"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refused("an address with credentials"));
        }
        let host = url.host().ok_or_else(|| refused("an address without a host"))?;
        let pair = format!("{host}:{}", url.port_or_known_default().unwrap_or_default());
        if self.allow_hosts.contains(&pair) {
            return Ok(&self.open);
        }
        let inside = match host {
            Host::Ipv4(address) => !is_public(address.into()),
            Host::Ipv6(address) => !is_public(address.into()),
            Host::Domain(_) => false,
        };
        if inside { Err(refused(INSIDE)) } else { Ok(&self.guarded) }
    }

    async fn body(
        &self,
        response: Response,
        max_bytes: u64,
        room: OwnedSemaphorePermit,
    ) -> Result<Body, TransferError> {
        if response.status() != StatusCode::OK {
            return Err(self.status_error(response).await);
        }
        let expected = response.content_length();
        if expected.is_some_and(|length| length > max_bytes) {
            return Err(refused(&format!("larger than {max_bytes} bytes")));
        }
        let inflater = match response.headers().get(CONTENT_ENCODING).map(|value| value.as_bytes()) {
            None | Some(b"" | b"identity") => None,
            // Not asked for, but some stores hold their files compressed and can not do otherwise.
            Some(b"gzip" | b"x-gzip") => Some(MultiGzDecoder::new(Vec::new())),
            Some(_) => return Err(refused("an encoding that was not asked for")),
        };
        Ok(Body { response, idle: self.idle, expected, received: 0, inflater, compressed: Bytes::new(), _room: room })
    }

    async fn status_error(&self, response: Response) -> TransferError {
        let status = response.status();
        match status.as_u16() {
            // What a provider answers for an address that ran out differs, and a file that is not there yet or any more may be at a
            // fresh address: how often that is tried is limited.
            401 | 403 | 404 | 410 => TransferError::Expired,
            408 | 425 | 429 => later(&format!("status {}", status.as_u16())),
            // Some stores answer 400 or 404 for a signature that ran out; only their words tell.
            400..=499 if self.speaks_of_expiry(response).await => TransferError::Expired,
            400..=499 => refused(&format!("status {}", status.as_u16())),
            // 5xx, and every 2xx that is not the whole file.
            _ => later(&format!("status {}", status.as_u16())),
        }
    }

    async fn speaks_of_expiry(&self, mut response: Response) -> bool {
        let mut page = Vec::new();
        while page.len() < ERROR_PAGE
            && let Ok(Ok(Some(chunk))) = timeout(self.idle, response.chunk()).await
        {
            page.extend_from_slice(&chunk[..chunk.len().min(ERROR_PAGE - page.len())]);
        }
        page.to_ascii_lowercase().windows(7).any(|word| word == b"expired")
    }
}

/// The body of an answer, checked while it is read.
pub(crate) struct Body {
    response: Response,
    idle: Duration,
    /// The announced length on the wire, where one was announced.
    expected: Option<u64>,
    received: u64,
    inflater: Option<MultiGzDecoder<Vec<u8>>>,
    /// Received and not yet decompressed.
    compressed: Bytes,
    /// Its place among the downloads, until it is over.
    _room: OwnedSemaphorePermit,
}

impl Body {
    /// The decoded bytes. The stream ends without an error only when the whole body arrived.
    pub(crate) fn into_stream(self) -> impl Stream<Item = Result<Bytes, TransferError>> + Send {
        stream::try_unfold(self, |mut body| async { Ok(body.next().await?.map(|chunk| (chunk, body))) }).fuse()
    }

    async fn next(&mut self) -> Result<Option<Bytes>, TransferError> {
        loop {
            if !self.compressed.is_empty() {
                let inflated = self.inflate()?;
                if !inflated.is_empty() {
                    return Ok(Some(inflated));
                }
                continue;
            }
            let Some(chunk) = self.receive().await? else {
                return self.finish();
            };
            if self.inflater.is_none() {
                return Ok(Some(chunk));
            }
            self.compressed = chunk;
        }
    }

    async fn receive(&mut self) -> Result<Option<Bytes>, TransferError> {
        let chunk = timeout(self.idle, self.response.chunk()).await.map_err(|_| later("the body stopped coming"))?;
        // The client reports a cut chunked body and most short ones; the count below does not depend on it.
        let chunk = chunk.map_err(|_| later("the body was cut short"))?;
        self.received += chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        if chunk.is_none() && self.expected.is_some_and(|expected| expected != self.received) {
            return Err(later("the body is shorter than announced"));
        }
        Ok(chunk)
    }

    fn inflate(&mut self) -> Result<Bytes, TransferError> {
        let step = self.compressed.split_to(self.compressed.len().min(INFLATE_STEP));
        let Some(inflater) = &mut self.inflater else {
            return Ok(step);
        };
        inflater.write_all(&step).map_err(|_| refused("the body is not valid gzip"))?;
        Ok(std::mem::take(inflater.get_mut()).into())
    }

    /// The end of the body: the decompressor must be at an end too.
    fn finish(&mut self) -> Result<Option<Bytes>, TransferError> {
        let Some(mut inflater) = self.inflater.take() else {
            return Ok(None);
        };
        inflater.try_finish().map_err(|_| later("the gzip data is cut short"))?;
        let rest = std::mem::take(inflater.get_mut());
        Ok((!rest.is_empty()).then(|| rest.into()))
    }
}

const INSIDE: &str = "the address is not on the public internet";

/// Where a redirect leads. Encryption that was there must not be lost on the way.
fn next_hop(from: &Url, location: &str) -> Result<Url, TransferError> {
    let next = from.join(location).map_err(|_| refused("a redirect to something that is not a URL"))?;
    if from.scheme() == "https" && next.scheme() != "https" {
        return Err(refused("a redirect that gives up encryption"));
    }
    Ok(next)
}

/// Says why a request got no answer. The client's own words hold the URL, which may hold a credential.
fn send_error(error: &reqwest::Error) -> TransferError {
    let causes = std::iter::successors(std::error::Error::source(error), |error| error.source());
    if causes.into_iter().any(|cause| cause.is::<NotPublic>()) {
        return refused(INSIDE);
    }
    later(if error.is_connect() { "no connection" } else { "the connection broke before an answer" })
}

fn refused(why: &str) -> TransferError {
    TransferError::Permanent(why.to_owned())
}

fn later(why: &str) -> TransferError {
    TransferError::Transient(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_keeps_encryption() -> Result<(), Box<dyn std::error::Error>> {
        let from = Url::parse("https://cdn.example/a/b?sig=1")?;
        assert_eq!(next_hop(&from, "../c")?.as_str(), "https://cdn.example/c");
        assert_eq!(next_hop(&from, "https://other.example/")?.host_str(), Some("other.example"));
        for down in ["http://cdn.example/a", "HTTP://cdn.example", "ftp://x/", "file:///etc/passwd", "javascript:0"] {
            assert_eq!(next_hop(&from, down), Err(refused("a redirect that gives up encryption")), "{down}");
        }
        assert!(next_hop(&Url::parse("http://cdn.example/")?, "https://cdn.example/").is_ok());
        Ok(())
    }
}
