//! What can be done. Each mutation is one transaction; a "no" is the payload's refusal.

use super::again::AgainMutation;
use super::context::{call, meta, state, viewer, with_role};
use super::error::{Refusal, fault, refusal_of};
use super::node_id::Kind;
use super::operator::OperatorMutation;
use super::query::patience;
use super::submit::{GenerationInput, Ordered};
use super::task::Task;
use crate::auth::{Caller, Role};
use crate::idempotency::{BadKey, choose};
use async_graphql::{Context, ID, MergedObject, Object, Result, SimpleObject};
use domain::id::{AccountId, TaskId, TenantId};
use domain::process::{self, CaseKey};
use eventstore::{Executed, IdempotencyKey, Request, Submission};
use projections::query::Seen;
use sha2::{Digest, Sha256};
use std::marker::PhantomData;

/// What came of a command to a task. `M` names the mutation, which gives each payload its own name in the schema.
pub(crate) struct TaskPayload<M> {
    executed: Option<Executed>,
    refusal: Option<Refusal>,
    mutation: PhantomData<M>,
}

/// See [`TaskPayload`].
pub(crate) enum Submit {}
/// See [`TaskPayload`].
pub(crate) enum Cancel {}
/// See [`TaskPayload`].
pub(crate) enum Resolve {}
/// See [`TaskPayload`].
pub(crate) enum Retry {}
/// See [`TaskPayload`].
pub(crate) enum Export {}

impl<M> From<Executed> for TaskPayload<M> {
    fn from(executed: Executed) -> Self {
        Self { executed: Some(executed), refusal: None, mutation: PhantomData }
    }
}

impl<M> From<Refusal> for TaskPayload<M> {
    fn from(refusal: Refusal) -> Self {
        Self { executed: None, refusal: Some(refusal), mutation: PhantomData }
    }
}

/// What came of a command to a task: either its version, or a refusal.
#[Object(
    concrete(name = "SubmitGenerationPayload", params(Submit)),
    concrete(name = "CancelTaskPayload", params(Cancel)),
    concrete(name = "ResolveTaskPayload", params(Resolve)),
    concrete(name = "RetryTaskPayload", params(Retry)),
    concrete(name = "ExportTaskPayload", params(Export))
)]
impl<M: Send + Sync + 'static> TaskPayload<M> {
    /// The task, at that version or a newer one; null where it can not be shown yet, which `task(id, atLeastVersion)` then waits for.
    #[graphql(complexity = "5 + child_complexity")]
    async fn task(&self, ctx: &Context<'_>) -> Result<Option<Task>> {
        let Some((task, version)) = self.executed.as_ref().and_then(|it| Some((it.task?, it.version))) else {
            return Ok(None);
        };
        let seen = state(ctx)?.reader.wait_for_version(viewer(ctx)?, task, version, patience(ctx)?).await;
        match seen.map_err(|error| fault(ctx, &error))? {
            Seen::Fresh(row) => Ok(Some(Task::alone(row))),
            Seen::Behind { .. } | Seen::Nothing => Ok(None),
        }
    }

    /// The task's UUID.
    async fn task_id(&self) -> Option<ID> {
        self.executed.as_ref()?.task.map(|task| ID(task.to_string()))
    }

    /// The version that the task reached by this.
    async fn version(&self) -> Option<i64> {
        self.executed.as_ref().map(|it| it.version)
    }

    /// Whether an earlier request with the same idempotency key had done it.
    async fn replayed(&self) -> bool {
        self.executed.as_ref().is_some_and(|it| it.replayed)
    }

    /// Why it was not done; nothing was changed then.
    async fn refusal(&self) -> Option<Refusal> {
        self.refusal.clone()
    }
}

/// Most tasks that are submitted at once: as many as a request holds mutations.
const MAX_BATCH: usize = 10;
/// The longest key of a batch, in characters: each task's own key is made from it.
const MAX_BATCH_KEY: usize = 250;

/// What came of a batch.
#[derive(SimpleObject)]
pub(crate) struct SubmitGenerationsPayload {
    /// What came of each, in the order of the inputs; none where the batch was refused as a whole.
    results: Vec<TaskPayload<Submit>>,
    /// Why nothing was done.
    refusal: Option<Refusal>,
}

