//! Tokens of a development installation.

use uuid::Uuid;

/// How long a minted token is good for, in seconds: a week.
pub const LIFE_SECONDS: i64 = 7 * 24 * 3600;

/// Mints a token for a tenant with roles.
///
/// # Errors
/// An unknown role, or a secret that can not sign.
pub fn mint(secret: &str, tenant: Uuid, roles: &[&str]) -> anyhow::Result<String> {
    Ok(api::auth::mint_for(secret, tenant, roles, LIFE_SECONDS)?)
}
