//! Folding one event into the read tables. Everything depends on the events in the order of their positions and on nothing
//! else (no clock, no other table), so a rebuild gives equal rows.

mod accounts;
mod assets;
mod attempts;
mod tasks;

use crate::error::{FoldCause, FoldFault, ProjectError};
use domain::aggregate::Category;
use domain::stored::{Stored, StoredEvent};
use domain::time::Timestamp;
use sqlx::PgConnection;
use std::collections::BTreeSet;
use uuid::Uuid;

/// Each read table with the SQL expression of its key, in the order in which they are filled.
pub const TABLES: [(&str, &str); 6] = [
    ("read_tasks", "task_id::text"),
    ("read_attempts", "attempt_id::text"),
    ("read_assets", "asset_id::text"),
    ("read_accounts", "account_id::text"),
    ("read_account_entries", "account_id::text || '/' || version"),
    ("read_holds", "task_id::text"),
];

/// A stored event as it is read for folding.
#[derive(Clone, Debug, sqlx::FromRow)]
pub(crate) struct Recorded {
    pub(crate) position: i64,
    category: String,
    stream_id: Uuid,
    version: i64,
    name: String,
    schema_version: i16,
    body: serde_json::Value,
    tenant_id: Uuid,
    recorded_at: Timestamp,
}

/// Where and when an event was recorded.
#[derive(Clone, Copy, Debug)]
struct At {
    position: i64,
    stream: Uuid,
    version: i64,
    tenant: Uuid,
    recorded_at: Timestamp,
}

/// Why a fold did not work, before it is known which event it was.
enum Fault {
    Database(sqlx::Error),
    Cause(FoldCause),
}

impl From<FoldCause> for Fault {
    fn from(cause: FoldCause) -> Self {
        Self::Cause(cause)
    }
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
        match error.as_database_error() {
            // A second row where the read model has room for one: the log says something twice.
            Some(fault) if fault.is_unique_violation() => {
                Self::Cause(FoldCause::Repeated(fault.constraint().unwrap_or("unique").to_owned()))
            }
            _ => Self::Database(error),
        }
    }
}

/// Reads the next events after a position, up to one that may be read, in order.
pub(crate) async fn read(
    connection: &mut PgConnection,
    after: i64,
    up_to: i64,
    limit: i64,
) -> Result<Vec<Recorded>, sqlx::Error> {
    sqlx::query_as(
        "/* fold.read */
         SELECT position, category, stream_id, version, name, schema_version, body, tenant_id, recorded_at
           FROM events WHERE position > $1 AND position <= $2 ORDER BY position LIMIT $3",
    )
    .bind(after)
    .bind(up_to)
    .bind(limit)
    .fetch_all(connection)
    .await
}

/// Folds one event; adds the tasks whose picture it changes to `touched`.
pub(crate) async fn fold(
    connection: &mut PgConnection,
    event: &Recorded,
    touched: &mut BTreeSet<Uuid>,
) -> Result<(), ProjectError> {
    apply(connection, event, touched).await.map_err(|fault| match fault {
        Fault::Database(error) => ProjectError::Database(error),
        Fault::Cause(cause) => ProjectError::Corrupt(FoldFault {
            position: event.position,
            stream: format!("{}-{}", event.category, event.stream_id),
            version: event.version,
            name: event.name.clone(),
            cause,
        }),
    })
}

async fn apply(connection: &mut PgConnection, event: &Recorded, touched: &mut BTreeSet<Uuid>) -> Result<(), Fault> {
    let at = At {
        position: event.position,
        stream: event.stream_id,
        version: event.version,
        tenant: event.tenant_id,
        recorded_at: event.recorded_at,
    };
    match Category::parse(&event.category) {
        Some(Category::Task) => {
            let event = decode(event)?;
            tasks::fold(connection, at, &event).await?;
            assets::fold(connection, at, &event).await?;
            touched.insert(at.stream);
        }
        Some(Category::Attempt) => {
            touched.extend(attempts::fold(connection, at, &decode(event)?).await?);
        }
        Some(Category::Account) => {
            touched.extend(accounts::fold(connection, at, &decode(event)?).await?);
        }
        None => return Err(FoldCause::UnknownCategory.into()),
    }
    Ok(())
}

fn decode<E: StoredEvent>(event: &Recorded) -> Result<E, FoldCause> {
    let stored = Stored { name: event.name.clone(), version: event.schema_version, body: event.body.clone() };
    Ok(E::decode(stored)?)
}

/// A statement that had to change exactly one row.
fn one(rows: u64, otherwise: FoldCause) -> Result<(), Fault> {
    if rows == 1 { Ok(()) } else { Err(otherwise.into()) }
}

/// Amounts and sizes are unsigned in the events and `bigint` in the tables.
fn bigint(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn integer(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}
