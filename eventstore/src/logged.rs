//! A row of the log, whole, and its canonical form: what proofs and archives are made of, and other programs read.

use crate::audit::{Hash, StreamName};
use domain::stored::Stored;
use domain::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

/// An event as the log has it, every column. As JSON it is one object with these names; times are RFC 3339 in UTC with six
/// digits of a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, sqlx::FromRow)]
#[serde(deny_unknown_fields)]
pub struct LoggedEvent {
    /// Its place in the log.
    pub position: i64,
    /// Its id, derived from its stream and version.
    pub event_id: Uuid,
    /// The kind of its stream: `task`, `attempt` or `account`.
    pub category: String,
    /// Its stream.
    pub stream_id: Uuid,
    /// Its place in the stream, from 1.
    pub version: i64,
    /// What happened, such as `task.queued`.
    pub name: String,
    /// The version of the body's schema.
    pub schema_version: i16,
    /// What was stored, in that version, not upcast.
    pub body: Value,
    /// Whose fact it is.
    pub tenant_id: Uuid,
    /// The request that started the chain.
    pub correlation_id: Uuid,
    /// The command or message that was handled.
    pub causation_id: Uuid,
    /// Who acted.
    pub actor: String,
    /// When, by the database's clock.
    #[serde(with = "microseconds")]
    pub recorded_at: Timestamp,
}

impl LoggedEvent {
    /// The parts that are folded.
    pub(crate) fn stored(&self) -> Stored {
        Stored { name: self.name.clone(), version: self.schema_version, body: self.body.clone() }
    }
}

/// The columns of [`LoggedEvent`]. A time that no clock of ours can have shown is read as the nearest year that can be written:
/// whoever put it there is found by the hash, and does not stop the reader.
macro_rules! logged_columns {
    () => {
        "e.position, e.event_id, e.category, e.stream_id, e.version, e.name, e.schema_version, e.body, e.tenant_id,
         e.correlation_id, e.causation_id, e.actor,
         greatest('0001-01-01T00:00:00Z', least('9999-12-31T23:59:59Z', e.recorded_at)) AS recorded_at"
    };
}

/// Reads the log after a position, up to one that may be read (see `readable_position()`), in order, at most `limit` events.
pub(crate) async fn read_log(
    connection: &mut PgConnection,
    after: i64,
    up_to: i64,
    limit: i64,
) -> Result<Vec<LoggedEvent>, sqlx::Error> {
    sqlx::query_as(concat!(
        "/* eventstore.read_log */ SELECT ",
        logged_columns!(),
        " FROM events e WHERE e.position > $1 AND e.position <= $2 ORDER BY e.position LIMIT $3"
    ))
    .bind(after)
    .bind(up_to)
    .bind(limit)
    .fetch_all(connection)
    .await
}

/// Reads the events at these positions, in order.
pub(crate) async fn read_log_at(
    connection: &mut PgConnection,
    positions: &[i64],
) -> Result<Vec<LoggedEvent>, sqlx::Error> {
    sqlx::query_as(concat!(
        "/* eventstore.read_log_at */ SELECT ",
        logged_columns!(),
        " FROM events e WHERE e.position = ANY ($1) ORDER BY e.position"
    ))
    .bind(positions)
    .fetch_all(connection)
    .await
}

/// An event with the hash that it was sealed with, where it was.
#[derive(sqlx::FromRow)]
struct SealedEvent {
    #[sqlx(flatten)]
    event: LoggedEvent,
    hash: Option<Vec<u8>>,
}

/// Reads the events of a stream after a version, in order, at most `limit`, each with the hash that it was sealed with.
pub(crate) async fn read_stream_sealed(
    connection: &mut PgConnection,
    stream: &StreamName,
    after: i64,
    limit: i64,
) -> Result<Vec<(LoggedEvent, Option<Hash>)>, sqlx::Error> {
    let rows: Vec<SealedEvent> = sqlx::query_as(concat!(
        "/* eventstore.read_stream_sealed */ SELECT ",
        logged_columns!(),
        ", h.hash FROM events e LEFT JOIN event_hashes h ON h.position = e.position
            WHERE e.category = $1 AND e.stream_id = $2 AND e.version > $3 ORDER BY e.version LIMIT $4"
    ))
    .bind(&stream.category)
    .bind(stream.id)
    .bind(after)
    .bind(limit)
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|it| (it.event, it.hash.as_deref().map(Hash::stored))).collect())
}

/// JSON in one way only: the members of an object in the order of their names' code points, no white space, and of the
/// characters only `"`, `\` and those below U+0020 escaped. Any JSON writer that can sort its keys gives these bytes; numbers
/// are whole in everything that the log holds.
pub(crate) fn canonical(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(256);
    write(value, &mut bytes);
    bytes
}

fn write(value: &Value, into: &mut Vec<u8>) {
    match value {
        Value::Object(members) => {
            // Sorted here: whether a map keeps the order of insertion is decided by features of other crates.
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            separated(into, (b'{', b'}'), members, |(name, value), into| {
                into.extend_from_slice(Value::from(name.as_str()).to_string().as_bytes());
                into.push(b':');
                write(value, into);
            });
        }
        Value::Array(items) => separated(into, (b'[', b']'), items.iter().collect(), write),
        plain => into.extend_from_slice(plain.to_string().as_bytes()),
    }
}

fn separated<T>(into: &mut Vec<u8>, (open, close): (u8, u8), items: Vec<T>, each: impl Fn(T, &mut Vec<u8>)) {
    into.push(open);
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            into.push(b',');
        }
        each(item, into);
    }
    into.push(close);
}

pub(crate) mod microseconds {
    use chrono::{DateTime, SecondsFormat};
    use domain::time::Timestamp;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&at.to_rfc3339_opts(SecondsFormat::Micros, true))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        let text = String::deserialize(from)?;
        DateTime::parse_from_rfc3339(&text).map(|at| at.to_utc()).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn canonical_json_is_sorted_and_dense_at_every_depth() {
        let value = json!({"b": [1, {"z": null, "é": "a\"\\\n\u{1}é"}], "a": {"y": -2, "x": true}});
        let expected = "{\"a\":{\"x\":true,\"y\":-2},\"b\":[1,{\"z\":null,\"é\":\"a\\\"\\\\\\n\\u0001é\"}]}";
        assert_eq!(String::from_utf8_lossy(&canonical(&value)), expected);
    }
}
