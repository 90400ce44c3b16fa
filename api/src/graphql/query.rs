//! What can be asked.

use super::account::Account;
use super::asset::Asset;
use super::attempt::Attempt;
use super::audit::AuditQuery;
use super::context::{caller, record, state, viewer};
use super::error::{coded, fault};
use super::history::{HistoryEvent, part, shown};
use super::names::TaskState;
use super::node_id::{Kind, read_global};
use super::page::window;
use super::scalars::{BigInt, Credits};
use super::task::Task;
use super::tasks::{TaskConnection, TaskFilter, TaskOrder, page};
use async_graphql::{Context, Error, ErrorExtensions, ID, Interface, MergedObject, Object, Result, SimpleObject};
use domain::id::{AssetId, AttemptId, TaskId, TenantId};
use projections::query::Seen;
use std::time::Duration;

/// Anything with a global id.
#[derive(Interface)]
#[graphql(field(name = "id", ty = "ID", desc = "Global id."))]
pub(crate) enum Node {
    Task(Task),
    Attempt(Attempt),
    Asset(Asset),
    Account(Account),
}

/// A model that tasks can be submitted for.
#[derive(Clone, Debug, SimpleObject)]
pub(crate) struct Model {
    /// Its name, for `submitGeneration`.
    name: String,
    /// The provider that runs it.
    provider: String,
    /// Price of each started second.
    price_per_second: Credits,
    /// Shortest video, in seconds.
    min_seconds: u32,
    /// Longest video, in seconds.
    max_seconds: u32,
    /// How many input images it takes.
    max_input_images: u32,
}

/// The read model has not caught up in time: an answer would be older than asked for.
pub(crate) fn behind(shown: i64) -> Error {
    coded("READ_MODEL_BEHIND", "that version can not be shown yet; ask again")
        .extend_with(|_, extensions| extensions.set("shownVersion", shown))
}

/// How long a read waits for the version that was asked for.
pub(crate) fn patience(ctx: &Context<'_>) -> Result<Duration> {
    Ok(Duration::from_millis(state(ctx)?.config.freshness_wait_ms))
}

/// The root of queries. All need a token; each answers with what the caller's tenant owns, or with everything for auditors and operators,
/// whose every look is recorded. What belongs to somebody else is null. Every root field is nullable, so that one that fails leaves the
/// others their answers.
#[derive(Default, MergedObject)]
pub(crate) struct Query(UserQuery, AuditQuery);

/// What users ask.
#[derive(Default)]
pub(crate) struct UserQuery;

