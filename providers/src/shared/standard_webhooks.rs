//! Standard Webhooks signatures: HMAC-SHA256 over `id.timestamp.body`, where the body is the raw bytes of the request.

use super::Secret;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;

/// Shorter keys can be guessed; Standard Webhooks asks for 24 to 64 bytes, some senders use 16.
const MIN_KEY_BYTES: usize = 16;

/// Why a signing secret can not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadKey {
    /// It does not start with `whsec_`.
    #[error("the webhook secret must start with whsec_")]
    Prefix,
    /// What follows is not base64.
    #[error("the webhook secret is not base64 after whsec_")]
    Base64,
    /// The key is empty or short.
    #[error("the webhook secret must hold at least 16 bytes")]
    Short,
}

/// A decoded signing key.
#[derive(Clone)]
pub(crate) struct SigningKey(Vec<u8>);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(..)")
    }
}

impl SigningKey {
    /// Decodes `whsec_<base64>`. An empty key is refused: with it, anyone could sign.
    pub(crate) fn parse(secret: &Secret) -> Result<Self, BadKey> {
        let text = secret.expose().strip_prefix("whsec_").ok_or(BadKey::Prefix)?;
        let key = STANDARD.decode(text).map_err(|_| BadKey::Base64)?;
        if key.len() < MIN_KEY_BYTES {
            return Err(BadKey::Short);
        }
        Ok(Self(key))
    }

    fn mac(&self, id: &str, timestamp: &str, body: &[u8]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        Some(mac)
    }

    /// The value of the `webhook-signature` header.
    pub(crate) fn sign(&self, id: &str, timestamp: &str, body: &[u8]) -> String {
        let code = self.mac(id, timestamp, body).map(|mac| mac.finalize().into_bytes().to_vec()).unwrap_or_default();
        format!("v1,{}", STANDARD.encode(code))
    }

    /// Whether one of the space-separated signatures is right. Several are sent while a secret is being changed;
    /// versions other than `v1` are passed over. The comparison takes the same time wherever the first difference is.
    pub(crate) fn matches(&self, id: &str, timestamp: &str, body: &[u8], signatures: &str) -> bool {
        signatures.split_ascii_whitespace().filter_map(|one| one.strip_prefix("v1,")).any(|encoded| {
            match (STANDARD.decode(encoded), self.mac(id, timestamp, body)) {
                (Ok(given), Some(mac)) => mac.verify_slice(&given).is_ok(),
                _ => false,
            }
        })
    }
}
