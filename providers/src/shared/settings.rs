//! Settings that all adapters have, and what is wrong with them.

use super::{BreakerConfig, Secret};
use serde::Deserialize;
use std::time::Duration;
use url::{Host, Url};

/// How a provider's API is reached.
#[derive(Clone, Debug, Deserialize)]
pub struct Connection {
    /// Where the API is, without a slash at the end. Default: the real service.
    #[serde(default)]
    pub base_url: Option<String>,
    /// The API token.
    pub token: Secret,
    /// Longest time to establish a connection, in milliseconds. Keep it well below the timeout of a create call: only a
    /// connect that fails by itself is known not to have sent anything.
    #[serde(default = "default_connect_timeout_ms")]
    pub connect_timeout_ms: u64,
    /// Longest time of a look-up page, a poll or a cancel, in milliseconds. A create call brings its own.
    #[serde(default = "default_request_timeout_ms")]
    pub request_timeout_ms: u64,
    /// Words (compared without case) that tell a refusal of content from another failure, where the API has no code for it.
    #[serde(default = "default_moderation_markers")]
    pub moderation_markers: Vec<String>,
    /// Lets the token travel over plain HTTP to another machine. Loopback needs no permission.
    #[serde(default)]
    pub allow_plain_http: bool,
    /// When a provider that fails is left alone.
    #[serde(default)]
    pub breaker: BreakerConfig,
    /// Most requests that are on their way to the provider at once, of this process.
    #[serde(default = "default_max_requests")]
    pub max_requests: u32,
}

const fn default_connect_timeout_ms() -> u64 {
    5_000
}
const fn default_request_timeout_ms() -> u64 {
    15_000
}
const fn default_max_requests() -> u32 {
    64
}
fn default_moderation_markers() -> Vec<String> {
    ["nsfw", "moderation", "flagged as sensitive", "sensitivecontent", "safety", "content policy", "(e005)"]
        .map(str::to_owned)
        .to_vec()
}

impl Connection {
    /// The real service, with this token and defaults for the rest.
    #[must_use]
    pub fn new(token: Secret) -> Self {
        Self {
            base_url: None,
            token,
            connect_timeout_ms: default_connect_timeout_ms(),
            request_timeout_ms: default_request_timeout_ms(),
            moderation_markers: default_moderation_markers(),
            allow_plain_http: false,
            breaker: BreakerConfig::default(),
            max_requests: default_max_requests(),
        }
    }

    pub(crate) const fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    pub(crate) const fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.request_timeout_ms)
    }

    /// The checked address of the API.
    pub(crate) fn base(&self, default: &str) -> Result<Url, ConfigError> {
        not_zero(&[
            ("connect_timeout_ms", self.connect_timeout_ms),
            ("request_timeout_ms", self.request_timeout_ms),
            ("breaker.window_ms", self.breaker.window_ms),
            ("breaker.open_ms", self.breaker.open_ms),
            ("max_requests", self.max_requests.into()),
        ])?;
        let base = address("base_url", self.base_url.as_deref().unwrap_or(default))?;
        if base.scheme() == "http" && !self.allow_plain_http && !is_loopback(&base) {
            let why = "plain HTTP would show the token to the network";
            return Err(ConfigError::Address { setting: "base_url", why });
        }
        Ok(base)
    }
}

/// Where callbacks come in, for providers whose signature does not say for whom it was made, or that have none.
#[derive(Clone, Debug, Deserialize)]
pub struct Callbacks {
    /// Our own public address; the provider calls `{this}/callbacks/{name}?ref={attempt}&key={key}`.
    pub callback_base_url: String,
    /// What the keys in callback addresses are made with, at least 16 characters. To change it, put the old one into
    /// `earlier_callback_secrets` until the last job is over whose address was made with it.
    pub callback_secret: Secret,
    /// Secrets that addresses of running jobs were made with, before `callback_secret` became another one.
    #[serde(default)]
    pub earlier_callback_secrets: Vec<Secret>,
}

/// A setting that can not be used. The value is never part of the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// An address that we would not use.
    #[error("{setting}: {why}")]
    Address {
        /// Name of the setting.
        setting: &'static str,
        /// What is wrong.
        why: &'static str,
    },
    /// `token` is empty or can not stand in a header.
    #[error("token is empty or has characters that a header can not carry")]
    Token,
    /// Callbacks could not be verified; without a key nothing is accepted, so nothing is started either.
    #[error("webhook_secret: {0}")]
    WebhookSecret(String),
    /// Keys in callback addresses could be guessed.
    #[error("callback_secret must have at least 16 characters: openssl rand -hex 24 makes one")]
    CallbackSecret,
    /// A limit of zero would refuse or wait for everything.
    #[error("{0} must be more than zero")]
    Zero(&'static str),
    /// Another setting has a value that can not be used.
    #[error("{setting}: {why}")]
    Value {
        /// Name of the setting.
        setting: &'static str,
        /// What is wrong.
        why: &'static str,
    },
    /// The HTTP client can not be built (TLS roots, for instance).
    #[error("the HTTP client can not be built")]
    Client,
}

pub(crate) fn not_zero(limits: &[(&'static str, u64)]) -> Result<(), ConfigError> {
    limits.iter().find(|(_, value)| *value == 0).map_or(Ok(()), |(name, _)| Err(ConfigError::Zero(name)))
}

pub(crate) fn address(setting: &'static str, text: &str) -> Result<Url, ConfigError> {
    let refuse = |why| ConfigError::Address { setting, why };
    let url = Url::parse(text).map_err(|_| refuse("not an address"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(refuse("must be http or https with a host"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refuse("must not carry a user or password"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refuse("must not carry a query or fragment"));
    }
    Ok(url)
}

/// An address below another. The segments are escaped, so that none can climb out.
pub(crate) fn below(root: &Url, segments: &[&str]) -> Url {
    let mut url = root.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}
