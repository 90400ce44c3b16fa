//! Tasks whose time to go on has passed: what the scan for stalled tasks works on.

use domain::id::TaskId;
use sqlx::PgPool;
use std::time::Duration;

/// Finds stalled tasks in the read model.
#[derive(Clone)]
pub struct StalledTasks {
    pool: PgPool,
}

impl StalledTasks {
    /// On a pool.
    #[must_use]
    pub const fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    /// Tasks that are late by more than `slack`, the longest first, each with a number that grows every half minute: it makes
    /// a repeated repair a new one. A task repaired within the last half minute is left alone.
    ///
    /// # Errors
    /// The database could not be used.
    pub async fn find(&self, slack: Duration, limit: i64) -> Result<Vec<(TaskId, i64)>, sqlx::Error> {
        let rows: Vec<(uuid::Uuid, i64)> = sqlx::query_as(
            "/* projections.stalled */
             SELECT task_id, (extract(epoch FROM clock_timestamp()) / 30)::bigint
               FROM read_tasks t
              WHERE wake_at < clock_timestamp() - make_interval(secs => $1)
                AND NOT EXISTS (SELECT 1 FROM repairs r WHERE r.task_id = t.task_id
                                   AND r.created_at > clock_timestamp() - interval '30 seconds')
              ORDER BY wake_at LIMIT $2",
        )
        .bind(slack.as_secs_f64())
        .bind(limit)
        .fetch_all(&self.pool)
        .await?;
        Ok(rows.into_iter().map(|(task, round)| (TaskId(task), round)).collect())
    }
}
