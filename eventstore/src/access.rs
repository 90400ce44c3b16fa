//! Accesses: what those who may look at everything have looked at. A record is added before the answer is given, and never changed.

use crate::connect::Store;
use crate::error::StoreError;
use domain::id::{CorrelationId, TenantId};
use domain::time::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row};

/// An access that is about to be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Who: `user:…`.
    pub actor: String,
    /// For which tenant their token is.
    pub actor_tenant: TenantId,
    /// What they asked for: a field of the schema, or a route.
    pub what: String,
    /// Of what: an id, or a filter. Without U+0000, at most 1000 characters are kept.
    pub subject: String,
    /// The request.
    pub correlation: CorrelationId,
}

/// An access that is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedAccess {
    /// Its place among all.
    pub id: i64,
    /// When, by the database's clock.
    pub at: Timestamp,
    /// What it was.
    pub access: Access,
}

impl FromRow<'_, PgRow> for RecordedAccess {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.try_get("id")?,
            at: row.try_get("at")?,
            access: Access {
                actor: row.try_get("actor")?,
                actor_tenant: TenantId(row.try_get("actor_tenant")?),
                what: row.try_get("what")?,
                subject: row.try_get("subject")?,
                correlation: CorrelationId(row.try_get("correlation_id")?),
            },
        })
    }
}

/// What is kept of a subject, in characters.
const MAX_SUBJECT: usize = 1_000;

impl Store {
    /// Records an access. Whoever can not, does not answer.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn record_access(&self, access: &Access) -> Result<(), StoreError> {
        let subject: String = access.subject.chars().filter(|it| *it != '\0').take(MAX_SUBJECT).collect();
        sqlx::query(
            "/* eventstore.record_access */
             INSERT INTO audit_accesses (actor, actor_tenant, what, subject, correlation_id) VALUES ($1, $2, $3, $4, $5)",
        )
        .bind(&access.actor)
        .bind(access.actor_tenant.0)
        .bind(&access.what)
        .bind(subject)
        .bind(access.correlation.0)
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Accesses after a place, in order, at most `limit`; only of one actor, or to one subject, where they are named.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn accesses(
        &self,
        actor: Option<&str>,
        subject: Option<&str>,
        after: i64,
        limit: u32,
    ) -> Result<Vec<RecordedAccess>, StoreError> {
        Ok(sqlx::query_as(
            "/* eventstore.accesses */
             SELECT id, at, actor, actor_tenant, what, subject, correlation_id FROM audit_accesses
              WHERE id > $3 AND ($1::text IS NULL OR actor = $1) AND ($2::text IS NULL OR subject = $2)
              ORDER BY id LIMIT $4",
        )
        .bind(actor)
        .bind(subject)
        .bind(after)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await?)
    }
}
