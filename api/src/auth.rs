//! Who calls: a JSON Web Token, HS256.

use crate::clock::now;
use domain::id::TenantId;
use domain::time::Timestamp;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use projections::query::Viewer;
use serde::{Deserialize, Serialize};

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
    key: DecodingKey,
    rules: Validation,
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
        // One algorithm, so that a token can not choose a weaker one; "none" is never accepted.
        let mut rules = Validation::new(Algorithm::HS256);
        rules.leeway = 0;
        rules.validate_aud = false;
        let key = DecodingKey::from_secret(secret.as_bytes()).map_err(|_| BadToken::Secret)?;
        Ok(Self { key, rules })
    }

    /// Who a token stands for.
    ///
    /// # Errors
    /// [`BadToken`].
    pub fn verify(&self, token: &str) -> Result<Caller, BadToken> {
        if token.len() > MAX_TOKEN {
            return Err(BadToken::Invalid);
        }
        let claims = decode::<Claims>(token, &self.key, &self.rules)
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
}
