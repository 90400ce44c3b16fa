//! Reading streams and folding them.
//!
//! Folded streams are kept in memory and only the events after the kept version are read. That is safe because a stored
//! event never changes: the state at version n is the same whoever folds it. Only committed events get in, and each reading
//! checks that the log still has the event that the kept state ends with.

use crate::error::StoreError;
use crate::transaction::Tx;
use domain::aggregate::Category;
use domain::process::{Case, Folded, StreamId};
use domain::stored::Stored;
use sqlx::Row;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Folded streams by id, bounded: when it is full, the half that was used longest ago goes.
#[derive(Debug, Default)]
pub(crate) struct FoldCache {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    folded: HashMap<StreamId, (u64, Folded)>,
    uses: u64,
}

const CACHED_STREAMS: usize = 20_000;

impl FoldCache {
    fn get(&self, stream: StreamId) -> Option<Folded> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.uses += 1;
        let now = inner.uses;
        let (used, folded) = inner.folded.get_mut(&stream)?;
        *used = now;
        Some(folded.clone())
    }

    fn forget(&self, stream: StreamId) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).folded.remove(&stream);
    }

    fn put(&self, stream: StreamId, folded: Folded) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.uses += 1;
        let now = inner.uses;
        if inner.folded.len() >= CACHED_STREAMS {
            let mut ages: Vec<u64> = inner.folded.values().map(|(used, _)| *used).collect();
            let middle = ages.len() / 2;
            let (_, median, _) = ages.select_nth_unstable(middle);
            let median = *median;
            inner.folded.retain(|_, (used, _)| *used > median);
        }
        inner.folded.insert(stream, (now, folded));
    }
}

impl Tx<'_> {
    /// Reads a whole case, as of one moment: all of it comes from one statement. What it needs is found out from the histories
    /// themselves; what the kept states say will be needed is read along at once, so that one reading is enough for a case that
    /// was met before. Read in two statements, a task and its attempt could be of two moments, and a message be declined for a
    /// reason that never was.
    pub(crate) async fn load(&mut self, case: Case) -> Result<Case, StoreError> {
        let mut streams = self.foreseen(&case, &case.wants());
        loop {
            let mut read: HashMap<StreamId, Folded> = self.fold(&streams).await?.into_iter().collect();
            let mut whole = case.clone();
            let missing = loop {
                let wanted = whole.wants();
                if wanted.is_empty() {
                    return Ok(whole);
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
            guess.supply(*stream, kept);
        }
        streams.extend(guess.wants());
        streams
    }

    async fn fold(&mut self, streams: &[StreamId]) -> Result<Vec<(StreamId, Folded)>, StoreError> {
        let kept: Vec<Folded> = streams
            .iter()
            .map(|stream| self.store.cache.get(*stream).unwrap_or_else(|| Folded::absent(stream.category)))
            .collect();
        let mut news = self.events_after(streams, &kept).await?;
        let mut folded = Vec::with_capacity(streams.len());
        for (stream, kept) in streams.iter().zip(kept) {
            let mut events = news.remove(stream).unwrap_or_default();
            if kept.version() > 0 {
                // The first row is the event that the kept state ends with. Without it the log is not the one that was
                // folded (a restore, a standby that lacked it): nothing kept of this stream is to be believed.
                if events.first().is_none_or(|(version, _)| *version != kept.version()) {
                    self.store.cache.forget(*stream);
                    return Err(StoreError::Race);
                }
                events.remove(0);
            }
            let changed = !events.is_empty();
            let state = kept.fold(*stream, events)?;
            if changed {
                self.store.cache.put(*stream, state.clone());
            }
            folded.push((*stream, state));
        }
        Ok(folded)
    }

    async fn events_after(
        &mut self,
        streams: &[StreamId],
        kept: &[Folded],
    ) -> Result<HashMap<StreamId, Vec<(i64, Stored)>>, StoreError> {
        let rows = sqlx::query(
            "/* eventstore.load */
             SELECT e.*
               FROM unnest($1::text[], $2::uuid[], $3::bigint[]) AS wanted (category, stream_id, version)
              CROSS JOIN LATERAL (
                    SELECT category, stream_id, version, name, schema_version, body FROM events
                     WHERE category = wanted.category AND stream_id = wanted.stream_id AND version >= wanted.version
                     ORDER BY version LIMIT $4) AS e",
        )
        .bind(streams.iter().map(|it| it.category.name()).collect::<Vec<_>>())
        .bind(streams.iter().map(|it| it.id).collect::<Vec<_>>())
        .bind(kept.iter().map(Folded::version).collect::<Vec<_>>())
        // No limit at all, in truth: one keeps the planner from turning the look-ups by index into a scan of the whole log,
        // which it does when it plans while the log is small, and keeps for the connection's life.
        .bind(i64::MAX)
        .fetch_all(&mut *self.inner)
        .await?;
        let mut news: HashMap<StreamId, Vec<(i64, Stored)>> = HashMap::new();
        for row in rows {
            let category: String = row.try_get("category")?;
            // The query asked for known categories only.
            let Some(category) = Category::parse(&category) else { continue };
            let stream = StreamId { category, id: row.try_get("stream_id")? };
            let stored = Stored {
                name: row.try_get("name")?,
                version: row.try_get("schema_version")?,
                body: row.try_get("body")?,
            };
            news.entry(stream).or_default().push((row.try_get("version")?, stored));
        }
        Ok(news)
    }
}
