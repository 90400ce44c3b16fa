//! What operators do.

use super::context::{meta, state, with_role};
use super::error::{Refusal, refusal_of};
use super::mutation::{Resolve, TaskPayload, answer, bad_key, fingerprint, owner};
use super::node_id::Kind;
use super::scalars::{BigInt, Credits};
use crate::auth::Role;
use crate::idempotency::{BadKey, HeaderKey, choose};
use async_graphql::{Context, ID, Object, Result, SimpleObject};
use domain::id::{AccountId, TaskId, TenantId};
use domain::process::{self, CaseKey};
use eventstore::{IdempotencyKey, Request};

/// What came of a grant: either the account's version, or a refusal.
#[derive(SimpleObject)]
pub(crate) struct GrantPayload {
    /// The version that the account reached.
    version: Option<BigInt>,
    /// Whether an earlier request with the same key had done it.
    replayed: bool,
    /// Why it was not done.
    refusal: Option<Refusal>,
}

impl From<Refusal> for GrantPayload {
    fn from(refusal: Refusal) -> Self {
        Self { version: None, replayed: false, refusal: Some(refusal) }
    }
}

/// What operators do.
#[derive(Default)]
pub(crate) struct OperatorMutation;

#[Object]
impl OperatorMutation {
    /// Puts credits into a tenant's account. Operators only.
    #[graphql(complexity = "100 + child_complexity")]
    async fn grant_credits(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "Whose account.")] tenant_id: ID,
        #[graphql(desc = "How much, in minor units; more than nothing.")] amount: Credits,
        #[graphql(
            desc = "What it stands for, such as a payment's number: one grant per key. 1 to 255 visible ASCII characters."
        )]
        key: String,
    ) -> Result<Option<GrantPayload>> {
        with_role(ctx, &[Role::Operator])?;
        let Ok(tenant) = Kind::Account.read(&tenant_id).map(TenantId) else {
            return Ok(Some(Refusal::new("BAD_ID", "not an id of a tenant", Some("tenantId")).into()));
        };
        let key = match choose(Some(&key), &HeaderKey::Absent) {
            Ok(Some(key)) => key,
            Ok(None) => return Ok(Some(bad_key(BadKey::Missing).into())),
            Err(bad) => return Ok(Some(Refusal { field: Some("key".to_owned()), ..bad_key(bad) }.into())),
        };
        if amount.0 <= 0 {
            return Ok(Some(Refusal::new("BAD_AMOUNT", "a grant is more than nothing", Some("amount")).into()));
        }
        let amount = domain::money::Credits(amount.0);
        let fingerprint = fingerprint(&serde_json::json!(["grantCredits", tenant, amount]));
        let request = Request {
            meta: meta(ctx, tenant)?,
            // The ledger knows the key too, but not that another amount under the same key is a mistake.
            key: Some(IdempotencyKey { operation: "grantCredits", key: key.clone(), fingerprint }),
            tenant_wall: false,
        };
        let case = CaseKey::account(AccountId::of(tenant));
        let executed =
            state(ctx)?.store.execute(&request, case, None, |turn| process::grant(turn, key.clone(), amount)).await;
        match executed {
            Ok(executed) => Ok(Some(GrantPayload {
                version: Some(BigInt(executed.version)),
                replayed: executed.replayed,
                refusal: None,
            })),
            Err(error) => Ok(Some(refusal_of(ctx, error)?.into())),
        }
    }

    /// Ends a task as failed, and frees its credits: for tasks in review, or stuck. Refused while it is unclear whether a provider
    /// works on it. Operators only.
    #[graphql(complexity = "100 + child_complexity")]
    async fn resolve_task(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "Its UUID or its global id.")] task_id: ID,
    ) -> Result<Option<TaskPayload<Resolve>>> {
        let caller = with_role(ctx, &[Role::Operator])?;
        let Ok(task) = Kind::Task.read(&task_id).map(TaskId) else {
            return Ok(Some(Refusal::new("BAD_ID", "not an id of a task", Some("taskId")).into()));
        };
        let Some(tenant) = owner(ctx, task).await? else {
            return Ok(Some(Refusal::new("NOT_FOUND", "there is no such task", Some("taskId")).into()));
        };
        let request = Request { meta: meta(ctx, tenant)?, key: None, tenant_wall: true };
        let by = caller.actor();
        let executed = state(ctx)?
            .store
            .execute(&request, CaseKey::task(task), None, |turn| process::resolve_failed(turn, &by))
            .await;
        answer(ctx, executed)
    }
}
