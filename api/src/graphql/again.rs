//! Orders that are made from another task: trying it again, and exporting its video.

use super::context::{call, meta, state, viewer, with_role};
use super::error::{Refusal, fault};
use super::mutation::{Export, Retry, TaskPayload, answer, bad_key, fingerprint, refused_unless_done_before};
use super::node_id::Kind;
use super::query::{behind, patience};
use crate::auth::{Caller, Role};
use crate::clock::fresh_id;
use crate::idempotency::{BadKey, choose};
use async_graphql::{Context, Enum, ID, InputObject, Object, Result};
use domain::id::{AccountId, TaskId};
use domain::money::Credits;
use domain::process::{self, CaseKey, Folded, StreamId};
use domain::task::{self, ExportSpec, Order, State, Task, Work};
use domain::time::seconds;
use eventstore::{History, HistoryError, IdempotencyKey, Moment, Request, Submission};
use projections::query::Seen;

/// Who renders exports, as it is stored with them: no provider is asked.
const OURSELVES: &str = "export";

/// The file format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
pub(crate) enum ExportContainer {
    /// MP4 that plays while it loads.
    Mp4,
}

/// What an export is to look like. The width follows from the video.
#[derive(Clone, Copy, Debug, InputObject)]
pub(crate) struct ExportInput {
    /// Height in pixels: an even number from 144 to 2160.
    height_px: i32,
    /// The file format.
    #[graphql(default_with = "ExportContainer::Mp4")]
    container: ExportContainer,
}

/// Orders that are made from another task.
#[derive(Default)]
pub(crate) struct AgainMutation;

#[Object]
impl AgainMutation {
    /// Tries a task of your own again that failed (other than for its content) or was cancelled: as a new task with the same request, and
    /// with credits of its own, at today's price. Creators only.
    #[graphql(complexity = "250 + child_complexity")]
    async fn retry_task(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "The task that ended: its UUID or its global id.")] task_id: ID,
        #[graphql(desc = "As for submitGeneration.")] idempotency_key: Option<String>,
    ) -> Result<Option<TaskPayload<Retry>>> {
        let caller = with_role(ctx, &[Role::Creator])?;
        let (old, key) = match asked(ctx, &task_id, idempotency_key.as_deref()) {
            Ok(asked) => asked,
            Err(refusal) => return Ok(Some(refusal.into())),
        };
        let fingerprint = fingerprint(&serde_json::json!(["retryTask/1", old]));
        let key = IdempotencyKey { operation: "retryTask", key, fingerprint };
        let again = match Again::find(ctx, caller, old).await? {
            Ok(again) => again,
            Err(refusal) => return refused_unless_done_before(ctx, caller.tenant, Some(&key), refusal).await,
        };
        let order = match again.at_todays_price(ctx)? {
            Ok(order) => order,
            Err(refusal) => return refused_unless_done_before(ctx, caller.tenant, Some(&key), refusal).await,
        };
        let order = Order { retry_of: Some(old), ..order };
        again.execute(ctx, caller, key, order, process::retry).await
    }

    /// Has a finished video of your own rendered in another size: as a new task, with credits of its own. Creators only.
    #[graphql(complexity = "250 + child_complexity")]
    async fn export_task(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "The task whose video it is: its UUID or its global id.")] task_id: ID,
        #[graphql(desc = "What it is to look like.")] input: ExportInput,
        #[graphql(desc = "As for submitGeneration.")] idempotency_key: Option<String>,
    ) -> Result<Option<TaskPayload<Export>>> {
        let caller = with_role(ctx, &[Role::Creator])?;
        let (source, key) = match asked(ctx, &task_id, idempotency_key.as_deref()) {
            Ok(asked) => asked,
            Err(refusal) => return Ok(Some(refusal.into())),
        };
        let container = match input.container {
            ExportContainer::Mp4 => task::Container::Mp4,
        };
        let spec = ExportSpec { container, height_px: u32::try_from(input.height_px).unwrap_or(0) };
        if !spec.is_sound() {
            let message = format!("an even number from {} to {}", ExportSpec::MIN_HEIGHT, ExportSpec::MAX_HEIGHT);
            return Ok(Some(Refusal::new("BAD_EXPORT", message, Some("heightPx")).into()));
        }
        let fingerprint = fingerprint(&serde_json::json!(["exportTask/1", source, spec]));
        let key = IdempotencyKey { operation: "exportTask", key, fingerprint };
        let again = match Again::find(ctx, caller, source).await? {
            Ok(again) => again,
            Err(refusal) => return refused_unless_done_before(ctx, caller.tenant, Some(&key), refusal).await,
        };
        let order = match again.exported(ctx, spec).await? {
            Ok(order) => order,
            Err(refusal) => return refused_unless_done_before(ctx, caller.tenant, Some(&key), refusal).await,
        };
        again.execute(ctx, caller, key, order, process::export).await
    }
}

/// Which task is asked about, and under which key.
fn asked(ctx: &Context<'_>, task_id: &ID, key: Option<&str>) -> std::result::Result<(TaskId, String), Refusal> {
    let bad_id = || Refusal::new("BAD_ID", "not an id of a task", Some("taskId"));
    let task = Kind::Task.read(task_id).map(TaskId).map_err(|_| bad_id())?;
    let header = call(ctx).map(|call| &call.key).map_err(|_| bad_key(BadKey::Missing))?;
    match choose(key, header) {
        Ok(Some(key)) => Ok((task, key)),
        Ok(None) => Err(bad_key(BadKey::Missing)),
        Err(bad) => Err(bad_key(bad)),
    }
}

