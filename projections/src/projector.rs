//! The projector: folds events into the read tables, in the order of their positions, one transaction a batch.
//!
//! It goes by `readable_position()`: it never passes a position that may still appear, and never waits for one that was rolled
//! back. One projector works at a time; others stand by at the checkpoint row's lock.

use crate::bell::Bell;
use crate::error::{FoldFault, ProjectError};
use crate::fold::{self, Recorded};
use sqlx::{PgConnection, PgPool, Row};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The name of the checkpoint of all read tables: they are folded together.
pub const CHECKPOINT: &str = "read_models";

/// Pause after a look that a writer held back; doubled until it is done.
const HELD_BACK_PAUSE: Duration = Duration::from_millis(5);
/// Longest pause after a fault.
const FAULT_CAP: Duration = Duration::from_secs(30);

/// How a projector works.
#[derive(Clone, Copy, Debug)]
pub struct ProjectorConfig {
    /// Most events in one transaction.
    pub batch: u32,
    /// Longest time between two looks at the events.
    pub tick: Duration,
}

impl Default for ProjectorConfig {
    fn default() -> Self {
        Self { batch: 500, tick: Duration::from_millis(250) }
    }
}

/// What one look at the events came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Another projector holds the checkpoint.
    Standby,
    /// So many events were folded, and more may be there.
    More(usize),
    /// Everything readable is folded; so many events in this step.
    CaughtUp(usize),
    /// Everything readable is folded (so many events in this step); a writer that has not ended yet holds the rest back.
    HeldBack(usize),
}

/// Folds events into the read tables.
#[derive(Clone, Debug)]
pub struct Projector {
    pool: PgPool,
    config: ProjectorConfig,
}

impl Projector {
    /// A projector over this database.
    #[must_use]
    pub const fn new(pool: PgPool, config: ProjectorConfig) -> Self {
        Self { pool, config }
    }

    /// Projects until it is cancelled. A fault never ends it: it is logged, shown by [`projection_status`], and tried again.
    pub async fn run(&self, cancel: CancellationToken) {
        let bell = Bell::on(&self.pool, "aivideo_events");
        let mut faults: u32 = 0;
        let mut held_back = HELD_BACK_PAUSE;
        while !cancel.is_cancelled() {
            let step = tokio::select! {
                biased;
                () = cancel.cancelled() => break,
                step = self.step() => step,
            };
            let pause = match step {
                Ok(step) => {
                    faults = 0;
                    match step {
                        Step::More(_) => continue,
                        Step::Standby | Step::CaughtUp(_) => {
                            held_back = HELD_BACK_PAUSE;
                            self.config.tick
                        }
                        Step::HeldBack(folded) => {
                            // As long as it gets on it looks often; at a writer that hangs, less and less.
                            let pause = if folded > 0 { HELD_BACK_PAUSE } else { held_back };
                            held_back = (pause * 2).min(self.config.tick);
                            pause
                        }
                    }
                }
                Err(error) => {
                    faults += 1;
                    let pause = FAULT_CAP.min(Duration::from_millis(100) * (1 << (faults - 1).min(16)));
                    log(&error, faults, pause);
                    // Not woken by new events: they wait behind the fault.
                    tokio::select! {
                        () = cancel.cancelled() => break,
                        () = tokio::time::sleep(pause) => continue,
                    }
                }
            };
            tokio::select! {
                () = cancel.cancelled() => break,
                () = bell.wait(pause) => {}
            }
        }
    }

    /// Folds one batch. A corrupt event stops it there: what is before it is folded, nothing after it.
    ///
    /// # Errors
    /// [`ProjectError`]; a corrupt event is written to the checkpoint too, where [`projection_status`] finds it.
    pub async fn step(&self) -> Result<Step, ProjectError> {
        let fault = match self.batch(i64::MAX).await {
            Err(ProjectError::Corrupt(fault)) => fault,
            other => return other,
        };
        if self.batch(fault.position - 1).await? != Step::Standby {
            self.note(&fault).await?;
        }
        Err(fault.into())
    }

    /// Folds until nothing readable is left. For tools and tests; says how many events it folded.
    ///
    /// # Errors
    /// [`ProjectError`].
    pub async fn catch_up(&self) -> Result<usize, ProjectError> {
        let mut folded = 0;
        loop {
            match self.step().await? {
                Step::More(count) => folded += count,
                Step::CaughtUp(count) | Step::HeldBack(count) => return Ok(folded + count),
                Step::Standby => tokio::time::sleep(HELD_BACK_PAUSE).await,
            }
        }
    }

