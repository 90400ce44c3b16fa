//! What belongs to the tasks of an answer, read for all that are shown side by side as soon as the first of them is asked: as many
//! statements for a hundred tasks as for one. It lives as long as its answer, so nothing stale or of somebody else's is served.

use super::context::{state, viewer};
use super::error::fault;
use async_graphql::{Context, Result};
use domain::id::TaskId;
use projections::query::{AssetRow, AttemptRow, HistoryRow, HoldRow, InLine, PlaceInLine, ReadError, TaskRow};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OnceCell;

/// Rows by their task; a reading that failed is shared by all who waited for it.
type Loaded<T> = OnceCell<Result<HashMap<TaskId, Vec<T>>, ReadError>>;
/// A part of a history: after a position, at most so many.
type Part = (i64, u32);

/// See the module.
#[derive(Default)]
pub(crate) struct Siblings {
    tasks: Vec<TaskId>,
    attempts: Loaded<AttemptRow>,
    assets: Loaded<AssetRow>,
    holds: Loaded<HoldRow>,
    /// Those that wait for a provider.
    waiting: Vec<InLine>,
    places: Loaded<PlaceInLine>,
    histories: Mutex<HashMap<Part, Arc<Loaded<HistoryRow>>>>,
}

impl Siblings {
    pub(crate) fn of(rows: &[TaskRow]) -> Arc<Self> {
        Arc::new(Self {
            tasks: rows.iter().map(|row| row.task).collect(),
            waiting: rows.iter().filter_map(InLine::of).collect(),
            ..Self::default()
        })
    }

    /// What belongs to one task, of which nothing else is shown.
    pub(crate) fn of_task(task: TaskId) -> Arc<Self> {
        Arc::new(Self { tasks: vec![task], ..Self::default() })
    }

    /// The attempts of one of the tasks, by number.
    pub(crate) async fn attempts(&self, ctx: &Context<'_>, task: TaskId) -> Result<&[AttemptRow]> {
        let (reader, viewer) = (&state(ctx)?.reader, viewer(ctx)?);
        let read = async || reader.attempts(viewer, &self.tasks).await.map(|rows| grouped(rows, |row| row.task));
        rows_of(ctx, self.attempts.get_or_init(read).await, task).map(Option::unwrap_or_default)
    }

    /// The assets of one of the tasks.
    pub(crate) async fn assets(&self, ctx: &Context<'_>, task: TaskId) -> Result<&[AssetRow]> {
        let (reader, viewer) = (&state(ctx)?.reader, viewer(ctx)?);
        let read = async || reader.assets(viewer, &self.tasks).await.map(|rows| grouped(rows, |row| row.task));
        rows_of(ctx, self.assets.get_or_init(read).await, task).map(Option::unwrap_or_default)
    }

    /// The credits of one of the tasks.
    pub(crate) async fn hold(&self, ctx: &Context<'_>, task: TaskId) -> Result<Option<&HoldRow>> {
        let (reader, viewer) = (&state(ctx)?.reader, viewer(ctx)?);
        let read = async || reader.holds(viewer, &self.tasks).await.map(|rows| grouped(rows, |row| row.task));
        Ok(rows_of(ctx, self.holds.get_or_init(read).await, task)?.and_then(<[HoldRow]>::first))
    }

    /// The place in the line of one of the tasks, while it waits for a provider.
    pub(crate) async fn place(&self, ctx: &Context<'_>, task: TaskId) -> Result<Option<&PlaceInLine>> {
        let reader = &state(ctx)?.reader;
        let read = async || reader.places_in_line(&self.waiting).await.map(|rows| grouped(rows, |row| row.task));
        Ok(rows_of(ctx, self.places.get_or_init(read).await, task)?.and_then(<[PlaceInLine]>::first))
    }

    /// A part of the history of one of the tasks; `None` if the facts show no such task to the caller.
    pub(crate) async fn history(
        &self,
        ctx: &Context<'_>,
        task: TaskId,
        after: i64,
        count: u32,
    ) -> Result<Option<Vec<HistoryRow>>> {
        let (reader, viewer) = (&state(ctx)?.reader, viewer(ctx)?);
        let cell = {
            let mut parts = self.histories.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(parts.entry((after, count)).or_default())
        };
        let read = async || reader.histories(viewer, &self.tasks, after, count).await;
        Ok(rows_of(ctx, cell.get_or_init(read).await, task)?.map(<[HistoryRow]>::to_vec))
    }
}

fn rows_of<'a, T>(
    ctx: &Context<'_>,
    loaded: &'a Result<HashMap<TaskId, Vec<T>>, ReadError>,
    task: TaskId,
) -> Result<Option<&'a [T]>> {
    let loaded = loaded.as_ref().map_err(|error| fault(ctx, error))?;
    Ok(loaded.get(&task).map(Vec::as_slice))
}

fn grouped<T>(rows: Vec<T>, task: impl Fn(&T) -> TaskId) -> HashMap<TaskId, Vec<T>> {
    let mut groups: HashMap<TaskId, Vec<T>> = HashMap::new();
    for row in rows {
        groups.entry(task(&row)).or_default().push(row);
    }
    groups
}
