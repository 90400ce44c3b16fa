//! Snapshots of long streams: a shortcut for whoever has to fold one from its first event, and never more than that.
//!
//! They are written beside the business transactions, by one task per process, from states that were folded of committed events.
//! Reading one costs nothing where the state is kept in memory: see [`crate::load`].

use crate::error::StoreError;
use crate::logged::canonical;
use domain::process::{Folded, StreamId};
use domain::stored::Stored;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use sqlx::PgPool;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::JoinSet;

/// A stream with fewer events than this after its last snapshot, or at all, gets none: reading them takes about as long as
/// the way to the database and back.
const EVENTS_BETWEEN: i64 = 100;
/// Neither does one of which less than this part is new. A snapshot grows with its stream: written at even distances, they would
/// cost a stream of n events n² bytes; so the bytes that one event costs stay the same, however long its stream gets.
const PART_BETWEEN: i64 = 50;

/// Whether a stream is due for a snapshot.
pub(crate) const fn is_due(version: i64, last_snapshot: i64) -> bool {
    let news = version - last_snapshot;
    news >= EVENTS_BETWEEN && news >= version / PART_BETWEEN
}

/// A row of `snapshots`, not yet believed.
#[derive(Debug)]
pub(crate) struct SnapshotRow {
    pub(crate) version: i64,
    pub(crate) shape: i16,
    pub(crate) digest: Vec<u8>,
    pub(crate) state: Value,
}

/// Why a snapshot is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unusable {
    Shape,
    BeyondTheLog,
    Changed,
    Unreadable,
}

impl Unusable {
    const fn reason(self) -> &'static str {
        match self {
            Self::Shape => "it has another shape than this build writes",
            Self::BeyondTheLog => "the log does not have the event that it ends with",
            Self::Changed => "it is not what was written",
            Self::Unreadable => "its state does not decode",
        }
    }
}

/// A snapshot that is not used, by what tells it from any other of its stream.
#[derive(Debug)]
pub(crate) struct Rejected {
    version: i64,
    shape: i16,
    digest: Vec<u8>,
    why: Unusable,
}

impl SnapshotRow {
    /// The state, if it is one that this build wrote, of this log. `first` is the first event that was read from the snapshot's
    /// version on: the one that it ends with.
    pub(crate) fn open(self, stream: StreamId, first: Option<&(i64, Stored)>) -> Result<Folded, Rejected> {
        let Self { version, shape, digest, state } = self;
        let reject = |why, digest| Rejected { version, shape, digest, why };
        if shape != Folded::shape(stream.category) {
            return Err(reject(Unusable::Shape, digest));
        }
        let Some((_, last)) = first.filter(|(first, _)| *first == version) else {
            return Err(reject(Unusable::BeyondTheLog, digest));
        };
        if digest != digest_of(stream, version, shape, last, &state) {
            return Err(reject(Unusable::Changed, digest));
        }
        Folded::from_snapshot(stream.category, version, state).ok_or_else(|| reject(Unusable::Unreadable, digest))
    }
}

/// A digest over all that must fit together. Not only the state: a field that is gone may still decode, and after a restore the log
/// may have other events under the same versions.
fn digest_of(stream: StreamId, version: i64, shape: i16, last: &Stored, state: &Value) -> Vec<u8> {
    let about = json!({
        "stream": stream.to_string(), "version": version, "shape": shape,
        "last": { "name": last.name, "schema_version": last.version, "body": last.body },
    });
    Sha256::new().chain_update(canonical(&about)).chain_update(canonical(state)).finalize().to_vec()
}

/// What is to be done about one stream's snapshot.
#[derive(Debug, Default)]
struct Due {
    rejected: Option<Rejected>,
    fresh: Option<(Folded, Stored)>,
}

#[derive(Debug, Default)]
struct Queue {
    due: HashMap<StreamId, Due>,
    /// Whether the task runs.
    writing: bool,
    task: JoinSet<()>,
}

/// Writes snapshots, one after the other, while nobody waits for them.
#[derive(Debug)]
pub(crate) struct Snapshots {
    pool: PgPool,
    queue: Mutex<Queue>,
}

impl Snapshots {
    pub(crate) fn new(pool: PgPool) -> Arc<Self> {
        Arc::new(Self { pool, queue: Mutex::default() })
    }

    /// Has a snapshot removed that could not be used. Once, whoever meets it: see [`Self::remove`].
    pub(crate) fn reject(self: &Arc<Self>, stream: StreamId, rejected: Rejected) {
        self.enqueue(stream, |due| due.rejected = Some(rejected));
    }

    /// Has the state written that ends with the event `last`. It must have been folded of committed events only.
    pub(crate) fn offer(self: &Arc<Self>, stream: StreamId, folded: Folded, last: Stored) {
        self.enqueue(stream, |due| due.fresh = Some((folded, last)));
    }

