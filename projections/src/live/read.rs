//! What the hub and its feeds read: the log up to the projector's checkpoint, and the rows at it.

use super::change::{Change, What};
use crate::fold::{AtVersion, Recorded};
use crate::projector::CHECKPOINT;
use crate::query::{ReadError, Reader, TaskRow, Viewer};
use domain::id::{TaskId, TenantId};
use domain::task::State;
use sqlx::{FromRow, PgExecutor, PgPool, Row};
use std::collections::BTreeSet;
use uuid::Uuid;

/// So many of a tenant's tasks are looked at for those that have not ended, the newest first.
const TENANT_LOOK: i64 = 1_000;
/// So many of them are shown.
const TENANT_SNAPSHOT: i64 = 200;
/// Most changes of a tenant that are told again, and how far back they may lie in the log.
const TENANT_CHANGES: i64 = 1_000;
const TENANT_POSITIONS: i64 = 100_000;

/// An event, and the task that it is about.
#[derive(FromRow)]
pub(super) struct Happened {
    #[sqlx(flatten)]
    pub(super) event: Recorded,
    pub(super) task_id: Uuid,
}

/// Everything up to here is folded.
pub(crate) async fn checkpoint(database: impl PgExecutor<'_>) -> Result<i64, sqlx::Error> {
    let position: Option<i64> =
        sqlx::query_scalar("/* live.checkpoint */ SELECT position FROM projection_checkpoints WHERE name = $1")
            .bind(CHECKPOINT)
            .fetch_optional(database)
            .await?;
    Ok(position.unwrap_or(0))
}

/// Events of tasks and attempts after a position, up to one that is folded.
pub(super) async fn happened(pool: &PgPool, after: i64, up_to: i64, limit: i64) -> Result<Vec<Happened>, sqlx::Error> {
    sqlx::query_as(
        "/* live.happened */
         SELECT e.position, e.category, e.stream_id, e.version, e.name, e.schema_version, e.body::text AS body, e.tenant_id,
                e.recorded_at, coalesce(a.task_id, e.stream_id) AS task_id
           FROM events e LEFT JOIN read_attempts a ON e.category = 'attempt' AND a.attempt_id = e.stream_id
          WHERE e.position > $1 AND e.position <= $2 AND e.category IN ('task', 'attempt')
          ORDER BY e.position LIMIT $3",
    )
    .bind(after)
    .bind(up_to)
    .bind(limit)
    .fetch_all(pool)
    .await
}

/// The own events of these tasks, up to a position: task by task, in order.
pub(super) async fn streams(pool: &PgPool, tasks: &[Uuid], up_to: i64) -> Result<Vec<Recorded>, sqlx::Error> {
    sqlx::query_as(
        "/* live.streams */
         SELECT position, category, stream_id, version, name, schema_version, body::text AS body, tenant_id, recorded_at
           FROM events WHERE category = 'task' AND stream_id = ANY ($1) AND position <= $2 ORDER BY stream_id, version",
    )
    .bind(tasks)
    .bind(up_to)
    .fetch_all(pool)
    .await
}

/// Tasks as they are at a position.
pub(super) struct Snapshot {
    pub(super) position: i64,
    pub(super) rows: Vec<TaskRow>,
}

/// What comes after a place, up to a position.
pub(super) struct Since {
    pub(super) position: i64,
    /// `None`: it is too much, or too long ago.
    pub(super) changes: Option<Vec<Change>>,
    /// Which of the tasks have ended by then.
    pub(super) ended: BTreeSet<TaskId>,
}

const COLUMNS: &str = "task_id, tenant_id, version, state, provider, model, duration_seconds, input_assets, hold, charge, attempt_no, \
                       error_class, error_code, error_message, review_reason, canceled_by, wake_at, created_at, updated_at, finished_at";

impl Reader {
    /// These tasks, those of them that the viewer may see, as of one moment.
    pub(super) async fn snapshot(&self, viewer: Viewer, tasks: &[TaskId]) -> Result<Snapshot, ReadError> {
        let statement = format!(
            "/* live.snapshot */
             SELECT checkpoint, {COLUMNS}
               FROM (SELECT position AS checkpoint FROM projection_checkpoints WHERE name = $1) AS c
               LEFT JOIN read_tasks ON task_id = ANY ($2) AND ($3::uuid IS NULL OR tenant_id = $3)
              ORDER BY created_at, task_id"
        );
        let tasks: Vec<Uuid> = tasks.iter().map(|task| task.0).collect();
        let query = sqlx::query(sqlx::AssertSqlSafe(statement)).bind(CHECKPOINT).bind(tasks);
        rows(query.bind(viewer.tenant.map(|it| it.0)).fetch_all(&self.pool).await?)
    }

