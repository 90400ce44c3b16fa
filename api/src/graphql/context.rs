//! What a resolver knows of the request it works for.

use super::error::{coded, fault};
use crate::auth::{Caller, Role};
use crate::idempotency::HeaderKey;
use crate::router::ApiState;
use async_graphql::dataloader::{DataLoader, Loader};
use async_graphql::{Context, Error, Result};
use domain::id::{CausationId, CorrelationId, TaskId, TenantId};
use eventstore::Meta;
use projections::query::{AssetRow, AttemptRow, HistoryRow, Reader, Viewer};
use std::collections::HashMap;
use std::sync::Arc;
use tokio_util::task::TaskTracker;

/// A request, or a WebSocket connection.
pub(crate) struct Call {
    /// Who calls, if anybody said.
    pub(crate) caller: Option<Caller>,
    /// What logs and events are marked with.
    pub(crate) correlation: CorrelationId,
    /// The `Idempotency-Key` header.
    pub(crate) key: HeaderKey,
}

/// The state of the API.
pub(crate) fn state<'a>(ctx: &Context<'a>) -> Result<&'a ApiState> {
    ctx.data::<Arc<ApiState>>().map(|state| &**state)
}

/// The request.
pub(crate) fn call<'a>(ctx: &Context<'a>) -> Result<&'a Call> {
    ctx.data::<Call>()
}

/// Who calls.
pub(crate) fn caller<'a>(ctx: &Context<'a>) -> Result<&'a Caller> {
    match &call(ctx)?.caller {
        Some(caller) if caller.is_current() => Ok(caller),
        Some(_) => Err(coded("UNAUTHENTICATED", "the token has expired")),
        None => Err(coded(
            "UNAUTHENTICATED",
            "a token is needed: the header Authorization, or authorization in connection_init",
        )),
    }
}

/// Whose rows the caller sees.
pub(crate) fn viewer(ctx: &Context<'_>) -> Result<Viewer> {
    Ok(caller(ctx)?.viewer())
}

/// Who calls, if they have one of these roles.
pub(crate) fn with_role<'a>(ctx: &Context<'a>, roles: &[Role]) -> Result<&'a Caller> {
    let caller = caller(ctx)?;
    if roles.iter().any(|role| caller.has(*role)) {
        Ok(caller)
    } else {
        Err(coded("FORBIDDEN", "your roles do not allow this"))
    }
}

/// What a command of this request is marked with. `tenant` owns what it changes, whoever asks.
pub(crate) fn meta(ctx: &Context<'_>, tenant: TenantId) -> Result<Meta> {
    let correlation = call(ctx)?.correlation;
    Ok(Meta {
        tenant,
        correlation,
        causation: CausationId(correlation.0),
        actor: caller(ctx)?.actor(),
        trace: correlation.0.simple().to_string(),
    })
}

/// Reads for many tasks at once. It keeps nothing: batching is for one moment, so nothing stale or of somebody else's is served.
pub(crate) struct Loaders {
    attempts: DataLoader<Attempts>,
    assets: DataLoader<Assets>,
    histories: DataLoader<Histories>,
}

impl Loaders {
    pub(crate) fn new(reader: &Reader, viewer: Viewer, tasks: &TaskTracker) -> Self {
        let spawn = || {
            let tasks = tasks.clone();
            move |work| tasks.spawn(work)
        };
        Self {
            attempts: DataLoader::new(Attempts { reader: reader.clone(), viewer }, spawn()),
            assets: DataLoader::new(Assets { reader: reader.clone(), viewer }, spawn()),
            histories: DataLoader::new(Histories { reader: reader.clone(), viewer }, spawn()),
        }
    }
}

/// A failed batch: shared by all who waited for it.
type Failed = Arc<projections::query::ReadError>;

struct Attempts {
    reader: Reader,
    viewer: Viewer,
}

impl Loader<TaskId> for Attempts {
    type Value = Vec<AttemptRow>;
    type Error = Failed;

    async fn load(&self, tasks: &[TaskId]) -> Result<HashMap<TaskId, Vec<AttemptRow>>, Failed> {
        let rows = self.reader.attempts(self.viewer, tasks).await.map_err(Arc::new)?;
        Ok(grouped(rows, |row| row.task))
    }
}

struct Assets {
    reader: Reader,
    viewer: Viewer,
}

impl Loader<TaskId> for Assets {
    type Value = Vec<AssetRow>;
    type Error = Failed;

    async fn load(&self, tasks: &[TaskId]) -> Result<HashMap<TaskId, Vec<AssetRow>>, Failed> {
        let rows = self.reader.assets(self.viewer, tasks).await.map_err(Arc::new)?;
        Ok(grouped(rows, |row| row.task))
    }
}

struct Histories {
    reader: Reader,
    viewer: Viewer,
}

/// A part of a task's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HistoryKey {
    pub(crate) task: TaskId,
    /// Only events after this position.
    pub(crate) after: i64,
    /// At most so many.
    pub(crate) count: u32,
}

impl Loader<HistoryKey> for Histories {
    type Value = Vec<HistoryRow>;
    type Error = Failed;

    async fn load(&self, keys: &[HistoryKey]) -> Result<HashMap<HistoryKey, Vec<HistoryRow>>, Failed> {
        let mut parts: HashMap<(i64, u32), Vec<TaskId>> = HashMap::new();
        for key in keys {
            parts.entry((key.after, key.count)).or_default().push(key.task);
        }
        let mut loaded = HashMap::new();
        for ((after, count), tasks) in parts {
            let histories = self.reader.histories(self.viewer, &tasks, after, count).await.map_err(Arc::new)?;
            loaded.extend(histories.into_iter().map(|(task, rows)| (HistoryKey { task, after, count }, rows)));
        }
        Ok(loaded)
    }
}

fn grouped<T>(rows: Vec<T>, task: impl Fn(&T) -> TaskId) -> HashMap<TaskId, Vec<T>> {
    let mut groups: HashMap<TaskId, Vec<T>> = HashMap::new();
    for row in rows {
        groups.entry(task(&row)).or_default().push(row);
    }
    groups
}

/// The attempts of a task, by number.
pub(crate) async fn attempts(ctx: &Context<'_>, task: TaskId) -> Result<Vec<AttemptRow>> {
    let loaded = ctx.data::<Loaders>()?.attempts.load_one(task).await;
    loaded.map(Option::unwrap_or_default).map_err(|error| failed(ctx, &error))
}

/// The assets of a task.
pub(crate) async fn assets(ctx: &Context<'_>, task: TaskId) -> Result<Vec<AssetRow>> {
    let loaded = ctx.data::<Loaders>()?.assets.load_one(task).await;
    loaded.map(Option::unwrap_or_default).map_err(|error| failed(ctx, &error))
}

/// A part of a task's history; `None` if there is no such task for the caller.
pub(crate) async fn history(ctx: &Context<'_>, key: HistoryKey) -> Result<Option<Vec<HistoryRow>>> {
    // Who calls is looked at here too: without a token there are no loaders.
    caller(ctx)?;
    ctx.data::<Loaders>()?.histories.load_one(key).await.map_err(|error| failed(ctx, &error))
}

fn failed(ctx: &Context<'_>, error: &Failed) -> Error {
    fault(ctx, error.as_ref())
}
