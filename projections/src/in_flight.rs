//! Attempts that a provider works on, or may: what admission's counts are made from again.

use crate::projector::CHECKPOINT;
use domain::process::Slot;
use domain::stored::{Stored, StoredEvent};
use domain::task::Event;
use sqlx::PgPool;
use uuid::Uuid;

/// Why they can not be said.
#[derive(Debug, thiserror::Error)]
pub enum InFlightError {
    /// The database could not be used.
    #[error("the attempts in flight could not be read")]
    Database(#[from] sqlx::Error),
    /// A task's first event is not one that this build reads.
    #[error("the order of task {task} can not be read")]
    Unreadable {
        /// The task.
        task: Uuid,
    },
}

/// Finds the attempts in flight.
#[derive(Clone)]
pub struct InFlight {
    pool: PgPool,
}

impl InFlight {
    /// On a pool.
    #[must_use]
    pub const fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    /// The slot of each attempt that is being submitted, is unclear or runs. What the read model does not show yet is taken from
    /// the log behind it: none that has begun is missed, and one that has just ended may still be among them.
    ///
    /// # Errors
    /// [`InFlightError`].
    pub async fn slots(&self) -> Result<Vec<Slot>, InFlightError> {
        let rows: Vec<(Uuid, i32, i32, String, i16, serde_json::Value)> = sqlx::query_as(
            "/* projections.in_flight */
             WITH begun AS (
               SELECT attempt_id, task_id, number, round FROM read_attempts
                WHERE state IN ('SUBMITTING', 'SUBMIT_UNKNOWN', 'RUNNING')
                UNION ALL
               SELECT e.stream_id, (p.body->>'task')::uuid, (p.body->>'number')::int, (e.body->>'round')::int
                 FROM events e
                 JOIN events p ON p.category = 'attempt' AND p.stream_id = e.stream_id AND p.version = 1
                WHERE e.position > coalesce((SELECT position FROM projection_checkpoints WHERE name = $1), 0)
                  AND e.category = 'attempt' AND e.name = 'attempt.submission_begun')
             SELECT DISTINCT ON (b.attempt_id) b.task_id, b.number, b.round, s.name, s.schema_version, s.body
               FROM begun b
               JOIN events s ON s.category = 'task' AND s.stream_id = b.task_id AND s.version = 1
              ORDER BY b.attempt_id, b.round DESC",
        )
        .bind(CHECKPOINT)
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter()
            .map(|(task, number, round, name, version, body)| {
                let count = |it: i32| u32::try_from(it).unwrap_or(0);
                match Event::decode(Stored { name, version, body }) {
                    Ok(Event::Submitted { order }) => Ok(Slot::of(&order, count(number), count(round))),
                    _ => Err(InFlightError::Unreadable { task }),
                }
            })
            .collect()
    }
}
