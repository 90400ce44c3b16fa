//! The system's named invariants, checked over the facts. Each check is one statement that lists the offenders; a check that
//! finds none holds.

mod checks;
mod seals;

pub use seals::tamper_evident;

use crate::error::ProjectError;
use crate::horizon::horizon;
use crate::rebuild;
use checks::{CHECKS, Check};
use sqlx::{AssertSqlSafe, PgPool};
use std::time::Duration;

/// From when on lateness counts as a fault.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long a message that is due may stay unsent.
    pub unsent: Duration,
    /// How long an inbox row may stay claimed: longer than any outside call and its redelivery take.
    pub claimed: Duration,
    /// How long after its wake-up time a task may stay untouched.
    pub stall: Duration,
    /// For events of this last stretch of time the outbox row that announces them must exist: shorter than published rows
    /// are kept.
    pub announced: Duration,
    /// How long an event may stay unsealed: longer than `audit.seal_seconds`.
    pub unsealed: Duration,
    /// How old a snapshot may be: see [`crate::horizon`].
    pub snapshot: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            unsent: Duration::from_secs(60),
            claimed: Duration::from_secs(900),
            stall: Duration::from_secs(300),
            announced: Duration::from_secs(24 * 3600),
            unsealed: Duration::from_secs(300),
            snapshot: Duration::from_secs(300),
        }
    }
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The invariant's name.
    pub invariant: &'static str,
    /// Whether it holds.
    pub ok: bool,
    /// What is wrong with up to three offenders, or what was looked at.
    pub detail: String,
    /// Number of offenders.
    pub count: u64,
}

/// Examines every invariant. Reads only; each check sees the database as of its own moment.
///
/// # Errors
/// The database can not be used, or an event can not be folded.
pub async fn examine(pool: &PgPool, limits: Limits) -> Result<Vec<Finding>, ProjectError> {
    let mut findings = Vec::with_capacity(CHECKS.len() + 2);
    for check in CHECKS {
        findings.push(look(pool, check, limits).await?);
    }
    findings.push(replayable(pool).await?);
    findings.push(no_old_snapshot(pool, limits.snapshot).await?);
    Ok(findings)
}

/// No invariant of the facts, but what slows everything down that writes, and is ended by ending a session.
async fn no_old_snapshot(pool: &PgPool, limit: Duration) -> Result<Finding, sqlx::Error> {
    let horizon = horizon(pool).await?;
    let old: Vec<String> = horizon.older_than(limit).map(ToString::to_string).collect();
    let detail = match (old.is_empty(), horizon.hidden) {
        (true, 0) => format!("nothing holds a snapshot for longer than {} s", limit.as_secs()),
        (true, hidden) => format!(
            "nothing that can be seen; {hidden} sessions of other roles can not: grant pg_read_all_stats to this role"
        ),
        (false, _) => old.join("; "),
    };
    Ok(Finding { invariant: "no-old-snapshot", ok: old.is_empty(), detail, count: old.len() as u64 })
}

async fn look(pool: &PgPool, check: &Check, limits: Limits) -> Result<Finding, sqlx::Error> {
    let statement = format!(
        "/* doctor.{} */
         WITH limits (unsent, claimed, stall, announced) AS (
                  SELECT $1 * interval '1 second', $2 * interval '1 second', $3 * interval '1 second',
                         $4 * interval '1 second'),
              offenders (what) AS ({})
         SELECT (SELECT count(*) FROM offenders), ARRAY(SELECT what FROM offenders ORDER BY what LIMIT 3)",
        check.invariant, check.offenders
    );
    let seconds = |limit: Duration| i64::try_from(limit.as_secs()).unwrap_or(i64::MAX / 1_000_000);
    let (count, samples): (i64, Vec<String>) = sqlx::query_as(AssertSqlSafe(statement))
        .bind(seconds(limits.unsent))
        .bind(seconds(limits.claimed))
        .bind(seconds(limits.stall))
        .bind(seconds(limits.announced))
        .fetch_one(pool)
        .await?;
    let detail = if samples.is_empty() { check.holds.to_owned() } else { samples.join("; ") };
    Ok(Finding { invariant: check.invariant, ok: count == 0, detail, count: count.unsigned_abs() })
}

async fn replayable(pool: &PgPool) -> Result<Finding, ProjectError> {
    let invariant = "replayable";
    let tables = match rebuild::verify(pool, |_| ()).await {
        Ok(tables) => tables,
        Err(ProjectError::Corrupt(fault)) => {
            return Ok(Finding { invariant, ok: false, detail: fault.to_string(), count: 1 });
        }
        Err(error) => return Err(error),
    };
    let count = tables.iter().map(|it| it.missing.max(it.extra)).sum();
    let different: Vec<String> = tables
        .iter()
        .filter(|it| !it.is_equal())
        .map(|it| format!("{}: {} missing, {} extra, such as {}", it.table, it.missing, it.extra, it.keys.join(", ")))
        .collect();
    let rows: u64 = tables.iter().map(|it| it.rows).sum();
    let detail = if different.is_empty() {
        format!("{rows} rows equal a fresh fold of the events")
    } else {
        different.join("; ")
    };
    Ok(Finding { invariant, ok: different.is_empty(), detail, count })
}
