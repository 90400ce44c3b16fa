//! The public keys of whoever gives out tokens: a JSON Web Key Set (RFC 7517). Keys are taken for RS256, ES256 and EdDSA (Ed25519).

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The shortest RSA modulus, in digits of base64url: 2048 bits, as RFC 7518 section 3.3 asks for.
const MIN_MODULUS: usize = 342;

#[derive(Deserialize)]
struct Set {
    keys: Vec<serde_json::Value>,
}

/// A key set that is not taken; the keys from before stay.
#[derive(Debug, thiserror::Error)]
pub enum BadKeySet {
    /// It is no key set.
    #[error("it is no JSON Web Key Set")]
    Form(#[from] serde_json::Error),
    /// No token could be checked with it.
    #[error(
        "it has no key that can be used: an id (kid), for signatures, and RSA of 2048 bits, P-256 or Ed25519 are needed"
    )]
    Nothing,
}

/// A key with the one algorithm it is used with: a token can not choose another.
#[derive(Clone)]
pub(crate) struct VerifyingKey {
    pub(crate) algorithm: Algorithm,
    pub(crate) key: DecodingKey,
}

/// The keys, by their ids. Clones share them, so that whoever fetches them can change them while tokens are checked.
#[derive(Clone, Default)]
pub struct KeySet(Arc<RwLock<HashMap<String, VerifyingKey>>>);

impl KeySet {
    /// Takes the keys of a set in place of those before, and says how many can be used. Keys of other kinds are left out.
    ///
    /// # Errors
    /// [`BadKeySet`]; then nothing changes.
    pub fn replace(&self, json: &str) -> Result<usize, BadKeySet> {
        let set: Set = serde_json::from_str(json)?;
        // One by one: a kind of key that is not known here does not take the others with it.
        let keys = set.keys.into_iter().filter_map(|key| usable(&serde_json::from_value(key).ok()?));
        let keys: HashMap<String, VerifyingKey> = keys.collect();
        if keys.is_empty() {
            return Err(BadKeySet::Nothing);
        }
        let count = keys.len();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(count)
    }

    pub(crate) fn find(&self, id: &str) -> Option<VerifyingKey> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }
}

fn usable(jwk: &Jwk) -> Option<(String, VerifyingKey)> {
    if jwk.common.public_key_use.as_ref().is_some_and(|it| *it != PublicKeyUse::Signature) {
        return None;
    }
    let (algorithm, name) = match &jwk.algorithm {
        AlgorithmParameters::RSA(rsa) if rsa.n.len() >= MIN_MODULUS => (Algorithm::RS256, KeyAlgorithm::RS256),
        AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P256 => {
            (Algorithm::ES256, KeyAlgorithm::ES256)
        }
        AlgorithmParameters::OctetKeyPair(curve) if curve.curve == EllipticCurve::Ed25519 => {
            (Algorithm::EdDSA, KeyAlgorithm::EdDSA)
        }
        _ => return None,
    };
    if jwk.common.key_algorithm.is_some_and(|declared| declared != name) {
        return None;
    }
    Some((jwk.common.key_id.clone()?, VerifyingKey { algorithm, key: DecodingKey::from_jwk(jwk).ok()? }))
}
