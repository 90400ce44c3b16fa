//! One HTTP exchange: bounded in time and size, without redirects, without retries, without proxies from the environment.
//!
//! There are two clients. `create` never reuses a connection: on a reused one, a failure may come from the connection's
//! own end as well as from our request, and the HTTP layer may then send the request again by itself. `other` may reuse
//! connections, for its requests can be repeated.

use super::retry_after;
use super::settings::ConfigError;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::{Duration, SystemTime};

/// Largest reply that is read. A job is a few kilobytes; its logs are what makes it grow.
pub(crate) const MAX_REPLY_BYTES: usize = 1024 * 1024;
/// Largest page of the job list that is read: up to a hundred jobs, each with its logs.
pub(crate) const MAX_PAGE_BYTES: usize = 16 * 1024 * 1024;

pub(crate) struct Clients {
    pub(crate) create: Client,
    pub(crate) other: Client,
}

impl Clients {
    /// `headers` go with every request; the credential among them is marked as sensitive.
    pub(crate) fn build(headers: &HeaderMap, connect_timeout: Duration) -> Result<Self, ConfigError> {
        let client = |idle_connections| {
            Client::builder()
                .default_headers(headers.clone())
                .user_agent(concat!("aivideo/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(connect_timeout)
                .redirect(Policy::none())
                .retry(reqwest::retry::never())
                .no_proxy()
                .pool_max_idle_per_host(idle_connections)
                .build()
                .map_err(|_| ConfigError::Client)
        };
        Ok(Self { create: client(0)?, other: client(8)? })
    }
}

/// A whole reply.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) body: Vec<u8>,
    headers: HeaderMap,
}

/// Why there is no whole reply.
#[derive(Debug)]
pub(crate) enum NoReply {
    /// The request never left: the connection was not established.
    NotSent(&'static str),
    /// It may have left.
    Lost(&'static str),
    /// It was not sent: the provider fails, and is left alone for so long.
    LeftAlone(Duration),
}

impl NoReply {
    pub(crate) fn cause(self) -> String {
        match self {
            Self::NotSent(cause) | Self::Lost(cause) => cause.to_owned(),
            Self::LeftAlone(_) => "the provider fails, and is left alone for a while".to_owned(),
        }
    }

    /// How long nothing will be sent, where that is known.
    pub(crate) const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::NotSent(_) | Self::Lost(_) => None,
            Self::LeftAlone(left) => Some(*left),
        }
    }
}

/// Sends a request once and reads the whole reply within `timeout`.
pub(crate) async fn exchange(request: RequestBuilder, timeout: Duration, max_bytes: usize) -> Result<Reply, NoReply> {
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

/// Our own fault, not the provider's.
const NOT_BUILT: &str = "the request could not be built";
pub(crate) const TOO_MANY: &str = "too many requests are on their way already";

/// Why an exchange says that the provider fails; `None` where it says nothing of the kind. Refusals and throttling are answers.
pub(crate) fn breakdown(exchanged: &Result<Reply, NoReply>) -> Option<&'static str> {
    match exchanged {
        Ok(reply) if reply.status.is_server_error() => Some("it answers 5xx"),
        Ok(_) | Err(NoReply::LeftAlone(_) | NoReply::NotSent(NOT_BUILT | TOO_MANY)) => None,
        Err(NoReply::NotSent(cause) | NoReply::Lost(cause)) => Some(cause),
    }
}

/// Splits a failed send by whether anything may have left. `is_connect` is true for failures of the connector alone (name
/// look-up, refused, TLS, connect timeout); a reset on an established connection is not among them.
fn unsent_or_lost(error: &reqwest::Error) -> NoReply {
    if error.is_builder() {
        NoReply::NotSent(NOT_BUILT)
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
    /// The body as JSON of a known shape.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.body).ok()
    }

    /// How long we are asked to wait, from the header or from a field of the body.
    pub(crate) fn retry_after(&self, in_body: Option<&Value>) -> Option<Duration> {
        let values: Vec<&str> =
            self.headers.get_all(RETRY_AFTER).iter().filter_map(|value| value.to_str().ok()).collect();
        retry_after::wait(&values, in_body, self.now())
    }

    /// The sender's own clock where it says, since its dates are relative to that.
    pub(crate) fn now(&self) -> SystemTime {
        let date = self.headers.get(DATE).and_then(|value| value.to_str().ok());
        date.and_then(|text| httpdate::parse_http_date(text).ok()).unwrap_or_else(SystemTime::now)
    }
}
