//! Whole logs and ledgers, part by part, in an order that never changes: for exports that take up where they broke off.

use super::{ReadError, Reader, Viewer};
use crate::projector::readable;
use domain::id::{AccountId, TenantId};
use domain::time::Timestamp;
use eventstore::LoggedEvent;
use sqlx::FromRow;
use uuid::Uuid;

/// So much of the log is looked at in one statement, however little of it is wanted.
const STRETCH: i64 = 50_000;

/// Which events are exported: those that every part that is given agrees with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFilter {
    /// Of this tenant.
    pub tenant: Option<TenantId>,
    /// Of streams of this kind.
    pub category: Option<String>,
    /// Recorded at this time or later.
    pub from: Option<Timestamp>,
    /// Recorded before this time.
    pub before: Option<Timestamp>,
}

/// A part of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct LogPart {
    /// The events, in order.
    pub events: Vec<LoggedEvent>,
    /// Everything up to here was looked at.
    pub up_to: i64,
}

/// A posting as it is exported.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub struct LedgerRow {
    /// The account: its tenant's id.
    pub account_id: Uuid,
    /// Version of the account that it made.
    pub version: i64,
    /// What kind of posting.
    pub kind: String,
    /// Its business key.
    pub business_key: String,
    /// What it adds to what is available, in minor units.
    pub amount: i64,
    /// What of it was charged, in minor units.
    pub charged: i64,
    /// When.
    pub created_at: Timestamp,
    /// The position of its event in the log.
    pub position: i64,
}

impl Reader {
    /// Up to where the log may be read: nothing comes to it below this any more.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn log_end(&self) -> Result<i64, ReadError> {
        let mut connection = self.pool.acquire().await?;
        Ok(readable(&mut connection).await?.0)
    }

    /// The next events after a position, up to one that may be read, at most `limit`. Each call looks at a bounded stretch of the log.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn log_part(&self, filter: &LogFilter, after: i64, end: i64, limit: u32) -> Result<LogPart, ReadError> {
        let stretch = end.min(after.saturating_add(STRETCH));
        let events: Vec<LoggedEvent> = sqlx::query_as(
            "/* export.log_part */
             SELECT position, event_id, category, stream_id, version, name, schema_version, body, tenant_id, correlation_id,
                    causation_id, actor, recorded_at
               FROM events
              WHERE position > $1 AND position <= $2 AND ($3::uuid IS NULL OR tenant_id = $3)
                AND ($4::text IS NULL OR category = $4) AND ($5::timestamptz IS NULL OR recorded_at >= $5)
                AND ($6::timestamptz IS NULL OR recorded_at < $6)
              ORDER BY position LIMIT $7",
        )
        .bind(after)
        .bind(stretch)
        .bind(filter.tenant.map(|it| it.0))
        .bind(&filter.category)
        .bind(filter.from)
        .bind(filter.before)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await?;
        let full = events.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        let up_to = if full { events.last().map_or(stretch, |event| event.position) } else { stretch };
        Ok(LogPart { events, up_to })
    }

    /// The next postings after a place, in the order of account and version, of those that the viewer may see.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn ledger_part(
        &self,
        viewer: Viewer,
        tenant: Option<TenantId>,
        after: (Uuid, i64),
        limit: u32,
    ) -> Result<Vec<LedgerRow>, ReadError> {
        if tenant.is_some_and(|tenant| !viewer.sees(tenant)) || (tenant.is_none() && viewer.tenant.is_some()) {
            return Ok(Vec::new());
        }
        let statement = if tenant.is_some() {
            "/* export.ledger_of_account */
             SELECT account_id, version, kind, business_key, amount, charged, created_at, position FROM read_account_entries
              WHERE account_id = $4 AND version > CASE WHEN $1 = $4 THEN $2 ELSE 0 END ORDER BY version LIMIT $3"
        } else {
            "/* export.ledger */
             SELECT account_id, version, kind, business_key, amount, charged, created_at, position FROM read_account_entries
              WHERE (account_id, version) > ($1, $2) AND $4::uuid IS NULL ORDER BY account_id, version LIMIT $3"
        };
        Ok(sqlx::query_as(statement)
            .bind(after.0)
            .bind(after.1)
            .bind(i64::from(limit))
            .bind(tenant.map(|tenant| AccountId::of(tenant).0))
            .fetch_all(&self.pool)
            .await?)
    }
}