impl From<Refusal> for SubmitGenerationsPayload {
    fn from(refusal: Refusal) -> Self {
        Self { results: Vec::new(), refusal: Some(refusal) }
    }
}

/// The root of mutations. A business "no" is the payload's `refusal`; only faults are errors.
#[derive(Default, MergedObject)]
pub(crate) struct Mutation(CreatorMutation, AgainMutation, OperatorMutation);

/// What creators do.
#[derive(Default)]
pub(crate) struct CreatorMutation;

/// Digest of a request's content, for idempotency keys. The parts are in a fixed order, so equal requests have equal digests.
pub(crate) fn fingerprint(parts: &serde_json::Value) -> [u8; 32] {
    Sha256::digest(parts.to_string().as_bytes()).into()
}

#[Object]
impl CreatorMutation {
    /// Asks for a video. Credits are set aside for it at once; the same idempotency key always names the same task. Creators only.
    #[graphql(complexity = "250 + child_complexity")]
    async fn submit_generation(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "What is to be made.")] input: GenerationInput,
        #[graphql(
            desc = "1 to 255 visible ASCII characters, case-sensitive. The Idempotency-Key header does as well; one of them is \
                          needed. It belongs to the tenant and this mutation, for ever."
        )]
        idempotency_key: Option<String>,
    ) -> Result<Option<TaskPayload<Submit>>> {
        let caller = with_role(ctx, &[Role::Creator])?;
        let key = match choose(idempotency_key.as_deref(), &call(ctx)?.key) {
            Ok(Some(key)) => key,
            Ok(None) => return Ok(Some(bad_key(BadKey::Missing).into())),
            Err(bad) => return Ok(Some(bad_key(bad).into())),
        };
        Ok(Some(submitted(ctx, caller, "submitGeneration", key, input).await?))
    }

    /// Asks for up to 10 videos, each as `submitGeneration` does: some may be accepted and others refused. The key stands for all of
    /// them together with their order: to be certain, send the same again; what was accepted is not done twice. Creators only.
    #[graphql(complexity = "inputs.len().max(1) * (250 + child_complexity)")]
    async fn submit_generations(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "What is to be made: 1 to 10.")] inputs: Vec<GenerationInput>,
        #[graphql(desc = "As for submitGeneration, with at most 250 characters.")] idempotency_key: Option<String>,
    ) -> Result<Option<SubmitGenerationsPayload>> {
        let caller = with_role(ctx, &[Role::Creator])?;
        if inputs.is_empty() || inputs.len() > MAX_BATCH {
            let message = format!("1 to {MAX_BATCH} at once");
            return Ok(Some(Refusal::new("BAD_BATCH", message, Some("inputs")).into()));
        }
        let key = match choose(idempotency_key.as_deref(), &call(ctx)?.key) {
            Ok(Some(key)) if key.len() <= MAX_BATCH_KEY => key,
            Ok(Some(_)) => return Ok(Some(bad_key(BadKey::Shape).into())),
            Ok(None) => return Ok(Some(bad_key(BadKey::Missing).into())),
            Err(bad) => return Ok(Some(bad_key(bad).into())),
        };
        let mut results = Vec::with_capacity(inputs.len());
        for (number, input) in inputs.into_iter().enumerate() {
            // A fault ends the batch: sent again with the same key, it goes on where it was.
            results.push(submitted(ctx, caller, "submitGenerations", format!("{key}/{number}"), input).await?);
        }
        Ok(Some(SubmitGenerationsPayload { results, refusal: None }))
    }

    /// Asks for a task to be cancelled. Before a provider has it, it ends at once; afterwards it ends when the provider says so.
    /// Creators for their own tenant's tasks, operators for all.
    #[graphql(complexity = "100 + child_complexity")]
    async fn cancel_task(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "Its UUID or its global id.")] task_id: ID,
        #[graphql(desc = "Not needed: cancelling twice is the same as once. As for submitGeneration.")]
        idempotency_key: Option<String>,
    ) -> Result<Option<TaskPayload<Cancel>>> {
        let caller = with_role(ctx, &[Role::Creator, Role::Operator])?;
        let Ok(id) = Kind::Task.read(&task_id) else {
            return Ok(Some(Refusal::new("BAD_ID", "not an id of a task", Some("taskId")).into()));
        };
        let key = match choose(idempotency_key.as_deref(), &call(ctx)?.key) {
            Ok(key) => key,
            Err(bad) => return Ok(Some(bad_key(bad).into())),
        };
        let task = TaskId(id);
        // What an operator does to somebody else's task is recorded as that tenant's.
        let tenant = if caller.has(Role::Operator) { owner(ctx, task).await? } else { Some(caller.tenant) };
        let Some(tenant) = tenant else {
            return Ok(Some(Refusal::new("NOT_FOUND", "there is no such task", Some("taskId")).into()));
        };
        let fingerprint = fingerprint(&serde_json::json!(["cancelTask", task]));
        // An operator's keys are not the owner's.
        let operation = if caller.tenant == tenant { "cancelTask" } else { "cancelTask/operator" };
        let request = Request {
            meta: meta(ctx, tenant)?,
            key: key.map(|key| IdempotencyKey { operation, key, fingerprint }),
            tenant_wall: true,
        };
        let by = caller.actor();
        let executed = state(ctx)?
            .store
            .execute(&request, CaseKey::task(task), None, |turn| process::cancel(turn, by.clone()))
            .await;
        answer(ctx, executed)
    }
}

