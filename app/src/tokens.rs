//! Tokens of a development installation.

use api::{Claims, Role};
use domain::id::TenantId;
use uuid::Uuid;

/// How long a minted token is good for, in seconds: a week.
pub const LIFE_SECONDS: i64 = 7 * 24 * 3600;

/// Mints a token for a tenant with roles.
///
/// # Errors
/// An unknown role, or a secret that can not sign.
pub fn mint(secret: &str, tenant: Uuid, roles: &[&str]) -> anyhow::Result<String> {
    let roles = roles.iter().map(|role| role_of(role)).collect::<anyhow::Result<Vec<_>>>()?;
    let claims = Claims {
        sub: "command-line".to_owned(),
        tenant: TenantId(tenant),
        roles,
        exp: clock_seconds()? + LIFE_SECONDS,
    };
    Ok(api::mint(secret, &claims)?)
}

fn role_of(name: &str) -> anyhow::Result<Role> {
    match name {
        "creator" => Ok(Role::Creator),
        "auditor" => Ok(Role::Auditor),
        "operator" => Ok(Role::Operator),
        other => anyhow::bail!("there is no role {other}: there are creator, auditor and operator"),
    }
}

fn clock_seconds() -> anyhow::Result<i64> {
    Ok(i64::try_from(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs())?)
}