    /// One transaction, up to a position at most.
    async fn batch(&self, ceiling: i64) -> Result<Step, ProjectError> {
        let mut tx = self.pool.begin().await?;
        let Some(position) = lock_checkpoint(&mut tx, Locking::SkipLocked).await? else {
            tx.rollback().await?;
            return Ok(match create_checkpoint(&self.pool).await? {
                true => Step::More(0),
                false => Step::Standby,
            });
        };
        // A statement of its own, before the one that reads the rows: what had ended by now is visible to that one.
        let (up_to, held_back_by) = readable(&mut tx).await?;
        let up_to = up_to.min(ceiling);
        let limit = i64::from(self.config.batch);
        let events = fold::read(&mut tx, position, up_to, limit).await?;
        let full = events.len() as i64 >= limit;
        let reached = if full { events.last().map_or(up_to, |event| event.position) } else { up_to };
        if let Err(error) = fold_and_announce(&mut tx, &events).await {
            // Not left to the drop, which rolls back later: the next look would find the checkpoint locked by this one.
            tx.rollback().await?;
            return Err(error);
        }
        if reached > position {
            save_checkpoint(&mut tx, reached).await?;
            tx.commit().await?;
        } else {
            tx.rollback().await?;
        }
        Ok(match (full, held_back_by) {
            (true, _) => Step::More(events.len()),
            (false, Some(_)) => Step::HeldBack(events.len()),
            (false, None) => Step::CaughtUp(events.len()),
        })
    }

    async fn note(&self, fault: &FoldFault) -> Result<(), sqlx::Error> {
        sqlx::query(
            "/* projector.note */
             UPDATE projection_checkpoints
                SET fault = $2, fault_position = $3,
                    fault_at = CASE WHEN fault_position = $3 THEN fault_at ELSE clock_timestamp() END
              WHERE name = $1",
        )
        .bind(CHECKPOINT)
        .bind(fault.to_string())
        .bind(fault.position)
        .execute(&self.pool)
        .await?;
        Ok(())
    }
}

fn log(error: &ProjectError, faults: u32, pause: Duration) {
    let fault = error as &dyn std::error::Error;
    let retry_in_seconds = pause.as_secs_f64();
    match error {
        ProjectError::Corrupt(_) => {
            tracing::error!(error = fault, faults, retry_in_seconds, "the projector stands still")
        }
        ProjectError::Database(_) => tracing::warn!(error = fault, faults, retry_in_seconds, "the projector waits"),
    }
}

/// What to do where somebody else holds the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locking {
    /// Stand by.
    SkipLocked,
    /// Wait for it.
    Wait,
}

/// Locks the checkpoint and reads its position; `None` where there is none, or somebody else has it.
///
/// The projector does not wait for the disk: the read tables and their checkpoint commit together, and what a crash of the
/// database takes from them is folded again from the log. And it looks rows up by their keys only: a plan that was made while a
/// table was small must not stay with it as a scan.
pub(crate) async fn lock_checkpoint(
    connection: &mut PgConnection,
    locking: Locking,
) -> Result<Option<i64>, sqlx::Error> {
    let statement = match locking {
        Locking::SkipLocked => {
            "/* projector.lock */
             SELECT position
               FROM projection_checkpoints, set_config('synchronous_commit', 'off', true) AS no_wait,
                    set_config('enable_seqscan', 'off', true) AS by_key
              WHERE name = $1 FOR UPDATE OF projection_checkpoints SKIP LOCKED"
        }
        Locking::Wait => {
            "/* projector.lock_waiting */ SELECT position FROM projection_checkpoints WHERE name = $1 FOR UPDATE"
        }
    };
    sqlx::query_scalar(statement).bind(CHECKPOINT).fetch_optional(connection).await
}

/// Makes the checkpoint where there is none; says whether it did.
pub(crate) async fn create_checkpoint(pool: &PgPool) -> Result<bool, sqlx::Error> {
    let created = sqlx::query(
        "/* projector.create_checkpoint */
         INSERT INTO projection_checkpoints (name, position) VALUES ($1, 0) ON CONFLICT DO NOTHING",
    )
    .bind(CHECKPOINT)
    .execute(pool)
    .await?;
    Ok(created.rows_affected() == 1)
}

/// Up to where the log may be read, and the session that holds readers back, if one does.
pub(crate) async fn readable(connection: &mut PgConnection) -> Result<(i64, Option<i32>), sqlx::Error> {
    sqlx::query_as("/* projector.readable */ SELECT up_to, held_back_by FROM readable_position()")
        .fetch_one(connection)
        .await
}

/// Folds events and announces the tasks whose picture changed.
async fn fold_and_announce(connection: &mut PgConnection, events: &[Recorded]) -> Result<(), ProjectError> {
    let touched = fold::fold(connection, events).await?;
    if !touched.is_empty() {
        announce(connection, &touched).await?;
    }
    Ok(())
}

