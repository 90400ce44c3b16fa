//! Tasks: one by its id, and pages of them.

use super::{Page, ReadError, Reader, Viewer, Window};
use domain::id::{AssetId, TaskId, TenantId};
use domain::time::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{FromRow, Postgres, QueryBuilder, Row};
use uuid::Uuid;

/// A task as its read model shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskRow {
    /// The task.
    pub task: TaskId,
    /// Its owner.
    pub tenant: TenantId,
    /// Version of its stream.
    pub version: i64,
    /// Name of its state.
    pub state: String,
    /// The provider.
    pub provider: String,
    /// The model.
    pub model: String,
    /// Length asked for, in seconds.
    pub duration_seconds: i32,
    /// Uploaded input images.
    pub input_assets: Vec<AssetId>,
    /// Credits held for it, in minor units.
    pub hold: i64,
    /// What it cost, in minor units, once that is known.
    pub charge: Option<i64>,
    /// Number of the current attempt; 0 before the first.
    pub attempt_no: i32,
    /// Why it failed: the class.
    pub error_class: Option<String>,
    /// Why it failed: a stable code.
    pub error_code: Option<String>,
    /// Why it failed: a sentence.
    pub error_message: Option<String>,
    /// What the person who was asked needs to know.
    pub review_reason: Option<String>,
    /// Who wants it cancelled.
    pub canceled_by: Option<String>,
    /// When it is to go on by itself, as far as the events say; none at the end and in review.
    pub wake_at: Option<Timestamp>,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
}

impl FromRow<'_, PgRow> for TaskRow {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            task: TaskId(row.try_get("task_id")?),
            tenant: TenantId(row.try_get("tenant_id")?),
            version: row.try_get("version")?,
            state: row.try_get("state")?,
            provider: row.try_get("provider")?,
            model: row.try_get("model")?,
            duration_seconds: row.try_get("duration_seconds")?,
            input_assets: row.try_get::<Vec<Uuid>, _>("input_assets")?.into_iter().map(AssetId).collect(),
            hold: row.try_get("hold")?,
            charge: row.try_get("charge")?,
            attempt_no: row.try_get("attempt_no")?,
            error_class: row.try_get("error_class")?,
            error_code: row.try_get("error_code")?,
            error_message: row.try_get("error_message")?,
            review_reason: row.try_get("review_reason")?,
            canceled_by: row.try_get("canceled_by")?,
            wake_at: row.try_get("wake_at")?,
            created_at: row.try_get("created_at")?,
            updated_at: row.try_get("updated_at")?,
            finished_at: row.try_get("finished_at")?,
        })
    }
}

const SELECT: &str =
    "/* projections.tasks_where */ SELECT task_id, tenant_id, version, state, provider, model, duration_seconds, input_assets, hold, charge,
        attempt_no, error_class, error_code, error_message, review_reason, canceled_by, wake_at, created_at, updated_at, finished_at
   FROM read_tasks WHERE ";

/// A place in the list: after or before one task. Both halves count, so that tasks of the same instant are neither skipped nor
/// repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// When that task was submitted.
    pub created_at: Timestamp,
    /// The task.
    pub task: TaskId,
}

impl TaskRow {
    /// Its place in the list.
    #[must_use]
    pub const fn cursor(&self) -> Cursor {
        Cursor { created_at: self.created_at, task: self.task }
    }
}

/// In which order tasks are listed. Both are orders of one index, and of a column that never changes: a page stays where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskOrder {
    /// Those submitted last come first.
    #[default]
    NewestFirst,
    /// Those submitted first come first.
    OldestFirst,
}

/// Which tasks are listed: those that every part that is given agrees with. An empty list agrees with none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFilter {
    /// In one of these states, by name.
    pub states: Option<Vec<String>>,
    /// At one of these providers.
    pub providers: Option<Vec<String>>,
    /// For one of these models.
    pub models: Option<Vec<String>>,
    /// Failed for one of these reasons: the class, by its stored word.
    pub error_classes: Option<Vec<String>>,
    /// Submitted at this time or later.
    pub created_from: Option<Timestamp>,
    /// Submitted before this time.
    pub created_before: Option<Timestamp>,
}

