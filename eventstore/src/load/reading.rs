//! The statements that read streams, for one reader or many.

use super::News;
use crate::batches::{Carrier, Want};
use crate::error::StoreError;
use crate::snapshot::SnapshotRow;
use domain::aggregate::Category;
use domain::process::StreamId;
use domain::stored::Stored;
use domain::time::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgPool, Row};
use std::collections::HashMap;

/// A stream that is to be read.
pub(super) struct Wanted {
    pub(super) stream: StreamId,
    /// The version that is kept, 0 for none: its event is read too.
    pub(super) from: i64,
    /// Whether a snapshot is looked for. Only where the stream is not kept at all.
    pub(super) cold: bool,
}

/// What one reader wants, as of one moment.
pub(crate) struct Reading(Vec<Wanted>);

impl From<Vec<Wanted>> for Reading {
    fn from(wanted: Vec<Wanted>) -> Self {
        Self(wanted)
    }
}

/// What one reader gets.
type Read = Result<(HashMap<StreamId, News>, Timestamp), StoreError>;

impl Want for Reading {
    type Answer = Read;

    fn goes_with(&self, _other: &Self) -> bool {
        true
    }
}

/// Brings the wants of readers to the database.
pub(crate) struct Readings {
    pub(crate) pool: PgPool,
}

impl Carrier for Readings {
    type Want = Reading;

    async fn carry(&self, readings: Vec<Reading>) -> Vec<Read> {
        let wanted: Vec<Vec<Wanted>> = readings.into_iter().map(|it| it.0).collect();
        match self.read(&wanted).await {
            Ok((news, now)) => news.into_iter().map(|it| Ok((it, now))).collect(),
            Err(error) => wanted.iter().map(|_| Err(error.shared())).collect(),
        }
    }
}

impl Readings {
    async fn read(&self, wanted: &[Vec<Wanted>]) -> Result<(Vec<HashMap<StreamId, News>>, Timestamp), StoreError> {
        let mut connection = self.pool.acquire().await?;
        read(&mut connection, wanted).await
    }
}

/// What came after the versions that each reader has, and the time.
pub(super) async fn read(
    connection: &mut PgConnection,
    readers: &[Vec<Wanted>],
) -> Result<(Vec<HashMap<StreamId, News>>, Timestamp), StoreError> {
    let wanted: Vec<(i32, &Wanted)> =
        (0..).zip(readers).flat_map(|(reader, wanted)| wanted.iter().map(move |it| (reader, it))).collect();
    let cold = wanted.iter().any(|(_, it)| it.cold);
    let mut query = sqlx::query(if cold { COLD } else { WARM })
        .bind(wanted.iter().map(|(_, it)| it.stream.category.name()).collect::<Vec<_>>())
        .bind(wanted.iter().map(|(_, it)| it.stream.id).collect::<Vec<_>>())
        .bind(wanted.iter().map(|(_, it)| it.from).collect::<Vec<_>>())
        .bind(wanted.iter().map(|(reader, _)| *reader).collect::<Vec<_>>())
        // No limit at all, in truth. On the events one keeps the planner from turning the look-ups by index into a scan of the
        // whole log, which it does when it plans while the log is small, and keeps for the connection's life. On the streams
        // one lets it keep its plan: it takes ten streams for likely and a tenth of them for what an unknown limit leaves;
        // without, it finds each plan for the actual two or three cheaper, and plans anew at every load.
        .bind(i64::MAX);
    if cold {
        query = query.bind(wanted.iter().map(|(_, it)| it.cold).collect::<Vec<_>>());
    }
    let mut news: Vec<HashMap<StreamId, News>> = readers.iter().map(|it| HashMap::with_capacity(it.len())).collect();
    let rows = query.fetch_all(connection).await?;
    let now = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("now")?;
    for row in rows {
        // The query asked for known categories only; where there is nothing at all, a row with the time came all the same.
        let category: Option<String> = row.try_get("category")?;
        let Some(category) = category.as_deref().and_then(Category::parse) else { continue };
        let stream = StreamId { category, id: row.try_get("stream_id")? };
        let reader = usize::try_from(row.try_get::<i32, _>("reader")?).ok().and_then(|at| news.get_mut(at));
        reader.ok_or(sqlx::Error::RowNotFound)?.entry(stream).or_default().take(&row)?;
    }
    Ok((news, now))
}

impl News {
    fn take(&mut self, row: &PgRow) -> Result<(), sqlx::Error> {
        let (version, schema, body) = (row.try_get("version")?, row.try_get("schema_version")?, row.try_get("body")?);
        match row.try_get::<Option<String>, _>("name")? {
            Some(name) => self.events.push((version, Stored { name, version: schema, body })),
            None => {
                let digest = row.try_get("digest")?;
                self.snapshot = Some(SnapshotRow { version, shape: schema, digest, state: body });
            }
        }
        Ok(())
    }
}

const WARM: &str = "/* eventstore.load */
    SELECT clock_timestamp() AS now, e.*
      FROM (SELECT) AS always
      LEFT JOIN (
           SELECT wanted.reader, e.*
             FROM (SELECT * FROM unnest($1::text[], $2::uuid[], $3::bigint[], $4::integer[]) LIMIT $5)
                  AS wanted (category, stream_id, version, reader)
            CROSS JOIN LATERAL (
                  SELECT category, stream_id, version, name, schema_version, body FROM events
                   WHERE category = wanted.category AND stream_id = wanted.stream_id AND version >= wanted.version
                   ORDER BY version LIMIT $5) AS e) AS e ON true";

/// The same, from the snapshots on. A snapshot is a row without a name, before the events.
const COLD: &str = "/* eventstore.load_cold */
    WITH start AS MATERIALIZED (
        SELECT wanted.reader, wanted.category, wanted.stream_id, coalesce(s.version, wanted.version) AS version, s.shape, s.digest, s.state
          FROM (SELECT * FROM unnest($1::text[], $2::uuid[], $3::bigint[], $4::integer[], $6::bool[]) LIMIT $5)
               AS wanted (category, stream_id, version, reader, cold)
          LEFT JOIN LATERAL (
               SELECT version, shape, digest, state FROM snapshots
                WHERE wanted.cold AND category = wanted.category AND stream_id = wanted.stream_id LIMIT $5) AS s ON true)
    SELECT clock_timestamp() AS now, e.*
      FROM (SELECT) AS always
      LEFT JOIN (
           SELECT reader, category, stream_id, version, NULL::text AS name, shape AS schema_version, state AS body, digest
             FROM start WHERE digest IS NOT NULL
            UNION ALL
           SELECT start.reader, e.*, NULL::bytea
             FROM start
            CROSS JOIN LATERAL (
                  SELECT category, stream_id, version, name, schema_version, body FROM events
                   WHERE category = start.category AND stream_id = start.stream_id AND version >= start.version
                   ORDER BY version LIMIT $5) AS e) AS e ON true";
