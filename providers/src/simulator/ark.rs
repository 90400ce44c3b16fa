//! Volcengine Ark: tasks in a list that shows seeds and never prompts, unsigned callbacks at each change, and a DELETE that
//! cancels or removes as it sees fit.

use super::connection::Wire;
use super::create;
use super::dialect::{Dialect, Notice, headers};
use super::journal::Accepted;
use super::run;
use super::script::{Failure, Refusal};
use super::world::{Job, Stage, WEIRD, World, now_ms};
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use uuid::Uuid;

/// Tokens for a second of video.
const TOKENS_A_SECOND: u64 = 20_000;
const TASKS: &str = "/api/v3/contents/generations/tasks";

pub(super) struct Ark;

impl Dialect for Ark {
    fn routes(&self) -> Router<Arc<World>> {
        Router::new()
            .route(TASKS, post(create_task).get(list))
            .route(&format!("{TASKS}/{{id}}"), get(show).delete(remove))
    }

    fn unauthenticated(&self) -> Response {
        error(401, "AuthenticationError", "The API key or AK/SK in the request is missing or invalid.")
    }

    fn accepted(&self, _world: &World, job: &Job) -> (StatusCode, Value) {
        (StatusCode::OK, json!({ "id": job.facts.id }))
    }

    fn without_id(&self) -> Value {
        json!({})
    }

    fn refused(&self, _order: &Accepted, refusal: Refusal) -> Response {
        match refusal {
            Refusal::Moderation => {
                let said = "The request failed because the input text may contain sensitive information.";
                error(400, "InputTextSensitiveContentDetected", said)
            }
            Refusal::Status(429) => self.throttled(),
            Refusal::Status(status @ 401..=403) => {
                error(status, "AccountOverdueError", "The account has an overdue balance.")
            }
            Refusal::Status(status) => error(status, "InvalidParameter", "The parameter duration is not valid."),
        }
    }

    fn throttled(&self) -> Response {
        let mut response = error(429, "RequestBurstTooFast", "The request rate rises too fast.");
        response.headers_mut().extend(headers([("retry-after", "1".to_owned())]));
        response
    }

    fn bad(&self, said: &str) -> Response {
        error(400, "InvalidParameter", said)
    }

    /// What a look at the task shows. Nothing is signed.
    fn notice(&self, world: &World, job: &Job) -> Notice {
        Notice { headers: headers([]), body: task(world, job).to_string() }
    }
}

fn error(status: u16, code: &str, message: &str) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    let body = json!({ "error": { "code": code, "message": message, "param": "", "type": "BadRequest" } });
    (status, headers([("x-request-id", Uuid::new_v4().to_string())]), Json(body)).into_response()
}

/// A task as it is shown: never its prompt, and only what is set.
fn task(world: &World, job: &Job) -> Value {
    let facts = &job.facts;
    let status = match &job.stage {
        Stage::Starting => "queued",
        Stage::Weird => WEIRD,
        Stage::Processing => "running",
        Stage::Succeeded => "succeeded",
        Stage::Failed(Failure::Expired) => "expired",
        Stage::Failed(_) => "failed",
        Stage::Canceled => "cancelled",
    };
    let seconds = |ms: i64| ms / 1_000;
    let mut shown = json!({
        "id": facts.id,
        "model": facts.model,
        "status": status,
        "error": Value::Null,
        "created_at": seconds(facts.created_ms),
        "updated_at": seconds(job.ended_ms.unwrap_or(facts.created_ms)),
        "duration": facts.seconds,
        "framespersecond": 24,
    });
    for echoed in ["seed", "resolution", "ratio", "service_tier"] {
        if let Some(value) = facts.input.get(echoed) {
            shown[echoed] = value.clone();
        }
    }
    let (code, message) = match job.stage.failure() {
        Some(Failure::Moderation) => {
            ("OutputVideoSensitiveContentDetected", "The output video may contain sensitive information.")
        }
        _ => ("InternalServiceError", "The service encountered an unexpected internal error."),
    };
    if status == "failed" {
        shown["error"] = json!({ "code": code, "message": message });
    }
    if let Some(url) = world.output(job) {
        let tokens = TOKENS_A_SECOND * job.video_seconds();
        shown["content"] = json!({ "video_url": url });
        shown["usage"] = json!({ "completion_tokens": tokens, "total_tokens": tokens });
    }
    shown
}