impl TaskFilter {
    /// What the index of the list answers by itself.
    fn push_range(&self, query: &mut QueryBuilder<Postgres>) {
        if let Some(from) = self.created_from {
            query.push(" AND created_at >= ").push_bind(from);
        }
        if let Some(before) = self.created_before {
            query.push(" AND created_at < ").push_bind(before);
        }
    }

    /// What is looked up in each row.
    fn push_words(&self, query: &mut QueryBuilder<Postgres>) {
        let lists = [
            (" AND state = ANY (", &self.states),
            (" AND provider = ANY (", &self.providers),
            (" AND model = ANY (", &self.models),
            (" AND error_class = ANY (", &self.error_classes),
        ];
        for (condition, words) in lists {
            if let Some(words) = words {
                query.push(condition).push_bind(words.clone()).push(")");
            }
        }
    }
}

/// How many tasks there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskCount {
    /// So many were found.
    pub found: u32,
    /// Whether these are all; otherwise there are at least so many.
    pub exact: bool,
}

/// How many tasks are looked at to count: a count costs the same however long the list grows.
pub const MAX_COUNTED: u32 = 10_000;

impl Reader {
    /// A task, if this viewer may see it.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn task(&self, viewer: Viewer, task: TaskId) -> Result<Option<TaskRow>, ReadError> {
        let mut query = QueryBuilder::<Postgres>::new("/* projections.task */");
        query.push(SELECT).push("task_id = ").push_bind(task.0);
        wall(&mut query, viewer);
        Ok(query.build_query_as().fetch_optional(&self.pool).await?)
    }

    /// A part of the tasks that this viewer may see.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn tasks(
        &self,
        viewer: Viewer,
        filter: &TaskFilter,
        order: TaskOrder,
        window: Window<Cursor>,
    ) -> Result<Page<TaskRow>, ReadError> {
        let mut query = QueryBuilder::<Postgres>::new("/* projections.tasks */");
        query.push(SELECT).push("true");
        wall(&mut query, viewer);
        filter.push_range(&mut query);
        filter.push_words(&mut query);
        // The end of a list is the start of the same list in the other order.
        let descending = (order == TaskOrder::NewestFirst) == window.is_forward();
        if let Some(place) = window.place() {
            query.push(if descending { " AND (created_at, task_id) < (" } else { " AND (created_at, task_id) > (" });
            query.push_bind(place.created_at).push(", ").push_bind(place.task.0).push(")");
        }
        query.push(if descending {
            " ORDER BY created_at DESC, task_id DESC LIMIT "
        } else {
            " ORDER BY created_at, task_id LIMIT "
        });
        query.push_bind(window.limit());
        Ok(window.page(query.build_query_as().fetch_all(&self.pool).await?))
    }

    /// How many tasks this viewer may see, among the newest [`MAX_COUNTED`] of the time range.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn count_tasks(&self, viewer: Viewer, filter: &TaskFilter) -> Result<TaskCount, ReadError> {
        let mut query =
            QueryBuilder::<Postgres>::new("/* projections.count_tasks */ SELECT count(*) FILTER (WHERE true");
        filter.push_words(&mut query);
        query.push("), count(*) FROM (SELECT state, provider, model, error_class FROM read_tasks WHERE true");
        wall(&mut query, viewer);
        filter.push_range(&mut query);
        // One more than are looked at says whether there are more.
        query.push(" ORDER BY created_at DESC, task_id DESC LIMIT ").push_bind(i64::from(MAX_COUNTED) + 1);
        query.push(") AS newest");
        let (found, seen): (i64, i64) = query.build_query_as().fetch_one(&self.pool).await?;
        let found = u32::try_from(found).unwrap_or(MAX_COUNTED).min(MAX_COUNTED);
        Ok(TaskCount { found, exact: seen <= i64::from(MAX_COUNTED) })
    }
}

fn wall(query: &mut QueryBuilder<Postgres>, viewer: Viewer) {
    if let Some(tenant) = viewer.bind() {
        query.push(" AND tenant_id = ").push_bind(tenant);
    }
}
