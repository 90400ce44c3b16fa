//! What a batch of events needs of the read tables, in memory: loaded once, folded in the order of positions, stored once.

use super::row::{self, Row, Table};
use super::tables::{AccountRow, AssetRow, AttemptRow, EntryRow, HoldRow, TaskRow};
use super::{Event, Known};
use domain::id::{AssetId, AttemptId, TaskId};
use domain::{attempt, task};
use sqlx::{AssertSqlSafe, PgConnection};
use std::collections::BTreeSet;
use uuid::Uuid;

/// The rows, and the keys that are taken where there can be only one.
#[derive(Default)]
pub(super) struct Rows {
    pub(super) tasks: Table<Uuid, TaskRow>,
    pub(super) attempts: Table<Uuid, AttemptRow>,
    /// Task and number.
    pub(super) numbers: BTreeSet<(Uuid, i32)>,
    /// By task and asset: an event is about the assets of its task.
    pub(super) assets: Table<(Uuid, Uuid), AssetRow>,
    pub(super) asset_ids: BTreeSet<Uuid>,
    pub(super) accounts: Table<Uuid, AccountRow>,
    /// New postings.
    pub(super) entries: Vec<EntryRow>,
    /// Account and version.
    pub(super) postings: BTreeSet<(Uuid, i64)>,
    /// Account and business key.
    pub(super) business_keys: BTreeSet<(Uuid, String)>,
    pub(super) holds: Table<Uuid, HoldRow>,
}

