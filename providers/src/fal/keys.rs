//! The published keys that callbacks are signed with.

use crate::shared::{Clients, ConfigError, Connection, address, exchange};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signature, VerifyingKey};
use reqwest::header::HeaderMap;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};
use url::Url;

/// Shortest time between two fetches of the keys: a flood of forgeries must not become a flood of requests.
const AT_MOST_EVERY: Duration = Duration::from_secs(30);
/// Largest list of keys.
const MAX_BYTES: usize = 64 * 1024;

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Key>,
}

#[derive(Deserialize)]
struct Key {
    #[serde(default)]
    kty: String,
    #[serde(default)]
    crv: String,
    #[serde(default)]
    x: String,
}

#[derive(Default)]
struct Held {
    keys: Vec<VerifyingKey>,
    fetched: Option<Instant>,
    tried: Option<Instant>,
}

/// See the module. Without keys nothing is believed.
pub(super) struct PublishedKeys {
    url: Url,
    max_age: Duration,
    timeout: Duration,
    clients: Clients,
    held: RwLock<Held>,
}

impl PublishedKeys {
    pub(super) fn new(url: &str, max_age: Duration, connection: &Connection) -> Result<Self, ConfigError> {
        // Without the token: the keys are public, and may be on another host.
        let clients = Clients::build(&HeaderMap::new(), connection.connect_timeout())?;
        let timeout = connection.request_timeout();
        Ok(Self { url: address("jwks_url", url)?, max_age, timeout, clients, held: RwLock::default() })
    }

    /// Fetches the keys where there are none, where they are old, or where one is missing.
    pub(super) async fn renew(&self, changed: bool) {
        let now = Instant::now();
        {
            let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
            let is_fresh = held.fetched.is_some_and(|at| now.duration_since(at) < self.max_age);
            let just_tried = held.tried.is_some_and(|at| now.duration_since(at) < AT_MOST_EVERY);
            if (is_fresh && !changed) || just_tried {
                return;
            }
            held.tried = Some(now);
        }
        match self.fetch().await {
            Ok(keys) => {
                let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
                (held.keys, held.fetched) = (keys, Some(now));
            }
            Err(cause) => tracing::warn!(cause, "the keys that callbacks are signed with can not be fetched"),
        }
    }

    async fn fetch(&self) -> Result<Vec<VerifyingKey>, String> {
        let request = self.clients.other.get(self.url.clone());
        let reply = exchange(request, self.timeout, MAX_BYTES).await.map_err(|no| no.cause())?;
        if !reply.status.is_success() {
            return Err(format!("http {}", reply.status.as_u16()));
        }
        let set: KeySet = reply.json().ok_or("the keys are not readable")?;
        let keys: Vec<VerifyingKey> = set.keys.iter().filter_map(usable).collect();
        if keys.is_empty() { Err("there is no Ed25519 key among them".to_owned()) } else { Ok(keys) }
    }

    /// Whether there are keys that may be used.
    pub(super) fn are_known(&self) -> bool {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        held.fetched.is_some_and(|at| at.elapsed() < self.max_age)
    }

    /// Whether one of the keys made this signature (in hexadecimal digits).
    pub(super) fn have_signed(&self, text: &[u8], signature: &str) -> bool {
        let Some(signature) = hex::decode(signature).ok().and_then(|bytes| Signature::from_slice(&bytes).ok()) else {
            return false;
        };
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        // Keys that are too old are as good as none.
        let is_fresh = held.fetched.is_some_and(|at| at.elapsed() < self.max_age);
        is_fresh && held.keys.iter().any(|key| key.verify_strict(text, &signature).is_ok())
    }
}

fn usable(key: &Key) -> Option<VerifyingKey> {
    if key.kty != "OKP" || key.crv != "Ed25519" {
        return None;
    }
    let bytes: [u8; 32] = URL_SAFE_NO_PAD.decode(&key.x).ok()?.try_into().ok()?;
    VerifyingKey::from_bytes(&bytes).ok()
}

/// What is signed: request, user, time, and the digest of the raw body, a line each.
pub(crate) fn signed_text(request: &str, user: &str, timestamp: &str, body: &[u8]) -> Vec<u8> {
    format!("{request}\n{user}\n{timestamp}\n{}", hex::encode(Sha256::digest(body))).into_bytes()
}
