//! A create call, whoever's it is: counted, perhaps refused or spoilt, and accepted once.

use super::connection::Wire;
use super::journal::Accepted;
use super::reply::{cut_short, proxy_page};
use super::run;
use super::script::{Moment, ReplyFault, Script};
use super::world::{Job, World};
use axum::Json;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// The reference of jobs whose callback address has none.
const NO_REFERENCE: &str = "none";
/// Longest time that a create call waits for its early callback to be taken.
const EARLY: Duration = Duration::from_secs(3);

/// Takes a create call that could be read. `order.client_ref` may be empty: then it is that of the callback address.
pub(super) async fn take(world: &Arc<World>, wire: &Wire, mut order: Accepted) -> Response {
    let dialect = &world.dialect;
    let script = match Script::of(&order.prompt) {
        Ok(script) => script,
        Err(word) => return dialect.bad(&format!("unknown simulator tag: {word}")),
    };
    if order.client_ref.is_empty() {
        order.client_ref = order.webhook.as_deref().and_then(client_ref).unwrap_or_else(|| NO_REFERENCE.to_owned());
    }
    let Ok(count) = world.count_create(&order.client_ref) else {
        return broken();
    };
    if count <= script.throttle {
        return dialect.throttled();
    }
    if let Some(refusal) = script.refuse {
        return dialect.refused(&order, refusal);
    }
    let fault = script.reply_to(count);
    if let Some(fault) = fault.filter(|fault| fault.moment() == Moment::Before) {
        return spoilt(world, wire, fault, (StatusCode::OK, Value::Null)).await;
    }
    if world.job(&order.id).is_some() {
        return dialect.duplicate(&order, &script);
    }
    let Ok(job) = world.accept(order) else { return broken() };
    let answer = dialect.accepted(world, &job);
    begin(world, job).await;
    match fault {
        Some(fault) => spoilt(world, wire, fault, answer).await,
        None => (answer.0, Json(answer.1)).into_response(),
    }
}

/// Lets the job run; one with an early callback is over and told before the create call is answered.
async fn begin(world: &Arc<World>, job: Job) {
    if !job.script.callback_early {
        return world.start(run::live(Arc::clone(world), job));
    }
    if run::finish(world, &job).await {
        let (told, heard) = tokio::sync::oneshot::channel::<()>();
        let (teller, id) = (Arc::clone(world), job.facts.id);
        world.start(async move {
            run::tell(&teller, &id).await;
            drop(told);
        });
        // Ends with an error either way, for nothing is ever sent: taken, or still being tried.
        if tokio::time::timeout(EARLY, heard).await.is_err() {
            tracing::debug!("an early callback was not taken in time");
        }
    }
}

async fn spoilt(world: &World, wire: &Wire, fault: ReplyFault, (status, answer): (StatusCode, Value)) -> Response {
    match fault {
        ReplyFault::Drop(_) => wire.cut(),
        ReplyFault::Hang(_, seconds) => {
            world.wait_or_stop(Duration::from_secs(seconds)).await;
            wire.cut();
        }
        ReplyFault::BadGateway(_) => return proxy_page(StatusCode::BAD_GATEWAY),
        ReplyFault::Cut => return cut_short(status, "application/json", Bytes::from(answer.to_string())),
        ReplyFault::Junk => return (status, "OK").into_response(),
        ReplyFault::NoId => return (status, Json(world.dialect.without_id())).into_response(),
    }
    // Never written: the wire is cut.
    status.into_response()
}

/// The customer's reference: the `ref` of the callback address.
fn client_ref(webhook: &str) -> Option<String> {
    let url = Url::parse(webhook).ok()?;
    url.query_pairs().find(|(key, _)| key == "ref").map(|(_, value)| value.into_owned())
}

fn broken() -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, "the simulator's journal can not be written").into_response()
}
