//! Reading streams and folding them.
//!
//! Folded streams are kept in memory and only the events after the kept version are read. That is safe because a stored
//! event never changes: the state at version n is the same whoever folds it. Only committed events get in, and each reading
//! checks that the log still has the event that the kept state ends with. A stream that is not in memory begins at its snapshot,
//! where it has one that can be used: the same rule, and the same check.

use crate::error::StoreError;
use crate::snapshot::{SnapshotRow, is_due};
use crate::transaction::Tx;
use domain::aggregate::Category;
use domain::process::{Case, Folded, StreamId};
use domain::stored::Stored;
use domain::time::Timestamp;
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

/// A folded stream, as it is kept in memory.
#[derive(Clone, Debug)]
struct Kept {
    folded: Folded,
    /// The version of the newest snapshot that is known of, or was asked for; 0 where there is none.
    snapshot: i64,
}

impl Kept {
    fn absent(category: Category) -> Self {
        Self { folded: Folded::absent(category), snapshot: 0 }
    }

    const fn is_cold(&self) -> bool {
        self.folded.version() == 0
    }
}

/// What was read of one stream.
#[derive(Debug, Default)]
struct News {
    snapshot: Option<SnapshotRow>,
    /// From the version on that was kept or snapped, that one included.
    events: Vec<(i64, Stored)>,
}

/// Folded streams by id, bounded: when it is full, the half that was used longest ago goes.
#[derive(Debug, Default)]
pub(crate) struct FoldCache {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    kept: HashMap<StreamId, (u64, Kept)>,
    uses: u64,
}

const CACHED_STREAMS: usize = 20_000;

impl FoldCache {
    fn get(&self, stream: StreamId) -> Option<Kept> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.uses += 1;
        let now = inner.uses;
        let (used, kept) = inner.kept.get_mut(&stream)?;
        *used = now;
        Some(kept.clone())
    }

    fn forget(&self, stream: StreamId) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).kept.remove(&stream);
    }

    fn put(&self, stream: StreamId, kept: Kept) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.uses += 1;
        let now = inner.uses;
        if inner.kept.len() >= CACHED_STREAMS {
            let mut ages: Vec<u64> = inner.kept.values().map(|(used, _)| *used).collect();
            let middle = ages.len() / 2;
            let (_, median, _) = ages.select_nth_unstable(middle);
            let median = *median;
            inner.kept.retain(|_, (used, _)| *used > median);
        }
        inner.kept.insert(stream, (now, kept));
    }
}