/// A task that another one is made from.
struct Again {
    old: TaskId,
    state: Task,
    version: i64,
    order: Order,
    prompt: String,
}

impl Again {
    /// The task, if it is the caller's. What it is at is looked at again when the new one is made.
    async fn find(ctx: &Context<'_>, caller: &Caller, old: TaskId) -> Result<std::result::Result<Self, Refusal>> {
        let not_found = || Ok(Err(Refusal::new("NOT_FOUND", "there is no such task", Some("taskId"))));
        let store = &state(ctx)?.store;
        let folded = match store.past(StreamId::task(old), Moment::Newest).await {
            Ok(past) => past.folded,
            Err(HistoryError::NoSuchStream { .. }) => return not_found(),
            Err(HistoryError::Store(error)) => return Err(fault(ctx, &error)),
            Err(error) => return Err(fault(ctx, &error)),
        };
        let Folded::Task(task) = folded else { return not_found() };
        let Some(order) = task.state.order().filter(|order| order.tenant == caller.tenant).cloned() else {
            return not_found();
        };
        let request = store.generation_request(caller.tenant, old).await.map_err(|error| fault(ctx, &error))?;
        let Some(request) = request else { return not_found() };
        Ok(Ok(Self { old, state: task.state, version: task.version, order, prompt: request.prompt }))
    }

    /// The same order as a new one, at what it costs today.
    fn at_todays_price(&self, ctx: &Context<'_>) -> Result<std::result::Result<Order, Refusal>> {
        let state = state(ctx)?;
        let mut order = self.order.clone();
        order.price_per_second = match order.work {
            Work::Export { .. } => Credits(state.config.export_price_per_second),
            Work::Generate => {
                let catalogue = state.catalogue.now();
                let Some(model) = catalogue.offered(&order.model) else {
                    let message = "its model is not on offer any more; `models` lists those that are";
                    return Ok(Err(Refusal::new("UNKNOWN_MODEL", message, Some("taskId"))));
                };
                order.provider = model.provider.clone();
                model.price_per_second
            }
        };
        Ok(self.priced(state, order))
    }

    /// An order for an export of its video.
    async fn exported(&self, ctx: &Context<'_>, spec: ExportSpec) -> Result<std::result::Result<Order, Refusal>> {
        let shared = state(ctx)?;
        if self.state.state() != State::Succeeded {
            let message = format!("only a finished video is exported (state {})", self.state.state().name());
            return Ok(Err(Refusal::new("NOT_EXPORTABLE", message, Some("taskId"))));
        }
        let viewer = viewer(ctx)?;
        let seen = shared.reader.wait_for_version(viewer, self.old, self.version, patience(ctx)?).await;
        if let Seen::Behind { shown } = seen.map_err(|error| fault(ctx, &error))? {
            return Err(behind(shown));
        }
        let assets = shared.reader.assets(viewer, &[self.old]).await.map_err(|error| fault(ctx, &error))?;
        let Some(video) = assets.into_iter().find(|asset| asset.kind == "video") else {
            return Ok(Err(Refusal::new("NOT_EXPORTABLE", "its video is not kept any more", Some("taskId"))));
        };
        let length =
            video.duration_millis.and_then(|millis| u32::try_from(millis.max(1).unsigned_abs().div_ceil(1_000)).ok());
        let order = Order {
            provider: OURSELVES.to_owned(),
            duration_seconds: length.unwrap_or(self.order.duration_seconds),
            input_assets: Vec::new(),
            price_per_second: Credits(shared.config.export_price_per_second),
            work: Work::Export { source: self.old, source_key: video.object_key, spec },
            ..self.order.clone()
        };
        Ok(self.priced(shared, order))
    }

    fn priced(&self, state: &crate::router::ApiState, order: Order) -> std::result::Result<Order, Refusal> {
        let task = TaskId(fresh_id());
        let hold = state.store.policy().hold(order.price_per_second, order.duration_seconds);
        let hold = hold.ok_or_else(|| {
            Refusal::new("INVALID_DURATION", "its price is beyond what can be counted", Some("taskId"))
        })?;
        let request_ref = format!("generation_request/{task}");
        Ok(Order { task, hold, request_ref, retry_of: None, ..order })
    }

    async fn execute<M>(
        self,
        ctx: &Context<'_>,
        caller: &Caller,
        key: IdempotencyKey,
        order: Order,
        command: impl Fn(&mut process::Turn<'_>, Order) -> std::result::Result<(), domain::aggregate::Refusal> + Send + Sync,
    ) -> Result<Option<TaskPayload<M>>> {
        let request = Request { meta: meta(ctx, caller.tenant)?, key: Some(key), tenant_wall: true };
        let case = CaseKey {
            account: Some(AccountId::of(caller.tenant)),
            with_account: true,
            origin: Some(self.old),
            ..CaseKey::task(order.task)
        };
        let submission = Submission { task: order.task, prompt: self.prompt };
        let executed = state(ctx)?
            .store
            .execute(&request, case, Some(&submission), |turn| {
                let give_up_at = turn.now + seconds(turn.policy.max_waiting_seconds);
                command(turn, Order { submitted_at: turn.now, give_up_at, ..order.clone() })
            })
            .await;
        answer(ctx, executed)
    }
}
