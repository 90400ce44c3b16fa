//! The business transaction. Private to this crate: no other can name it, hold it, or await beside it.

use crate::connect::Store;
use crate::error::StoreError;
use domain::process::StreamId;
use domain::time::Timestamp;
use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres, Transaction};
use std::ops::{Deref, DerefMut};

pub(crate) struct Tx<'s> {
    pub(crate) store: &'s Store,
    pub(crate) inner: Session,
    /// What readers are woken for after the commit: see [`crate::wakeup`].
    pub(crate) news: u8,
}

/// The connection of a business transaction.
pub(crate) enum Session {
    /// Between BEGIN and COMMIT.
    Open(Transaction<'static, Postgres>),
    /// Each statement is a transaction.
    Single(PoolConnection<Postgres>),
}

impl Deref for Session {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        match self {
            Self::Open(transaction) => transaction,
            Self::Single(connection) => connection,
        }
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut PgConnection {
        match self {
            Self::Open(transaction) => transaction,
            Self::Single(connection) => connection,
        }
    }
}

impl Store {
    /// Opens a transaction at READ COMMITTED: the streams' versions are what conflicts are found by.
    pub(crate) async fn begin(&self) -> Result<Tx<'_>, StoreError> {
        Ok(Tx { store: self, inner: Session::Open(self.pool.begin().await?), news: 0 })
    }

    /// For what reads, decides, and then writes by one statement, [`Tx::append`]: it commits by itself, and BEGIN and COMMIT
    /// would be two more trips to the database around it. Nothing is lost by that: at READ COMMITTED, what is read is of its
    /// statement's moment either way, and only the statement that writes finds out whether it still holds. Not for locks.
    pub(crate) async fn single(&self) -> Result<Tx<'_>, StoreError> {
        Ok(Tx { store: self, inner: Session::Single(self.pool.acquire().await?), news: 0 })
    }
}

impl Tx<'_> {
    pub(crate) async fn commit(self) -> Result<(), StoreError> {
        let Self { store, inner, news } = self;
        let committed = match inner {
            Session::Open(transaction) => transaction.commit().await,
            Session::Single(_) => Ok(()),
        };
        // Also where the answer was lost: it may have been committed.
        store.ringer.ring(news);
        Ok(committed?)
    }

    /// The answer to a statement was lost, or an error. A statement that commits by itself may have been committed: readers are
    /// woken as after any commit.
    pub(crate) fn lost(&self) {
        if matches!(self.inner, Session::Single(_)) {
            self.store.ringer.ring(self.news);
        }
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
