//! fal: a queue that never says "failed", and callbacks that everybody's key signs.

use super::connection::Wire;
use super::create;
use super::dialect::{Dialect, Notice, headers};
use super::journal::Accepted;
use super::run;
use super::script::{Failure, Refusal};
use super::world::{Job, Stage, WEIRD, World, now_ms};
use crate::fal::signed_text;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, OriginalUri, Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signer, SigningKey};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use uuid::Uuid;

/// Whom callbacks are for.
const USER: &str = "github|1";

pub(super) struct Fal {
    seed: Vec<u8>,
    /// The number of the key that signs. It and the next one are published.
    signing: AtomicU32,
}

impl Fal {
    pub(super) fn new(token: &str) -> Self {
        Self { seed: Sha256::digest(token).to_vec(), signing: AtomicU32::new(0) }
    }

    fn key(&self, number: u32) -> SigningKey {
        SigningKey::from_bytes(&Sha256::digest([self.seed.as_slice(), &number.to_be_bytes()].concat()).into())
    }
}

impl Dialect for Fal {
    fn routes(&self) -> Router<Arc<World>> {
        Router::new()
            .route("/{owner}/{app}", post(submit))
            .route("/{owner}/{app}/{*path}", post(submit))
            .route("/{owner}/{app}/requests/{id}", get(result))
            .route("/{owner}/{app}/requests/{id}/status", get(status))
            .route("/{owner}/{app}/requests/{id}/cancel", put(cancel))
    }

    fn open_routes(&self) -> Router<Arc<World>> {
        Router::new().route("/.well-known/jwks.json", get(jwks))
    }

    fn is_authentic(&self, headers: &HeaderMap, token: &str) -> bool {
        let given = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
        given.strip_prefix("Key ") == Some(token)
    }

    fn unauthenticated(&self) -> Response {
        detail(401, &json!("Cannot access application. Authentication is required."), None)
    }

    fn accepted(&self, world: &World, job: &Job) -> (StatusCode, Value) {
        (StatusCode::OK, queued(world, job))
    }

    fn without_id(&self) -> Value {
        json!({ "status": "IN_QUEUE", "queue_position": 0 })
    }

    fn refused(&self, _order: &Accepted, refusal: Refusal) -> Response {
        let wrong = |kind: &str, said: &str| json!([{ "loc": ["body", "prompt"], "msg": said, "type": kind }]);
        match refusal {
            Refusal::Moderation => {
                let said = "The content could not be processed because it was flagged by a content checker.";
                detail(422, &wrong("content_policy_violation", said), None)
            }
            Refusal::Status(429) => self.throttled(),
            Refusal::Status(status @ 401..=403) => detail(status, &json!("User is locked. Reason: balance."), None),
            Refusal::Status(status) => detail(status, &wrong("value_error", "duration is out of range"), None),
        }
    }

    fn throttled(&self) -> Response {
        let mut response = detail(429, &json!("Too many requests."), None);
        response.headers_mut().extend(headers([("retry-after", "1".to_owned())]));
        response
    }

    fn bad(&self, said: &str) -> Response {
        detail(422, &json!([{ "loc": ["body"], "msg": said, "type": "value_error" }]), None)
    }

    fn rotate_key(&self) {
        self.signing.fetch_add(1, Ordering::AcqRel);
    }

    fn published_keys(&self) -> Value {
        let signing = self.signing.load(Ordering::Acquire);
        let keys: Vec<Value> = [signing, signing + 1]
            .into_iter()
            .map(|number| {
                let x = URL_SAFE_NO_PAD.encode(self.key(number).verifying_key().to_bytes());
                json!({ "kty": "OKP", "crv": "Ed25519", "kid": format!("key-{number}"), "x": x })
            })
            .collect();
        json!({ "keys": keys })
    }

    fn notice(&self, world: &World, job: &Job) -> Notice {
        let id = &job.facts.id;
        let mut told =
            json!({ "request_id": id, "gateway_request_id": Uuid::new_v4(), "payload": payload(world, job) });
        told["status"] = json!(if job.stage == Stage::Succeeded { "OK" } else { "ERROR" });
        if let Some((kind, _)) = error_of(job) {
            told["error"] = json!(kind);
        }
        // Odd white space and escapes: written again by any library, it would be other bytes.
        let body = format!("{told:#}\n").replace("request", "re\\u0071uest");
        let timestamp = (now_ms() / 1_000).to_string();
        let signing = self.key(self.signing.load(Ordering::Acquire));
        let signature = signing.sign(&signed_text(id, USER, &timestamp, body.as_bytes()));
        let headers = headers([
            ("x-fal-webhook-request-id", id.clone()),
            ("x-fal-webhook-user-id", USER.to_owned()),
            ("x-fal-webhook-timestamp", timestamp),
            ("x-fal-webhook-signature", hex::encode(signature.to_bytes())),
        ]);
        Notice { headers, body }
    }
}

fn detail(status: u16, detail: &Value, error_type: Option<&str>) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut body = json!({ "detail": detail });
    let mut more = HeaderMap::new();
    if let Some(error_type) = error_type {
        body["error_type"] = json!(error_type);
        more = headers([("x-fal-error-type", error_type.to_owned())]);
    }
    (status, more, Json(body)).into_response()
}

