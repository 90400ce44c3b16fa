//! Deleting what is no longer needed. Facts are never deleted; published outbox rows and finished inbox rows are, in small
//! batches. Once an inbox row is gone, business keys and versions decide about a message that comes again.

use sqlx::PgPool;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Rows that one statement deletes: short locks, and autovacuum keeps up.
const BATCH: i64 = 1_000;

/// How long things are kept.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Outbox rows after their publication.
    pub published: Duration,
    /// Inbox rows after their handling.
    pub inbox: Duration,
    /// Pause between two rounds.
    pub every: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        const DAY: u64 = 24 * 3600;
        Self {
            published: Duration::from_secs(7 * DAY),
            inbox: Duration::from_secs(30 * DAY),
            every: Duration::from_secs(600),
        }
    }
}

/// What one round deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Outbox rows.
    pub published: u64,
    /// Inbox rows.
    pub inbox: u64,
}

/// Deletes outbox rows that were published longer ago than this. Says how many.
///
/// # Errors
/// The database can not be used; what was deleted before stays deleted.
pub async fn prune_published(pool: &PgPool, older_than: Duration) -> Result<u64, sqlx::Error> {
    prune(
        pool,
        older_than,
        "/* relay.prune_published */
         DELETE FROM outbox_events WHERE id IN (
             SELECT id FROM outbox_events WHERE published_at < statement_timestamp() - $1 * interval '1 second'
              ORDER BY published_at LIMIT $2 FOR UPDATE SKIP LOCKED)",
    )
    .await
}

/// Deletes inbox rows that were finished longer ago than this; those only claimed stay. Says how many.
///
/// # Errors
/// The database can not be used; what was deleted before stays deleted.
pub async fn prune_inbox(pool: &PgPool, older_than: Duration) -> Result<u64, sqlx::Error> {
    prune(
        pool,
        older_than,
        "/* relay.prune_inbox */
         DELETE FROM inbox_dedup WHERE (consumer_name, event_id) IN (
             SELECT consumer_name, event_id FROM inbox_dedup
              WHERE processed_at < statement_timestamp() - $1 * interval '1 second' AND phase = 'done'
              ORDER BY processed_at LIMIT $2 FOR UPDATE SKIP LOCKED)",
    )
    .await
}

async fn prune(pool: &PgPool, older_than: Duration, statement: &'static str) -> Result<u64, sqlx::Error> {
    let seconds = i64::try_from(older_than.as_secs()).unwrap_or(i64::MAX / 1_000_000);
    let mut deleted = 0;
    loop {
        let batch = sqlx::query(statement).bind(seconds).bind(BATCH).execute(pool).await?.rows_affected();
        deleted += batch;
        if batch < BATCH.unsigned_abs() {
            return Ok(deleted);
        }
        // Others want the disk too.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Prunes again and again until it is cancelled. A failed round is logged, and the next one makes up for it.
pub async fn housekeep(pool: &PgPool, retention: Retention, cancel: CancellationToken) {
    loop {
        let round = async {
            let published = prune_published(pool, retention.published).await?;
            let inbox = prune_inbox(pool, retention.inbox).await?;
            Ok::<_, sqlx::Error>(Pruned { published, inbox })
        };
        tokio::select! {
            () = cancel.cancelled() => return,
            pruned = round => match pruned {
                Ok(pruned) if pruned != Pruned::default() => tracing::info!(?pruned, "old rows are deleted"),
                Ok(_) => {}
                Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "old rows could not be deleted"),
            },
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(retention.every) => {}
        }
    }
}
