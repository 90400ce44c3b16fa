//! The hashes of events, each over the one before it in its stream, and the table that keeps them.

use crate::logged::{LoggedEvent, canonical};
use domain::process::StreamId;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use sqlx::PgConnection;
use std::collections::HashMap;
use std::fmt;
use uuid::Uuid;

/// A SHA-256 hash, written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// What stands for "nothing before": in the first event of a stream, and in the first seal.
    pub const ZERO: Self = Self([0; 32]);

    /// The hash of these bytes, one part after the other.
    #[must_use]
    pub fn of_parts(parts: &[&[u8]]) -> Self {
        let mut hasher = Sha256::new();
        parts.iter().for_each(|part| hasher.update(part));
        Self(hasher.finalize().into())
    }

    /// A stored hash. What has another length is the hash of nothing.
    pub(crate) fn stored(bytes: &[u8]) -> Self {
        bytes.try_into().map_or(Self::ZERO, Self)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash({self})")
    }
}

impl From<Hash> for String {
    fn from(hash: Hash) -> Self {
        hash.to_string()
    }
}

impl TryFrom<String> for Hash {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let bytes = hex::decode(text).map_err(|_| "not a hash: 64 hexadecimal digits are")?;
        bytes.as_slice().try_into().map(Self).map_err(|_| "not a hash: 64 hexadecimal digits are")
    }
}

/// A stream of the log, whatever its category is called: what stands in the database may be anything.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamName {
    /// `task`, `attempt` or `account`.
    pub category: String,
    /// Its id.
    pub id: Uuid,
}

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.category, self.id)
    }
}

impl From<StreamId> for StreamName {
    fn from(stream: StreamId) -> Self {
        Self { category: stream.category.name().to_owned(), id: stream.id }
    }
}

impl std::str::FromStr for StreamName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = "a stream is written CATEGORY/ID, such as task/01a22bef-2cbb-75df-92e9-5a0ee8aea4de";
        let (category, id) = text.split_once('/').ok_or(expected)?;
        Ok(Self { category: category.to_owned(), id: id.parse().map_err(|_| expected)? })
    }
}

/// Where an event stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its stream.
    pub stream: StreamName,
    /// Its place there.
    pub version: i64,
    /// Its place in the log.
    pub position: i64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} version {} at position {}", self.stream, self.version, self.position)
    }
}

impl Place {
    pub(crate) fn of(event: &LoggedEvent) -> Self {
        let stream = StreamName { category: event.category.clone(), id: event.stream_id };
        Self { stream, version: event.version, position: event.position }
    }
}

/// The hash of an event: SHA-256 of the canonical JSON of its object, with the hash of the event before it in its stream (by
/// position) as one more member, `previous`. With it an event vouches for the whole history that it was made on.
///
/// # Errors
/// The event can not be written as JSON.
pub fn event_hash(event: &LoggedEvent, previous: Hash) -> Result<Hash, serde_json::Error> {
    Ok(chained(event, previous)?.1)
}

/// The object that is hashed, and its hash.
pub(crate) fn chained(event: &LoggedEvent, previous: Hash) -> Result<(Value, Hash), serde_json::Error> {
    #[derive(Serialize)]
    struct Chained<'a> {
        #[serde(flatten)]
        event: &'a LoggedEvent,
        previous: Hash,
    }
    let value = serde_json::to_value(Chained { event, previous })?;
    let hash = Hash::of_parts(&[&canonical(&value)]);
    Ok((value, hash))
}

/// A row of the hashes: which event, and its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HashRow {
    pub(crate) place: Place,
    pub(crate) hash: Hash,
}

impl<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow> for HashRow {
    fn from_row(row: &'r sqlx::postgres::PgRow) -> Result<Self, sqlx::Error> {
        use sqlx::Row;
        let stream = StreamName { category: row.try_get("category")?, id: row.try_get("stream_id")? };
        let place = Place { stream, version: row.try_get("version")?, position: row.try_get("position")? };
        Ok(Self { place, hash: Hash::stored(row.try_get("hash")?) })
    }
}

/// Reads the hashes of an interval of positions, in order, at most `limit`.
pub(crate) async fn read_hashes(
    connection: &mut PgConnection,
    after: i64,
    up_to: i64,
    limit: i64,
) -> Result<Vec<HashRow>, sqlx::Error> {
    sqlx::query_as(
        "/* audit.read_hashes */
         SELECT position, category, stream_id, version, hash FROM event_hashes
          WHERE position > $1 AND position <= $2 ORDER BY position LIMIT $3",
    )
    .bind(after)
    .bind(up_to)
    .bind(limit)
    .fetch_all(connection)
    .await
}

/// Writes the hashes of a batch of events, in one statement.
pub(crate) async fn write_hashes(
    connection: &mut PgConnection,
    events: &[LoggedEvent],
    hashes: &[Hash],
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "/* audit.write_hashes */
         INSERT INTO event_hashes (position, category, stream_id, version, hash)
         SELECT * FROM unnest($1::bigint[], $2::text[], $3::uuid[], $4::bigint[], $5::bytea[])",
    )
    .bind(events.iter().map(|it| it.position).collect::<Vec<_>>())
    .bind(events.iter().map(|it| it.category.as_str()).collect::<Vec<_>>())
    .bind(events.iter().map(|it| it.stream_id).collect::<Vec<_>>())
    .bind(events.iter().map(|it| it.version).collect::<Vec<_>>())
    .bind(hashes.iter().map(|it| it.0.as_slice()).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}

/// The end of a stream's chain at some place: what the next event's hash is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) position: i64,
    pub(crate) version: i64,
    pub(crate) hash: Hash,
}

pub(crate) const NO_LINK: Link = Link { position: i64::MIN, version: 0, hash: Hash::ZERO };

/// For each of these places the link before it in its stream, as far as it is before `before`. Streams without one are left out.
pub(crate) async fn links_before(
    connection: &mut PgConnection,
    places: &[&Place],
    before: i64,
) -> Result<HashMap<StreamName, Link>, sqlx::Error> {
    type Row = (String, Uuid, i64, i64, Vec<u8>);
    let places: Vec<&&Place> = places.iter().filter(|it| it.version > 1).collect();
    if places.is_empty() {
        return Ok(HashMap::new());
    }
    let rows: Vec<Row> = sqlx::query_as(
        "/* audit.links_before */
         SELECT w.category, w.stream_id, l.position, l.version, l.hash
           FROM unnest($1::text[], $2::uuid[], $3::bigint[]) AS w (category, stream_id, version)
          CROSS JOIN LATERAL (
                SELECT e.position, e.version, h.hash FROM events e JOIN event_hashes h ON h.position = e.position
                 WHERE e.category = w.category AND e.stream_id = w.stream_id AND e.version < w.version AND e.position < $4
                 ORDER BY e.version DESC LIMIT 1) AS l",
    )
    .bind(places.iter().map(|it| it.stream.category.as_str()).collect::<Vec<_>>())
    .bind(places.iter().map(|it| it.stream.id).collect::<Vec<_>>())
    .bind(places.iter().map(|it| it.version).collect::<Vec<_>>())
    .bind(before)
    .fetch_all(connection)
    .await?;
    let named = rows.into_iter().map(|(category, id, position, version, hash)| {
        (StreamName { category, id }, Link { position, version, hash: Hash::stored(&hash) })
    });
    Ok(named.collect())
}