/// What the status of a failed job says: type and sentence. A hidden failure says nothing there.
fn error_of(job: &Job) -> Option<(&'static str, &'static str)> {
    if job.stage == Stage::Canceled {
        return Some(("request_cancelled", "Request was cancelled."));
    }
    match job.stage.failure()? {
        Failure::Internal => Some(("runner_disconnected", "Runner disconnected.")),
        Failure::Moderation => Some(("content_policy_violation", "The content was flagged by a content checker.")),
        Failure::Expired => Some(("request_timeout", "Request timed out.")),
        Failure::Hidden => None,
    }
}

fn payload(world: &World, job: &Job) -> Value {
    world.output(job).map_or(Value::Null, |url| json!({ "video": { "url": url, "content_type": "video/mp4" } }))
}

/// The addresses hold owner and app only, whatever the model's path was.
fn queued(world: &World, job: &Job) -> Value {
    let app: Vec<&str> = job.facts.model.split('/').take(2).collect();
    let at = format!("{}/{}/requests/{}", world.public_url, app.join("/"), job.facts.id);
    json!({
        "status": "IN_QUEUE",
        "request_id": job.facts.id,
        "gateway_request_id": job.facts.id,
        "response_url": at,
        "status_url": format!("{at}/status"),
        "cancel_url": format!("{at}/cancel"),
        "queue_position": 0,
    })
}

#[derive(Deserialize)]
struct Webhook {
    #[serde(default)]
    fal_webhook: Option<String>,
}

/// `POST /{owner}/{app}[/{path}]`
async fn submit(
    State(world): State<Arc<World>>,
    ConnectInfo(wire): ConnectInfo<Wire>,
    Query(webhook): Query<Webhook>,
    OriginalUri(uri): OriginalUri,
    body: Bytes,
) -> Response {
    let input: Value = serde_json::from_slice(&body).unwrap_or_default();
    let Some(prompt) = input["prompt"].as_str().map(str::to_owned) else {
        return detail(422, &json!([{ "loc": ["body", "prompt"], "msg": "field required", "type": "missing" }]), None);
    };
    let seconds = input["duration"].as_u64().or_else(|| input["duration"].as_str()?.parse().ok()).unwrap_or(5);
    let order = Accepted {
        id: Uuid::new_v4().to_string(),
        client_ref: String::new(),
        model: uri.path().trim_start_matches('/').to_owned(),
        prompt,
        seconds,
        input,
        webhook: webhook.fal_webhook,
        events: Value::Null,
        created_ms: now_ms(),
    };
    create::take(&world, &wire, order).await
}

fn unknown() -> Response {
    detail(404, &json!("Request not found"), None)
}

type Named = Path<(String, String, String)>;

/// `GET …/requests/{id}/status`: 202 until the job is over, 200 from then on.
async fn status(State(world): State<Arc<World>>, Path((_, _, id)): Named) -> Response {
    let Some(job) = world.look(&id) else { return unknown() };
    let mut shown = queued(&world, &job);
    let (code, word) = match job.stage {
        Stage::Starting => (StatusCode::ACCEPTED, "IN_QUEUE"),
        Stage::Processing => (StatusCode::ACCEPTED, "IN_PROGRESS"),
        Stage::Weird => (StatusCode::ACCEPTED, WEIRD),
        Stage::Succeeded | Stage::Failed(_) | Stage::Canceled => (StatusCode::OK, "COMPLETED"),
    };
    shown["status"] = json!(word);
    shown["logs"] = Value::Null;
    if let Some(took) = job.took() {
        shown["metrics"] = json!({ "inference_time": took });
    }
    if let Some((kind, said)) = error_of(&job) {
        shown["error"] = json!(said);
        shown["error_type"] = json!(kind);
    }
    (code, Json(shown)).into_response()
}

/// `GET …/requests/{id}`: the output, or what became of it.
async fn result(State(world): State<Arc<World>>, Path((_, _, id)): Named) -> Response {
    let Some(job) = world.look(&id) else { return unknown() };
    if !job.stage.is_end() {
        return detail(400, &json!("Request is still in progress"), None);
    }
    match (job.stage.failure(), error_of(&job)) {
        (Some(Failure::Hidden), _) => {
            let wrong = json!([{ "loc": ["body", "image_url"], "msg": "Failed to load the image", "type": "file_download_error" }]);
            detail(422, &wrong, None)
        }
        (Some(Failure::Expired), Some((kind, said))) => detail(504, &json!(said), Some(kind)),
        (_, Some((kind, said))) => detail(503, &json!(said), Some(kind)),
        _ => Json(payload(&world, &job)).into_response(),
    }
}

/// `PUT …/requests/{id}/cancel`: what has started goes on, and the answer does not say so.
async fn cancel(State(world): State<Arc<World>>, Path((_, _, id)): Named) -> Response {
    let Some(job) = world.job(&id) else { return unknown() };
    if job.stage.is_end() {
        return (StatusCode::BAD_REQUEST, Json(json!({ "status": "ALREADY_COMPLETED" }))).into_response();
    }
    if job.stage == Stage::Starting && run::cancel(&world, &id) == Some(false) {
        return detail(500, &json!("Internal Server Error"), None);
    }
    (StatusCode::ACCEPTED, Json(json!({ "status": "CANCELLATION_REQUESTED" }))).into_response()
}

async fn jwks(State(world): State<Arc<World>>) -> Json<Value> {
    Json(world.dialect.published_keys())
}
