//! The provider's API: create, get, list, cancel.

use super::connection::Wire;
use super::journal::Accepted;
use super::reply::{cut_short, problem, proxy_page, throttled};
use super::run;
use super::script::{Moment, Refusal, ReplyFault, Script};
use super::world::{Job, Stage, World, now_ms};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use url::Url;
use uuid::Uuid;

/// Jobs on a page of the list.
const PAGE: usize = 100;
/// The reference of jobs whose callback address has none.
const NO_REFERENCE: &str = "none";

#[derive(Deserialize)]
struct CreateBody {
    input: Value,
    #[serde(default)]
    webhook: Option<String>,
    #[serde(default)]
    webhook_events_filter: Value,
}

/// `POST /v1/models/{owner}/{name}/predictions`
pub(super) async fn create(
    State(world): State<Arc<World>>,
    ConnectInfo(wire): ConnectInfo<Wire>,
    Path((owner, name)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    let Ok(order) = serde_json::from_slice::<CreateBody>(&body) else {
        return problem(400, "Bad request", "the body is not a prediction request");
    };
    let Some(prompt) = order.input.get("prompt").and_then(Value::as_str) else {
        return problem(422, "Input validation failed", "input.prompt is required");
    };
    let script = match Script::of(prompt) {
        Ok(script) => script,
        Err(word) => return problem(422, "Unknown simulator tag", &word),
    };
    let client_ref = order.webhook.as_deref().and_then(client_ref).unwrap_or_else(|| NO_REFERENCE.to_owned());
    let Ok(count) = world.count_create(&client_ref) else {
        return broken();
    };
    if count <= script.throttle {
        return throttled();
    }
    if let Some(refusal) = script.refuse {
        return refused(refusal);
    }
    let fault = script.reply_to(count);
    if let Some(fault) = fault.filter(|fault| fault.moment() == Moment::Before) {
        return spoilt(&world, &wire, fault, json!({})).await;
    }
    let facts = Accepted {
        id: Uuid::new_v4().simple().to_string(),
        client_ref,
        model: format!("{owner}/{name}"),
        input: order.input,
        webhook: order.webhook,
        events: order.webhook_events_filter,
        created_ms: now_ms(),
    };
    let Ok(job) = world.accept(facts) else { return broken() };
    let answer = world.render(&job);
    begin(&world, job).await;
    match fault {
        Some(fault) => spoilt(&world, &wire, fault, answer).await,
        None => (StatusCode::CREATED, Json(answer)).into_response(),
    }
}

/// Longest time that a create call waits for its early callback to be taken.
const EARLY: Duration = Duration::from_secs(3);

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

fn refused(refusal: Refusal) -> Response {
    match refusal {
        Refusal::Moderation => {
            let detail = "The input was flagged as sensitive by moderation. Please try a different prompt. (E005)";
            problem(422, "Input refused", detail)
        }
        Refusal::Status(status @ 401..=403) => problem(status, "Account", "The account may not do this."),
        Refusal::Status(429) => throttled(),
        Refusal::Status(status) => problem(status, "Input validation failed", "- input.duration: Must be less than 1"),
    }
}

async fn spoilt(world: &World, wire: &Wire, fault: ReplyFault, answer: Value) -> Response {
    match fault {
        ReplyFault::Drop(_) => wire.cut(),
        ReplyFault::Hang(_, seconds) => {
            world.wait_or_stop(Duration::from_secs(seconds)).await;
            wire.cut();
        }
        ReplyFault::BadGateway(_) => return proxy_page(StatusCode::BAD_GATEWAY),
        ReplyFault::Cut => return cut_short(StatusCode::CREATED, "application/json", Bytes::from(answer.to_string())),
        ReplyFault::Junk => return (StatusCode::CREATED, "OK").into_response(),
        ReplyFault::NoId => return (StatusCode::CREATED, Json(json!({ "status": "starting" }))).into_response(),
    }
    // Never written: the wire is cut.
    StatusCode::CREATED.into_response()
}

/// The customer's reference: the `ref` of the callback address.
fn client_ref(webhook: &str) -> Option<String> {
    let url = Url::parse(webhook).ok()?;
    url.query_pairs().find(|(key, _)| key == "ref").map(|(_, value)| value.into_owned())
}

fn broken() -> Response {
    problem(500, "Internal error", "the simulator's journal can not be written")
}

fn unknown() -> Response {
    problem(404, "Not found", "The requested resource could not be found.")
}

/// `GET /v1/predictions/{id}`
pub(super) async fn get(State(world): State<Arc<World>>, Path(id): Path<String>) -> Response {
    world.shown(&id).map_or_else(unknown, |shown| Json(shown).into_response())
}

#[derive(Deserialize)]
pub(super) struct Cursor {
    cursor: Option<usize>,
}

/// `GET /v1/predictions`: newest first, a hundred on a page.
pub(super) async fn list(State(world): State<Arc<World>>, Query(Cursor { cursor }): Query<Cursor>) -> Response {
    let (jobs, next) = world.page(cursor, PAGE);
    let now = now_ms();
    let is_listed = |job: &&Job| {
        let delay = i64::try_from(job.script.list_delay_ms).unwrap_or(i64::MAX);
        now.saturating_sub(job.facts.created_ms) >= delay
    };
    let results: Vec<Value> = jobs.iter().filter(is_listed).map(|job| world.render(job)).collect();
    let next = next.map(|next| format!("{}/v1/predictions?cursor={next}", world.public_url));
    Json(json!({ "next": next, "previous": null, "results": results })).into_response()
}

/// `POST /v1/predictions/{id}/cancel`
pub(super) async fn cancel(State(world): State<Arc<World>>, Path(id): Path<String>) -> Response {
    let asked = world.change(&id, |job| {
        job.cancels += 1;
        (job.cancels <= job.script.cancel_fails, job.script.cancel_ignored)
    });
    match asked {
        None => return unknown(),
        Some((true, _)) => return problem(500, "Internal error", "The prediction could not be canceled."),
        Some((_, true)) => {}
        Some((_, false)) => {
            if world.end(&id, Stage::Canceled) {
                let world = Arc::clone(&world);
                let id = id.clone();
                world.clone().start(async move { run::tell(&world, &id).await });
            }
        }
    }
    world.shown(&id).map_or_else(unknown, |shown| Json(shown).into_response())
}
