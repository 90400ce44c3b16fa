//! The callback addresses that we give to providers: they carry our reference, and where the signature is nobody's or
//! everybody's, a key.

use super::Secret;
use super::settings::{Callbacks, ConfigError, address, below};
use domain::id::AttemptId;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use url::Url;
use workers::ports::CallbackRefused;

/// Shortest secret, in bytes.
const MIN_SECRET: usize = 16;

/// Makes callback addresses, and knows them again.
#[derive(Clone)]
pub(crate) struct CallbackAddress {
    root: Url,
    name: String,
    /// The first makes addresses; all of them are believed. None: the addresses have no key.
    secrets: Vec<Secret>,
}

/// What a callback's address names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// The attempt that the address was made for.
    pub(crate) attempt: AttemptId,
    /// What the adapter put beside it.
    pub(crate) note: String,
}

impl CallbackAddress {
    /// Addresses without a key, for providers that sign for us alone.
    pub(crate) fn signed_elsewhere(name: &str, base: &str) -> Result<Self, ConfigError> {
        Ok(Self { root: address("callback_base_url", base)?, name: name.to_owned(), secrets: vec![] })
    }

    /// Addresses with a key.
    pub(crate) fn with_key(name: &str, config: &Callbacks) -> Result<Self, ConfigError> {
        let secrets: Vec<Secret> =
            std::iter::once(&config.callback_secret).chain(&config.earlier_callback_secrets).cloned().collect();
        if secrets.iter().any(|secret| secret.expose().len() < MIN_SECRET) {
            return Err(ConfigError::CallbackSecret);
        }
        Ok(Self { root: address("callback_base_url", &config.callback_base_url)?, name: name.to_owned(), secrets })
    }

    /// The address for an attempt's job. `note` is whatever the adapter needs to know the job by; it is covered by the key.
    pub(crate) fn of(&self, attempt: AttemptId, note: &str) -> Url {
        let mut url = below(&self.root, &["callbacks", &self.name]);
        {
            let mut query = url.query_pairs_mut();
            query.append_pair("ref", &attempt.to_string());
            if !note.is_empty() {
                query.append_pair("note", note);
            }
            if let Some(code) = self.secrets.first().and_then(|secret| self.code(secret, attempt, note)) {
                query.append_pair("key", &hex::encode(code.finalize().into_bytes()));
            }
        }
        url
    }

    /// What the query of a callback names, if we made it.
    pub(crate) fn read(&self, query: &str) -> Result<Named, CallbackRefused> {
        let attempt = reference_in_query(query).ok_or(CallbackRefused::Unreadable)?;
        let note = single(query, "note").unwrap_or_default();
        if !self.secrets.is_empty() {
            let key = single(query, "key").ok_or(CallbackRefused::Unsigned)?;
            let key = hex::decode(key).map_err(|_| CallbackRefused::Forged)?;
            let fits = |secret| self.code(secret, attempt, &note).is_some_and(|code| code.verify_slice(&key).is_ok());
            if !self.secrets.iter().any(fits) {
                return Err(CallbackRefused::Forged);
            }
        }
        Ok(Named { attempt, note })
    }

    fn code(&self, secret: &Secret, attempt: AttemptId, note: &str) -> Option<Hmac<Sha256>> {
        let mut code = Hmac::<Sha256>::new_from_slice(secret.expose().as_bytes()).ok()?;
        // A line each: no name and no id has a line break, so no two lists of parts read the same.
        code.update(format!("callback/1\n{}\n{attempt}\n{note}", self.name).as_bytes());
        Some(code)
    }
}

/// Our reference in a callback address; `None` for addresses that are not ours.
pub(crate) fn reference(callback_url: &str) -> Option<AttemptId> {
    let url = Url::parse(callback_url).ok()?;
    reference_in_query(url.query()?)
}

/// Our reference in a callback's query.
pub(crate) fn reference_in_query(query: &str) -> Option<AttemptId> {
    single(query, "ref")?.parse().ok()
}

/// A value of a query. Two of them are none: we never write two.
fn single(query: &str, name: &str) -> Option<String> {
    let mut values = url::form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == name);
    let (_, value) = values.next()?;
    if values.next().is_some() {
        return None;
    }
    Some(value.into_owned())
}

/// The id of a delivery where the provider gives none: what is sent again has the same bytes.
pub(crate) fn body_digest(body: &[u8]) -> String {
    hex::encode(Sha256::digest(body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn addresses(name: &str, secret: &str) -> Result<CallbackAddress, ConfigError> {
        let callback_base_url = "https://video.example/in".to_owned();
        let earlier_callback_secrets = vec![];
        let config = Callbacks { callback_base_url, callback_secret: secret.into(), earlier_callback_secrets };
        CallbackAddress::with_key(name, &config)
    }

    #[test]
    fn an_earlier_secret_is_believed_and_makes_no_address() -> Result<(), ConfigError> {
        let config = |secret: &str, earlier: &[&str]| Callbacks {
            callback_base_url: "https://video.example".to_owned(),
            callback_secret: secret.into(),
            earlier_callback_secrets: earlier.iter().map(|it| (*it).into()).collect(),
        };
        let (old, new) = ("the first of the secrets", "the second of the secrets");
        let attempt = AttemptId(Uuid::from_u128(7));
        let before = CallbackAddress::with_key("ark", &config(old, &[]))?.of(attempt, "");
        let query = before.query().unwrap_or_default();
        let rotated = CallbackAddress::with_key("ark", &config(new, &["one that is older still", old]))?;
        assert!(rotated.read(query).is_ok(), "a job that was begun before still calls back");
        assert_ne!(rotated.of(attempt, ""), before);
        let after = CallbackAddress::with_key("ark", &config(new, &[]))?;
        assert_eq!(after.read(query), Err(CallbackRefused::Forged), "once it is taken out it is worth nothing");
        let short = CallbackAddress::with_key("ark", &config(new, &["short"]));
        assert_eq!(short.err(), Some(ConfigError::CallbackSecret));
        Ok(())
    }

    #[test]
    fn an_address_is_known_again_and_no_other_is_believed() -> Result<(), ConfigError> {
        let ours = addresses("runware", "a secret of 24 characters")?;
        let attempt = AttemptId(Uuid::from_u128(7));
        let url = ours.of(attempt, "fal-ai/boat");
        assert_eq!(url.path(), "/in/callbacks/runware");
        let query = url.query().unwrap_or_default();
        assert_eq!(ours.read(query), Ok(Named { attempt, note: "fal-ai/boat".to_owned() }));
        assert_eq!(addresses("fal", "a secret of 24 characters")?.read(query), Err(CallbackRefused::Forged));
        assert_eq!(addresses("runware", "another of 24 characters")?.read(query), Err(CallbackRefused::Forged));
        let other = query.replace("0007", "0008");
        assert_eq!(ours.read(&other), Err(CallbackRefused::Forged), "the key is for one attempt");
        assert_eq!(ours.read(&query.replace("boat", "ship")), Err(CallbackRefused::Forged), "the note is covered");
        let (keyless, _) = query.split_once("&key=").unwrap_or_default();
        assert_eq!(ours.read(keyless), Err(CallbackRefused::Unsigned));
        assert_eq!(ours.read(&format!("{query}&ref={attempt}")), Err(CallbackRefused::Unreadable));
        assert_eq!(addresses("runware", "short").err(), Some(ConfigError::CallbackSecret));
        Ok(())
    }
}
