//! Tasks: one by its id, and pages of them.

use super::{ReadError, Reader, Viewer};
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
            created_at: row.try_get("created_at")?,
            updated_at: row.try_get("updated_at")?,
            finished_at: row.try_get("finished_at")?,
        })
    }
}

const SELECT: &str =
    "/* projections.tasks_where */ SELECT task_id, tenant_id, version, state, provider, model, duration_seconds, input_assets, hold, charge,
        attempt_no, error_class, error_code, error_message, review_reason, created_at, updated_at, finished_at
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

/// Which part of the list, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// The first so many, from the start or after a place.
    First {
        /// How many.
        count: u32,
        /// After this place.
        after: Option<Cursor>,
    },
    /// The last so many, from the end or before a place.
    Last {
        /// How many.
        count: u32,
        /// Before this place.
        before: Option<Cursor>,
    },
}

/// A part of the list, newest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// The tasks.
    pub rows: Vec<TaskRow>,
    /// Whether newer ones come before it.
    pub has_previous: bool,
    /// Whether older ones come after it.
    pub has_next: bool,
}

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

    /// A part of the tasks that this viewer may see, newest first, optionally only those in one state.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn tasks(&self, viewer: Viewer, state: Option<&str>, window: Window) -> Result<Page, ReadError> {
        let mut query = QueryBuilder::<Postgres>::new("/* projections.tasks */");
        query.push(SELECT).push("true");
        wall(&mut query, viewer);
        if let Some(state) = state {
            query.push(" AND state = ").push_bind(state.to_owned());
        }
        let (count, place, forward) = match window {
            Window::First { count, after } => (count, after, true),
            Window::Last { count, before } => (count, before, false),
        };
        if let Some(place) = place {
            query.push(if forward { " AND (created_at, task_id) < (" } else { " AND (created_at, task_id) > (" });
            query.push_bind(place.created_at).push(", ").push_bind(place.task.0).push(")");
        }
        query.push(if forward {
            " ORDER BY created_at DESC, task_id DESC LIMIT "
        } else {
            " ORDER BY created_at, task_id LIMIT "
        });
        // One more than asked for says whether there is more.
        query.push_bind(i64::from(count) + 1);
        let mut rows: Vec<TaskRow> = query.build_query_as().fetch_all(&self.pool).await?;
        let wanted = usize::try_from(count).unwrap_or(usize::MAX);
        let more = rows.len() > wanted;
        rows.truncate(wanted);
        // The task that a place was made from lies beyond it.
        let (has_previous, has_next) = if forward { (place.is_some(), more) } else { (more, place.is_some()) };
        if !forward {
            rows.reverse();
        }
        Ok(Page { rows, has_previous, has_next })
    }
}

fn wall(query: &mut QueryBuilder<Postgres>, viewer: Viewer) {
    if let Some(tenant) = viewer.bind() {
        query.push(" AND tenant_id = ").push_bind(tenant);
    }
}
