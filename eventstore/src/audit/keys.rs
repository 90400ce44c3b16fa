//! The keys of seals: Ed25519. Written as base64 of their 32 bytes.

use super::chain::Hash;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signer, VerifyingKey};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

fn bytes_of(text: &str) -> Option<[u8; 32]> {
    STANDARD.decode(text.trim()).ok()?.try_into().ok()
}

/// Signs seals. A secret: it is never shown.
#[derive(Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct SigningKey(ed25519_dalek::SigningKey);

impl SigningKey {
    /// The key that these 32 random bytes are the seed of.
    #[must_use]
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(&seed))
    }

    /// The key that its signatures are verified with.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Signature {
        Signature(self.0.sign(message).to_bytes())
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(<secret>)")
    }
}

impl TryFrom<String> for SigningKey {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        bytes_of(&text).map(Self::from_seed).ok_or(
            "the signing key of seals can not be read: it is 32 random bytes in base64, as `openssl rand -base64 32` makes them",
        )
    }
}

/// Verifies seals. Not a secret: hand it to whoever checks.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> KeyId {
        let hash = Hash::of_parts(&[self.0.as_bytes()]);
        KeyId(hex::encode(&hash.0[..8]))
    }

    /// Whether this signature of the message was made with its signing key. Strictly: no second form of a signature passes.
    #[must_use]
    pub fn verifies(&self, message: &[u8], signature: Signature) -> bool {
        self.0.verify_strict(message, &ed25519_dalek::Signature::from_bytes(&signature.0)).is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0.as_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

impl TryFrom<String> for PublicKey {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl std::str::FromStr for PublicKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let key = bytes_of(text).and_then(|bytes| VerifyingKey::from_bytes(&bytes).ok());
        key.map(Self)
            .ok_or("a verification key is an Ed25519 public key, 32 bytes in base64; `aivideo audit seals` prints it")
    }
}

/// Names a key: the first 16 hexadecimal digits of the SHA-256 of its public half.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyId(pub String);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An Ed25519 signature, written as base64 of its 64 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Signature(pub [u8; 64]);

impl Signature {
    /// A stored signature. What has another length is nobody's signature.
    pub(crate) fn stored(bytes: &[u8]) -> Self {
        bytes.try_into().map_or(Self([0; 64]), Self)
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signature({})", String::from(*self))
    }
}

impl From<Signature> for String {
    fn from(signature: Signature) -> Self {
        STANDARD.encode(signature.0)
    }
}

impl TryFrom<String> for Signature {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let bytes = STANDARD.decode(text).map_err(|_| "a signature is base64")?;
        bytes.as_slice().try_into().map(Self).map_err(|_| "a signature has 64 bytes")
    }
}

/// The public keys whose seals are believed.
#[derive(Clone, Debug, Default)]
pub struct TrustedKeys(BTreeMap<KeyId, PublicKey>);

impl TrustedKeys {
    /// The key of this id.
    #[must_use]
    pub fn get(&self, id: &KeyId) -> Option<PublicKey> {
        self.0.get(id).copied()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, by id.
    pub fn iter(&self) -> impl Iterator<Item = (&KeyId, &PublicKey)> {
        self.0.iter()
    }
}

impl FromIterator<PublicKey> for TrustedKeys {
    fn from_iter<I: IntoIterator<Item = PublicKey>>(keys: I) -> Self {
        Self(keys.into_iter().map(|key| (key.id(), key)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8032, 7.1, test 1: seed, public key, and the signature of the empty message.
    #[test]
    fn keys_and_signatures_are_those_of_the_rfc() -> Result<(), Box<dyn std::error::Error>> {
        let seed: [u8; 32] = hex::decode("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")?
            .try_into()
            .map_err(|_| "32 bytes")?;
        let key = SigningKey::from_seed(seed);
        let public = hex::decode("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")?;
        assert_eq!(key.public().to_string(), STANDARD.encode(public));
        let signature = key.sign(b"");
        assert!(hex::encode(signature.0).starts_with("e5564300c360ac729086e2cc806e828a"));
        assert!(key.public().verifies(b"", signature));
        assert!(!key.public().verifies(b"x", signature));
        Ok(())
    }

    #[test]
    fn a_signing_key_is_read_from_base64_and_never_shown() {
        let text = STANDARD.encode([7; 32]);
        let key = SigningKey::try_from(text.clone()).expect("32 bytes");
        assert!(!format!("{key:?}").contains(&text));
        let refused = SigningKey::try_from("c2hvcnQ=".to_owned()).expect_err("too short");
        assert!(refused.contains("openssl rand") && !refused.contains("c2hvcnQ"), "{refused}");
    }
}
