//! Wake-ups for relays and projectors, after the commit.
//!
//! PostgreSQL lets one transaction at a time commit a `NOTIFY`, and holds the lock until that commit is on disk: inside the
//! business transactions, notifications would make all of them commit one after the other. So they are sent in a transaction
//! of their own, after the commit, many at once as one. One that is lost (the process dies in between) costs the reader one
//! tick of its timer: the tables are the truth.

use sqlx::PgPool;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;

/// Events were appended.
pub(crate) const EVENTS: u8 = 1;
/// Outbox rows were written.
pub(crate) const OUTBOX: u8 = 2;
/// Between two wake-ups: while many write, what is written meanwhile is told as one. Nobody reads faster than this, and without
/// it one connection would do nothing but wake.
const GAP: Duration = Duration::from_millis(2);

/// Rings the bells of relays and projectors, in this process and in others.
#[derive(Debug)]
pub(crate) struct Ringer {
    pool: PgPool,
    /// What has to be rung.
    due: AtomicU8,
    /// Whether the task below runs.
    ringing: AtomicBool,
    task: Mutex<JoinSet<()>>,
}

impl Ringer {
    pub(crate) fn new(pool: PgPool) -> Arc<Self> {
        Arc::new(Self { pool, due: AtomicU8::new(0), ringing: AtomicBool::new(false), task: Mutex::default() })
    }

    /// Rings soon; whoever calls does not wait for it.
    pub(crate) fn ring(self: &Arc<Self>, news: u8) {
        if news == 0 {
            return;
        }
        self.due.fetch_or(news, Ordering::SeqCst);
        if self.ringing.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        while task.try_join_next().is_some() {}
        task.spawn(Arc::clone(self).until_quiet());
    }

    async fn until_quiet(self: Arc<Self>) {
        loop {
            let news = self.due.swap(0, Ordering::SeqCst);
            if news != 0 {
                self.notify(news).await;
                tokio::time::sleep(GAP).await;
                continue;
            }
            self.ringing.store(false, Ordering::SeqCst);
            // What came between the two lines above has found the flag set, and left it to this task.
            if self.due.load(Ordering::SeqCst) == 0 || self.ringing.swap(true, Ordering::SeqCst) {
                return;
            }
        }
    }

    async fn notify(&self, news: u8) {
        // Not waiting for the disk: after a crash of the database the readers look at the tables anyway.
        let sent = sqlx::query(
            "/* eventstore.notify */
             SELECT set_config('synchronous_commit', 'off', true),
                    CASE WHEN $1 THEN pg_notify('aivideo_events', '') END,
                    CASE WHEN $2 THEN pg_notify('aivideo_outbox', '') END",
        )
        .bind(news & EVENTS != 0)
        .bind(news & OUTBOX != 0)
        .execute(&self.pool)
        .await;
        if let Err(error) = sent {
            tracing::debug!(error = &error as &dyn std::error::Error, "a wake-up was not sent; timers go on");
        }
    }
}
