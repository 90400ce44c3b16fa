//! Who calls: a JSON Web Token. HS256 with a secret, for development and for services that know it; RS256, ES256 or EdDSA with the
//! public keys of whoever gives out tokens.

use crate::clock::now;
use crate::config::ApiConfig;
use crate::jwks::KeySet;
use domain::id::TenantId;
use domain::time::Timestamp;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, decode_header, encode};
use projections::query::Viewer;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The shortest secret that is accepted: as long as the digest, as RFC 7518 section 3.2 asks for.
pub(crate) const MIN_SECRET: usize = 32;
/// The longest token that is looked at, in bytes.
const MAX_TOKEN: usize = 4096;
/// The longest name of a subject, in bytes: it is stored with every event.
const MAX_SUBJECT: usize = 128;

/// What a caller may do. Reading what belongs to the own tenant needs no role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Submits, cancels and uploads for the own tenant.
    Creator,
    /// Reads everybody's tasks and histories.
    Auditor,
    /// Reads everything; grants credits, ends tasks in review, cancels any task.
    Operator,
}

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Who: 1 to 128 visible ASCII characters.
    pub sub: String,
    /// The tenant.
    pub tenant: TenantId,
    /// What they may do.
    pub roles: Vec<Role>,
    /// Until when, in Unix seconds.
    pub exp: i64,
}

/// A token that is not believed. It never says more, and never holds the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    /// Not a token of ours, or changed since.
    #[error("the token is not valid")]
    Invalid,
    /// It was ours, and is over.
    #[error("the token has expired")]
    Expired,
    /// The secret can not be used for signing.
    #[error("the token secret must have at least 32 bytes")]
    Secret,
}

/// Signs a token, for `aivideo tokens` and for tests.
///
/// # Errors
/// [`BadToken::Secret`].
pub fn mint(secret: &str, claims: &Claims) -> Result<String, BadToken> {
    if secret.len() < MIN_SECRET {
        return Err(BadToken::Secret);
    }
    let key = EncodingKey::from_secret(secret.as_bytes()).map_err(|_| BadToken::Secret)?;
    encode(&Header::new(Algorithm::HS256), claims, &key).map_err(|_| BadToken::Secret)
}

/// Checks tokens.
#[derive(Clone)]
pub struct TokenKeys {
    /// For tokens of this service's own, HS256.
    secret: Option<DecodingKey>,
    /// For tokens of somebody else's, by whose private key they are signed.
    issuer: Option<Issuer>,
}

/// Whoever gives out tokens, and the service they are for: a token for another service is none for this one.
#[derive(Clone)]
struct Issuer {
    keys: KeySet,
    name: String,
    audience: String,
}

impl TokenKeys {
    /// Checks tokens that were signed with this secret.
    ///
    /// # Errors
    /// [`BadToken::Secret`].
    pub fn new(secret: &str) -> Result<Self, BadToken> {
        if secret.len() < MIN_SECRET {
            return Err(BadToken::Secret);
        }
        let secret = DecodingKey::from_secret(secret.as_bytes()).map_err(|_| BadToken::Secret)?;
        Ok(Self { secret: Some(secret), issuer: None })
    }

    /// What the settings say: a secret, a key set, or both.
    ///
    /// # Errors
    /// [`BadToken::Secret`]: neither, or a secret that is too short.
    pub(crate) fn of(config: &ApiConfig, keys: &KeySet) -> Result<Self, BadToken> {
        let Some(jwks) = &config.jwks else { return Self::new(&config.token_secret) };
        let secret = if config.token_secret.is_empty() { None } else { Self::new(&config.token_secret)?.secret };
        let (name, audience) = (jwks.issuer.clone(), jwks.audience.clone());
        Ok(Self { secret, issuer: Some(Issuer { keys: keys.clone(), name, audience }) })
    }

