//! How groups of readers are doing.

use sqlx::PgPool;
use uuid::Uuid;

/// How a group is doing.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupStatus {
    /// Its name.
    pub group: String,
    /// Members whose lease has not run out.
    pub members: i64,
    /// Its partitions, in order.
    pub partitions: Vec<PartitionStatus>,
}

/// How a partition is doing.
#[derive(Clone, Debug, PartialEq, sqlx::FromRow)]
pub struct PartitionStatus {
    /// Which, from 0.
    pub partition: i32,
    /// Its checkpoint: everything up to here is read.
    pub position: i64,
    /// The member that reads it; `None`: nobody.
    pub member: Option<Uuid>,
    /// Committed events of it that are not read. Where its group is more than 10,000 events of the log behind, it is reckoned from the
    /// positions in between.
    pub behind_events: i64,
    /// Age of the oldest of them in seconds, by the database's clock.
    pub behind_seconds: f64,
    /// Whether `behind_events` is not counted but reckoned.
    pub is_reckoned: bool,
}

impl GroupStatus {
    /// Events of all partitions that are not read.
    #[must_use]
    pub fn behind_events(&self) -> i64 {
        self.partitions.iter().map(|it| it.behind_events).sum()
    }

    /// Whether some of these figures are not counted but reckoned.
    #[must_use]
    pub fn is_reckoned(&self) -> bool {
        self.partitions.iter().any(|it| it.is_reckoned)
    }

    /// The partition that is furthest behind, by age.
    #[must_use]
    pub fn slowest(&self) -> Option<&PartitionStatus> {
        self.partitions.iter().max_by(|one, other| one.behind_seconds.total_cmp(&other.behind_seconds))
    }
}

/// Reads how each group is doing, by the database's clock. Takes no longer when one is far behind.
///
/// # Errors
/// The database can not be used.
pub async fn group_status(pool: &PgPool) -> Result<Vec<GroupStatus>, sqlx::Error> {
    let groups: Vec<(String, i64)> = sqlx::query_as(
        "/* subscription.groups */
         SELECT g.name, (SELECT count(*) FROM reader_group_members m
                          WHERE m.group_name = g.name AND m.lease_until > clock_timestamp())
           FROM reader_groups g ORDER BY g.name",
    )
    .fetch_all(pool)
    .await?;
    let mut status = vec![];
    for (group, members) in groups {
        let partitions = partition_status(pool, &group).await?;
        status.push(GroupStatus { group, members, partitions });
    }
    Ok(status)
}

/// The limit is written out: the planner would take a parameter for a tenth of the log.
async fn partition_status(pool: &PgPool, group: &str) -> Result<Vec<PartitionStatus>, sqlx::Error> {
    sqlx::query_as(
        "/* subscription.status */
         WITH waiting AS MATERIALIZED (
             SELECT position, recorded_at,
                    log_partition(stream_id, (SELECT partitions FROM reader_groups WHERE name = $1)) AS partition
               FROM events
              WHERE position > (SELECT min(position) FROM reader_group_partitions WHERE group_name = $1)
              ORDER BY position LIMIT 10001),
         counted AS MATERIALIZED (
             SELECT p.partition, count(w.position) AS events, min(w.recorded_at) AS oldest
               FROM reader_group_partitions p
               LEFT JOIN waiting w ON w.partition = p.partition AND w.position > p.position
              WHERE p.group_name = $1 GROUP BY p.partition),
         far AS MATERIALIZED (SELECT count(*) > 10000 AS is_reckoned FROM waiting)
         SELECT p.partition, p.position, alive.member, far.is_reckoned,
                CASE WHEN far.is_reckoned
                     THEN greatest(c.events, ((SELECT max(position) FROM events) - p.position) / g.partitions)
                     ELSE c.events END AS behind_events,
                coalesce(extract(epoch FROM clock_timestamp() - coalesce(c.oldest, CASE WHEN far.is_reckoned THEN (
                    SELECT recorded_at FROM events WHERE position > p.position ORDER BY position LIMIT 1) END)), 0)::float8
                    AS behind_seconds
           FROM far
          CROSS JOIN reader_groups g
           JOIN reader_group_partitions p ON p.group_name = g.name
           JOIN counted c ON c.partition = p.partition
           LEFT JOIN reader_group_members alive
                  ON alive.group_name = g.name AND alive.member = p.member AND alive.lease_until > clock_timestamp()
          WHERE g.name = $1 ORDER BY p.partition",
    )
    .bind(group)
    .fetch_all(pool)
    .await
}
