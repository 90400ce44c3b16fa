//! The history of a task: its own events, its attempts' and the account's for it, in the order they were recorded. Read from the
//! facts, not from a read model.

use super::{ReadError, Reader, Viewer};
use domain::id::{AttemptId, CausationId, CorrelationId, TaskId, TenantId};
use domain::time::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row};
use std::collections::{HashMap, HashSet};
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
    task: TaskId,
    tenant: TenantId,
    account: Option<Uuid>,
    attempts: u32,
}

impl Reader {
    /// At most `count` events of each task's history after position `after`, in order. A task that does not exist, or not for this
    /// viewer, is left out. However many tasks there are, it is two statements.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn histories(
        &self,
        viewer: Viewer,
        tasks: &[TaskId],
        after: i64,
        count: u32,
    ) -> Result<HashMap<TaskId, Vec<HistoryRow>>, ReadError> {
        let outlines: Vec<Outline> =
            self.outlines(tasks).await?.into_iter().filter(|it| viewer.sees(it.tenant)).collect();
        let mut histories: HashMap<TaskId, Vec<HistoryRow>> =
            outlines.iter().map(|outline| (outline.task, Vec::new())).collect();
        for row in self.events_of(&outlines, after, count).await? {
            let task = TaskId(row.try_get("task")?);
            histories.entry(task).or_default().push(HistoryRow::from_row(&row)?);
        }
        Ok(histories)
    }

    async fn events_of(&self, outlines: &[Outline], after: i64, count: u32) -> Result<Vec<PgRow>, ReadError> {
        // An attempt's id is derived from its task and number, so they need no index over bodies.
        let numbered =
            |outline: &Outline| (1..=outline.attempts + 1).map(|number| (outline.task, number)).collect::<Vec<_>>();
        let attempts: Vec<(TaskId, u32)> = outlines.iter().flat_map(numbered).collect();
        let tasks: Vec<Uuid> = outlines.iter().map(|outline| outline.task.0).collect();
        let accounts: HashSet<Uuid> = outlines.iter().filter_map(|outline| outline.account).collect();
        Ok(sqlx::query(
            "/* projections.histories */
             WITH found AS MATERIALIZED (
                 SELECT e.stream_id AS task, e.* FROM events e
                  WHERE e.category = 'task' AND e.stream_id = ANY ($1) AND e.position > $5
                 UNION ALL
                 SELECT a.task, e.* FROM unnest($2::uuid[], $3::uuid[]) AS a (task, attempt)
                   JOIN events e ON e.category = 'attempt' AND e.stream_id = a.attempt AND e.position > $5
                 UNION ALL
                 SELECT (e.body->>'task')::uuid, e.* FROM events e
                  WHERE e.category = 'account' AND e.stream_id = ANY ($4) AND e.body->>'task' = ANY ($1::text[])
                    AND e.position > $5),
             numbered AS (
                 SELECT *, row_number() OVER (PARTITION BY task ORDER BY position) AS number FROM found)
             SELECT task, position, category, stream_id, version, name, schema_version, recorded_at, actor, correlation_id,
                    causation_id, body
               FROM numbered WHERE number <= $6 ORDER BY task, position",
        )
        .bind(tasks)
        .bind(attempts.iter().map(|(task, _)| task.0).collect::<Vec<_>>())
        .bind(attempts.iter().map(|(task, number)| AttemptId::of(*task, *number).0).collect::<Vec<_>>())
        .bind(Vec::from_iter(accounts))
        .bind(after)
        .bind(i64::from(count))
        .fetch_all(&self.pool)
        .await?)
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

    /// Which of these tasks the facts know and the viewer may see.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn existing(&self, viewer: Viewer, tasks: &[TaskId]) -> Result<HashSet<TaskId>, ReadError> {
        let found: Vec<Uuid> = sqlx::query_scalar(
            "/* projections.existing */
             SELECT stream_id FROM events
              WHERE category = 'task' AND stream_id = ANY ($1) AND version = 1 AND ($2::uuid IS NULL OR tenant_id = $2)",
        )
        .bind(tasks.iter().map(|task| task.0).collect::<Vec<_>>())
        .bind(viewer.bind())
        .fetch_all(&self.pool)
        .await?;
        Ok(found.into_iter().map(TaskId).collect())
    }

    async fn outlines(&self, tasks: &[TaskId]) -> Result<Vec<Outline>, ReadError> {
        let rows: Vec<(Uuid, Uuid, Option<Uuid>, i32)> = sqlx::query_as(
            "/* projections.history_outlines */
             SELECT first.stream_id, first.tenant_id, (first.body->'order'->>'account')::uuid,
                    (SELECT coalesce(max((e.body->>'attempt_no')::int), 0) FROM events e
                      WHERE e.category = 'task' AND e.stream_id = first.stream_id AND e.name = 'task.submission_begun')
               FROM events first WHERE first.category = 'task' AND first.stream_id = ANY ($1) AND first.version = 1",
        )
        .bind(tasks.iter().map(|task| task.0).collect::<Vec<_>>())
        .fetch_all(&self.pool)
        .await?;
        let outline = |(task, tenant, account, attempts)| Outline {
            task: TaskId(task),
            tenant: TenantId(tenant),
            account,
            attempts: u32::try_from(attempts).unwrap_or(0),
        };
        Ok(rows.into_iter().map(outline).collect())
    }
}