impl Tx<'_> {
    /// Reads a whole case, as of one moment: all of it comes from one statement. What it needs is found out from the histories
    /// themselves; what the kept states say will be needed is read along at once, so that one reading is enough for a case that
    /// was met before. Read in two statements, a task and its attempt could be of two moments, and a message be declined for a
    /// reason that never was. With it comes that moment, by the database's clock.
    pub(crate) async fn load(&mut self, case: Case) -> Result<(Case, Timestamp), StoreError> {
        let mut streams = self.foreseen(&case, &case.wants());
        let mut distrusted = HashSet::new();
        loop {
            let Some((mut read, now)) = self.fold(&streams, &mut distrusted).await? else { continue };
            let mut whole = case.clone();
            let missing = loop {
                let wanted = whole.wants();
                if wanted.is_empty() {
                    return Ok((whole, now));
                }
                let missing: Vec<StreamId> = wanted.iter().filter(|it| !read.contains_key(it)).copied().collect();
                if !missing.is_empty() {
                    break missing;
                }
                for stream in wanted {
                    if let Some(folded) = read.remove(&stream) {
                        whole.supply(stream, folded);
                    }
                }
            };
            streams.extend(missing);
        }
    }

    /// The streams that are wanted now, and those that will be, as far as the kept states tell.
    fn foreseen(&self, case: &Case, wanted: &[StreamId]) -> Vec<StreamId> {
        let mut streams = wanted.to_vec();
        let mut guess = case.clone();
        for stream in wanted {
            let Some(kept) = self.store.cache.get(*stream) else { return streams };
            guess.supply(*stream, kept.folded);
        }
        streams.extend(guess.wants());
        streams
    }

    /// Reads and folds streams. `None`: a snapshot can not be used; its stream is among the distrusted now, and all is to be read
    /// again, for it must be of one moment.
    async fn fold(
        &mut self,
        streams: &[StreamId],
        distrusted: &mut HashSet<StreamId>,
    ) -> Result<Option<(HashMap<StreamId, Folded>, Timestamp)>, StoreError> {
        let kept: Vec<Kept> = streams
            .iter()
            .map(|stream| self.store.cache.get(*stream).unwrap_or_else(|| Kept::absent(stream.category)))
            .collect();
        let (mut news, now) = self.news(streams, &kept, distrusted).await?;
        let mut folded = HashMap::with_capacity(streams.len());
        for (stream, kept) in streams.iter().zip(kept) {
            let News { snapshot, events } = news.remove(stream).unwrap_or_default();
            let start = match snapshot.map(|it| it.open(*stream, events.first())) {
                None => kept,
                Some(Ok(state)) => {
                    let start = Kept { snapshot: state.version(), folded: state };
                    self.store.cache.put(*stream, start.clone());
                    start
                }
                Some(Err(rejected)) => {
                    self.store.snapshots.reject(*stream, rejected);
                    distrusted.insert(*stream);
                    return Ok(None);
                }
            };
            folded.insert(*stream, self.continued(*stream, start, events)?);
        }
        Ok(Some((folded, now)))
    }

    /// Folds what came after a state, and keeps the result.
    fn continued(&self, stream: StreamId, start: Kept, mut events: Vec<(i64, Stored)>) -> Result<Folded, StoreError> {
        let version = start.folded.version();
        if version > 0 {
            // The first row is the event that the state ends with. Without it the log is not the one that was folded (a restore,
            // a standby that lacked it): nothing kept of this stream is to be believed.
            if events.first().is_none_or(|(first, _)| *first != version) {
                self.store.cache.forget(stream);
                return Err(StoreError::Race);
            }
            events.remove(0);
        }
        let Some((newest, last)) = events.last() else { return Ok(start.folded) };
        let last = is_due(*newest, start.snapshot).then(|| last.clone());
        let folded = start.folded.fold(stream, events)?;
        // Asked for counts as written: if it comes to nothing, the next one is due as much later.
        let snapshot = if last.is_some() { folded.version() } else { start.snapshot };
        self.store.cache.put(stream, Kept { folded: folded.clone(), snapshot });
        if let Some(last) = last {
            self.store.snapshots.offer(stream, folded.clone(), last);
        }
        Ok(folded)
    }

    /// What came after the kept versions, and the time. Snapshots are looked for only where a stream is not kept at all.
    async fn news(
        &mut self,
        streams: &[StreamId],
        kept: &[Kept],
        distrusted: &HashSet<StreamId>,
    ) -> Result<(HashMap<StreamId, News>, Timestamp), StoreError> {
        let cold: Vec<bool> =
            streams.iter().zip(kept).map(|(stream, kept)| kept.is_cold() && !distrusted.contains(stream)).collect();
        let statement = if cold.contains(&true) { COLD } else { WARM };
        let mut query = sqlx::query(statement)
            .bind(streams.iter().map(|it| it.category.name()).collect::<Vec<_>>())
            .bind(streams.iter().map(|it| it.id).collect::<Vec<_>>())
            .bind(kept.iter().map(|it| it.folded.version()).collect::<Vec<_>>())
            // No limit at all, in truth. On the events one keeps the planner from turning the look-ups by index into a scan of the
            // whole log, which it does when it plans while the log is small, and keeps for the connection's life. On the streams
            // one lets it keep its plan: it takes ten streams for likely and a tenth of them for what an unknown limit leaves;
            // without, it finds each plan for the actual two or three cheaper, and plans anew at every load.
            .bind(i64::MAX);
        if cold.contains(&true) {
            query = query.bind(&cold);
        }
        let mut news: HashMap<StreamId, News> = HashMap::with_capacity(streams.len());
        let rows = query.fetch_all(&mut *self.inner).await?;
        let now = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("now")?;
        for row in rows {
            // The query asked for known categories only; where there is nothing at all, a row with the time came all the same.
            let category: Option<String> = row.try_get("category")?;
            let Some(category) = category.as_deref().and_then(Category::parse) else { continue };
            let stream = StreamId { category, id: row.try_get("stream_id")? };
            news.entry(stream).or_default().take(&row)?;
        }
        Ok((news, now))
    }
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
           SELECT e.*
             FROM (SELECT * FROM unnest($1::text[], $2::uuid[], $3::bigint[]) LIMIT $4) AS wanted (category, stream_id, version)
            CROSS JOIN LATERAL (
                  SELECT category, stream_id, version, name, schema_version, body FROM events
                   WHERE category = wanted.category AND stream_id = wanted.stream_id AND version >= wanted.version
                   ORDER BY version LIMIT $4) AS e) AS e ON true";

/// The same, from the snapshots on. A snapshot is a row without a name, before the events.
const COLD: &str = "/* eventstore.load_cold */
    WITH start AS MATERIALIZED (
        SELECT wanted.category, wanted.stream_id, coalesce(s.version, wanted.version) AS version, s.shape, s.digest, s.state
          FROM (SELECT * FROM unnest($1::text[], $2::uuid[], $3::bigint[], $5::bool[]) LIMIT $4)
               AS wanted (category, stream_id, version, cold)
          LEFT JOIN LATERAL (
               SELECT version, shape, digest, state FROM snapshots
                WHERE wanted.cold AND category = wanted.category AND stream_id = wanted.stream_id LIMIT $4) AS s ON true)
    SELECT clock_timestamp() AS now, e.*
      FROM (SELECT) AS always
      LEFT JOIN (
           SELECT category, stream_id, version, NULL::text AS name, shape AS schema_version, state AS body, digest
             FROM start WHERE digest IS NOT NULL
            UNION ALL
           SELECT e.*, NULL::bytea
             FROM start
            CROSS JOIN LATERAL (
                  SELECT category, stream_id, version, name, schema_version, body FROM events
                   WHERE category = start.category AND stream_id = start.stream_id AND version >= start.version
                   ORDER BY version LIMIT $4) AS e) AS e ON true";
