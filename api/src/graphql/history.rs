//! Recorded events as auditors see them.

use super::error::coded;
use super::scalars::{BigInt, Instant};
use async_graphql::{ID, Json, Result, SimpleObject};
use projections::query::HistoryRow;

/// Most events in one answer.
const MAX_EVENTS: u32 = 1_000;
/// How many where no number is given.
const DEFAULT_EVENTS: i32 = 200;

/// A recorded event.
#[derive(Clone, Debug, SimpleObject)]
pub(crate) struct HistoryEvent {
    /// Its place in the whole log.
    position: BigInt,
    /// The stream, such as `task-` and an id.
    stream: String,
    /// The version of the stream that it made.
    version: BigInt,
    /// Its name.
    name: String,
    /// Version of its body's form.
    schema_version: i32,
    /// When, by the database's clock.
    recorded_at: Instant,
    /// Who: `user:…`, `provider:…`, or the consumer that worked.
    actor: String,
    /// The request that started the chain.
    correlation_id: ID,
    /// The command or message that caused it.
    causation_id: ID,
    /// What it says.
    body: Json<serde_json::Value>,
}

impl From<HistoryRow> for HistoryEvent {
    fn from(row: HistoryRow) -> Self {
        Self {
            position: BigInt(row.position),
            stream: row.stream,
            version: BigInt(row.version),
            name: row.name,
            schema_version: i32::from(row.schema_version),
            recorded_at: Instant(row.recorded_at),
            actor: row.actor,
            correlation_id: ID(row.correlation.to_string()),
            causation_id: ID(row.causation.to_string()),
            body: Json(row.body),
        }
    }
}

/// Which part of a history is asked for: after which position, and how many events.
pub(crate) fn part(first: Option<i32>, after: Option<BigInt>) -> Result<(i64, u32)> {
    let count = u32::try_from(first.unwrap_or(DEFAULT_EVENTS))
        .ok()
        .filter(|count| (1..=MAX_EVENTS).contains(count))
        .ok_or_else(|| coded("BAD_PAGE", format!("first is from 1 to {MAX_EVENTS}")))?;
    Ok((after.map_or(0, |it| it.0), count))
}

/// Recorded events as they are answered.
pub(crate) fn shown(rows: Vec<HistoryRow>) -> Vec<HistoryEvent> {
    rows.into_iter().map(HistoryEvent::from).collect()
}
