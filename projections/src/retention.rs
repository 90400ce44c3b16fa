//! How long rows are kept that are no facts, and the work of letting go of them.
//!
//! Outbox and inbox have a table for each day. The tables of the next days are made ahead, those of days that are over are
//! dropped whole: nothing is deleted row by row, and no index is left full of holes. The other tables that only grow are
//! pruned in small batches. Facts are kept, and so is what decides about money: an idempotency key says for ever what its
//! request came to.
//!
//! Any number of processes may run this; one at a time does.

mod partitions;
mod rows;

use rand::RngExt;
use serde::Deserialize;
use sqlx::{Connection, PgConnection, PgPool};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

pub use partitions::make_ahead;

/// The section `[retention]`: how long things are kept, in days.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionConfig {
    /// Outbox rows after their publication. Longer than the doctor looks back for them (a day).
    pub sent_days: u16,
    /// Inbox rows after the handling of their message: longer than the broker can bring it back. After that, business keys
    /// and versions decide about a message that comes again.
    pub inbox_days: u16,
    /// Notices of what became of a task.
    pub notification_days: u16,
    /// Records of what the scan for stalled tasks did.
    pub repair_days: u16,
    /// Deliveries of providers' callbacks: longer than any provider repeats one.
    pub callback_days: u16,
    /// Messages in quarantine since they were last met, whether somebody dealt with them or not.
    pub quarantine_days: u16,
    /// For how many days ahead outbox and inbox have their tables.
    pub ahead_days: u16,
    /// Seconds between two rounds.
    pub every_seconds: u64,
    /// A snapshot (an open transaction) that is older than so many seconds is told of by `status` and `doctor`.
    pub snapshot_seconds: u64,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        Self {
            sent_days: 7,
            inbox_days: 30,
            notification_days: 30,
            repair_days: 30,
            callback_days: 90,
            quarantine_days: 365,
            ahead_days: 7,
            every_seconds: 600,
            snapshot_seconds: 300,
        }
    }
}

impl RetentionConfig {
    /// Refuses times under which a promise could not be kept.
    ///
    /// # Errors
    /// Says which key has to be what, and why.
    pub fn check(&self) -> Result<(), String> {
        let rules = [
            ("sent_days", self.sent_days >= 2, "at least 2: the doctor looks for the messages of the last day"),
            ("inbox_days", self.inbox_days >= 4, "at least 4: a broker brings messages back for 3 days"),
            (
                "inbox_days",
                self.inbox_days >= self.sent_days,
                "at least sent_days: what is sent again must be known again",
            ),
            ("notification_days", self.notification_days >= 1, "at least 1"),
            ("repair_days", self.repair_days >= 1, "at least 1: the doctor looks for the repairs of the last minutes"),
            ("callback_days", self.callback_days >= 7, "at least 7: providers repeat callbacks for days"),
            ("quarantine_days", self.quarantine_days >= 7, "at least 7: a person has to see them"),
            ("ahead_days", (1..=400).contains(&self.ahead_days), "between 1 and 400"),
            ("every_seconds", self.every_seconds >= 1, "at least 1"),
            ("snapshot_seconds", self.snapshot_seconds >= 1, "at least 1"),
        ];
        match rules.iter().find(|(_, holds, _)| !holds) {
            None => Ok(()),
            Some((key, _, rule)) => Err(format!("retention.{key} must be {rule}")),
        }
    }
}

/// What one round did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Tables of days that were made.
    pub made: u64,
    /// Tables of days that were dropped.
    pub dropped: Vec<String>,
    /// Tables that are over and were kept, with the reason; the next round looks again.
    pub kept: Vec<(String, String)>,
    /// Rows that were deleted, by table.
    pub deleted: Vec<(&'static str, u64)>,
}

impl Round {
    /// Rows that were deleted from a table.
    #[must_use]
    pub fn deleted_from(&self, table: &str) -> u64 {
        self.deleted.iter().filter(|(name, _)| *name == table).map(|(_, rows)| rows).sum()
    }
}

/// The session lock of the process that is at it. The top byte keeps it apart from other locks.
const ONE_AT_A_TIME: i64 = (11 << 56) | 1;

/// One round; `None` where another process is at it.
///
/// # Errors
/// The database can not be used. What was done before stays done.
pub async fn maintain(pool: &PgPool, config: &RetentionConfig) -> Result<Option<Round>, sqlx::Error> {
    // Not of the pool any more: the lock ends with the connection, however this ends.
    let mut connection = pool.acquire().await?.detach();
    // To search the table of a whole day may take longer than a statement of the service may.
    let (alone, _): (bool, String) = sqlx::query_as(
        "/* retention.maintain */ SELECT pg_try_advisory_lock($1), set_config('statement_timeout', '600000', false)",
    )
    .bind(ONE_AT_A_TIME)
    .fetch_one(&mut connection)
    .await?;
    let round = match alone {
        true => Some(round(&mut connection, config).await?),
        false => None,
    };
    connection.close().await?;
    Ok(round)
}

async fn round(connection: &mut PgConnection, config: &RetentionConfig) -> Result<Round, sqlx::Error> {
    let mut round = Round { made: make_ahead(connection, config.ahead_days).await?, ..Round::default() };
    partitions::drop_old(connection, config, &mut round).await?;
    round.deleted = rows::prune(connection, config).await?;
    Ok(round)
}

/// Does rounds until it is cancelled. A failed one is logged, and the next one makes up for it.
pub async fn keep_house(pool: &PgPool, config: &RetentionConfig, cancel: CancellationToken) {
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            done = maintain(pool, config) => match done {
                Ok(done) => done.iter().for_each(log),
                Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "what is over could not be cleared away"),
            },
        }
        // Not all processes at the same moment.
        let pause = Duration::from_secs(config.every_seconds).mul_f64(rand::rng().random_range(0.8..=1.0));
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

fn log(round: &Round) {
    for (table, reason) in &round.kept {
        tracing::warn!(table, reason, "a day that is over is kept");
    }
    let quarantined = round.deleted_from("message_quarantine");
    if quarantined > 0 {
        tracing::warn!(quarantined, "messages left quarantine by age");
    }
    if round.made > 0 || !round.dropped.is_empty() || !round.deleted.is_empty() {
        tracing::info!(made = round.made, dropped = ?round.dropped, deleted = ?round.deleted, "what is over is cleared away");
    }
}
