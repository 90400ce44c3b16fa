//! Counts that operators look at first.

use sqlx::PgPool;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operations {
    /// Tasks by state.
    pub tasks: Vec<(String, i64)>,
    /// Messages in quarantine that nobody has dealt with.
    pub quarantined: i64,
    /// Stalled tasks that were set going again within the last hour.
    pub repairs_last_hour: i64,
}

/// Reads the counts.
///
/// # Errors
/// The database can not be used.
pub async fn operations(pool: &PgPool) -> Result<Operations, sqlx::Error> {
    let tasks =
        sqlx::query_as("/* operations.tasks */ SELECT state, count(*) FROM read_tasks GROUP BY state ORDER BY state")
            .fetch_all(pool)
            .await?;
    let (quarantined, repairs_last_hour) = sqlx::query_as(
        "/* operations.counts */
         SELECT (SELECT count(*) FROM message_quarantine WHERE status = 'parked'),
                (SELECT count(*) FROM repairs WHERE created_at > clock_timestamp() - interval '1 hour')",
    )
    .fetch_one(pool)
    .await?;
    Ok(Operations { tasks, quarantined, repairs_last_hour })
}