    /// The key for a token, and what else it must say. Each key has one algorithm, so that a token can not choose a weaker one;
    /// "none" is never accepted.
    fn rules(&self, token: &str) -> Option<(DecodingKey, Validation)> {
        let header = decode_header(token).ok()?;
        if header.alg == Algorithm::HS256 {
            let mut rules = Validation::new(Algorithm::HS256);
            rules.validate_aud = false;
            return Some((self.secret.clone()?, rules));
        }
        let issuer = self.issuer.as_ref()?;
        let key = issuer.keys.find(&header.kid?)?;
        let mut rules = Validation::new(key.algorithm);
        rules.set_audience(&[&issuer.audience]);
        rules.set_issuer(&[&issuer.name]);
        rules.set_required_spec_claims(&["exp", "iss", "aud"]);
        rules.validate_nbf = true;
        Some((key.key, rules))
    }

    /// Who a token stands for.
    ///
    /// # Errors
    /// [`BadToken`].
    pub fn verify(&self, token: &str) -> Result<Caller, BadToken> {
        if token.len() > MAX_TOKEN {
            return Err(BadToken::Invalid);
        }
        let (key, mut rules) = self.rules(token).ok_or(BadToken::Invalid)?;
        rules.leeway = 0;
        let claims = decode::<Claims>(token, &key, &rules)
            .map_err(|error| match error.kind() {
                jsonwebtoken::errors::ErrorKind::ExpiredSignature => BadToken::Expired,
                _ => BadToken::Invalid,
            })?
            .claims;
        let named = (1..=MAX_SUBJECT).contains(&claims.sub.len()) && claims.sub.bytes().all(|it| it.is_ascii_graphic());
        let expires = Timestamp::from_timestamp(claims.exp, 0).filter(|_| named).ok_or(BadToken::Invalid)?;
        Ok(Caller { subject: claims.sub, tenant: claims.tenant, roles: claims.roles, expires })
    }

    /// Who an `Authorization` value stands for: `Bearer`, a space and the token.
    ///
    /// # Errors
    /// [`BadToken`].
    pub fn verify_bearer(&self, value: &str) -> Result<Caller, BadToken> {
        let (scheme, token) = value.trim().split_once(' ').ok_or(BadToken::Invalid)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(BadToken::Invalid);
        }
        self.verify(token.trim())
    }
}

/// A token that is looked at again while something that it opened is open: its key may be taken back meanwhile. Never printed.
#[derive(Clone)]
pub(crate) struct Authority {
    keys: TokenKeys,
    bearer: Arc<str>,
}

impl Authority {
    /// Of an `Authorization` value.
    pub(crate) fn new(keys: &TokenKeys, bearer: &str) -> Self {
        Self { keys: keys.clone(), bearer: bearer.into() }
    }

    /// Whether it still stands for this caller, with the roles that it had.
    ///
    /// # Errors
    /// [`BadToken`].
    pub(crate) fn still(&self, caller: &Caller) -> Result<(), BadToken> {
        let now = self.keys.verify_bearer(&self.bearer)?;
        if now == *caller { Ok(()) } else { Err(BadToken::Invalid) }
    }
}

/// Who calls, once their token is believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Who.
    pub subject: String,
    /// Whose.
    pub tenant: TenantId,
    /// What they may do.
    pub roles: Vec<Role>,
    /// When this ends.
    pub expires: Timestamp,
}

