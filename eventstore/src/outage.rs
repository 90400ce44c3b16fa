//! Which providers the processes leave alone because they fail: written down for people who look. No decision rests on it.

use crate::connect::Store;
use crate::error::StoreError;
use chrono::{DateTime, Utc};

/// A provider that a process leaves alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotedOutage {
    /// The provider's stored name.
    pub provider: String,
    /// Since when, by the process's clock.
    pub since: DateTime<Utc>,
    /// When it is looked at again.
    pub looks_at: DateTime<Utc>,
    /// A short cause without addresses or secrets.
    pub cause: String,
}

impl Store {
    /// Writes down all providers that a process leaves alone now, in the place of what it wrote before.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn note_outages(&self, process: &str, outages: &[NotedOutage]) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        // What processes wrote that died since is deleted after a day.
        sqlx::query(
            "/* eventstore.forget_outages */
             DELETE FROM provider_outages
              WHERE process = $1 OR noted_at < statement_timestamp() - interval '1 day'",
        )
        .bind(process)
        .execute(&mut *tx.inner)
        .await?;
        for it in outages {
            sqlx::query(
                "/* eventstore.note_outage */
                 INSERT INTO provider_outages (process, provider, since, looks_at, cause) VALUES ($1, $2, $3, $4, $5)
                 ON CONFLICT (process, provider)
                 DO UPDATE SET since = EXCLUDED.since, looks_at = EXCLUDED.looks_at, cause = EXCLUDED.cause,
                               noted_at = clock_timestamp()",
            )
            .bind(process)
            .bind(&it.provider)
            .bind(it.since)
            .bind(it.looks_at)
            .bind(&it.cause)
            .execute(&mut *tx.inner)
            .await?;
        }
        tx.commit().await
    }

    /// The providers that processes leave alone, with how many do: one that should have looked again ten minutes ago and said
    /// nothing has died.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn outages(&self) -> Result<Vec<(NotedOutage, i64)>, StoreError> {
        type Row = (String, DateTime<Utc>, DateTime<Utc>, String, i64);
        let rows: Vec<Row> = sqlx::query_as(
            "/* eventstore.outages */
             SELECT provider, min(since), max(looks_at), min(cause), count(*) FROM provider_outages
              WHERE looks_at > statement_timestamp() - interval '10 minutes' GROUP BY provider ORDER BY provider",
        )
        .fetch_all(&self.pool)
        .await?;
        let noted = |(provider, since, looks_at, cause, processes)| {
            (NotedOutage { provider, since, looks_at, cause }, processes)
        };
        Ok(rows.into_iter().map(noted).collect())
    }
}