    /// The tasks of a tenant that have not ended, among its newest, as of one moment.
    pub(super) async fn tenant_snapshot(&self, tenant: TenantId) -> Result<Snapshot, ReadError> {
        let statement = format!(
            "/* live.tenant_snapshot */
             SELECT checkpoint, {COLUMNS}
               FROM (SELECT position AS checkpoint FROM projection_checkpoints WHERE name = $1) AS c
               LEFT JOIN LATERAL (
                    SELECT * FROM (SELECT * FROM read_tasks WHERE tenant_id = $2
                                    ORDER BY created_at DESC, task_id DESC LIMIT $3) AS newest
                     WHERE state <> ALL ($4) LIMIT $5) AS running ON true
              ORDER BY created_at, task_id"
        );
        let ended: Vec<&str> = State::ALL.iter().filter(|it| it.is_terminal()).map(|it| it.name()).collect();
        let query = sqlx::query(sqlx::AssertSqlSafe(statement)).bind(CHECKPOINT).bind(tenant.0).bind(TENANT_LOOK);
        rows(query.bind(ended).bind(TENANT_SNAPSHOT).fetch_all(&self.pool).await?)
    }

    /// What happened to these tasks, as far as it is folded, of what `wanted` says yes to.
    pub(super) async fn since(
        &self,
        viewer: Viewer,
        tasks: &[TaskId],
        wanted: impl Fn(&Recorded) -> bool,
    ) -> Result<Since, ReadError> {
        let position = checkpoint(&self.pool).await?;
        let tasks: Vec<Uuid> = tasks.iter().map(|task| task.0).collect();
        let (mut changes, mut ended) = (Vec::new(), BTreeSet::new());
        let mut row: Option<(Uuid, AtVersion)> = None;
        for event in streams(&self.pool, &tasks, position).await? {
            let before = row.take().filter(|(task, _)| *task == event.stream_id).map(|(_, row)| row);
            // What does not fold is not folded by the projector either: nothing after it is shown.
            let Ok(after) = AtVersion::after(before, &event) else { continue };
            if viewer.sees(TenantId(event.tenant_id)) && wanted(&event) {
                let what = What::Event { name: event.name.clone(), at: event.recorded_at };
                changes.push(Change::new(event.position, what, after.shown()));
            }
            if after.is_at_end() {
                ended.insert(TaskId(event.stream_id));
            }
            row = Some((event.stream_id, after));
        }
        changes.sort_by_key(|change| change.position);
        Ok(Since { position, changes: Some(changes), ended })
    }

    /// What happened to a tenant's tasks after a position, as far as it is folded.
    pub(super) async fn tenant_since(&self, tenant: TenantId, after: i64) -> Result<Since, ReadError> {
        let position = checkpoint(&self.pool).await?;
        if after > position || position - after > TENANT_POSITIONS {
            return Ok(Since { position, changes: None, ended: BTreeSet::new() });
        }
        let touched: Vec<(Uuid, i64)> = sqlx::query_as(
            "/* live.tenant_since */
             SELECT stream_id, position FROM events
              WHERE position > $1 AND position <= $2 AND category = 'task' AND tenant_id = $3 ORDER BY position LIMIT $4",
        )
        .bind(after)
        .bind(position)
        .bind(tenant.0)
        .bind(TENANT_CHANGES + 1)
        .fetch_all(&self.pool)
        .await?;
        if touched.len() as i64 > TENANT_CHANGES {
            return Ok(Since { position, changes: None, ended: BTreeSet::new() });
        }
        let tasks: Vec<TaskId> = touched.iter().map(|(task, _)| TaskId(*task)).collect();
        let wanted = |event: &Recorded| event.position > after && event.position <= position;
        let since = self.since(Viewer::of(tenant), &tasks, wanted).await?;
        Ok(Since { position, ..since })
    }
}

fn rows(found: Vec<sqlx::postgres::PgRow>) -> Result<Snapshot, ReadError> {
    let position = found.first().map_or(Ok(0), |row| row.try_get("checkpoint"))?;
    let mut rows = Vec::with_capacity(found.len());
    for row in &found {
        // None of the tasks is there yet.
        if row.try_get::<Option<Uuid>, _>("task_id")?.is_some() {
            rows.push(TaskRow::from_row(row)?);
        }
    }
    Ok(Snapshot { position, rows })
}