    fn enqueue(self: &Arc<Self>, stream: StreamId, add: impl FnOnce(&mut Due)) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        add(queue.due.entry(stream).or_default());
        if !std::mem::replace(&mut queue.writing, true) {
            while queue.task.try_join_next().is_some() {}
            queue.task.spawn(Arc::clone(self).until_done());
        }
    }

    /// Until there is nothing left to be written.
    #[cfg(feature = "testkit")]
    pub(crate) async fn quiet(&self) {
        loop {
            {
                let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
                while queue.task.try_join_next().is_some() {}
                if queue.task.is_empty() && queue.due.is_empty() {
                    return;
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    async fn until_done(self: Arc<Self>) {
        while let Some((stream, due)) = self.next() {
            if let Err(error) = self.write(stream, due).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%stream, error, "a snapshot was not written; the stream is folded from its events");
            }
        }
    }

    fn next(&self) -> Option<(StreamId, Due)> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = queue.due.keys().next().copied();
        queue.writing = stream.is_some();
        stream.and_then(|stream| Some((stream, queue.due.remove(&stream)?)))
    }

    async fn write(&self, stream: StreamId, due: Due) -> Result<(), StoreError> {
        if let Some(rejected) = due.rejected {
            self.remove(stream, &rejected).await?;
        }
        if let Some((folded, last)) = due.fresh
            && is_due(folded.version(), self.newest(stream).await?)
        {
            self.store(stream, &folded, &last).await?;
        }
        Ok(())
    }

    /// Removes exactly the row that was rejected, and says so: whoever else met it finds it gone.
    async fn remove(&self, stream: StreamId, rejected: &Rejected) -> Result<(), StoreError> {
        let Rejected { version, shape, digest, why } = rejected;
        let removed = sqlx::query(
            "/* eventstore.remove_snapshot */
             DELETE FROM snapshots
              WHERE category = $1 AND stream_id = $2 AND version = $3 AND shape = $4 AND digest = $5",
        )
        .bind(stream.category.name())
        .bind(stream.id)
        .bind(version)
        .bind(shape)
        .bind(digest)
        .execute(&self.pool)
        .await?;
        if removed.rows_affected() > 0 {
            let why = why.reason();
            tracing::warn!(%stream, version, shape, why, "a snapshot was not used, and is replaced from the events");
        }
        Ok(())
    }

    /// The version of the stream's snapshot, 0 where there is none: another process may have been first.
    async fn newest(&self, stream: StreamId) -> Result<i64, StoreError> {
        let newest: Option<i64> = sqlx::query_scalar(
            "/* eventstore.newest_snapshot */
             SELECT version FROM snapshots WHERE category = $1 AND stream_id = $2 AND shape = $3",
        )
        .bind(stream.category.name())
        .bind(stream.id)
        .bind(Folded::shape(stream.category))
        .fetch_optional(&self.pool)
        .await?;
        Ok(newest.unwrap_or(0))
    }

    pub(crate) async fn store(&self, stream: StreamId, folded: &Folded, last: &Stored) -> Result<(), StoreError> {
        let (version, shape) = (folded.version(), Folded::shape(stream.category));
        let state = folded.to_snapshot()?;
        sqlx::query(
            "/* eventstore.store_snapshot */
             INSERT INTO snapshots AS kept (category, stream_id, version, shape, digest, state) VALUES ($1, $2, $3, $4, $5, $6)
             ON CONFLICT (category, stream_id) DO UPDATE
                SET version = excluded.version, shape = excluded.shape, digest = excluded.digest, state = excluded.state,
                    written_at = excluded.written_at
              WHERE kept.version < excluded.version",
        )
        .bind(stream.category.name())
        .bind(stream.id)
        .bind(version)
        .bind(shape)
        .bind(digest_of(stream, version, shape, last, &state))
        .bind(&state)
        .execute(&self.pool)
        .await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::is_due;

    #[test]
    fn short_streams_get_none_and_long_ones_at_growing_distances() {
        assert!((0..100).all(|version| !is_due(version, 0)));
        assert!(is_due(100, 0) && !is_due(199, 100) && is_due(200, 100));
        assert!(!is_due(10_199, 10_000) && is_due(10_205, 10_000));
        let (mut last, mut written, mut bytes) = (0, 0, 0);
        for version in 1..=1_000_000_i64 {
            if is_due(version, last) {
                (last, written, bytes) = (version, written + 1, bytes + version);
            }
        }
        assert!(written < 600, "{written} snapshots");
        assert!(bytes / 1_000_000 <= 51, "each event is written {} times", bytes / 1_000_000);
    }
}
