//! Folding events into the read tables. Everything depends on the events in the order of their positions and on nothing else
//! (no clock, no other table), so a rebuild gives equal rows. The projector, a rebuild and a check all come this way.
//!
//! Events are folded many at once: the rows they need are loaded with one statement a table, each event is folded into them in
//! memory, by rules without a database, and what was changed is stored with one statement a table.

mod accounts;
mod alone;
mod assets;
mod attempts;
#[cfg(test)]
mod histories;
mod row;
mod rows;
mod tables;
mod tasks;
mod versions;

pub(crate) use alone::{Alone, shown_rows};
pub(crate) use versions::AtVersion;

use crate::error::{FoldCause, FoldFault, ProjectError};
use domain::aggregate::Category;
use domain::stored::{Body, StoredEvent};
use domain::time::Timestamp;
use domain::{attempt, ledger, task};
use rows::Rows;
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
    pub(crate) category: String,
    pub(crate) stream_id: Uuid,
    pub(crate) version: i64,
    pub(crate) name: String,
    schema_version: i16,
    /// JSON text: it is read straight into the event.
    body: String,
    pub(crate) tenant_id: Uuid,
    pub(crate) recorded_at: Timestamp,
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

/// What an event says.
#[expect(clippy::large_enum_variant, reason = "one at a time, as it is folded")]
enum Event {
    Task(task::Event),
    Attempt(attempt::Event),
    Account(ledger::Event),
}

/// An event that decodes.
struct Known<'a> {
    recorded: &'a Recorded,
    at: At,
    event: Event,
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
         SELECT position, category, stream_id, version, name, schema_version, body::text AS body, tenant_id,
                recorded_at
           FROM events WHERE position > $1 AND position <= $2 ORDER BY position LIMIT $3",
    )
    .bind(after)
    .bind(up_to)
    .bind(limit)
    .fetch_all(connection)
    .await
}

/// Folds events, which follow each other in the log, and stores the rows that they change. The tasks whose picture changed.
///
/// # Errors
/// [`ProjectError::Corrupt`] names the first event that can not be folded. Nothing is stored then, what is before it included:
/// whoever wants that folds it by itself.
pub(crate) async fn fold(connection: &mut PgConnection, events: &[Recorded]) -> Result<BTreeSet<Uuid>, ProjectError> {
    let mut known = Vec::with_capacity(events.len());
    let mut unreadable = None;
    for recorded in events {
        match Known::of(recorded) {
            Ok(it) => known.push(it),
            Err(cause) => {
                // An event before it may be the first one that can not be folded.
                unreadable = Some(recorded.fault(cause));
                break;
            }
        }
    }
    let mut rows = Rows::load(connection, &known).await?;
    let mut touched = BTreeSet::new();
    for event in &known {
        touched.extend(event.apply(&mut rows).map_err(|cause| event.recorded.fault(cause))?);
    }
    if let Some(fault) = unreadable {
        return Err(fault.into());
    }
    rows.store(connection).await?;
    Ok(touched)
}

impl Recorded {
    fn fault(&self, cause: FoldCause) -> FoldFault {
        FoldFault {
            position: self.position,
            stream: format!("{}-{}", self.category, self.stream_id),
            version: self.version,
            name: self.name.clone(),
            cause,
        }
    }

    fn read<E: StoredEvent>(&self) -> Result<E, FoldCause> {
        Ok(E::read(&self.name, self.schema_version, Body::Text(&self.body))?)
    }
}

impl<'a> Known<'a> {
    fn of(recorded: &'a Recorded) -> Result<Self, FoldCause> {
        let event = match Category::parse(&recorded.category) {
            Some(Category::Task) => Event::Task(recorded.read()?),
            Some(Category::Attempt) => Event::Attempt(recorded.read()?),
            Some(Category::Account) => Event::Account(recorded.read()?),
            None => return Err(FoldCause::UnknownCategory),
        };
        let at = At {
            position: recorded.position,
            stream: recorded.stream_id,
            version: recorded.version,
            tenant: recorded.tenant_id,
            recorded_at: recorded.recorded_at,
        };
        Ok(Self { recorded, at, event })
    }

    /// The task whose picture it changes, if it changes one's.
    fn apply(&self, rows: &mut Rows) -> Result<Option<Uuid>, FoldCause> {
        match &self.event {
            Event::Task(event) => {
                tasks::fold(rows, self.at, event)?;
                assets::fold(rows, self.at, event)?;
                Ok(Some(self.at.stream))
            }
            Event::Attempt(event) => attempts::fold(rows, self.at, event).map(Some),
            Event::Account(event) => accounts::fold(rows, self.at, event),
        }
    }
}

/// An array as PostgreSQL writes it.
fn array(items: impl Iterator<Item = impl AsRef<str>>) -> String {
    let mut text = "{}".to_owned();
    for item in items {
        extend(&mut text, item.as_ref());
    }
    text
}

/// Adds an item at the end of an array in PostgreSQL's writing. Quoted, any text is itself.
fn extend(array: &mut String, item: &str) {
    array.pop();
    array.push_str(if array.len() > 1 { ",\"" } else { "\"" });
    for letter in item.chars() {
        if matches!(letter, '"' | '\\') {
            array.push('\\');
        }
        array.push(letter);
    }
    array.push_str("\"}");
}

/// Amounts and sizes are unsigned in the events and `bigint` in the tables.
fn bigint(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn integer(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::{array, extend};

    #[test]
    fn an_array_is_written_as_postgresql_reads_it() {
        assert_eq!(array(std::iter::empty::<&str>()), "{}");
        assert_eq!(array(["a", "", "NULL", "b,{c}", "\"\\"].into_iter()), r#"{"a","","NULL","b,{c}","\"\\"}"#);
        // As the database has it: quoted only where it must be.
        let mut read = "{job-1}".to_owned();
        extend(&mut read, "job-2");
        assert_eq!(read, r#"{job-1,"job-2"}"#);
    }
}
