//! The business transaction. Private to this crate: no other can name it, hold it, or await beside it.

use crate::append::{Append, Meta};
use crate::connect::Store;
use crate::error::StoreError;
use crate::load::Through;
use domain::message::Message;
use domain::process::{Case, StreamId};
use domain::time::Timestamp;
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

pub(crate) struct Tx<'s> {
    pub(crate) store: &'s Store,
    pub(crate) inner: Transaction<'static, Postgres>,
    /// What readers are woken for after the commit: see [`crate::wakeup`].
    pub(crate) news: u8,
}

impl Store {
    /// Opens a transaction at READ COMMITTED: the streams' versions are what conflicts are found by.
    pub(crate) async fn begin(&self) -> Result<Tx<'_>, StoreError> {
        Ok(Tx { store: self, inner: self.pool.begin().await?, news: 0 })
    }
}

impl Tx<'_> {
    pub(crate) async fn commit(self) -> Result<(), StoreError> {
        let Self { store, inner, news } = self;
        let committed = inner.commit().await;
        // Also where the answer was lost: it may have been committed.
        store.ringer.ring(news);
        Ok(committed?)
    }

    /// Reads a whole case: see [`Store::load`].
    pub(crate) async fn load(&mut self, case: Case) -> Result<(Case, Timestamp), StoreError> {
        self.store.load(Through::Connection(&mut self.inner), case).await
    }

    /// Appends everything, and what belongs beside it, in one statement. A version that somebody else took first is
    /// [`StoreError::Race`].
    pub(crate) async fn append(&mut self, append: Append) -> Result<(), StoreError> {
        self.news |= append.news();
        Ok(crate::append::append(&mut self.inner, &[append]).await?)
    }

    /// Publishes one message that no event announces (a callback, a repair). `id` makes it the same when it is repeated.
    pub(crate) async fn publish(
        &mut self,
        id: Uuid,
        message: &Message,
        meta: Meta,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.append(Append::message(id, message, meta, now)?).await
    }

    /// The database's clock: every time that is stored or compared comes from this one.
    pub(crate) async fn now(&mut self) -> Result<Timestamp, StoreError> {
        Ok(sqlx::query_scalar("/* eventstore.now */ SELECT clock_timestamp()").fetch_one(&mut *self.inner).await?)
    }

    /// Queues up behind other writers of these streams. Taken only after a lost race, in order, so that a stream that many
    /// write to (an account) is shared fairly instead of fought over.
    pub(crate) async fn queue_up(&mut self, streams: &[StreamId]) -> Result<(), StoreError> {
        let mut keys: Vec<i64> = streams.iter().map(|stream| lock_key(*stream)).collect();
        keys.sort_unstable();
        keys.dedup();
        sqlx::query(
            "/* eventstore.queue_up */ SELECT pg_advisory_xact_lock(k) FROM unnest($1::bigint[]) AS k ORDER BY k",
        )
        .bind(keys)
        .execute(&mut *self.inner)
        .await?;
        Ok(())
    }
}

/// The top byte keeps these locks apart from the writers' fence (7, see the migrations).
fn lock_key(stream: StreamId) -> i64 {
    let (high, low) = stream.id.as_u64_pair();
    let mixed = (high ^ low.rotate_left(23) ^ (stream.category as u64)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let folded = mixed >> 8;
    i64::try_from((9_u64 << 56) | folded).unwrap_or(9 << 56)
}

/// How a case is read and what came of it is written.
pub(crate) enum Session<'s> {
    /// By one statement each, which others may share, and which commits by itself: BEGIN and COMMIT would be two more trips to the
    /// database. Nothing is lost by that: at READ COMMITTED, what is read is of its statement's moment either way, and only the
    /// statement that writes finds out whether it still holds. Not for locks.
    Together(&'s Store),
    /// In a transaction.
    Alone(Tx<'s>),
}

impl Session<'_> {
    /// Reads a whole case: see [`Store::load`].
    pub(crate) async fn load(&mut self, case: Case) -> Result<(Case, Timestamp), StoreError> {
        match self {
            Self::Together(store) => store.load(Through::Batches, case).await,
            Self::Alone(tx) => tx.load(case).await,
        }
    }

    /// Appends and commits. A version or a row that somebody else took first is [`StoreError::Race`].
    pub(crate) async fn record(self, append: Append) -> Result<(), StoreError> {
        match self {
            Self::Together(store) => store.appends.ask(append).await.ok_or_else(StoreError::cut_off)?,
            Self::Alone(mut tx) => {
                tx.append(append).await?;
                tx.commit().await
            }
        }
    }
}
