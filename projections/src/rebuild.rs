//! Rebuilding the read tables from the events, beside the live ones, and proving that a rebuild would give the rows that are
//! there. Neither calls anything outside the database, and neither announces anything.
//!
//! A rebuild folds into tables of a schema of its own, while the projector and the readers go on. When it has caught up, it
//! takes the checkpoint's lock, folds what is left, and puts its tables in the place of the old ones, in one short transaction.
//! One that was killed is not taken up again: another build may fold otherwise. The next one removes what it left.

mod replay;
mod tables;
mod verify;

pub use verify::{Comparison, verify};

use crate::error::ProjectError;
use crate::projector::{self, Locking};
use replay::Replay;
use sqlx::{PgConnection, PgPool};
use std::time::Duration;

/// One rebuild at a time. The top byte keeps this lock apart from the others (6 to 11: `eventstore`, `retention`).
const LOCK: i64 = 12 << 56;
/// Readers queue behind the switch for this long at most, and for each table less. Shorter than the time after which the
/// database looks for deadlocks: it is always the switch that gives way, never a reader.
const SWITCH_MILLIS: u64 = 400;
const LOCK_MILLIS: u64 = 100;
/// Pause before the next try to switch.
const SWITCH_PAUSE: Duration = Duration::from_millis(200);

/// What a rebuild is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It folds events.
    Folding,
    /// It makes the remaining indexes over the new rows.
    Indexing,
    /// It waits for a moment in which nobody reads the old tables.
    Switching,
}

/// How far a rebuild is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What it is doing.
    pub phase: Phase,
    /// Position folded last.
    pub position: i64,
    /// Position of the last event to be folded.
    pub up_to: i64,
    /// Events folded so far.
    pub events: u64,
}

/// Why there is no rebuild. The live read tables are as they were.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// An event can not be folded, or the database can not be used.
    #[error(transparent)]
    Project(#[from] ProjectError),
    /// There is one already.
    #[error("another rebuild is running, in database session {0}: wait for it, or end it with pg_terminate_backend")]
    Running(i32),
    /// The new tables would not be what the live ones are.
    #[error("the new tables would differ from the live ones in this: {0}; a rebuild can not carry that over")]
    Unlike(String),
    /// Something in the database is made of a read table.
    #[error("{0} depends on a read table and would go on showing the old rows: drop it, rebuild, and make it again")]
    Dependent(String),
}

impl From<sqlx::Error> for RebuildError {
    fn from(error: sqlx::Error) -> Self {
        Self::Project(error.into())
    }
}

/// Folds everything again beside the live tables, and switches: readers see the old rows until then, and all of the new ones
/// afterwards. The projector goes on meanwhile. Needs the owner's connection. Says how far it got.
///
/// # Errors
/// [`RebuildError`]: nothing is changed.
pub async fn rebuild(pool: &PgPool, mut progress: impl FnMut(Progress) + Send) -> Result<Progress, RebuildError> {
    projector::create_checkpoint(pool).await?;
    let mut replay = Replay::begin(pool).await?;
    lock_out_others(&mut replay.writer).await?;
    tables::discard(&mut replay.writer).await?;
    let built = build(&mut replay, &mut progress).await;
    let discarded = tables::discard(&mut replay.writer).await;
    let done = replay.done;
    match (built, discarded) {
        (Err(error), _) => return Err(error),
        (Ok(()), Ok(())) => {}
        // It is done all the same.
        (Ok(()), Err(error)) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the old read tables are left for the next rebuild"
            );
        }
    }
    replay.end().await?;
    Ok(done)
}

async fn lock_out_others(connection: &mut PgConnection) -> Result<(), RebuildError> {
    let (ours, other): (bool, Option<i32>) = sqlx::query_as(
        "/* rebuild.lock */
         SELECT pg_try_advisory_lock($1), (SELECT min(pid) FROM pg_locks
                                            WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND pid <> pg_backend_pid()
                                              AND classid::bigint = $1 >> 32 AND objid::bigint = $1 & 4294967295
                                              AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))",
    )
    .bind(LOCK)
    .fetch_one(connection)
    .await?;
    if ours { Ok(()) } else { Err(RebuildError::Running(other.unwrap_or_default())) }
}

