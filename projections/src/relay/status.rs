//! How the outbox is doing, and what an operator may do about parked rows.

use sqlx::PgPool;

/// How the outbox is doing.
#[derive(Clone, Copy, Debug, PartialEq, sqlx::FromRow)]
pub struct RelayStatus {
    /// Messages not handed to the broker yet, parked ones not counted.
    pub unsent: i64,
    /// Age of the oldest of them in seconds; those kept for a delivery days ahead are not counted. 0 when there is none.
    pub oldest_seconds: f64,
    /// Messages that can not be published as they are: for a person.
    pub parked: i64,
}

/// Reads the outbox's status.
///
/// # Errors
/// The database can not be used.
pub async fn relay_status(pool: &PgPool) -> Result<RelayStatus, sqlx::Error> {
    sqlx::query_as(
        "/* relay.status */
         SELECT count(*) FILTER (WHERE parked_at IS NULL) AS unsent,
                coalesce(extract(epoch FROM clock_timestamp() - min(created_at) FILTER (
                    WHERE parked_at IS NULL
                      AND (deliver_at IS NULL OR deliver_at <= clock_timestamp() + interval '2 days'))), 0)::float8
                    AS oldest_seconds,
                count(*) FILTER (WHERE parked_at IS NOT NULL) AS parked
           FROM outbox_events WHERE published_at IS NULL",
    )
    .fetch_one(pool)
    .await
}

/// Lets parked rows be tried again, after what refused them was put right. Says how many.
///
/// # Errors
/// The database can not be used.
pub async fn release_parked(pool: &PgPool) -> Result<u64, sqlx::Error> {
    let result = sqlx::query(
        "/* relay.release_parked */
         WITH released AS (
             UPDATE outbox_events SET parked_at = NULL, refusals = 0, available_at = clock_timestamp()
              WHERE parked_at IS NOT NULL AND published_at IS NULL
             RETURNING id)
         SELECT pg_notify('aivideo_outbox', '') FROM released",
    )
    .execute(pool)
    .await?;
    Ok(result.rows_affected())
}
