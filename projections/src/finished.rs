//! Tasks that have ended: what the archive takes.

use domain::id::{AttemptId, TaskId};
use domain::process::StreamId;
use sqlx::PgPool;
use uuid::Uuid;

/// Finds tasks that have ended in the read model.
#[derive(Clone)]
pub struct FinishedTasks {
    pool: PgPool,
}

impl FinishedTasks {
    /// On a pool.
    #[must_use]
    pub const fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    /// Goes along all tasks in the order of their ids, a page of `limit` at a time. Says of the page after a task: the streams of
    /// those that ended at least so many days ago, and of their attempts, and which task is the last of the page; `None` at the end.
    ///
    /// # Errors
    /// The database could not be used.
    pub async fn page(
        &self,
        after: TaskId,
        days: u16,
        limit: i64,
    ) -> Result<(Vec<StreamId>, Option<TaskId>), sqlx::Error> {
        let rows: Vec<(Uuid, bool, Vec<Uuid>)> = sqlx::query_as(
            "/* projections.finished */
             SELECT t.task_id, t.over, ARRAY(SELECT attempt_id FROM read_attempts a
                                              WHERE t.over AND a.task_id = t.task_id ORDER BY a.number)
               FROM (SELECT task_id, coalesce(finished_at <= clock_timestamp() - make_interval(days => $2), false) AS over
                       FROM read_tasks WHERE task_id > $1 ORDER BY task_id LIMIT $3) AS t
              ORDER BY t.task_id",
        )
        .bind(after.0)
        .bind(i32::from(days))
        .bind(limit)
        .fetch_all(&self.pool)
        .await?;
        let last = rows.last().map(|(task, ..)| TaskId(*task));
        let mut streams = Vec::new();
        for (task, _, attempts) in rows.into_iter().filter(|(_, over, _)| *over) {
            streams.push(StreamId::task(TaskId(task)));
            streams.extend(attempts.into_iter().map(|id| StreamId::attempt(AttemptId(id))));
        }
        Ok((streams, last))
    }

    /// How many tasks ended at least so many days ago and are in no file of the archive. Reads the whole table.
    ///
    /// # Errors
    /// The database could not be used.
    pub async fn not_archived(&self, days: u16) -> Result<u64, sqlx::Error> {
        let count: i64 = sqlx::query_scalar(
            "/* projections.not_archived */
             SELECT count(*) FROM read_tasks t
              WHERE finished_at <= clock_timestamp() - make_interval(days => $1)
                AND NOT EXISTS (SELECT FROM archived_streams a WHERE a.category = 'task' AND a.stream_id = t.task_id)",
        )
        .bind(i32::from(days))
        .fetch_one(&self.pool)
        .await?;
        Ok(count.unsigned_abs())
    }
}
