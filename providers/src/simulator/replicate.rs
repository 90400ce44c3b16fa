//! Replicate: create, get, list, cancel, and Standard Webhooks.

use super::connection::Wire;
use super::create;
use super::dialect::{Dialect, Notice, headers};
use super::journal::Accepted;
use super::reply::problem;
use super::run;
use super::script::{Failure, Refusal};
use super::world::{Job, Stage, World, now_ms, rfc3339};
use super::{SimulatorConfig, SimulatorError};
use crate::shared::SigningKey;
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

/// Jobs on a page of the list.
const PAGE: usize = 100;

const INTERNAL: &str = "Director: unexpected error handling prediction (E6716)";
const MODERATION: &str = "The input or output was flagged as sensitive. Please try again with different inputs. (E005)";

pub(super) struct Replicate {
    key: SigningKey,
}

impl Replicate {
    pub(super) fn new(config: &SimulatorConfig) -> Result<Self, SimulatorError> {
        let secret =
            config.webhook_secret.as_ref().ok_or_else(|| SimulatorError::Secret("it is missing".to_owned()))?;
        let key = SigningKey::parse(secret).map_err(|bad| SimulatorError::Secret(bad.to_string()))?;
        Ok(Self { key })
    }
}

impl Dialect for Replicate {
    fn routes(&self) -> Router<Arc<World>> {
        Router::new()
            .route("/v1/models/{owner}/{name}/predictions", post(create_prediction))
            .route("/v1/predictions", get(list))
            .route("/v1/predictions/{id}", get(show))
            .route("/v1/predictions/{id}/cancel", post(cancel))
    }

    fn unauthenticated(&self) -> Response {
        problem(401, "Unauthenticated", "You did not pass a valid authentication token")
    }

    fn accepted(&self, world: &World, job: &Job) -> (StatusCode, Value) {
        (StatusCode::CREATED, prediction(world, job))
    }

    fn without_id(&self) -> Value {
        json!({ "status": "starting" })
    }

    fn refused(&self, _order: &Accepted, refusal: Refusal) -> Response {
        match refusal {
            Refusal::Moderation => {
                let detail = "The input was flagged as sensitive by moderation. Please try a different prompt. (E005)";
                problem(422, "Input refused", detail)
            }
            Refusal::Status(status @ 401..=403) => problem(status, "Account", "The account may not do this."),
            Refusal::Status(429) => self.throttled(),
            Refusal::Status(status) => {
                problem(status, "Input validation failed", "- input.duration: Must be less than 1")
            }
        }
    }

    /// The wait is in the header and in the body.
    fn throttled(&self) -> Response {
        let body = json!({ "detail": "Request was throttled.", "status": 429, "retry_after": 1 });
        (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")], Json(body)).into_response()
    }

    fn bad(&self, said: &str) -> Response {
        problem(422, "Input validation failed", said)
    }

    fn notice(&self, world: &World, job: &Job) -> Notice {
        // Written with line breaks: a receiver that parses and writes the body again before it checks the signature fails.
        let body = format!("{:#}\n", prediction(world, job));
        let delivery = format!("msg_{}", job.facts.id);
        let timestamp = (now_ms() / 1_000).to_string();
        let signature = self.key.sign(&delivery, &timestamp, body.as_bytes());
        let headers = [("webhook-id", delivery), ("webhook-timestamp", timestamp), ("webhook-signature", signature)];
        Notice { headers: self::headers(headers), body }
    }
}

/// A job as the provider's JSON.
fn prediction(world: &World, job: &Job) -> Value {
    let facts = &job.facts;
    let (id, base) = (&facts.id, &world.public_url);
    let error = job.stage.failure().map(|failure| if failure == Failure::Moderation { MODERATION } else { INTERNAL });
    json!({
        "id": id,
        "model": facts.model,
        "version": "simulated",
        "status": job.stage.word(),
        "input": facts.input,
        "output": world.output(job).map(|url| [url]),
        "error": error,
        "logs": "",
        "data_removed": false,
        "source": "api",
        "metrics": job.took().map_or(json!({}), |took| json!({ "predict_time": took, "total_time": took })),
        "webhook": facts.webhook,
        "webhook_events_filter": facts.events,
        "created_at": rfc3339(facts.created_ms),
        "started_at": (job.stage != Stage::Starting).then(|| rfc3339(facts.created_ms)),
        "completed_at": job.ended_ms.map(rfc3339),
        "urls": {
            "get": format!("{base}/v1/predictions/{id}"),
            "cancel": format!("{base}/v1/predictions/{id}/cancel"),
        },
    })
}

#[derive(Deserialize)]
struct CreateBody {
    input: Value,
    #[serde(default)]
    webhook: Option<String>,
    #[serde(default)]
    webhook_events_filter: Value,
}

/// `POST /v1/models/{owner}/{name}/predictions`
async fn create_prediction(
    State(world): State<Arc<World>>,
    ConnectInfo(wire): ConnectInfo<Wire>,
    Path((owner, name)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    let Ok(asked) = serde_json::from_slice::<CreateBody>(&body) else {
        return problem(400, "Bad request", "the body is not a prediction request");
    };
    let Some(prompt) = asked.input.get("prompt").and_then(Value::as_str) else {
        return problem(422, "Input validation failed", "input.prompt is required");
    };
    let seconds =
        asked.input.get("duration").and_then(Value::as_f64).map_or(5, |it| it.clamp(1.0, 10.0).round() as u64);
    let order = Accepted {
        id: Uuid::new_v4().simple().to_string(),
        client_ref: String::new(),
        model: format!("{owner}/{name}"),
        prompt: prompt.to_owned(),
        seconds,
        input: asked.input,
        webhook: asked.webhook,
        events: asked.webhook_events_filter,
        created_ms: now_ms(),
    };
    create::take(&world, &wire, order).await
}

fn unknown() -> Response {
    problem(404, "Not found", "The requested resource could not be found.")
}

/// `GET /v1/predictions/{id}`
async fn show(State(world): State<Arc<World>>, Path(id): Path<String>) -> Response {
    world.look(&id).map_or_else(unknown, |job| Json(prediction(&world, &job)).into_response())
}

#[derive(Deserialize)]
struct Cursor {
    cursor: Option<usize>,
}

/// `GET /v1/predictions`: newest first, a hundred on a page.
async fn list(State(world): State<Arc<World>>, Query(Cursor { cursor }): Query<Cursor>) -> Response {
    let (jobs, next) = world.page(cursor, PAGE);
    let results: Vec<Value> = jobs.iter().filter(|job| job.is_visible()).map(|job| prediction(&world, job)).collect();
    let next = next.map(|next| format!("{}/v1/predictions?cursor={next}", world.public_url));
    Json(json!({ "next": next, "previous": null, "results": results })).into_response()
}

/// `POST /v1/predictions/{id}/cancel`
async fn cancel(State(world): State<Arc<World>>, Path(id): Path<String>) -> Response {
    match run::cancel(&world, &id) {
        None => return unknown(),
        Some(false) => return problem(500, "Internal error", "The prediction could not be canceled."),
        Some(true) => {}
    }
    show(State(world), Path(id)).await
}
