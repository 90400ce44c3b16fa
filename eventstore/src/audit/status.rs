//! How far the log is sealed.

use super::seal::{SignedSeal, newest_seals};
use sqlx::PgPool;

/// How far the log is sealed.
#[derive(Clone, Debug, PartialEq)]
pub struct SealStatus {
    /// The newest seal, if there is one.
    pub newest: Option<SignedSeal>,
    /// Events after it.
    pub unsealed: i64,
    /// Age of the oldest of them in seconds, by the database's clock.
    pub oldest_seconds: f64,
}

/// Reads how far the log is sealed. Proves nothing.
///
/// # Errors
/// The database can not be used.
pub async fn seal_status(pool: &PgPool) -> Result<SealStatus, sqlx::Error> {
    let newest = latest_seals(pool, 1).await?.pop();
    let (unsealed, oldest_seconds) = sqlx::query_as(
        "/* audit.unsealed */
         SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(recorded_at)), 0)::float8
           FROM events WHERE position > $1",
    )
    .bind(newest.as_ref().map_or(0, |it| it.seal.last_position))
    .fetch_one(pool)
    .await?;
    Ok(SealStatus { newest, unsealed, oldest_seconds })
}

/// The newest seals, the newest first.
///
/// # Errors
/// The database can not be used.
pub async fn latest_seals(pool: &PgPool, limit: u32) -> Result<Vec<SignedSeal>, sqlx::Error> {
    newest_seals(&mut *pool.acquire().await?, limit.into()).await
}
