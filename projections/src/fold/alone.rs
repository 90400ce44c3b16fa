//! A task's rows by themselves: folded in memory from its own events, and as the read tables have them.

use super::row::{self, Row};
use super::tables::{AssetRow, AttemptRow, TaskRow};
use super::{Event, Known, Recorded, Rows};
use crate::error::FoldFault;
use serde::Serialize;
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgConnection};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Rows of one task.
pub(crate) struct Alone(Rows);

impl Alone {
    /// Folds the events of a task and of its attempts. The first that can not be folded ends it.
    pub(crate) fn of(events: &[Recorded]) -> (Self, Option<FoldFault>) {
        let mut rows = Rows::default();
        for recorded in events {
            let folded = Known::of(recorded).and_then(|known| match known.event {
                // An account's rows are made of more than one task's events.
                Event::Account(_) => Ok(None),
                Event::Task(_) | Event::Attempt(_) => known.apply(&mut rows),
            });
            if let Err(cause) = folded {
                return (Self(rows), Some(recorded.fault(cause)));
            }
        }
        (Self(rows), None)
    }

    /// Every row, by table and key.
    pub(crate) fn rows(&self) -> BTreeMap<(&'static str, String), Value> {
        let mut all = BTreeMap::new();
        add(&mut all, self.0.tasks.changed(), |row| row.task_id);
        add(&mut all, self.0.attempts.changed(), |row| row.attempt_id);
        add(&mut all, self.0.assets.changed(), |row| row.asset_id);
        all
    }
}

fn add<'r, R: Row + Serialize + 'r>(
    all: &mut BTreeMap<(&'static str, String), Value>,
    rows: impl IntoIterator<Item = &'r R>,
    key: impl Fn(&R) -> Uuid,
) {
    for row in rows {
        let mut value = serde_json::to_value(row).unwrap_or_default();
        for column in R::COLUMNS.iter().filter(|column| column.carried != column.stored) {
            // PostgreSQL quotes the items of an array only where it must.
            if let Some(Value::String(array)) = value.get_mut(column.name) {
                array.retain(|letter| letter != '"');
            }
        }
        all.insert((R::TABLE, key(row).to_string()), value);
    }
}

/// The rows that the read tables have of a task, by table and key.
pub(crate) async fn shown_rows(
    connection: &mut PgConnection,
    task: Uuid,
) -> Result<BTreeMap<(&'static str, String), Value>, sqlx::Error> {
    let mut all = BTreeMap::new();
    add(&mut all, &of_task::<TaskRow>(connection, task).await?, |row| row.task_id);
    add(&mut all, &of_task::<AttemptRow>(connection, task).await?, |row| row.attempt_id);
    add(&mut all, &of_task::<AssetRow>(connection, task).await?, |row| row.asset_id);
    Ok(all)
}

async fn of_task<R: Row>(connection: &mut PgConnection, task: Uuid) -> Result<Vec<R>, sqlx::Error> {
    let (table, columns) = (R::TABLE, row::columns::<R>());
    let statement = format!("/* fold.shown_{table} */ SELECT {columns} FROM {table} WHERE task_id = $1");
    sqlx::query_as(AssertSqlSafe(statement)).bind(task).fetch_all(connection).await
}
