//! Reading streams and folding them.
//!
//! Folded streams are kept in memory and only the events after the kept version are read. That is safe because a stored
//! event never changes: the state at version n is the same whoever folds it. Only committed events get in, and each reading
//! checks that the log still has the event that the kept state ends with. A stream that is not in memory begins at its snapshot,
//! where it has one that can be used: the same rule, and the same check.

mod reading;

pub(crate) use reading::Readings;

use crate::connect::Store;
use crate::error::StoreError;
use crate::snapshot::{SnapshotRow, is_due};
use domain::aggregate::Category;
use domain::process::{Case, Folded, StreamId};
use domain::stored::Stored;
use domain::time::Timestamp;
use reading::{Wanted, read};
use sqlx::PgConnection;
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
pub(crate) struct News {
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

/// What streams are read through.
pub(crate) enum Through<'c> {
    /// A statement that is shared with whoever reads at the same time.
    Batches,
    /// The connection of a transaction.
    Connection(&'c mut PgConnection),
}

impl Store {
    /// Reads a whole case, as of one moment: all of it comes from one statement. What it needs is found out from the histories
    /// themselves; what the kept states say will be needed is read along at once, so that one reading is enough for a case that
    /// was met before. Read in two statements, a task and its attempt could be of two moments, and a message be declined for a
    /// reason that never was. With it comes that moment, by the database's clock.
    pub(crate) async fn load(&self, mut through: Through<'_>, case: Case) -> Result<(Case, Timestamp), StoreError> {
        let mut streams = self.foreseen(&case, &case.wants());
        let mut distrusted = HashSet::new();
        loop {
            let Some((mut read, now)) = self.fold(&mut through, &streams, &mut distrusted).await? else { continue };
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
            let Some(kept) = self.cache.get(*stream) else { return streams };
            guess.supply(*stream, kept.folded);
        }
        streams.extend(guess.wants());
        streams
    }

    /// Reads and folds streams. `None`: a snapshot can not be used; its stream is among the distrusted now, and all is to be read
    /// again, for it must be of one moment.
    async fn fold(
        &self,
        through: &mut Through<'_>,
        streams: &[StreamId],
        distrusted: &mut HashSet<StreamId>,
    ) -> Result<Option<(HashMap<StreamId, Folded>, Timestamp)>, StoreError> {
        let kept: Vec<Kept> = streams
            .iter()
            .map(|stream| self.cache.get(*stream).unwrap_or_else(|| Kept::absent(stream.category)))
            .collect();
        let wanted = streams.iter().zip(&kept).map(|(stream, kept)| Wanted {
            stream: *stream,
            from: kept.folded.version(),
            cold: kept.is_cold() && !distrusted.contains(stream),
        });
        let (mut news, now) = self.news(through, wanted.collect()).await?;
        let mut folded = HashMap::with_capacity(streams.len());
        for (stream, kept) in streams.iter().zip(kept) {
            let News { snapshot, events } = news.remove(stream).unwrap_or_default();
            let start = match snapshot.map(|it| it.open(*stream, events.first())) {
                None => kept,
                Some(Ok(state)) => {
                    let start = Kept { snapshot: state.version(), folded: state };
                    self.cache.put(*stream, start.clone());
                    start
                }
                Some(Err(rejected)) => {
                    self.snapshots.reject(*stream, rejected);
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
                self.cache.forget(stream);
                return Err(StoreError::Race);
            }
            events.remove(0);
        }
        let Some((newest, last)) = events.last() else { return Ok(start.folded) };
        let last = is_due(*newest, start.snapshot).then(|| last.clone());
        let folded = start.folded.fold(stream, events)?;
        // Asked for counts as written: if it comes to nothing, the next one is due as much later.
        let snapshot = if last.is_some() { folded.version() } else { start.snapshot };
        self.cache.put(stream, Kept { folded: folded.clone(), snapshot });
        if let Some(last) = last {
            self.snapshots.offer(stream, folded.clone(), last);
        }
        Ok(folded)
    }

    /// What came after the kept versions, and the time.
    async fn news(
        &self,
        through: &mut Through<'_>,
        wanted: Vec<Wanted>,
    ) -> Result<(HashMap<StreamId, News>, Timestamp), StoreError> {
        match through {
            Through::Connection(connection) => {
                let (mut news, now) = read(connection, &[wanted]).await?;
                Ok((news.pop().unwrap_or_default(), now))
            }
            // Who meets a stream for the first time may have much to read: nobody else waits for that.
            Through::Batches if wanted.iter().any(|it| it.cold) => {
                self.cold_readings.ask(wanted.into()).await.ok_or_else(StoreError::cut_off)?
            }
            Through::Batches => self.readings.ask(wanted.into()).await.ok_or_else(StoreError::cut_off)?,
        }
    }
}
