//! Settings.

use crate::shared::{ConfigError, Connection, Secret, SigningKey, not_zero};
use serde::Deserialize;
use std::time::Duration;

/// The real service.
pub(super) const BASE_URL: &str = "https://api.replicate.com/v1";

/// Settings of the adapter. Unknown fields are refused: a misspelt limit must not silently become the default.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicateConfig {
    /// How the API is reached.
    #[serde(flatten)]
    pub connection: Connection,
    /// Our own public address; the provider calls `{this}/callbacks/{name}?ref={attempt}`.
    pub callback_base_url: String,
    /// The secret that callbacks are signed with, `whsec_…`.
    pub webhook_secret: Secret,
    /// Secrets that callbacks may still be signed with, before `webhook_secret` became another one.
    #[serde(default)]
    pub earlier_webhook_secrets: Vec<Secret>,
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

impl ReplicateConfig {
    /// The settings that have no default, and defaults for the rest.
    #[must_use]
    pub fn new(token: Secret, callback_base_url: String, webhook_secret: Secret) -> Self {
        Self {
            connection: Connection::new(token),
            callback_base_url,
            webhook_secret,
            earlier_webhook_secrets: vec![],
            find_max_pages: default_find_max_pages(),
            find_window_s: default_find_window_s(),
            timestamp_tolerance_s: default_timestamp_tolerance_s(),
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        not_zero(&[
            ("find_max_pages", self.find_max_pages.into()),
            ("find_window_s", self.find_window_s),
            ("timestamp_tolerance_s", self.timestamp_tolerance_s),
        ])
    }

    pub(super) const fn timestamp_tolerance(&self) -> Duration {
        Duration::from_secs(self.timestamp_tolerance_s)
    }

    /// Each of them is believed.
    pub(super) fn signing_keys(&self) -> Result<Vec<SigningKey>, ConfigError> {
        let secrets = std::iter::once(&self.webhook_secret).chain(&self.earlier_webhook_secrets);
        secrets.map(|it| SigningKey::parse(it).map_err(|bad| ConfigError::WebhookSecret(bad.to_string()))).collect()
    }
}