/// One notification a task, sent by the commit: `{"t": task, "v": version, "tenant": tenant}`, about 120 bytes.
async fn announce(connection: &mut PgConnection, tasks: &BTreeSet<Uuid>) -> Result<(), sqlx::Error> {
    sqlx::query(
        "/* projector.announce */
         SELECT pg_notify('aivideo_read', jsonb_build_object('t', task_id, 'v', version, 'tenant', tenant_id)::text)
           FROM read_tasks WHERE task_id = ANY ($1)",
    )
    .bind(tasks.iter().copied().collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}

pub(crate) async fn save_checkpoint(connection: &mut PgConnection, position: i64) -> Result<(), sqlx::Error> {
    sqlx::query(
        "/* projector.save_checkpoint */
         UPDATE projection_checkpoints
            SET position = $2, updated_at = clock_timestamp(), fault = NULL, fault_position = NULL, fault_at = NULL
          WHERE name = $1",
    )
    .bind(CHECKPOINT)
    .bind(position)
    .execute(connection)
    .await?;
    Ok(())
}

/// So many events behind are counted one by one; beyond, their positions are.
const COUNTED: i64 = 10_000;

/// How the projection is doing.
#[derive(Clone, Debug, PartialEq)]
pub struct ProjectionStatus {
    /// Everything up to this position is folded.
    pub position: i64,
    /// Up to here the log may be read.
    pub readable: i64,
    /// The session whose open transaction holds readers back, if one does.
    pub held_back_by: Option<HoldingSession>,
    /// Committed events that are not folded. Beyond 10,000 it is the positions that lie between, which may be more.
    pub behind_events: i64,
    /// Age of the oldest of them in seconds.
    pub behind_seconds: f64,
    /// The corrupt event that the projector stands at, in words.
    pub fault: Option<String>,
    /// That event's position.
    pub fault_position: Option<i64>,
    /// For how many seconds it has stood there.
    pub fault_seconds: Option<f64>,
}

impl ProjectionStatus {
    /// Whether `behind_events` is not counted but reckoned from positions.
    #[must_use]
    pub const fn is_reckoned(&self) -> bool {
        self.behind_events > COUNTED
    }
}

/// A session that has given out positions and has not ended its transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct HoldingSession {
    /// PostgreSQL's process id.
    pub pid: i32,
    /// What it calls itself; empty where this role may not know.
    pub application: String,
    /// What it does, in PostgreSQL's words, such as `idle in transaction`.
    pub state: String,
    /// Age of its transaction in seconds.
    pub seconds: f64,
}

/// Reads the projection's status. The database's clock counts. Takes no longer when the projector is far behind.
///
/// # Errors
/// The database can not be used.
pub async fn projection_status(pool: &PgPool) -> Result<ProjectionStatus, sqlx::Error> {
    let row = sqlx::query(
        "/* projector.status */
         SELECT p.position, r.up_to, r.held_back_by, coalesce(s.application_name, '') AS application,
                coalesce(s.state, 'unknown to this role') AS state,
                coalesce(extract(epoch FROM clock_timestamp() - s.xact_start), 0)::float8 AS held_seconds,
                CASE WHEN b.events > $2 THEN greatest(b.events, (SELECT max(position) FROM events) - p.position)
                     ELSE b.events END AS behind_events,
                coalesce(extract(epoch FROM clock_timestamp() - b.oldest), 0)::float8 AS behind_seconds,
                c.fault, c.fault_position,
                extract(epoch FROM clock_timestamp() - c.fault_at)::float8 AS fault_seconds
           FROM readable_position() r
           LEFT JOIN projection_checkpoints c ON c.name = $1
          CROSS JOIN LATERAL (SELECT coalesce(c.position, 0) AS position) p
          CROSS JOIN LATERAL (SELECT count(*) AS events, min(recorded_at) AS oldest
                                FROM (SELECT recorded_at FROM events WHERE position > p.position
                                       ORDER BY position LIMIT $2 + 1) first) b
           LEFT JOIN pg_stat_activity s ON s.pid = r.held_back_by",
    )
    .bind(CHECKPOINT)
    .bind(COUNTED)
    .fetch_one(pool)
    .await?;
    let holding = |pid| -> Result<HoldingSession, sqlx::Error> {
        Ok(HoldingSession {
            pid,
            application: row.try_get("application")?,
            state: row.try_get("state")?,
            seconds: row.try_get("held_seconds")?,
        })
    };
    Ok(ProjectionStatus {
        position: row.try_get("position")?,
        readable: row.try_get("up_to")?,
        held_back_by: row.try_get::<Option<i32>, _>("held_back_by")?.map(holding).transpose()?,
        behind_events: row.try_get("behind_events")?,
        behind_seconds: row.try_get("behind_seconds")?,
        fault: row.try_get("fault")?,
        fault_position: row.try_get("fault_position")?,
        fault_seconds: row.try_get("fault_seconds")?,
    })
}
