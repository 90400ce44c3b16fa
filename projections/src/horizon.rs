//! Who keeps dead rows from being cleaned away: old snapshots. Each claimed, sent or folded row leaves a dead version behind;
//! as long as the oldest snapshot may still see it, it stays, and what walks over it (the relay's claim, the projector's
//! checkpoint) gets slower. The cure is to end the session, so it is named.

use sqlx::PgPool;
use std::fmt;
use std::time::Duration;

/// From so many transactions on, a holder without a known age (a replication slot) counts as old.
const OLD_TRANSACTIONS: i64 = 1_000_000;

/// Something that holds a snapshot.
#[derive(Clone, Debug, PartialEq, sqlx::FromRow)]
pub struct Holder {
    /// `session`, `prepared transaction` or `replication slot`.
    pub kind: String,
    /// The session's process id, the transaction's or the slot's name.
    pub name: String,
    /// What is known of it: application, role, state, address.
    pub detail: String,
    /// How long it has been open, in seconds, by the database's clock; `None` for what only counts transactions.
    pub seconds: Option<f64>,
    /// How many transactions have begun since.
    pub transactions: i64,
}

impl Holder {
    /// Whether it is older than this.
    #[must_use]
    pub fn is_older_than(&self, limit: Duration) -> bool {
        match self.seconds {
            Some(seconds) => seconds > limit.as_secs_f64(),
            None => self.transactions > OLD_TRANSACTIONS,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({}) holds a snapshot", self.kind, self.name, self.detail)?;
        if let Some(seconds) = self.seconds {
            write!(f, " since {seconds:.0} s")?;
        }
        write!(f, ", {} transactions ago", self.transactions)
    }
}

/// Everything that holds a snapshot in this database.
#[derive(Clone, Debug, PartialEq)]
pub struct Horizon {
    /// The oldest first.
    pub holders: Vec<Holder>,
    /// Sessions of other roles about which the database tells this one nothing: `GRANT pg_read_all_stats` lets it see them.
    pub hidden: i64,
}

impl Horizon {
    /// Those that are older than this.
    pub fn older_than(&self, limit: Duration) -> impl Iterator<Item = &Holder> {
        self.holders.iter().filter(move |holder| holder.is_older_than(limit))
    }
}

/// Reads who holds snapshots.
///
/// # Errors
/// The database can not be used.
pub async fn horizon(pool: &PgPool) -> Result<Horizon, sqlx::Error> {
    let holders = sqlx::query_as(
        "/* horizon.holders */
         SELECT 'session' AS kind, pid::text AS name,
                concat_ws(', ', nullif(application_name, ''), usename, state, host(client_addr)) AS detail,
                -- A standby that reports its snapshot moves it on: how long it is connected tells nothing.
                CASE WHEN backend_type <> 'walsender'
                     THEN extract(epoch FROM clock_timestamp() - xact_start)::float8 END AS seconds,
                greatest(age(backend_xmin), age(backend_xid))::bigint AS transactions
           FROM pg_stat_activity
          WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid()
            AND (datname = current_database() OR backend_type = 'walsender') AND backend_type <> 'autovacuum worker'
         UNION ALL
         SELECT 'prepared transaction', gid, owner::text,
                extract(epoch FROM clock_timestamp() - prepared)::float8, age(transaction)::bigint
           FROM pg_prepared_xacts WHERE database = current_database()
         UNION ALL
         SELECT 'replication slot', slot_name::text, concat_ws(', ', slot_type, CASE WHEN active THEN 'in use' ELSE 'unused' END),
                NULL, age(xmin)::bigint
           FROM pg_replication_slots WHERE xmin IS NOT NULL
          ORDER BY transactions DESC",
    )
    .fetch_all(pool)
    .await?;
    let hidden = sqlx::query_scalar(
        "/* horizon.hidden */
         SELECT count(*) FROM pg_stat_activity
          WHERE datname = current_database() AND query = '<insufficient privilege>'",
    )
    .fetch_one(pool)
    .await?;
    Ok(Horizon { holders, hidden })
}
