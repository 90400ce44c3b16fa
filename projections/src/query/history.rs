//! The history of a task: its own events, its attempts' and the account's for it, in the order they were recorded. Read from the
//! facts, not from a read model.

use super::{ReadError, Reader, Viewer};
use domain::id::{AttemptId, CausationId, CorrelationId, TaskId, TenantId};
use domain::time::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row};
use uuid::Uuid;

/// A recorded event.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryRow {
    /// Place in the whole log.
    pub position: i64,
    /// The stream, `category-id`.
    pub stream: String,
    /// Version of the stream.
    pub version: i64,
    /// Stored name.
    pub name: String,
    /// Schema version of the body.
    pub schema_version: i16,
    /// When, by the database's clock.
    pub recorded_at: Timestamp,
    /// Who: `user:…`, `provider:…` or a consumer's name.
    pub actor: String,
    /// The request that started the chain.
    pub correlation: CorrelationId,
    /// The command or message that caused it.
    pub causation: CausationId,
    /// The body.
    pub body: serde_json::Value,
}

impl FromRow<'_, PgRow> for HistoryRow {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        let (category, id): (String, Uuid) = (row.try_get("category")?, row.try_get("stream_id")?);
        Ok(Self {
            position: row.try_get("position")?,
            stream: format!("{category}-{id}"),
            version: row.try_get("version")?,
            name: row.try_get("name")?,
            schema_version: row.try_get("schema_version")?,
            recorded_at: row.try_get("recorded_at")?,
            actor: row.try_get("actor")?,
            correlation: CorrelationId(row.try_get("correlation_id")?),
            causation: CausationId(row.try_get("causation_id")?),
            body: row.try_get("body")?,
        })
    }
}

/// What is to be known of a task before the rest of its history can be found.
struct Outline {
    tenant: TenantId,
    account: Option<Uuid>,
    attempts: u32,
}

impl Reader {
    /// At most `count` events of a task's history after position `after`; `None` if there is no such task for this viewer.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn history(
        &self,
        viewer: Viewer,
        task: TaskId,
        after: i64,
        count: u32,
    ) -> Result<Option<Vec<HistoryRow>>, ReadError> {
        let Some(outline) = self.outline(task).await?.filter(|it| viewer.sees(it.tenant)) else {
            return Ok(None);
        };
        // An attempt's id is derived from its task and number, so they need no index over bodies.
        let attempts: Vec<Uuid> = (1..=outline.attempts + 1).map(|number| AttemptId::of(task, number).0).collect();
        let rows = sqlx::query_as(
            "/* projections.history */
             WITH found AS MATERIALIZED (
                 SELECT * FROM events WHERE category = 'task' AND stream_id = $1
                 UNION ALL
                 SELECT * FROM events WHERE category = 'attempt' AND stream_id = ANY ($2)
                 UNION ALL
                 SELECT * FROM events
                  WHERE category = 'account' AND stream_id = $3 AND body->>'task' = $1::text)
             SELECT position, category, stream_id, version, name, schema_version, recorded_at, actor, correlation_id,
                    causation_id, body
               FROM found WHERE position > $4 ORDER BY position LIMIT $5",
        )
        .bind(task.0)
        .bind(attempts)
        .bind(outline.account)
        .bind(after)
        .bind(i64::from(count))
        .fetch_all(&self.pool)
        .await?;
        Ok(Some(rows))
    }

    /// Whether the facts know this task and the viewer may see it: true as soon as it is accepted, before any read model has it.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn task_exists(&self, viewer: Viewer, task: TaskId) -> Result<bool, ReadError> {
        let tenant: Option<Uuid> = sqlx::query_scalar(
            "/* projections.task_exists */
             SELECT tenant_id FROM events WHERE category = 'task' AND stream_id = $1 AND version = 1",
        )
        .bind(task.0)
        .fetch_optional(&self.pool)
        .await?;
        Ok(tenant.is_some_and(|tenant| viewer.sees(TenantId(tenant))))
    }

    async fn outline(&self, task: TaskId) -> Result<Option<Outline>, ReadError> {
        let row: Option<(Uuid, Option<Uuid>, i32)> = sqlx::query_as(
            "/* projections.history_outline */
             SELECT first.tenant_id, (first.body->'order'->>'account')::uuid,
                    (SELECT coalesce(max((e.body->>'attempt_no')::int), 0) FROM events e
                      WHERE e.category = 'task' AND e.stream_id = $1 AND e.name = 'task.submission_begun')
               FROM events first WHERE first.category = 'task' AND first.stream_id = $1 AND first.version = 1",
        )
        .bind(task.0)
        .fetch_optional(&self.pool)
        .await?;
        Ok(row.map(|(tenant, account, attempts)| Outline {
            tenant: TenantId(tenant),
            account,
            attempts: u32::try_from(attempts).unwrap_or(0),
        }))
    }
}