impl Rows {
    /// Loads all that these events may ask for: one statement a table, and none for a table that they are not about.
    pub(super) async fn load(connection: &mut PgConnection, events: &[Known<'_>]) -> Result<Self, sqlx::Error> {
        let mut rows = Self::default();
        let tasks = rows.load_attempts(connection, events).await?;
        rows.load_tasks(connection, events, tasks).await?;
        rows.load_assets(connection, events).await?;
        rows.load_accounts(connection, events).await?;
        Ok(rows)
    }

    /// Stores what was changed, one statement a table.
    pub(super) async fn store(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        row::store(connection, &self.tasks.changed()).await?;
        row::store(connection, &self.attempts.changed()).await?;
        row::store(connection, &self.assets.changed()).await?;
        row::store(connection, &self.accounts.changed()).await?;
        row::store(connection, &self.entries.iter().collect::<Vec<_>>()).await?;
        row::store(connection, &self.holds.changed()).await
    }

    /// The attempts' tasks: their rows say.
    async fn load_attempts(
        &mut self,
        connection: &mut PgConnection,
        events: &[Known<'_>],
    ) -> Result<BTreeSet<Uuid>, sqlx::Error> {
        let mut ids = BTreeSet::new();
        let mut planned = BTreeSet::new();
        for event in events {
            let Event::Attempt(it) = &event.event else { continue };
            ids.insert(event.at.stream);
            if let attempt::Event::Planned { task, number, .. } = it {
                planned.insert((task.0, super::integer(*number)));
            }
        }
        let mut tasks: BTreeSet<Uuid> = planned.iter().map(|(task, _)| *task).collect();
        let (of_task, number): (Vec<_>, Vec<_>) = planned.into_iter().unzip();
        if ids.is_empty() {
            return Ok(tasks);
        }
        let columns = row::columns::<AttemptRow>();
        let found: Vec<AttemptRow> = sqlx::query_as(AssertSqlSafe(format!(
            "/* fold.load_attempts */
             SELECT row.* FROM unnest($1::uuid[]) AS wanted (id)
              CROSS JOIN LATERAL (SELECT {columns} FROM read_attempts WHERE attempt_id = wanted.id LIMIT 1) AS row
             UNION ALL
             SELECT row.* FROM unnest($2::uuid[], $3::integer[]) AS wanted (task, no)
              CROSS JOIN LATERAL (SELECT {columns} FROM read_attempts WHERE task_id = wanted.task AND number = wanted.no
                                   LIMIT 1) AS row"
        )))
        .bind(ids.into_iter().collect::<Vec<_>>())
        .bind(of_task)
        .bind(number)
        .fetch_all(connection)
        .await?;
        for row in found {
            tasks.insert(row.task_id);
            self.numbers.insert((row.task_id, row.number));
            self.attempts.load(row.attempt_id, row);
        }
        Ok(tasks)
    }

    async fn load_tasks(
        &mut self,
        connection: &mut PgConnection,
        events: &[Known<'_>],
        mut ids: BTreeSet<Uuid>,
    ) -> Result<(), sqlx::Error> {
        for event in events {
            match &event.event {
                Event::Task(_) => ids.extend([event.at.stream]),
                Event::Attempt(_) => {}
                Event::Account(it) => ids.extend(super::accounts::task(it)),
            }
        }
        for row in by_id::<TaskRow>(connection, "task_id", ids).await? {
            self.tasks.load(row.task_id, row);
        }
        Ok(())
    }

    /// All assets of the tasks whose assets change, and whatever has the id of an asset that is new.
    async fn load_assets(&mut self, connection: &mut PgConnection, events: &[Known<'_>]) -> Result<(), sqlx::Error> {
        let mut tasks = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for event in events {
            let Event::Task(it) = &event.event else { continue };
            match it {
                task::Event::VideoStored { video, .. } => ids.extend([video.asset.0]),
                task::Event::Succeeded { thumbnail: Some(_), .. } => {
                    ids.extend(self.thumbnails(events, event.at.stream))
                }
                task::Event::Succeeded { .. } | task::Event::VideoReady { .. } => {}
                _ => continue,
            }
            tasks.insert(event.at.stream);
        }
        if tasks.is_empty() {
            return Ok(());
        }
        let columns = row::columns::<AssetRow>();
        let found: Vec<AssetRow> = sqlx::query_as(AssertSqlSafe(format!(
            "/* fold.load_assets */
             SELECT row.* FROM unnest($1::uuid[]) AS wanted (id)
              CROSS JOIN LATERAL (SELECT {columns} FROM read_assets WHERE task_id = wanted.id LIMIT $3) AS row
             UNION ALL
             SELECT row.* FROM unnest($2::uuid[]) AS wanted (id)
              CROSS JOIN LATERAL (SELECT {columns} FROM read_assets WHERE asset_id = wanted.id LIMIT 1) AS row"
        )))
        .bind(tasks.into_iter().collect::<Vec<_>>())
        .bind(ids.into_iter().collect::<Vec<_>>())
        .bind(i64::MAX)
        .fetch_all(connection)
        .await?;
        for row in found {
            self.asset_ids.insert(row.asset_id);
            self.assets.load((row.task_id, row.asset_id), row);
        }
        Ok(())
    }

    /// The ids that a task's thumbnail may get: which attempt made the video is known once the events are folded.
    fn thumbnails(&self, events: &[Known<'_>], task: Uuid) -> Vec<Uuid> {
        let begun = events.iter().filter(|it| it.at.stream == task).filter_map(|it| match &it.event {
            Event::Task(task::Event::SubmissionBegun { attempt_no }) => Some(*attempt_no),
            _ => None,
        });
        let current = self.tasks.get(&task).and_then(|row| u32::try_from(row.attempt_no).ok());
        let mut ids = vec![AssetId::of_export(TaskId(task), "thumbnail").0];
        ids.extend(begun.chain(current).map(|number| AssetId::of(AttemptId::of(TaskId(task), number), "thumbnail").0));
        ids
    }

    async fn load_accounts(&mut self, connection: &mut PgConnection, events: &[Known<'_>]) -> Result<(), sqlx::Error> {
        let mut ids = BTreeSet::new();
        let mut tasks = BTreeSet::new();
        let mut postings = (Vec::new(), Vec::new(), Vec::new());
        for event in events {
            let Event::Account(it) = &event.event else { continue };
            ids.insert(event.at.stream);
            tasks.extend(super::accounts::task(it));
            postings.0.push(event.at.stream);
            postings.1.push(event.at.version);
            postings.2.push(super::accounts::posting(it).key);
        }
        if ids.is_empty() {
            return Ok(());
        }
        for row in by_id::<AccountRow>(connection, "account_id", ids).await? {
            self.accounts.load(row.account_id, row);
        }
        for row in by_id::<HoldRow>(connection, "task_id", tasks).await? {
            self.holds.load(row.task_id, row);
        }
        let taken: Vec<(Uuid, i64, String)> = sqlx::query_as(
            "/* fold.load_entries */
             SELECT wanted.account_id, entry.version, entry.business_key
               FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS wanted (account_id, version, business_key)
              CROSS JOIN LATERAL (
                    (SELECT version, business_key FROM read_account_entries
                      WHERE account_id = wanted.account_id AND version = wanted.version LIMIT 1)
                    UNION ALL
                    (SELECT version, business_key FROM read_account_entries
                      WHERE account_id = wanted.account_id AND business_key = wanted.business_key LIMIT 1)) AS entry",
        )
        .bind(postings.0)
        .bind(postings.1)
        .bind(postings.2)
        .fetch_all(connection)
        .await?;
        for (account, version, key) in taken {
            self.postings.insert((account, version));
            self.business_keys.insert((account, key));
        }
        Ok(())
    }
}

/// Rows by a key of one id. The limit keeps the look-ups what they are: without it they may be planned as one scan of the whole
/// table, while it is small, and stay so.
async fn by_id<R: Row>(
    connection: &mut PgConnection,
    key: &'static str,
    ids: BTreeSet<Uuid>,
) -> Result<Vec<R>, sqlx::Error> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let (table, columns) = (R::TABLE, row::columns::<R>());
    sqlx::query_as(AssertSqlSafe(format!(
        "/* fold.load_{table} */
         SELECT row.* FROM unnest($1::uuid[]) AS wanted (id)
          CROSS JOIN LATERAL (SELECT {columns} FROM {table} WHERE {key} = wanted.id LIMIT 1) AS row"
    )))
    .bind(ids.into_iter().collect::<Vec<_>>())
    .fetch_all(connection)
    .await
}