#[derive(Deserialize)]
struct CreateBody {
    model: String,
    content: Vec<Value>,
    #[serde(default)]
    callback_url: Option<String>,
    #[serde(default)]
    duration: Option<u64>,
    #[serde(flatten)]
    more: serde_json::Map<String, Value>,
}

/// `POST …/tasks`
async fn create_task(State(world): State<Arc<World>>, ConnectInfo(wire): ConnectInfo<Wire>, body: Bytes) -> Response {
    let Ok(asked) = serde_json::from_slice::<CreateBody>(&body) else {
        return error(400, "InvalidParameter", "The body is not a generation task.");
    };
    let text = asked.content.iter().find(|part| part["type"] == "text").and_then(|part| part["text"].as_str());
    let Some(prompt) = text.map(str::to_owned) else {
        return error(400, "MissingParameter", "The parameter content.text is missing.");
    };
    let day = chrono::DateTime::from_timestamp_millis(now_ms()).unwrap_or_default().format("%Y%m%d%H%M%S");
    let id = format!("cgt-{day}-{}", &Uuid::new_v4().simple().to_string()[..5]);
    let order = Accepted {
        id,
        client_ref: String::new(),
        model: asked.model,
        prompt,
        seconds: asked.duration.unwrap_or(5),
        input: Value::Object(asked.more),
        webhook: asked.callback_url,
        events: Value::Null,
        created_ms: now_ms(),
    };
    create::take(&world, &wire, order).await
}

fn unknown() -> Response {
    error(404, "ResourceNotFound", "The specified task is not found.")
}

async fn show(State(world): State<Arc<World>>, Path(id): Path<String>) -> Response {
    match world.look(&id).filter(|job| !job.removed) {
        Some(job) => Json(task(&world, &job)).into_response(),
        None => unknown(),
    }
}

#[derive(Deserialize)]
struct PageOf {
    #[serde(default = "first")]
    page_num: usize,
    #[serde(default = "ten")]
    page_size: usize,
}

const fn first() -> usize {
    1
}

const fn ten() -> usize {
    10
}

/// `GET …/tasks?page_num=&page_size=`: newest first, whatever their state.
async fn list(State(world): State<Arc<World>>, Query(asked): Query<PageOf>) -> Response {
    if !(1..=500).contains(&asked.page_num) || !(1..=500).contains(&asked.page_size) {
        return error(400, "InvalidParameter", "page_num and page_size are from 1 to 500.");
    }
    let (jobs, _) = world.page(None, usize::MAX);
    let shown: Vec<&Job> = jobs.iter().filter(|job| job.is_visible() && !job.removed).collect();
    let page = shown.chunks(asked.page_size).nth(asked.page_num - 1).unwrap_or_default();
    let items: Vec<Value> = page.iter().map(|job| task(&world, job)).collect();
    Json(json!({ "total": shown.len(), "items": items })).into_response()
}

/// `DELETE …/tasks/{id}`: cancels what waits, refuses what runs, removes the record of what is over.
async fn remove(State(world): State<Arc<World>>, Path(id): Path<String>) -> Response {
    let Some(job) = world.job(&id).filter(|job| !job.removed) else { return unknown() };
    if job.stage.is_end() {
        world.change(&id, |job| job.removed = true);
    } else if job.stage != Stage::Starting {
        return error(409, "OperationDenied.TaskRunning", "A running task can not be deleted.");
    } else if run::cancel(&world, &id) == Some(false) {
        return error(500, "InternalServiceError", "The service encountered an unexpected internal error.");
    }
    Json(json!({})).into_response()
}
