//! Who reads what: the functions of the database that every member calls, other programs included. They are in the migration of
//! reader groups; `docs/event-store.md` says how to use them.

use super::HandlerError;
use eventstore::LoggedEvent;
use sqlx::{PgConnection, PgPool};
use std::time::Duration;
use uuid::Uuid;

/// What the database answers where a partition is not its member's any more.
const LOST: &str = "LR001";

/// Why a group could not be opened, or a batch does not count.
#[derive(Debug, thiserror::Error)]
pub enum SubscriptionError {
    /// The database can not be used: try again.
    #[error("the database could not be used")]
    Database(#[source] sqlx::Error),
    /// The group can not be what it is asked to be: in words, for whoever configured it.
    #[error("{0}")]
    Refused(String),
    /// The partition is not this member's any more; nothing that it did counts. In words.
    #[error("{0}")]
    Lost(String),
    /// The handler could not do its work.
    #[error("the handler failed")]
    Handler(#[source] HandlerError),
}

impl From<sqlx::Error> for SubscriptionError {
    fn from(error: sqlx::Error) -> Self {
        let Some(answer) = error.as_database_error() else { return Self::Database(error) };
        let said = answer.message().to_owned();
        match answer.code().as_deref() {
            Some(LOST) => Self::Lost(said),
            // What can not be, or is not there, and what is somebody else's.
            Some("22023" | "42501") => Self::Refused(said),
            _ => Self::Database(error),
        }
    }
}

/// A partition that a member has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::FromRow)]
pub(super) struct Held {
    pub(super) partition: i32,
    /// Fencing: another one each time that the partition is given to a member.
    token: i64,
    /// Everything up to here is handled.
    pub(super) position: i64,
}

impl Held {
    /// Whether nobody had the partition in between.
    pub(super) const fn is_same_lease(&self, other: &Self) -> bool {
        self.partition == other.partition && self.token == other.token
    }
}

/// A group by its name.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) pool: PgPool,
    pub(super) name: String,
}

impl Group {
    pub(super) async fn make(&self, partitions: u16, after: i64) -> Result<(), SubscriptionError> {
        sqlx::query("/* subscription.make */ SELECT make_reader_group($1, $2, $3)")
            .bind(&self.name)
            .bind(i32::from(partitions))
            .bind(after)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    pub(super) async fn claim(&self, member: Uuid, lease: Duration) -> Result<Vec<Held>, SubscriptionError> {
        let claimed = sqlx::query_as(
            "/* subscription.claim */
             SELECT partition, token, position FROM claim_partitions($1, $2, make_interval(secs => $3))",
        )
        .bind(&self.name)
        .bind(member)
        .bind(lease.as_secs_f64())
        .fetch_all(&self.pool)
        .await?;
        Ok(claimed)
    }

    /// Ends the transaction when it hangs for longer than the lease. Whoever has the partition then may have to write to the same
    /// rows: it must not wait for one that does not count any more.
    pub(super) async fn bound(&self, connection: &mut PgConnection, lease: Duration) -> Result<(), SubscriptionError> {
        sqlx::query(
            "/* subscription.bound */
             SELECT set_config('idle_in_transaction_session_timeout', $1, true), set_config('lock_timeout', $1, true)",
        )
        .bind(format!("{}ms", lease.as_millis()))
        .execute(connection)
        .await?;
        Ok(())
    }

    pub(super) async fn read(
        &self,
        connection: &mut PgConnection,
        held: &Held,
        up_to: i64,
        limit: i64,
    ) -> Result<Vec<LoggedEvent>, SubscriptionError> {
        let events = sqlx::query_as(
            "/* subscription.read */
             SELECT position, event_id, category, stream_id, version, name, schema_version, body, tenant_id, correlation_id,
                    causation_id, actor, recorded_at
               FROM partition_events_after($1, $2, $3, $4, $5::integer)",
        )
        .bind(&self.name)
        .bind(held.partition)
        .bind(held.position)
        .bind(up_to)
        .bind(i32::try_from(limit).unwrap_or(i32::MAX))
        .fetch_all(connection)
        .await?;
        Ok(events)
    }

    pub(super) async fn move_checkpoint(
        &self,
        connection: &mut PgConnection,
        held: &Held,
        to: i64,
    ) -> Result<(), SubscriptionError> {
        sqlx::query("/* subscription.move_checkpoint */ SELECT move_checkpoint($1, $2, $3, $4, $5)")
            .bind(&self.name)
            .bind(held.partition)
            .bind(held.token)
            .bind(held.position)
            .bind(to)
            .execute(connection)
            .await?;
        Ok(())
    }

    pub(super) async fn leave(&self, member: Uuid) -> Result<(), SubscriptionError> {
        sqlx::query("/* subscription.leave */ SELECT leave_reader_group($1, $2)")
            .bind(&self.name)
            .bind(member)
            .execute(&self.pool)
            .await?;
        Ok(())
    }
}