/// Submits one task. A refusal is in the payload.
async fn submitted(
    ctx: &Context<'_>,
    caller: &Caller,
    operation: &'static str,
    key: String,
    input: GenerationInput,
) -> Result<TaskPayload<Submit>> {
    let key = input.fingerprint().map(|fingerprint| IdempotencyKey { operation, key, fingerprint });
    let ordered = match Ordered::check(ctx, caller.tenant, input).await? {
        Ok(ordered) => ordered,
        Err(refusal) => {
            let before = refused_unless_done_before(ctx, caller.tenant, key.as_ref(), refusal.clone()).await?;
            return Ok(before.unwrap_or_else(|| refusal.into()));
        }
    };
    let task = TaskId(crate::clock::fresh_id());
    let request = Request { meta: meta(ctx, caller.tenant)?, key, tenant_wall: true };
    let case = CaseKey { account: Some(AccountId::of(caller.tenant)), with_account: true, ..CaseKey::task(task) };
    let submission = Submission { task, prompt: ordered.prompt.clone() };
    let executed = state(ctx)?
        .store
        .execute(&request, case, Some(&submission), |turn| {
            process::submit(turn, ordered.order(task, (caller.tenant, &caller.subject), turn.now, turn.policy))
        })
        .await;
    match executed {
        Ok(executed) => Ok(executed.into()),
        Err(error) => Ok(refusal_of(ctx, error)?.into()),
    }
}

/// A request that would not be accepted today, but was when it came first (its model has left the catalogue since): a retry
/// gets the first one's answer.
pub(crate) async fn refused_unless_done_before<M>(
    ctx: &Context<'_>,
    tenant: TenantId,
    key: Option<&IdempotencyKey>,
    refusal: Refusal,
) -> Result<Option<TaskPayload<M>>> {
    let Some(key) = key else { return Ok(Some(refusal.into())) };
    match state(ctx)?.store.replayed(tenant, key).await {
        Ok(None) => Ok(Some(refusal.into())),
        Ok(Some(executed)) => Ok(Some(executed.into())),
        Err(error) => Ok(Some(refusal_of(ctx, error)?.into())),
    }
}

/// The tenant of a task, whoever asks.
pub(crate) async fn owner(ctx: &Context<'_>, task: TaskId) -> Result<Option<TenantId>> {
    state(ctx)?.store.tenant_of(task).await.map_err(|error| fault(ctx, &error))
}

pub(crate) fn bad_key(bad: crate::idempotency::BadKey) -> Refusal {
    Refusal::new("BAD_IDEMPOTENCY_KEY", bad.to_string(), Some("idempotencyKey"))
}

pub(crate) fn answer<M>(
    ctx: &Context<'_>,
    executed: std::result::Result<Executed, eventstore::ExecuteError>,
) -> Result<Option<TaskPayload<M>>> {
    match executed {
        Ok(executed) => Ok(Some(executed.into())),
        Err(error) => Ok(Some(refusal_of(ctx, error)?.into())),
    }
}
