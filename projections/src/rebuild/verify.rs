//! Whether the read tables are what a rebuild would make them.

use super::replay::Replay;
use super::{Progress, tables};
use crate::error::ProjectError;
use crate::fold::TABLES;
use crate::projector;
use sqlx::{AssertSqlSafe, PgConnection, PgPool};

/// Where the fresh rows are: in the session's temporary tables, which are found before all others and go with it.
const FRESH: &str = "pg_temp";

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

/// Folds all events up to the checkpoint into temporary tables, and compares. Holds nobody up but a rebuild, whose switch waits
/// for it. The role must be allowed to read, and to make temporary tables.
///
/// # Errors
/// [`ProjectError`].
pub async fn verify(pool: &PgPool, mut progress: impl FnMut(Progress) + Send) -> Result<Vec<Comparison>, ProjectError> {
    let mut replay = Replay::begin(pool).await?;
    // Locked before the transaction's snapshot is taken: it would not see the rows of tables that were switched in later.
    let begin = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ; LOCK TABLE {} IN ACCESS SHARE MODE",
        tables::list(tables::LIVE)
    );
    tables::run(&mut replay.writer, begin).await?;
    let up_to: Option<i64> =
        sqlx::query_scalar("/* verify.checkpoint */ SELECT position FROM projection_checkpoints WHERE name = $1")
            .bind(projector::CHECKPOINT)
            .fetch_optional(&mut replay.writer)
            .await?;
    tables::create(&mut replay.writer, FRESH).await?;
    replay.fold_up_to(up_to.unwrap_or(0), &mut progress).await?;
    // Whole tables are compared: now a scan is what is wanted.
    tables::run(&mut replay.writer, "SET LOCAL enable_seqscan = on; SET LOCAL work_mem = '64MB'".to_owned()).await?;
    let mut comparisons = Vec::with_capacity(TABLES.len());
    for (table, key) in TABLES {
        comparisons.push(compare(&mut replay.writer, table, key).await?);
    }
    tables::run(&mut replay.writer, "ROLLBACK".to_owned()).await?;
    replay.end().await?;
    Ok(comparisons)
}

async fn compare(connection: &mut PgConnection, table: &'static str, key: &str) -> Result<Comparison, sqlx::Error> {
    let live = tables::LIVE;
    let statement = format!(
        "/* verify.compare */
         WITH missing AS (SELECT * FROM {FRESH}.{table} EXCEPT SELECT * FROM {live}.{table}),
              extra AS (SELECT * FROM {live}.{table} EXCEPT SELECT * FROM {FRESH}.{table}),
              keys AS (SELECT {key} AS key FROM missing UNION SELECT {key} FROM extra)
         SELECT (SELECT count(*) FROM {live}.{table}), (SELECT count(*) FROM missing), (SELECT count(*) FROM extra),
                ARRAY(SELECT key FROM keys ORDER BY key LIMIT 3)"
    );
    let (rows, missing, extra, keys): (i64, i64, i64, Vec<String>) =
        sqlx::query_as(AssertSqlSafe(statement)).fetch_one(connection).await?;
    let count = |value: i64| value.unsigned_abs();
    Ok(Comparison { table, rows: count(rows), missing: count(missing), extra: count(extra), keys })
}
