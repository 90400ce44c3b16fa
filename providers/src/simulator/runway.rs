//! Runway: an id and nothing else in the create reply, no list, no callbacks, and a DELETE after which a task was never there.

use super::connection::Wire;
use super::create;
use super::dialect::{Dialect, Notice, headers};
use super::journal::Accepted;
use super::run;
use super::script::{Failure, Refusal};
use super::world::{Job, Stage, WEIRD, World, now_ms, rfc3339};
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use std::sync::Arc;
use uuid::Uuid;

const VERSION: &str = "2024-11-06";

pub(super) struct Runway;

impl Dialect for Runway {
    fn routes(&self) -> Router<Arc<World>> {
        Router::new()
            .route("/v1/text_to_video", post(create_task))
            .route("/v1/image_to_video", post(create_task))
            .route("/v1/tasks/{id}", get(show).delete(remove))
            .route("/v1/organization", get(organization))
            .layer(from_fn(of_the_version))
    }

    fn unauthenticated(&self) -> Response {
        error(401, "The API key is invalid.")
    }

    fn accepted(&self, _world: &World, job: &Job) -> (StatusCode, Value) {
        (StatusCode::OK, json!({ "id": job.facts.id }))
    }

    fn without_id(&self) -> Value {
        json!({})
    }

    fn refused(&self, _order: &Accepted, refusal: Refusal) -> Response {
        match refusal {
            Refusal::Moderation => error(400, "The prompt did not pass our safety moderation."),
            Refusal::Status(429) => self.throttled(),
            Refusal::Status(status @ 401..=403) => error(status, "You do not have enough credits to run this task."),
            Refusal::Status(status) => error(status, "Validation of body failed: duration"),
        }
    }

    fn throttled(&self) -> Response {
        let mut response = error(429, "You have reached your daily limit.");
        response.headers_mut().extend(headers([("retry-after", "1".to_owned())]));
        response
    }

    fn bad(&self, said: &str) -> Response {
        error(400, said)
    }

    /// Never sent: no task has an address to call.
    fn notice(&self, _world: &World, _job: &Job) -> Notice {
        Notice { headers: headers([]), body: String::new() }
    }
}

fn error(status: u16, said: &str) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    (status, Json(json!({ "error": said }))).into_response()
}

/// Every request names the version of the API.
async fn of_the_version(request: Request, next: Next) -> Response {
    if request.headers().get("x-runway-version").and_then(|it| it.to_str().ok()) != Some(VERSION) {
        return error(400, "The header X-Runway-Version is missing or unknown.");
    }
    next.run(request).await
}

/// `POST /v1/text_to_video`, `POST /v1/image_to_video`
async fn create_task(State(world): State<Arc<World>>, ConnectInfo(wire): ConnectInfo<Wire>, body: Bytes) -> Response {
    let input: Value = serde_json::from_slice(&body).unwrap_or_default();
    let part = |name: &str| input[name].as_str().map(str::to_owned);
    let (Some(prompt), Some(model), Some(_)) = (part("promptText"), part("model"), part("ratio")) else {
        return error(400, "Validation of body failed: promptText, model and ratio are required");
    };
    let order = Accepted {
        id: Uuid::new_v4().to_string(),
        // Nothing of ours is in the request. The prompt tells a test's jobs apart.
        client_ref: prompt
            .split_once("[ref ")
            .and_then(|it| it.1.split_once(']'))
            .map_or_else(String::new, |it| it.0.into()),
        model,
        prompt,
        seconds: input["duration"].as_u64().unwrap_or(5),
        input,
        webhook: None,
        events: Value::Null,
        created_ms: now_ms(),
    };
    create::take(&world, &wire, order).await
}

fn unknown() -> Response {
    error(404, "Task not found")
}

/// `GET /v1/tasks/{id}`: only the fields of the state that it is in.
async fn show(State(world): State<Arc<World>>, Path(id): Path<String>) -> Response {
    let Some(job) = world.look(&id).filter(|job| !job.removed) else { return unknown() };
    let mut shown = json!({ "id": id, "createdAt": rfc3339(job.facts.created_ms) });
    let status = match &job.stage {
        Stage::Starting => "PENDING",
        Stage::Weird => WEIRD,
        Stage::Processing => {
            shown["progress"] = json!(0.5);
            "RUNNING"
        }
        Stage::Succeeded => {
            shown["output"] = json!([world.output(&job)]);
            "SUCCEEDED"
        }
        Stage::Failed(failure) => {
            shown["failure"] = json!("An unexpected error occurred.");
            match failure {
                Failure::Moderation => shown["failureCode"] = json!("SAFETY.OUTPUT.VIDEO"),
                Failure::Internal | Failure::Expired => shown["failureCode"] = json!("INTERNAL.BAD_OUTPUT.CODE01"),
                // Neither a code nor a reason is promised.
                Failure::Hidden => shown["failure"] = Value::Null,
            }
            "FAILED"
        }
        Stage::Canceled => "CANCELLED",
    };
    shown["status"] = json!(status);
    Json(shown).into_response()
}

/// `DELETE /v1/tasks/{id}`: cancels what works, deletes what is over. Either way it can not be asked about again.
async fn remove(State(world): State<Arc<World>>, Path(id): Path<String>) -> Response {
    if run::cancel(&world, &id) == Some(false) {
        return error(500, "Internal server error");
    }
    world.change(&id, |job| job.removed = true);
    StatusCode::NO_CONTENT.into_response()
}

/// `GET /v1/organization`: what was used in all. A lost task shows as a difference, not as itself.
async fn organization(State(world): State<Arc<World>>) -> Response {
    let (jobs, _) = world.page(None, usize::MAX);
    let used: u64 = jobs.iter().filter(|job| job.stage == Stage::Succeeded).map(Job::video_seconds).sum();
    Json(json!({ "creditBalance": 100_000 - used, "usage": { "tasks": jobs.len(), "credits": used } })).into_response()
}
