//! Rebuilding the read tables from the events, and proving that a rebuild would give the rows that are there. Neither calls
//! anything outside the database, and neither announces anything.

use crate::error::ProjectError;
use crate::fold::{self, TABLES};
use crate::projector::{self, Locking, ProjectorConfig};
use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use std::collections::BTreeSet;
use uuid::Uuid;

/// How far a rebuild is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Position folded last.
    pub position: i64,
    /// Position of the last event to be folded.
    pub up_to: i64,
    /// Events folded so far.
    pub events: u64,
}

/// Empties the read tables and folds everything again, in one transaction: readers see the old rows until it commits, and
/// all of the new ones then. Projectors stand by meanwhile. Says how far it got.
///
/// # Errors
/// [`ProjectError`]: nothing is changed.
pub async fn rebuild(pool: &PgPool, mut progress: impl FnMut(Progress) + Send) -> Result<Progress, ProjectError> {
    projector::create_checkpoint(pool).await?;
    let mut tx = pool.begin().await?;
    take_time(&mut tx).await?;
    projector::lock_checkpoint(&mut tx, Locking::Wait).await?;
    for (table, _) in TABLES {
        // Not TRUNCATE: it would lock readers out until the end.
        sqlx::query(AssertSqlSafe(format!("/* rebuild.empty */ DELETE FROM {table}"))).execute(&mut *tx).await?;
    }
    let (up_to, _) = projector::readable(&mut tx).await?;
    let done = fold_up_to(&mut tx, up_to, &mut progress).await?;
    projector::save_checkpoint(&mut tx, up_to).await?;
    tx.commit().await?;
    Ok(done)
}

/// How a read table compares with the same table folded afresh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The table.
    pub table: &'static str,
    /// Rows it has.
    pub rows: u64,
    /// Rows of the fresh one that it has not, or not like that.
    pub missing: u64,
    /// Rows of it that the fresh one has not, or not like that.
    pub extra: u64,
    /// Keys of up to 3 rows that differ.
    pub keys: Vec<String>,
}

impl Comparison {
    /// Whether both are equal.
    #[must_use]
    pub const fn is_equal(&self) -> bool {
        self.missing == 0 && self.extra == 0
    }
}

/// Folds all events up to the checkpoint into tables that are thrown away, and compares. Holds nobody up.
///
/// # Errors
/// [`ProjectError`]; the database role must be allowed to create a schema.
pub async fn verify(pool: &PgPool) -> Result<Vec<Comparison>, ProjectError> {
    // A name used once: no statement that is prepared for other tables fits it.
    let schema = format!("shadow_{}", Uuid::new_v4().simple());
    let mut tx = pool.begin().await?;
    // Checkpoint, read tables and events are all seen as of one moment.
    sqlx::query("/* verify.begin */ SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *tx).await?;
    take_time(&mut tx).await?;
    let up_to: Option<i64> =
        sqlx::query_scalar("/* verify.checkpoint */ SELECT position FROM projection_checkpoints WHERE name = $1")
            .bind(projector::CHECKPOINT)
            .fetch_optional(&mut *tx)
            .await?;
    create_shadow(&mut tx, &schema).await?;
    fold_up_to(&mut tx, up_to.unwrap_or(0), &mut |_| ()).await?;
    let mut comparisons = Vec::with_capacity(TABLES.len());
    for (table, key) in TABLES {
        comparisons.push(compare(&mut tx, &schema, table, key).await?);
    }
    tx.rollback().await?;
    Ok(comparisons)
}

/// Time limits made for business transactions do not fit these long ones.
async fn take_time(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    for setting in ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"] {
        sqlx::query("/* rebuild.take_time */ SELECT set_config($1, '0', true)")
            .bind(setting)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

async fn create_shadow(connection: &mut PgConnection, schema: &str) -> Result<(), sqlx::Error> {
    run(connection, format!("/* verify.schema */ CREATE SCHEMA {schema}")).await?;
    for (table, _) in TABLES {
        let statement = format!("/* verify.table */ CREATE TABLE {schema}.{table} (LIKE public.{table} INCLUDING ALL)");
        run(connection, statement).await?;
    }
    run(connection, format!("/* verify.path */ SET LOCAL search_path = {schema}, public")).await
}

/// Only for statements made of this crate's own names.
async fn run(connection: &mut PgConnection, statement: String) -> Result<(), sqlx::Error> {
    sqlx::query(AssertSqlSafe(statement)).execute(connection).await?;
    Ok(())
}

async fn fold_up_to(
    connection: &mut PgConnection,
    up_to: i64,
    progress: &mut (impl FnMut(Progress) + Send),
) -> Result<Progress, ProjectError> {
    let limit = i64::from(ProjectorConfig::default().batch);
    let mut done = Progress { position: 0, up_to, events: 0 };
    let mut touched = BTreeSet::new();
    loop {
        let events = fold::read(connection, done.position, up_to, limit).await?;
        for event in &events {
            fold::fold(connection, event, &mut touched).await?;
            done.position = event.position;
            done.events += 1;
        }
        touched.clear();
        if (events.len() as i64) < limit {
            done.position = up_to;
            progress(done);
            return Ok(done);
        }
        progress(done);
    }
}

async fn compare(
    connection: &mut PgConnection,
    schema: &str,
    table: &'static str,
    key: &str,
) -> Result<Comparison, sqlx::Error> {
    let statement = format!(
        "/* verify.compare */
         WITH missing AS (SELECT * FROM {schema}.{table} EXCEPT SELECT * FROM public.{table}),
              extra AS (SELECT * FROM public.{table} EXCEPT SELECT * FROM {schema}.{table}),
              keys AS (SELECT {key} AS key FROM missing UNION SELECT {key} FROM extra)
         SELECT (SELECT count(*) FROM public.{table}), (SELECT count(*) FROM missing), (SELECT count(*) FROM extra),
                ARRAY(SELECT key FROM keys ORDER BY key LIMIT 3)"
    );
    let (rows, missing, extra, keys): (i64, i64, i64, Vec<String>) =
        sqlx::query_as(AssertSqlSafe(statement)).fetch_one(connection).await?;
    let count = |value: i64| value.unsigned_abs();
    Ok(Comparison { table, rows: count(rows), missing: count(missing), extra: count(extra), keys })
}
