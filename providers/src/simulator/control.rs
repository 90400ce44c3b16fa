//! `/_sim/`: what tests and people ask of the simulator itself, beside the provider's API.

use super::world::{Stage, World, rfc3339};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// `GET /_sim/jobs`: every accepted job, newest first.
pub(super) async fn jobs(State(world): State<Arc<World>>) -> Json<Value> {
    let (jobs, _) = world.page(None, usize::MAX);
    let rows: Vec<Value> = jobs
        .iter()
        .map(|job| {
            json!({
                "id": job.facts.id,
                "client_ref": job.facts.client_ref,
                "tag": job.script.tag,
                "state": job.stage.word(),
                "created_at": rfc3339(job.facts.created_ms),
                "billed": job.stage == Stage::Succeeded,
                "cancels": job.cancels,
                "downloads": job.downloads,
            })
        })
        .collect();
    Json(Value::Array(rows))
}

/// `GET /_sim/counters`: how many jobs were accepted, in all and per reference.
pub(super) async fn counters(State(world): State<Arc<World>>) -> Json<Value> {
    Json(world.counters())
}

#[derive(Deserialize)]
pub(super) struct Down {
    for_ms: u64,
}

/// `POST /_sim/down`: the provider's API and files answer 503 for so long; 0 brings them back.
pub(super) async fn down(State(world): State<Arc<World>>, Json(Down { for_ms }): Json<Down>) -> StatusCode {
    world.go_down(Duration::from_millis(for_ms));
    StatusCode::NO_CONTENT
}

/// `POST /_sim/pause`: jobs stand still and callbacks wait, until `resume`.
pub(super) async fn pause(State(world): State<Arc<World>>) -> StatusCode {
    world.paused.send_replace(true);
    StatusCode::NO_CONTENT
}

/// `POST /_sim/resume`: jobs go on.
pub(super) async fn resume(State(world): State<Arc<World>>) -> StatusCode {
    world.paused.send_replace(false);
    StatusCode::NO_CONTENT
}

/// `POST /_sim/rotate_key`: callbacks are signed with the next key from now on.
pub(super) async fn rotate_key(State(world): State<Arc<World>>) -> StatusCode {
    world.dialect.rotate_key();
    StatusCode::NO_CONTENT
}

/// While the simulator is "down", a proxy answers for it.
pub(super) async fn unless_down(State(world): State<Arc<World>>, request: Request, next: Next) -> Response {
    if world.is_down() {
        return super::reply::proxy_page(StatusCode::SERVICE_UNAVAILABLE);
    }
    next.run(request).await
}

/// The API's token check.
pub(super) async fn authenticated(
    State(world): State<Arc<World>>,
    headers: HeaderMap,
    request: Request,
    next: Next,
) -> Response {
    if !world.dialect.is_authentic(&headers, world.config.token.expose()) {
        return world.dialect.unauthenticated();
    }
    next.run(request).await.into_response()
}
