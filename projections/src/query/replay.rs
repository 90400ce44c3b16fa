//! Replaying a task: its rows folded afresh from its events, beside the rows that the read model has.

use super::{ReadError, Reader, Viewer};
use crate::fold::{self, Alone};
use crate::live::checkpoint;
use domain::id::{AttemptId, TaskId, TenantId};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

/// A value that the replay and the read model do not agree on.
#[derive(Clone, Debug, PartialEq)]
pub struct Deviation {
    /// The read table.
    pub table: &'static str,
    /// The row's key.
    pub key: String,
    /// The column; `None` where the whole row is missing on one side.
    pub column: Option<String>,
    /// What the events say.
    pub replayed: Value,
    /// What the read model shows.
    pub shown: Value,
}

/// What a replay came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// Up to here the read model is folded, and so was the replay.
    pub position: i64,
    /// So many events were folded.
    pub events: usize,
    /// So many rows were compared.
    pub rows: usize,
    /// Where they differ; none: they are equal.
    pub deviations: Vec<Deviation>,
    /// The event that can not be folded, in words. What comes after it was not.
    pub fault: Option<String>,
}

impl Reader {
    /// Folds a task, its attempts and its assets again from their events, and compares with what the read model shows, as of one moment.
    /// `None`: there is no such task for this viewer. Nothing is changed.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn replay(&self, viewer: Viewer, task: TaskId) -> Result<Option<Replay>, ReadError> {
        let mut tx = self.pool.begin().await?;
        sqlx::query("/* replay.moment */ SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            .execute(&mut *tx)
            .await?;
        let position = checkpoint(&mut *tx).await?;
        let events = events(&mut tx, task, position).await?;
        let Some(owner) = events.first().map(|first| TenantId(first.tenant_id)) else { return Ok(None) };
        if !viewer.sees(owner) {
            return Ok(None);
        }
        let (alone, fault) = Alone::of(&events);
        let replayed = alone.rows();
        let shown = fold::shown_rows(&mut tx, task.0).await?;
        tx.rollback().await?;
        let rows = replayed.len().max(shown.len());
        let fault = fault.map(|fault| fault.to_string());
        Ok(Some(Replay { position, events: events.len(), rows, deviations: compare(&replayed, &shown), fault }))
    }
}

/// The events of a task and of its attempts, up to a position, in order.
async fn events(connection: &mut PgConnection, task: TaskId, up_to: i64) -> Result<Vec<fold::Recorded>, sqlx::Error> {
    let attempts: i32 = sqlx::query_scalar(
        "/* replay.attempts */
         SELECT coalesce(max((body->>'attempt_no')::int), 0) FROM events
          WHERE category = 'task' AND stream_id = $1 AND name = 'task.submission_begun'",
    )
    .bind(task.0)
    .fetch_one(&mut *connection)
    .await?;
    let numbers = 1..=u32::try_from(attempts).unwrap_or(0) + 1;
    let attempts: Vec<Uuid> = numbers.map(|number| AttemptId::of(task, number).0).collect();
    sqlx::query_as(
        "/* replay.events */
         SELECT position, category, stream_id, version, name, schema_version, body::text AS body, tenant_id, recorded_at FROM events
          WHERE (category = 'task' AND stream_id = $1 OR category = 'attempt' AND stream_id = ANY ($2)) AND position <= $3
          ORDER BY position",
    )
    .bind(task.0)
    .bind(attempts)
    .bind(up_to)
    .fetch_all(connection)
    .await
}

/// Rows by table and key.
type RowsByKey = std::collections::BTreeMap<(&'static str, String), Value>;

fn compare(replayed: &RowsByKey, shown: &RowsByKey) -> Vec<Deviation> {
    let mut keys: Vec<_> = replayed.keys().chain(shown.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut found = Vec::new();
    for place @ (table, key) in keys {
        let whole = |column, replayed, shown| Deviation { table, key: key.clone(), column, replayed, shown };
        match (replayed.get(place), shown.get(place)) {
            (Some(Value::Object(one)), Some(Value::Object(other))) => {
                let different = one.iter().filter(|(column, value)| other.get(*column) != Some(*value));
                found.extend(different.map(|(column, value)| {
                    let other = other.get(column).cloned().unwrap_or_default();
                    whole(Some(column.clone()), value.clone(), other)
                }));
            }
            (one, other) => {
                found.push(whole(None, one.cloned().unwrap_or_default(), other.cloned().unwrap_or_default()));
            }
        }
    }
    found.sort_by(|one, other| (one.table, &one.key, &one.column).cmp(&(other.table, &other.key, &other.column)));
    found
}
