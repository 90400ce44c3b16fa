//! What is configured about seals.

use super::keys::{PublicKey, SigningKey, TrustedKeys};
use serde::Deserialize;
use std::time::Duration;

/// What is configured about seals. Without a signing key nothing is sealed.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    /// Seed of the Ed25519 key that seals are signed with: 32 random bytes, base64. A secret. Only `aivideo seal` needs it.
    pub signing_key: Option<SigningKey>,
    /// Public keys whose seals are believed, base64: those of earlier signing keys, and on machines that only verify, all.
    pub verification_keys: Vec<PublicKey>,
    /// Most events in one seal.
    pub seal_events: u32,
    /// Longest time in seconds that an event stays unsealed while a sealer runs.
    pub seal_seconds: u32,
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self { signing_key: None, verification_keys: vec![], seal_events: 4096, seal_seconds: 10 }
    }
}

impl AuditConfig {
    /// The keys whose seals are believed: those that are listed, and the signing key's own.
    #[must_use]
    pub fn trusted(&self) -> TrustedKeys {
        let own = self.signing_key.as_ref().map(SigningKey::public);
        self.verification_keys.iter().copied().chain(own).collect()
    }

    /// How often seals are made.
    #[must_use]
    pub fn every(&self) -> Duration {
        Duration::from_secs(self.seal_seconds.into())
    }

    /// Refuses what would not work.
    ///
    /// # Errors
    /// Says which key, and what it may be.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=65_536).contains(&self.seal_events) {
            return Err(format!(
                "audit.seal_events is {}, and must be 1 to 65536: a seal is made in one transaction",
                self.seal_events
            ));
        }
        if !(1..=86_400).contains(&self.seal_seconds) {
            return Err(format!(
                "audit.seal_seconds is {}, and must be 1 to 86400 (a day): until it is sealed, a change to an event is not found",
                self.seal_seconds
            ));
        }
        Ok(())
    }
}