/// All queries need a token; each answers with what the caller's tenant owns, or with everything for auditors and operators.
/// What belongs to somebody else is null. Every root field is nullable, so that one that fails leaves the others their answers.
#[Object]
impl UserQuery {
    /// A task.
    #[graphql(complexity = "5 + child_complexity")]
    async fn task(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "Its UUID or its global id.")] id: ID,
        #[graphql(
            desc = "Wait until at least this version can be shown, for about two seconds; then the error READ_MODEL_BEHIND."
        )]
        at_least_version: Option<i64>,
    ) -> Result<Option<Task>> {
        let (viewer, task) = (viewer(ctx)?, TaskId(Kind::Task.read(&id)?));
        record(ctx, "task", task).await?;
        let reader = &state(ctx)?.reader;
        let Some(version) = at_least_version else {
            let row = reader.task(viewer, task).await.map_err(|error| fault(ctx, &error))?;
            return Ok(row.map(Task::alone));
        };
        let seen = reader.wait_for_version(viewer, task, version, patience(ctx)?).await;
        match seen.map_err(|error| fault(ctx, &error))? {
            Seen::Fresh(row) => Ok(Some(Task::alone(row))),
            Seen::Behind { shown } => Err(behind(shown)),
            Seen::Nothing => Ok(None),
        }
    }

    /// Tasks, newest first unless another order is asked for. `first` with `after`, or `last` with `before`; 20 where no number is
    /// given, 100 at most. New tasks and changes move no page: a place is when a task was submitted.
    #[graphql(complexity = "5 + first.or(last).unwrap_or(20).clamp(1, 100) as usize * child_complexity")]
    #[expect(clippy::too_many_arguments, reason = "each is an argument of the field in the schema")]
    async fn tasks(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "The first so many, from the start of the list or after a place: 1 to 100.")] first: Option<
            i32,
        >,
        #[graphql(desc = "Only what comes after this place: a cursor of this list.")] after: Option<String>,
        #[graphql(desc = "The last so many, up to the end of the list or before a place: 1 to 100.")] last: Option<i32>,
        #[graphql(desc = "Only what comes before this place: a cursor of this list.")] before: Option<String>,
        #[graphql(desc = "Only those in this state.", deprecation = "`filter` has `states`, and more.")] state: Option<
            TaskState,
        >,
        #[graphql(desc = "Only these; all where it is left out.")] filter: Option<TaskFilter>,
        #[graphql(desc = "NEWEST_FIRST where it is left out.")] order_by: Option<TaskOrder>,
    ) -> Result<Option<TaskConnection>> {
        caller(ctx)?;
        let window = window(first, after.as_deref(), last, before.as_deref())?;
        let filter = filter.unwrap_or_default().checked(state)?;
        record(ctx, "tasks", format!("{filter:?}")).await?;
        Ok(Some(page(ctx, filter, order_by, window).await?))
    }

    /// The caller's account, or for auditors and operators any tenant's.
    #[graphql(complexity = "5 + child_complexity")]
    async fn account(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "Whose; the caller's own by default.")] tenant_id: Option<ID>,
        #[graphql(desc = "As for task.")] at_least_version: Option<BigInt>,
    ) -> Result<Option<Account>> {
        let tenant = match tenant_id {
            Some(id) => TenantId(Kind::Account.read(&id)?),
            None => caller(ctx)?.tenant,
        };
        record(ctx, "account", tenant).await?;
        let version = at_least_version.map_or(0, |it| it.0);
        let reader = &state(ctx)?.reader;
        let seen = reader.wait_for_account(viewer(ctx)?, tenant, version, patience(ctx)?).await;
        match seen.map_err(|error| fault(ctx, &error))? {
            Seen::Fresh(row) => Ok(Some(Account(row))),
            Seen::Behind { shown } => Err(behind(shown)),
            Seen::Nothing => Ok(None),
        }
    }

    /// Everything that was recorded about a task, in order, from the facts themselves. It is complete as soon as a mutation has
    /// answered.
    #[graphql(complexity = "20 + first.unwrap_or(200).clamp(1, 1000) as usize / 10 * child_complexity")]
    async fn task_history(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "Its UUID or its global id.")] task_id: ID,
        #[graphql(desc = "At most so many, 1 to 1000; 200 where no number is given.")] first: Option<i32>,
        #[graphql(desc = "Only events after this position.")] after: Option<BigInt>,
    ) -> Result<Option<Vec<HistoryEvent>>> {
        let (viewer, task) = (viewer(ctx)?, TaskId(Kind::Task.read(&task_id)?));
        let (after, count) = part(first, after)?;
        record(ctx, "taskHistory", task).await?;
        let histories = state(ctx)?.reader.histories(viewer, &[task], after, count).await;
        Ok(histories.map_err(|error| fault(ctx, &error))?.remove(&task).map(shown))
    }

    /// Anything by its global id.
    #[graphql(complexity = "5 + child_complexity")]
    async fn node(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "A global id, as the field `id` of any type shows it.")] id: ID,
    ) -> Result<Option<Node>> {
        let viewer = viewer(ctx)?;
        let (kind, id) = read_global(&id).ok_or_else(|| coded("BAD_ID", "not a global id"))?;
        record(ctx, "node", id).await?;
        let reader = &state(ctx)?.reader;
        let found = match kind {
            Kind::Task => reader.task(viewer, TaskId(id)).await.map(|it| it.map(|row| Node::Task(Task::alone(row)))),
            Kind::Attempt => {
                reader.attempt(viewer, AttemptId(id)).await.map(|it| it.map(|row| Node::Attempt(Attempt::alone(row))))
            }
            Kind::Asset => reader.asset(viewer, AssetId(id)).await.map(|it| it.map(|row| Node::Asset(Asset(row)))),
            Kind::Account => {
                reader.account(viewer, TenantId(id)).await.map(|it| it.map(|row| Node::Account(Account(row))))
            }
        };
        found.map_err(|error| fault(ctx, &error))
    }

    /// The models on offer, with their prices.
    async fn models(&self, ctx: &Context<'_>) -> Result<Option<Vec<Model>>> {
        caller(ctx)?;
        let catalogue = state(ctx)?.catalogue.now();
        let models = catalogue
            .models()
            .filter(|(_, model)| model.offered)
            .map(|(name, model)| Model {
                name: name.to_owned(),
                provider: model.provider.clone(),
                price_per_second: Credits(model.price_per_second.0),
                min_seconds: model.min_seconds,
                max_seconds: model.max_seconds,
                max_input_images: *model.images().end(),
            })
            .collect();
        Ok(Some(models))
    }
}
