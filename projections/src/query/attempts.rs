//! Attempts: batches for many tasks at once, so that a page of tasks costs one statement.

use super::{ReadError, Reader, Viewer};
use domain::id::{AttemptId, TaskId, TenantId};
use domain::time::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row};

/// An attempt as its read model shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptRow {
    /// The attempt.
    pub attempt: AttemptId,
    /// Its task.
    pub task: TaskId,
    /// Its owner.
    pub tenant: TenantId,
    /// Version of its stream.
    pub version: i64,
    /// Number among the task's attempts, from 1.
    pub number: i32,
    /// The provider.
    pub provider: String,
    /// Name of its state.
    pub state: String,
    /// The provider's job id.
    pub provider_job_id: Option<String>,
    /// How often its submission was begun.
    pub round: i32,
    /// How often the provider was asked.
    pub polls: i32,
    /// Done so far, 0 to 100, where the provider says.
    pub percent: Option<i32>,
    /// Jobs at the provider that carry its reference but are not the one it works with.
    pub orphans: Vec<String>,
    /// Why it failed: the class.
    pub error_class: Option<String>,
    /// Why it failed: the provider's code.
    pub error_code: Option<String>,
    /// Why it failed: a sentence.
    pub error_message: Option<String>,
    /// When the submission last began.
    pub submit_started_at: Option<Timestamp>,
    /// When its answer came.
    pub submit_finished_at: Option<Timestamp>,
    /// When it was decided on.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

impl FromRow<'_, PgRow> for AttemptRow {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            attempt: AttemptId(row.try_get("attempt_id")?),
            task: TaskId(row.try_get("task_id")?),
            tenant: TenantId(row.try_get("tenant_id")?),
            version: row.try_get("version")?,
            number: row.try_get("number")?,
            provider: row.try_get("provider")?,
            state: row.try_get("state")?,
            provider_job_id: row.try_get("provider_job_id")?,
            round: row.try_get("round")?,
            polls: row.try_get("polls")?,
            percent: row.try_get("percent")?,
            orphans: row.try_get("orphans")?,
            error_class: row.try_get("error_class")?,
            error_code: row.try_get("error_code")?,
            error_message: row.try_get("error_message")?,
            submit_started_at: row.try_get("submit_started_at")?,
            submit_finished_at: row.try_get("submit_finished_at")?,
            created_at: row.try_get("created_at")?,
            updated_at: row.try_get("updated_at")?,
        })
    }
}

impl Reader {
    /// The attempts of these tasks, of those that this viewer may see, by task and number.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn attempts(&self, viewer: Viewer, tasks: &[TaskId]) -> Result<Vec<AttemptRow>, ReadError> {
        Ok(sqlx::query_as(
            "/* projections.attempts */
             SELECT attempt_id, task_id, tenant_id, version, number, provider, state, provider_job_id, round, polls, percent,
                    orphans, error_class, error_code, error_message, submit_started_at, submit_finished_at, created_at,
                    updated_at
               FROM read_attempts
              WHERE task_id = ANY ($1) AND ($2::uuid IS NULL OR tenant_id = $2)
              ORDER BY task_id, number",
        )
        .bind(tasks.iter().map(|task| task.0).collect::<Vec<_>>())
        .bind(viewer.bind())
        .fetch_all(&self.pool)
        .await?)
    }

    /// An attempt, if this viewer may see it.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn attempt(&self, viewer: Viewer, attempt: AttemptId) -> Result<Option<AttemptRow>, ReadError> {
        Ok(sqlx::query_as(
            "/* projections.attempt */
             SELECT attempt_id, task_id, tenant_id, version, number, provider, state, provider_job_id, round, polls, percent,
                    orphans, error_class, error_code, error_message, submit_started_at, submit_finished_at, created_at,
                    updated_at
               FROM read_attempts
              WHERE attempt_id = $1 AND ($2::uuid IS NULL OR tenant_id = $2)",
        )
        .bind(attempt.0)
        .bind(viewer.bind())
        .fetch_optional(&self.pool)
        .await?)
    }
}
