//! Rows that have no table of a day: deleted in small batches, so that locks are short and autovacuum keeps up.

use super::RetentionConfig;
use sqlx::PgConnection;
use std::time::Duration;

/// Rows that one statement deletes.
const BATCH: i64 = 1_000;
/// Batches of one table in one round: the rest is left to the next.
const BATCHES: u32 = 500;

/// A table, for how many days its rows are kept, and the statement that deletes a batch of what is older.
type Rule = (&'static str, u16, &'static str);

fn rules(config: &RetentionConfig) -> [Rule; 7] {
    [
        (
            "outbox_sent_rest",
            config.sent_days,
            "/* retention.prune_outbox */
             DELETE FROM outbox_sent_rest WHERE ctid = ANY (ARRAY(
                 SELECT ctid FROM outbox_sent_rest WHERE published_at < statement_timestamp() - make_interval(days => $1)
                  ORDER BY published_at LIMIT $2 FOR UPDATE SKIP LOCKED))",
        ),
        (
            "inbox_rest",
            config.inbox_days,
            // What is only claimed is not finished: it waits for its message to come again, or for a person.
            "/* retention.prune_inbox */
             DELETE FROM inbox_rest WHERE ctid = ANY (ARRAY(
                 SELECT ctid FROM inbox_rest
                  WHERE processed_at < statement_timestamp() - make_interval(days => $1) AND phase = 'done'
                  ORDER BY processed_at LIMIT $2 FOR UPDATE SKIP LOCKED))",
        ),
        (
            "repairs",
            config.repair_days,
            "/* retention.prune_repairs */
             DELETE FROM repairs WHERE ctid = ANY (ARRAY(
                 SELECT ctid FROM repairs WHERE created_at < statement_timestamp() - make_interval(days => $1)
                  ORDER BY created_at LIMIT $2))",
        ),
        (
            "notifications",
            config.notification_days,
            "/* retention.prune_notifications */
             DELETE FROM notifications WHERE ctid = ANY (ARRAY(
                 SELECT ctid FROM notifications WHERE created_at < statement_timestamp() - make_interval(days => $1)
                  ORDER BY created_at LIMIT $2))",
        ),
        (
            "provider_callbacks",
            config.callback_days,
            "/* retention.prune_callbacks */
             DELETE FROM provider_callbacks WHERE ctid = ANY (ARRAY(
                 SELECT ctid FROM provider_callbacks WHERE received_at < statement_timestamp() - make_interval(days => $1)
                  ORDER BY received_at LIMIT $2))",
        ),
        (
            "unmatched_callbacks",
            config.callback_days,
            "/* retention.prune_unmatched_callbacks */
             DELETE FROM unmatched_callbacks WHERE ctid = ANY (ARRAY(
                 SELECT ctid FROM unmatched_callbacks WHERE received_at < statement_timestamp() - make_interval(days => $1)
                  ORDER BY received_at LIMIT $2))",
        ),
        (
            "message_quarantine",
            config.quarantine_days,
            "/* retention.prune_quarantine */
             DELETE FROM message_quarantine WHERE ctid = ANY (ARRAY(
                 SELECT ctid FROM message_quarantine WHERE last_failed_at < statement_timestamp() - make_interval(days => $1)
                  ORDER BY last_failed_at LIMIT $2 FOR UPDATE SKIP LOCKED))",
        ),
    ]
}

/// Deletes what is over; says how many rows of which tables.
pub(super) async fn prune(
    connection: &mut PgConnection,
    config: &RetentionConfig,
) -> Result<Vec<(&'static str, u64)>, sqlx::Error> {
    let mut deleted = Vec::new();
    for (table, days, statement) in rules(config) {
        let mut rows = 0;
        for _ in 0..BATCHES {
            let done = sqlx::query(statement).bind(i32::from(days)).bind(BATCH).execute(&mut *connection).await?;
            rows += done.rows_affected();
            if done.rows_affected() < BATCH.unsigned_abs() {
                break;
            }
            // Others want the disk too.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if rows > 0 {
            deleted.push((table, rows));
        }
    }
    Ok(deleted)
}
