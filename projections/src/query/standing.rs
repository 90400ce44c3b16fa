//! How tasks stand: their place in the line for a provider, and their credits.

use super::{ReadError, Reader, TaskRow, Viewer};
use domain::id::TaskId;
use domain::time::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row};
use uuid::Uuid;

/// So many tasks before another are counted; beyond, there are "at least so many".
pub const MAX_AHEAD: i64 = 1_000;

/// A waiting task's place in the line.
#[derive(Clone, Debug, PartialEq)]
pub struct PlaceInLine {
    /// The task.
    pub task: TaskId,
    /// So many tasks wait for the same provider and were submitted before it, whoever's they are: at most [`MAX_AHEAD`].
    pub ahead: i64,
    /// Whether these are all.
    pub exact: bool,
    /// How long the provider's latest tasks took from their submission until it had them, in seconds: the median.
    pub usual_wait_seconds: Option<f64>,
}

/// The credits of a task. Amounts are in minor units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldRow {
    /// The task.
    pub task: TaskId,
    /// Set aside when it was submitted.
    pub reserved: i64,
    /// Charged.
    pub settled: i64,
    /// Given back when it ended.
    pub released: i64,
    /// Given back of what was charged.
    pub refunded: i64,
    /// Name of the hold's state.
    pub state: String,
    /// When the hold ends by itself.
    pub expires_at: Option<Timestamp>,
}

impl FromRow<'_, PgRow> for HoldRow {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            task: TaskId(row.try_get("task_id")?),
            reserved: row.try_get("reserved")?,
            settled: row.try_get("settled")?,
            released: row.try_get("released")?,
            refunded: row.try_get("refunded")?,
            state: row.try_get("state")?,
            expires_at: row.try_get("expires_at")?,
        })
    }
}

/// What is to be known of a task to find its place in the line.
#[derive(Clone, Debug)]
pub struct InLine {
    /// The task.
    pub task: TaskId,
    /// The provider it waits for.
    pub provider: String,
    /// When it was submitted.
    pub created_at: Timestamp,
}

impl InLine {
    /// Of a task that waits for a provider to take it; `None` for any other.
    #[must_use]
    pub fn of(row: &TaskRow) -> Option<Self> {
        use domain::task::State;
        let waits = [State::Queued.name(), State::WaitingRetry.name()].contains(&row.state.as_str());
        waits.then(|| Self { task: row.task, provider: row.provider.clone(), created_at: row.created_at })
    }
}

impl Reader {
    /// The places of these tasks. However many there are, it is one statement; the cost of each is bounded.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn places_in_line(&self, tasks: &[InLine]) -> Result<Vec<PlaceInLine>, ReadError> {
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        let rows: Vec<(Uuid, i64, Option<f64>)> = sqlx::query_as(
            "/* projections.places_in_line */
             WITH wanted AS (
                 SELECT * FROM unnest($1::uuid[], $2::text[], $3::timestamptz[]) AS w (task_id, provider, created_at)),
             usual AS (
                 SELECT p.provider, w.seconds FROM (SELECT DISTINCT provider FROM wanted) AS p
                  CROSS JOIN LATERAL (
                     SELECT percentile_cont(0.5) WITHIN GROUP (
                                ORDER BY extract(epoch FROM a.submit_finished_at - t.created_at)::float8) AS seconds
                       FROM (SELECT task_id, created_at
                               FROM (SELECT task_id, created_at, provider FROM read_tasks
                                      ORDER BY created_at DESC, task_id DESC LIMIT 500) AS newest
                              WHERE newest.provider = p.provider LIMIT 100) AS t
                       JOIN read_attempts a ON a.task_id = t.task_id AND a.number = 1 AND a.provider_job_id IS NOT NULL) AS w)
             SELECT w.task_id, line.ahead, usual.seconds
               FROM wanted w LEFT JOIN usual USING (provider)
              CROSS JOIN LATERAL (
                 SELECT count(*) AS ahead
                   FROM (SELECT FROM read_tasks t
                          WHERE t.wake_at IS NOT NULL AND t.state IN ('QUEUED', 'WAITING_RETRY') AND t.provider = w.provider
                            AND (t.created_at, t.task_id) < (w.created_at, w.task_id) LIMIT $4) AS before) AS line",
        )
        .bind(tasks.iter().map(|it| it.task.0).collect::<Vec<_>>())
        .bind(tasks.iter().map(|it| it.provider.clone()).collect::<Vec<_>>())
        .bind(tasks.iter().map(|it| it.created_at).collect::<Vec<_>>())
        .bind(MAX_AHEAD + 1)
        .fetch_all(&self.pool)
        .await?;
        let place = |(task, ahead, usual_wait_seconds): (Uuid, i64, _)| PlaceInLine {
            task: TaskId(task),
            ahead: ahead.min(MAX_AHEAD),
            exact: ahead <= MAX_AHEAD,
            usual_wait_seconds,
        };
        Ok(rows.into_iter().map(place).collect())
    }

    /// The credits of these tasks, of those that this viewer may see.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn holds(&self, viewer: Viewer, tasks: &[TaskId]) -> Result<Vec<HoldRow>, ReadError> {
        Ok(sqlx::query_as(
            "/* projections.holds */
             SELECT h.task_id, h.reserved, h.settled, h.released, h.refunded, h.state, h.expires_at
               FROM read_holds h JOIN read_tasks t ON t.task_id = h.task_id
              WHERE h.task_id = ANY ($1) AND ($2::uuid IS NULL OR t.tenant_id = $2)",
        )
        .bind(tasks.iter().map(|task| task.0).collect::<Vec<_>>())
        .bind(viewer.bind())
        .fetch_all(&self.pool)
        .await?)
    }
}
