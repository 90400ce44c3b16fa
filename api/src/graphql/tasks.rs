//! The list of tasks: what it can be narrowed to, in which order, and how many there are.

use super::context::{state, viewer};
use super::error::{coded, fault};
use super::names::{TaskState, name_of};
use super::page::{Edge, PageInfo, Place, edges};
use super::scalars::Instant;
use super::siblings::Siblings;
use super::task::Task;
use async_graphql::{ComplexObject, Context, Enum, Error, InputObject, Result, SimpleObject};
use chrono::Datelike;
use domain::id::TaskId;
use domain::task::ErrorClass;
use domain::time::Timestamp;
use projections::query::{self, Cursor, Window};
use std::sync::Arc;

/// Most words in one list of a filter.
const MAX_WORDS: usize = 100;

/// Which tasks: those that every given part agrees with. Null, or leaving a part out, does not narrow; an empty list agrees with
/// none. Lists have at most 100 elements.
#[derive(Clone, Debug, Default, InputObject)]
pub(crate) struct TaskFilter {
    /// In one of these states.
    states: Option<Vec<TaskState>>,
    /// At one of these providers, as `models` names them.
    providers: Option<Vec<String>>,
    /// For one of these models, as `models` names them. One that has left the catalogue still finds its tasks.
    models: Option<Vec<String>>,
    /// Failed for one of these reasons, as `error.class` names them; another word is the error BAD_FILTER.
    error_classes: Option<Vec<String>>,
    /// Submitted at this time or later.
    created_from: Option<Instant>,
    /// Submitted before this time.
    created_before: Option<Instant>,
}

impl TaskFilter {
    /// The filter as the read side takes it. `state` is the older argument beside it.
    pub(crate) fn checked(self, state: Option<TaskState>) -> Result<query::TaskFilter, Error> {
        if state.is_some() && self.states.is_some() {
            return Err(coded("BAD_FILTER", "state and filter.states can not be combined: use filter.states"));
        }
        let states = self.states.or(state.map(|state| vec![state]));
        let names = |states: Vec<TaskState>| states.into_iter().filter_map(name_of).map(str::to_owned).collect();
        let known: Vec<&str> = ErrorClass::ALL.iter().map(|class| class.name()).collect();
        if let Some(unknown) = self.error_classes.iter().flatten().find(|class| !known.contains(&class.as_str())) {
            let unknown: String = unknown.chars().take(40).collect();
            let message = format!("filter.errorClasses: there is no class {unknown:?}; there are {}", known.join(", "));
            return Err(coded("BAD_FILTER", message));
        }
        Ok(query::TaskFilter {
            states: words("states", states.map(names))?,
            providers: words("providers", self.providers)?,
            models: words("models", self.models)?,
            error_classes: words("errorClasses", self.error_classes)?,
            created_from: self.created_from.map(|it| it.0),
            created_before: self.created_before.map(|it| it.0),
        })
    }
}

/// A list of a filter, if it can be looked for: PostgreSQL's text holds no U+0000.
fn words(name: &str, words: Option<Vec<String>>) -> Result<Option<Vec<String>>, Error> {
    if words.as_ref().is_some_and(|words| words.len() > MAX_WORDS) {
        return Err(coded("BAD_FILTER", format!("filter.{name} has at most {MAX_WORDS} elements")));
    }
    if words.iter().flatten().any(|word| word.contains('\0')) {
        return Err(coded("BAD_FILTER", format!("filter.{name} can not hold the character U+0000")));
    }
    Ok(words)
}

/// In which order tasks are listed. Tasks of one instant have a fixed order among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
pub(crate) enum TaskOrder {
    /// Those submitted last come first.
    NewestFirst,
    /// Those submitted first come first.
    OldestFirst,
}

impl From<TaskOrder> for query::TaskOrder {
    fn from(order: TaskOrder) -> Self {
        match order {
            TaskOrder::NewestFirst => Self::NewestFirst,
            TaskOrder::OldestFirst => Self::OldestFirst,
        }
    }
}

impl Place for Cursor {
    const LIST: &'static str = "t1";

    fn write(&self) -> String {
        format!("{}:{}", self.created_at.timestamp_micros(), self.task)
    }

    fn read(text: &str) -> Option<Self> {
        let (micros, task) = text.split_once(':')?;
        Some(Self {
            // No place of ours lies beyond the years that can be written.
            created_at: Timestamp::from_timestamp_micros(micros.parse().ok()?)
                .filter(|at| (1..=9999).contains(&at.year()))?,
            task: task.parse::<TaskId>().ok()?,
        })
    }
}

/// How many there are.
#[derive(Clone, Copy, Debug, SimpleObject)]
pub(crate) struct Count {
    /// So many were found.
    value: u32,
    /// Whether these are all. Otherwise there are at least so many: only the newest 10000 tasks of the time range are looked at.
    exact: bool,
}

/// A page of tasks, in the order that was asked for.
#[derive(SimpleObject)]
#[graphql(complex)]
pub(crate) struct TaskConnection {
    /// The tasks with their places.
    edges: Vec<Edge<Task>>,
    /// Where this page lies.
    page_info: PageInfo,
    #[graphql(skip)]
    filter: query::TaskFilter,
}

#[ComplexObject]
impl TaskConnection {
    /// How many tasks the filter finds in all, on this page and others. It is counted only where it is asked for.
    #[graphql(complexity = "5 + child_complexity")]
    async fn total_count(&self, ctx: &Context<'_>) -> Result<Option<Count>> {
        let count = state(ctx)?.reader.count_tasks(viewer(ctx)?, &self.filter).await;
        let count = count.map_err(|error| fault(ctx, &error))?;
        Ok(Some(Count { value: count.found, exact: count.exact }))
    }
}

/// A page of the tasks that the caller may see.
pub(crate) async fn page(
    ctx: &Context<'_>,
    filter: query::TaskFilter,
    order: Option<TaskOrder>,
    window: Window<Cursor>,
) -> Result<TaskConnection> {
    let order = order.map(query::TaskOrder::from).unwrap_or_default();
    let page = state(ctx)?.reader.tasks(viewer(ctx)?, &filter, order, window).await;
    let page = page.map_err(|error| fault(ctx, &error))?;
    let siblings = Siblings::of(&page.rows);
    let task = |row| Task::among(row, Arc::clone(&siblings));
    let (edges, page_info) = edges(page, |row| row.cursor(), task);
    Ok(TaskConnection { edges, page_info, filter })
}
