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
    /// Reads a whole case. What it needs is found out step by step from the histories themselves.
    pub(crate) async fn load(&mut self, mut case: Case) -> Result<Case, StoreError> {
        loop {
            let wanted = case.wants();
            if wanted.is_empty() {
                return Ok(case);
            }
            for (stream, folded) in self.fold(&wanted).await? {
                case.supply(stream, folded);
            }
        }
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
             SELECT e.category, e.stream_id, e.version, e.name, e.schema_version, e.body
               FROM unnest($1::text[], $2::uuid[], $3::bigint[]) AS wanted (category, stream_id, version)
               JOIN events e ON e.category = wanted.category AND e.stream_id = wanted.stream_id
                            AND e.version >= wanted.version
              ORDER BY e.category, e.stream_id, e.version",
        )
        .bind(streams.iter().map(|it| it.category.name()).collect::<Vec<_>>())
        .bind(streams.iter().map(|it| it.id).collect::<Vec<_>>())
        .bind(kept.iter().map(Folded::version).collect::<Vec<_>>())
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