async fn build(replay: &mut Replay, progress: &mut (impl FnMut(Progress) + Send)) -> Result<(), RebuildError> {
    let next = tables::NEXT;
    tables::run(&mut replay.writer, format!("/* rebuild.schema */ CREATE SCHEMA {next}")).await?;
    tables::create(&mut replay.writer, next).await?;
    tables::run(&mut replay.writer, format!("/* rebuild.path */ SET search_path = {next}, {}", tables::LIVE)).await?;
    fold_what_is_readable(replay, progress).await?;

    replay.done.phase = Phase::Indexing;
    progress(replay.done);
    tables::finish(&mut replay.writer, next).await?;
    tables::compare(&mut replay.writer).await?;
    // The planner's figures for the new tables, or the first queries after the switch go astray.
    tables::run(&mut replay.writer, format!("VACUUM (ANALYZE) {}", tables::list(next))).await?;

    replay.done.phase = Phase::Switching;
    loop {
        fold_what_is_readable(replay, progress).await?;
        if switch(replay).await? {
            return Ok(());
        }
        progress(replay.done);
        tokio::time::sleep(SWITCH_PAUSE).await;
    }
}

async fn fold_what_is_readable(
    replay: &mut Replay,
    progress: &mut (impl FnMut(Progress) + Send),
) -> Result<(), ProjectError> {
    let (up_to, _) = projector::readable(&mut replay.writer).await?;
    replay.fold_up_to(up_to.max(replay.done.position), progress).await
}

/// Puts the new tables in the place of the old ones; `false`: somebody read the old ones for too long, and nothing is changed.
async fn switch(replay: &mut Replay) -> Result<bool, RebuildError> {
    let before = replay.done;
    tables::run(&mut replay.writer, "BEGIN".to_owned()).await?;
    let switched = try_switch(replay).await;
    match switched {
        Ok(true) => tables::run(&mut replay.writer, "COMMIT".to_owned()).await?,
        _ => {
            // What was folded last goes with it.
            replay.done = before;
            tables::run(&mut replay.writer, "ROLLBACK".to_owned()).await?;
        }
    }
    switched
}

async fn try_switch(replay: &mut Replay) -> Result<bool, RebuildError> {
    // From here on the projector stands by.
    let live = projector::lock_checkpoint(&mut replay.writer, Locking::Wait).await?.unwrap_or_default();
    replay.fold_up_to(live.max(replay.done.position), &mut |_| ()).await?;
    if !lock_tables(&mut replay.writer).await? {
        return Ok(false);
    }
    tables::run(&mut replay.writer, moves()).await?;
    projector::save_checkpoint(&mut replay.writer, replay.done.position).await?;
    Ok(true)
}

/// Keeps everybody out of the old tables for a moment, unless that takes too long.
async fn lock_tables(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let (live, next) = (tables::list(tables::LIVE), tables::list(tables::NEXT));
    // A worker of autovacuum gives way, but only to somebody who waits for a second: here, where no reader waits behind.
    let quiet = format!(
        "SET LOCAL lock_timeout = '5s'; LOCK TABLE {next} IN ACCESS EXCLUSIVE MODE;
         LOCK TABLE {live} IN SHARE UPDATE EXCLUSIVE MODE"
    );
    let alone = format!(
        "SET LOCAL lock_timeout = {LOCK_MILLIS}; SET LOCAL statement_timeout = {SWITCH_MILLIS};
         LOCK TABLE {live} IN ACCESS EXCLUSIVE MODE; SET LOCAL statement_timeout = 0"
    );
    for statements in [quiet, alone] {
        match tables::run(connection, statements).await {
            Ok(()) => {}
            Err(error) if was_too_long(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// A lock was not to be had in time, or the statement that waits for several was ended.
fn was_too_long(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|it| it.code());
    matches!(code.as_deref(), Some("55P03" | "57014"))
}

fn moves() -> String {
    let (live, next, previous) = (tables::LIVE, tables::NEXT, tables::PREVIOUS);
    let mut statements = format!("CREATE SCHEMA {previous};");
    for (table, _) in crate::fold::TABLES {
        statements.push_str(&format!(
            "ALTER TABLE {live}.{table} SET SCHEMA {previous}; ALTER TABLE {next}.{table} SET SCHEMA {live};"
        ));
    }
    statements
}
