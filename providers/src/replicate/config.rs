//! Settings, and the addresses that are made from them.

use crate::Secret;
use crate::signature::SigningKey;
use domain::id::AttemptId;
use serde::Deserialize;
use std::time::Duration;
use url::{Host, Url};

/// Settings of the adapter. Unknown fields are refused: a misspelt limit must not silently become the default.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicateConfig {
    /// Where the API is, without a slash at the end.
    #[serde(default = "default_base_url")]
    pub base_url: String,
    /// The API token.
    pub token: Secret,
    /// Our own public address; the provider calls `{this}/callbacks/replicate?ref={attempt}`.
    pub callback_base_url: String,
    /// The secret that callbacks are signed with, `whsec_…`.
    pub webhook_secret: Secret,
    /// Longest time to establish a connection, in milliseconds. Keep it well below the timeout of a create call: only a
    /// connect that fails by itself is known not to have sent anything.
    #[serde(default = "default_connect_timeout_ms")]
    pub connect_timeout_ms: u64,
    /// Longest time of a look-up page, a poll or a cancel, in milliseconds. A create call brings its own.
    #[serde(default = "default_request_timeout_ms")]
    pub request_timeout_ms: u64,
    /// Most pages that one look-up reads (100 jobs each). Past it, "nothing found" is no longer an answer.
    #[serde(default = "default_find_max_pages")]
    pub find_max_pages: u32,
    /// How far back a look-up reads, in seconds. Must be longer than the longest time between a create call and its last
    /// look-up: a job outside the window looks as if it had never been created.
    #[serde(default = "default_find_window_s")]
    pub find_window_s: u64,
    /// How far a callback's timestamp may be from our clock either way, in seconds.
    #[serde(default = "default_timestamp_tolerance_s")]
    pub timestamp_tolerance_s: u64,
    /// Words (compared without case) that tell a refusal of content from another failure: the API has no code for it.
    #[serde(default = "default_moderation_markers")]
    pub moderation_markers: Vec<String>,
    /// Lets the token travel over plain HTTP to another machine. Loopback needs no permission.
    #[serde(default)]
    pub allow_plain_http: bool,
}

fn default_base_url() -> String {
    "https://api.replicate.com/v1".to_owned()
}
const fn default_connect_timeout_ms() -> u64 {
    5_000
}
const fn default_request_timeout_ms() -> u64 {
    15_000
}
const fn default_find_max_pages() -> u32 {
    100
}
const fn default_find_window_s() -> u64 {
    7 * 24 * 3600
}
const fn default_timestamp_tolerance_s() -> u64 {
    300
}
fn default_moderation_markers() -> Vec<String> {
    ["nsfw", "moderation", "flagged as sensitive", "safety", "content policy", "(e005)"].map(str::to_owned).to_vec()
}

impl ReplicateConfig {
    /// The settings that have no default, and defaults for the rest.
    #[must_use]
    pub fn new(token: Secret, callback_base_url: String, webhook_secret: Secret) -> Self {
        Self {
            base_url: default_base_url(),
            token,
            callback_base_url,
            webhook_secret,
            connect_timeout_ms: default_connect_timeout_ms(),
            request_timeout_ms: default_request_timeout_ms(),
            find_max_pages: default_find_max_pages(),
            find_window_s: default_find_window_s(),
            timestamp_tolerance_s: default_timestamp_tolerance_s(),
            moderation_markers: default_moderation_markers(),
            allow_plain_http: false,
        }
    }

    pub(super) fn timestamp_tolerance(&self) -> Duration {
        Duration::from_secs(self.timestamp_tolerance_s)
    }

    pub(super) fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.request_timeout_ms)
    }

    pub(super) fn signing_key(&self) -> Result<SigningKey, ReplicateConfigError> {
        SigningKey::parse(&self.webhook_secret).map_err(|bad| ReplicateConfigError::WebhookSecret(bad.to_string()))
    }
}

/// A setting that can not be used. The value is never part of the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicateConfigError {
    /// `base_url` or `callback_base_url` is not an address we would use.
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
    /// A limit of zero would refuse or wait for everything.
    #[error("{0} must be more than zero")]
    Zero(&'static str),
    /// The HTTP client can not be built (TLS roots, for instance).
    #[error("the HTTP client can not be built")]
    Client,
}

/// The checked addresses.
pub(super) struct Addresses {
    base: Url,
    callback: Url,
}

impl Addresses {
    pub(super) fn check(config: &ReplicateConfig) -> Result<Self, ReplicateConfigError> {
        let limits = [
            ("connect_timeout_ms", config.connect_timeout_ms),
            ("request_timeout_ms", config.request_timeout_ms),
            ("find_max_pages", config.find_max_pages.into()),
            ("find_window_s", config.find_window_s),
            ("timestamp_tolerance_s", config.timestamp_tolerance_s),
        ];
        if let Some((name, _)) = limits.iter().find(|(_, value)| *value == 0) {
            return Err(ReplicateConfigError::Zero(name));
        }
        let base = address("base_url", &config.base_url)?;
        if base.scheme() == "http" && !config.allow_plain_http && !is_loopback(&base) {
            let why = "plain HTTP would show the token to the network";
            return Err(ReplicateConfigError::Address { setting: "base_url", why });
        }
        Ok(Self { base, callback: address("callback_base_url", &config.callback_base_url)? })
    }

    /// An address below the API's root. The segments are escaped, so that none can climb out.
    pub(super) fn api<const N: usize>(&self, segments: [&str; N]) -> Url {
        below(&self.base, &segments)
    }

    pub(super) fn callback(&self, attempt: AttemptId) -> Url {
        let mut url = below(&self.callback, &["callbacks", "replicate"]);
        url.query_pairs_mut().append_pair("ref", &attempt.to_string());
        url
    }

    /// Takes a page address that the provider gave only if it is the list at the provider itself: the token goes with it.
    pub(super) fn page(&self, next: &str) -> Option<Url> {
        let list = self.api(["predictions"]);
        let url = list.join(next).ok()?;
        let same = url.origin() == list.origin() && url.path() == list.path() && url.username().is_empty();
        same.then_some(url)
    }
}

fn below(root: &Url, segments: &[&str]) -> Url {
    let mut url = root.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
}

fn address(setting: &'static str, text: &str) -> Result<Url, ReplicateConfigError> {
    let refuse = |why| ReplicateConfigError::Address { setting, why };
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

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}
