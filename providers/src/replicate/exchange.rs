//! One HTTP exchange: bounded in time and size, without redirects, without retries, without proxies from the environment.
//!
//! There are two clients. `create` never reuses a connection: on a reused one, a failure may come from the connection's
//! own end as well as from our request, and the HTTP layer may then send the request again by itself. `other` may reuse
//! connections, for its requests can be repeated.

use super::ReplicateConfig;
use super::ReplicateConfigError;
use super::retry_after;
use super::wire::Problem;
use reqwest::header::{ACCEPT, AUTHORIZATION, DATE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, StatusCode};
use std::time::{Duration, SystemTime};

/// Largest reply that is read. A job is a few kilobytes; its logs are what makes it grow.
pub(super) const MAX_REPLY_BYTES: usize = 1024 * 1024;
/// Largest page of the job list that is read: up to a hundred jobs, each with its logs.
pub(super) const MAX_PAGE_BYTES: usize = 16 * 1024 * 1024;

pub(super) struct Clients {
    pub(super) create: Client,
    pub(super) other: Client,
}

impl Clients {
    pub(super) fn build(config: &ReplicateConfig) -> Result<Self, ReplicateConfigError> {
        let token = config.token.expose();
        if token.is_empty() {
            return Err(ReplicateConfigError::Token);
        }
        let mut bearer = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| ReplicateConfigError::Token)?;
        bearer.set_sensitive(true);
        let headers: HeaderMap =
            [(AUTHORIZATION, bearer), (ACCEPT, HeaderValue::from_static("application/json"))].into_iter().collect();
        let client = |idle_connections| {
            Client::builder()
                .default_headers(headers.clone())
                .user_agent(concat!("aivideo/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(Duration::from_millis(config.connect_timeout_ms))
                .redirect(Policy::none())
                .retry(reqwest::retry::never())
                .no_proxy()
                .pool_max_idle_per_host(idle_connections)
                .build()
                .map_err(|_| ReplicateConfigError::Client)
        };
        Ok(Self { create: client(0)?, other: client(8)? })
    }
}

/// A whole reply.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
    headers: HeaderMap,
}

/// Why there is no whole reply.
#[derive(Debug)]
pub(super) enum NoReply {
    /// The request never left: the connection was not established.
    NotSent(&'static str),
    /// It may have left.
    Lost(&'static str),
}

impl NoReply {
    pub(super) fn cause(self) -> String {
        match self {
            Self::NotSent(cause) | Self::Lost(cause) => cause.to_owned(),
        }
    }
}

/// Sends a request once and reads the whole reply within `timeout`.
pub(super) async fn exchange(request: RequestBuilder, timeout: Duration, max_bytes: usize) -> Result<Reply, NoReply> {
    let mut response = request.timeout(timeout).send().await.map_err(|error| unsent_or_lost(&error))?;
    let (status, headers) = (response.status(), response.headers().clone());
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() > max_bytes => {
                return Err(NoReply::Lost("the answer is too long"));
            }
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => return Ok(Reply { status, body, headers }),
            Err(error) if error.is_timeout() => return Err(NoReply::Lost("timed out within the answer")),
            Err(_) => return Err(NoReply::Lost("the answer was cut short")),
        }
    }
}

/// Splits a failed send by whether anything may have left. `is_connect` is true for failures of the connector alone (name
/// look-up, refused, TLS, connect timeout); a reset on an established connection is not among them.
fn unsent_or_lost(error: &reqwest::Error) -> NoReply {
    if error.is_builder() {
        NoReply::NotSent("the request could not be built")
    } else if error.is_connect() {
        NoReply::NotSent(connect_cause(error))
    } else if error.is_timeout() {
        NoReply::Lost("timed out waiting for the answer")
    } else {
        NoReply::Lost("the connection ended before the answer")
    }
}

fn connect_cause(error: &reqwest::Error) -> &'static str {
    if error.is_timeout() {
        return "connect timed out";
    }
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if inner.downcast_ref::<std::io::Error>().is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused) {
            return "connection refused";
        }
        source = inner.source();
    }
    "the connection was not established"
}

impl Reply {
    /// The provider's own structured refusal, if that is what the body is. A page from a proxy in between is not.
    pub(super) fn problem(&self) -> Option<Problem> {
        let problem: Problem = serde_json::from_slice(&self.body).ok()?;
        problem.speaks_for(self.status.as_u16()).then_some(problem)
    }

    /// How long we are asked to wait, from the header or from the body's `retry_after`.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let values: Vec<&str> =
            self.headers.get_all(RETRY_AFTER).iter().filter_map(|value| value.to_str().ok()).collect();
        let in_body = self.problem().and_then(|problem| problem.retry_after);
        retry_after::wait(&values, in_body.as_ref(), self.now())
    }

    /// The sender's own clock where it says, since its dates are relative to that.
    pub(super) fn now(&self) -> SystemTime {
        let date = self.headers.get(DATE).and_then(|value| value.to_str().ok());
        date.and_then(|text| httpdate::parse_http_date(text).ok()).unwrap_or_else(SystemTime::now)
    }
}
