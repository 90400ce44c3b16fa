//! Runware: one address, lists in and out, an id that the caller chooses and that is taken once.

use super::connection::Wire;
use super::create;
use super::dialect::{Dialect, Notice, headers};
use super::journal::Accepted;
use super::script::{Failure, Refusal, Script};
use super::world::{Job, Stage, WEIRD, World, now_ms};
use axum::body::Bytes;
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use std::sync::Arc;
use uuid::Uuid;

/// Minor units of a dollar for a second, in the cost that is told on request.
const CENTS_A_SECOND: f64 = 5.0;

pub(super) struct Runware;

impl Dialect for Runware {
    fn routes(&self) -> Router<Arc<World>> {
        Router::new().route("/v1", post(tasks))
    }

    fn unauthenticated(&self) -> Response {
        error(401, "invalidApiKey", "Invalid API key. Get one at https://my.runware.example", None)
    }

    fn accepted(&self, _world: &World, job: &Job) -> (StatusCode, Value) {
        (StatusCode::OK, json!({ "data": [{ "taskType": "videoInference", "taskUUID": job.facts.id }] }))
    }

    fn without_id(&self) -> Value {
        json!({ "data": [] })
    }

    fn refused(&self, order: &Accepted, refusal: Refusal) -> Response {
        let task = Some(order.id.as_str());
        match refusal {
            Refusal::Moderation => {
                error(400, "invalidPromptModeration", "The prompt was stopped by content moderation.", task)
            }
            Refusal::Status(402) => error(402, "insufficientCredits", "The account has not enough credits.", task),
            Refusal::Status(429) => self.throttled(),
            Refusal::Status(status) => error(status, "invalidDuration", "Invalid value for 'duration'.", task),
        }
    }

    fn throttled(&self) -> Response {
        let mut response = error(429, "rateLimitExceeded", "Too many requests.", None);
        response.headers_mut().extend(headers([("retry-after", "1".to_owned())]));
        response
    }

    fn bad(&self, said: &str) -> Response {
        error(400, "invalidParameter", said, None)
    }

    fn duplicate(&self, order: &Accepted, script: &Script) -> Response {
        let said = "A task with this taskUUID exists already.";
        error(script.conflict_status, "conflictTaskUUID", said, Some(&order.id))
    }

    /// As a poll answers. Nothing is signed: what is believed is the address.
    fn notice(&self, world: &World, job: &Job) -> Notice {
        Notice { headers: headers([]), body: response(world, job).to_string() }
    }
}

fn error(status: u16, code: &str, message: &str, task: Option<&str>) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    let mut entry = json!({ "code": code, "message": message, "documentation": "https://docs.runware.example/errors" });
    if let Some(task) = task {
        entry["taskUUID"] = json!(task);
        entry["taskType"] = json!("videoInference");
    }
    (status, Json(json!({ "errors": [entry] }))).into_response()
}

/// What a poll says of a job.
fn response(world: &World, job: &Job) -> Value {
    let id = &job.facts.id;
    let entry = |status: &str| json!({ "taskType": "videoInference", "taskUUID": id, "status": status });
    if let Some(failure) = job.stage.failure() {
        let (code, message) = match failure {
            Failure::Moderation => ("contentModeration", "The output was stopped by content moderation."),
            Failure::Internal | Failure::Expired | Failure::Hidden => ("providerError", "The model failed."),
        };
        let error = json!({ "code": code, "message": message, "status": "error", "taskType": "videoInference", "taskUUID": id });
        return json!({ "data": [], "errors": [error] });
    }
    let mut entry = match (&job.stage, world.output(job)) {
        (Stage::Weird, _) => entry(WEIRD),
        (_, Some(url)) => {
            let mut entry = entry("success");
            entry["videoUUID"] = json!(id);
            entry["videoURL"] = json!(url);
            entry
        }
        _ => entry("processing"),
    };
    if job.stage == Stage::Succeeded && job.facts.input["includeCost"] == true {
        entry["cost"] = json!(CENTS_A_SECOND * job.video_seconds() as f64 / 100.0);
    }
    json!({ "data": [entry] })
}

/// `POST /v1`. The service takes several tasks at once; this one takes one, as our adapter sends them.
async fn tasks(State(world): State<Arc<World>>, ConnectInfo(wire): ConnectInfo<Wire>, body: Bytes) -> Response {
    let bad = |said: &str| error(400, "invalidRequest", said, None);
    let Ok(Value::Array(tasks)) = serde_json::from_slice::<Value>(&body) else {
        return bad("The body must be an array of tasks.");
    };
    let [task] = tasks.as_slice() else { return bad("This simulator takes one task at a time.") };
    let Some(id) = task["taskUUID"].as_str().and_then(|id| id.parse::<Uuid>().ok()) else {
        return error(400, "invalidTaskUUID", "Invalid value for 'taskUUID': a UUIDv4 is required.", None);
    };
    if id.get_version_num() != 4 {
        return error(400, "invalidTaskUUID", "Invalid value for 'taskUUID': a UUIDv4 is required.", None);
    }
    match task["taskType"].as_str() {
        Some("videoInference") => infer(&world, &wire, id.to_string(), task.clone()).await,
        Some("getResponse") => answer(&world, &id.to_string()),
        _ => error(400, "invalidTaskType", "Invalid value for 'taskType'.", Some(&id.to_string())),
    }
}

async fn infer(world: &Arc<World>, wire: &Wire, id: String, task: Value) -> Response {
    let (Some(prompt), Some(model)) = (task["positivePrompt"].as_str(), task["model"].as_str()) else {
        return error(400, "missingParameter", "'positivePrompt' and 'model' are required.", Some(&id));
    };
    for side in ["width", "height"] {
        if !task[side].is_u64() {
            return error(400, "missingParameter", &format!("'{side}' is required."), Some(&id));
        }
    }
    let order = Accepted {
        id,
        client_ref: String::new(),
        model: model.to_owned(),
        prompt: prompt.to_owned(),
        seconds: task["duration"].as_u64().unwrap_or(5),
        webhook: task["webhookURL"].as_str().map(str::to_owned),
        events: Value::Null,
        created_ms: now_ms(),
        input: task,
    };
    create::take(world, wire, order).await
}

fn answer(world: &World, id: &str) -> Response {
    match world.look(id).filter(Job::is_visible) {
        Some(job) => Json(response(world, &job)).into_response(),
        None => error(400, "taskNotFound", "There is no task with this taskUUID.", Some(id)),
    }
}