impl Caller {
    /// Whether they have a role.
    #[must_use]
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }

    /// Whose rows they see.
    #[must_use]
    pub fn viewer(&self) -> Viewer {
        if self.has(Role::Auditor) || self.has(Role::Operator) { Viewer::everything() } else { Viewer::of(self.tenant) }
    }

    /// How they are named in events.
    #[must_use]
    pub fn actor(&self) -> String {
        format!("user:{}", self.subject)
    }

    /// Whether their token still holds: a WebSocket may outlive it.
    #[must_use]
    pub fn is_current(&self) -> bool {
        now() < self.expires
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn claims(exp: i64) -> Claims {
        Claims { sub: "ada".into(), tenant: TenantId(uuid::Uuid::from_u128(7)), roles: vec![Role::Creator], exp }
    }

    #[test]
    fn a_token_stands_for_its_caller_until_it_expires() -> Result<(), BadToken> {
        let keys = TokenKeys::new(SECRET)?;
        let soon = now().timestamp() + 60;
        let caller = keys.verify_bearer(&format!("bearer  {}", mint(SECRET, &claims(soon))?))?;
        assert_eq!((caller.subject.as_str(), caller.expires.timestamp()), ("ada", soon));
        assert!(caller.has(Role::Creator) && !caller.has(Role::Operator) && caller.is_current());
        assert_eq!(caller.viewer(), Viewer::of(claims(0).tenant));
        let over = mint(SECRET, &claims(now().timestamp() - 1))?;
        assert_eq!(keys.verify(&over), Err(BadToken::Expired));
        Ok(())
    }

    #[test]
    fn everything_else_is_refused() -> Result<(), BadToken> {
        let keys = TokenKeys::new(SECRET)?;
        let soon = now().timestamp() + 60;
        let foreign = mint("another secret of the same length", &claims(soon))?;
        let unnamed = mint(SECRET, &Claims { sub: "a\0b".into(), ..claims(soon) })?;
        // {"alg":"none","typ":"JWT"} with the claims of a good token and no signature.
        let good = mint(SECRET, &claims(soon))?;
        let body = good.split('.').nth(1).unwrap_or_default();
        let unsigned = format!("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{body}.");
        for token in [foreign.as_str(), unnamed.as_str(), unsigned.as_str(), "", "a.b.c", &"x".repeat(5000)] {
            assert_eq!(keys.verify(token), Err(BadToken::Invalid));
        }
        assert_eq!(keys.verify_bearer(&format!("Basic {good}")), Err(BadToken::Invalid));
        assert_eq!(mint("short", &claims(soon)), Err(BadToken::Secret));
        Ok(())
    }

    /// Signs as an issuer would: with a private key, and with claims of its own.
    fn signed(algorithm: Algorithm, key: &EncodingKey, id: Option<&str>, change: serde_json::Value) -> String {
        let mut said = serde_json::json!({"sub": "ada", "tenant": claims(0).tenant, "roles": ["creator"],
            "exp": now().timestamp() + 60, "iss": "https://login.example", "aud": "aivideo", "email": "ada@example.com"});
        for (name, value) in change.as_object().into_iter().flatten() {
            said[name] = value.clone();
        }
        let header = Header { kid: id.map(str::to_owned), ..Header::new(algorithm) };
        encode(&header, &said, key).expect("a token")
    }

    /// Keys that were made for these tests, and open nothing else.
    fn issuers() -> [(Algorithm, EncodingKey); 3] {
        let rsa = EncodingKey::from_rsa_der(include_bytes!("../tests/keys/rsa.der"));
        let curve = EncodingKey::from_ec_der(include_bytes!("../tests/keys/p256.der"));
        let edwards = EncodingKey::from_ed_der(include_bytes!("../tests/keys/ed25519.der"));
        [(Algorithm::RS256, rsa), (Algorithm::ES256, curve), (Algorithm::EdDSA, edwards)]
    }

    /// The issuers' public keys under their names, among others that can not be used.
    fn published() -> String {
        let jwk = |(algorithm, key): &(Algorithm, EncodingKey)| {
            let jwk = jsonwebtoken::jwk::Jwk::from_encoding_key(key, *algorithm).expect("a public key");
            let mut jwk = serde_json::to_value(jwk).expect("JSON");
            jwk["kid"] = format!("{algorithm:?}").into();
            jwk
        };
        let mut keys: Vec<serde_json::Value> = issuers().iter().map(jwk).collect();
        let mut encryption = keys[0].clone();
        encryption["kid"] = "encryption".into();
        encryption["use"] = "enc".into();
        keys.extend([
            encryption,
            serde_json::json!({"kty": "oct", "k": "c2VjcmV0", "kid": "HS256"}),
            serde_json::json!({"kty": "?"}),
        ]);
        serde_json::json!({ "keys": keys }).to_string()
    }

    fn with_key_set() -> (TokenKeys, KeySet) {
        let keys = KeySet::default();
        let mut config = ApiConfig::with_secret("");
        let (issuer, audience) = ("https://login.example".to_owned(), "aivideo".to_owned());
        config.jwks = Some(crate::config::JwksConfig { url: String::new(), issuer, audience, refresh_seconds: 60 });
        (TokenKeys::of(&config, &keys).expect("keys"), keys)
    }

    #[test]
    fn tokens_of_an_issuer_are_believed_by_its_public_keys() {
        let (tokens, keys) = with_key_set();
        let [(algorithm, rsa), ..] = issuers();
        let early = signed(algorithm, &rsa, Some("RS256"), serde_json::json!({}));
        assert_eq!(tokens.verify(&early), Err(BadToken::Invalid), "no keys were fetched yet");
        assert_eq!(keys.replace(&published()).expect("a key set"), 3);
        for (algorithm, key) in issuers() {
            let id = format!("{algorithm:?}");
            let sign = |id: Option<&str>, change| tokens.verify(&signed(algorithm, &key, id, change));
            let caller = sign(Some(&id), serde_json::json!({})).expect("a token that is believed");
            assert!(caller.subject == "ada" && caller.roles == [Role::Creator]);
            let over = now().timestamp() - 1;
            assert_eq!(sign(Some(&id), serde_json::json!({"exp": over})), Err(BadToken::Expired));
            for change in [
                serde_json::json!({"iss": "https://login.example.org"}),
                serde_json::json!({"aud": "another"}),
                serde_json::json!({"iss": null}),
                serde_json::json!({"aud": null}),
                serde_json::json!({"nbf": now().timestamp() + 30}),
                serde_json::json!({"roles": ["root"]}),
            ] {
                assert_eq!(sign(Some(&id), change.clone()), Err(BadToken::Invalid), "{algorithm:?} {change}");
            }
            for wrong in [None, Some("unknown"), Some("encryption"), Some("HS256")] {
                assert_eq!(sign(wrong, serde_json::json!({})), Err(BadToken::Invalid), "{algorithm:?} {wrong:?}");
            }
        }
    }

    #[test]
    fn a_key_is_used_with_its_own_algorithm_only() {
        let (tokens, keys) = with_key_set();
        keys.replace(&published()).expect("a key set");
        // The public key is no secret: a token that is signed with it as if it were one is not believed.
        let public = EncodingKey::from_secret(published().as_bytes()).expect("a secret");
        let confused = signed(Algorithm::HS256, &public, Some("RS256"), serde_json::json!({}));
        assert_eq!(tokens.verify(&confused), Err(BadToken::Invalid));
        let [(_, rsa), (_, curve), _] = issuers();
        for (algorithm, key, id) in [(Algorithm::RS512, &rsa, "RS256"), (Algorithm::ES256, &curve, "EdDSA")] {
            let token = signed(algorithm, key, Some(id), serde_json::json!({}));
            assert_eq!(tokens.verify(&token), Err(BadToken::Invalid));
        }
        let ours = mint(SECRET, &claims(now().timestamp() + 60)).expect("a token");
        assert_eq!(tokens.verify(&ours), Err(BadToken::Invalid), "without a secret no token of that kind is believed");
    }

    #[test]
    fn a_bad_key_set_changes_nothing() {
        let (tokens, keys) = with_key_set();
        keys.replace(&published()).expect("a key set");
        for bad in ["", "[]", "{}", r#"{"keys": []}"#, r#"{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "RS256"}]}"#]
        {
            assert!(keys.replace(bad).is_err(), "{bad}");
        }
        let [(algorithm, rsa), ..] = issuers();
        assert!(tokens.verify(&signed(algorithm, &rsa, Some("RS256"), serde_json::json!({}))).is_ok());
    }
}
