//! What a resolver knows of the request it works for.

use super::error::{coded, fault};
use crate::auth::{Authority, Caller, Role};
use crate::idempotency::HeaderKey;
use crate::router::ApiState;
use async_graphql::{Context, Result};
use domain::id::{CausationId, CorrelationId, TenantId};
use eventstore::{Access, Meta};
use projections::query::Viewer;
use std::sync::Arc;

/// A request, or a WebSocket connection.
pub(crate) struct Call {
    /// Who calls, if anybody said.
    pub(crate) caller: Option<Caller>,
    /// By what, for whatever stays open.
    pub(crate) authority: Option<Authority>,
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

/// Records that somebody who may look at everything looks at this. Whoever sees their own tenant only needs no record.
pub(crate) async fn record(ctx: &Context<'_>, what: &str, subject: impl std::fmt::Display + Send) -> Result<()> {
    let caller = caller(ctx)?;
    if caller.viewer().tenant.is_some() {
        return Ok(());
    }
    let access = Access {
        actor: caller.actor(),
        actor_tenant: caller.tenant,
        what: what.to_owned(),
        subject: subject.to_string(),
        correlation: call(ctx)?.correlation,
    };
    state(ctx)?.store.record_access(&access).await.map_err(|error| fault(ctx, &error))
}
