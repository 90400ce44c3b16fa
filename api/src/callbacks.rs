//! `POST /callbacks/{provider}`: believed only with a signature over the raw body, and answered with success only once durable.

use crate::clock::now;
use crate::http::Problem;
use crate::router::Shared;
use axum::body::Bytes;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::id::CorrelationId;
use eventstore::{CallbackFact, CallbackKept};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use workers::ports::CallbackRefused;

/// Longest job id, in bytes. It travels in a message, and one that is too large could never be sent.
const MAX_JOB: usize = 1024;

/// Largest body, in bytes. Providers send a job's description, not its output.
pub(crate) const MAX_BODY: usize = 256 * 1024;

pub(crate) async fn receive(
    State(shared): State<Arc<Shared>>,
    Path(provider): Path<String>,
    RawQuery(query): RawQuery,
    axum::Extension(correlation): axum::Extension<CorrelationId>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Some(provider) = shared.state.providers.get(provider.as_str()) else {
        return Problem::new(StatusCode::NOT_FOUND, "NOT_FOUND", "there is no such provider").into_response();
    };
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let query = query.unwrap_or_default();
    provider.renew_keys(false).await;
    let mut read = provider.callback(&header, &query, &body, now());
    if read == Err(CallbackRefused::Forged) {
        provider.renew_keys(true).await;
        read = provider.callback(&header, &query, &body, now());
    }
    let callback = match read {
        Ok(callback) => callback,
        Err(refused) => return refuse(provider.name(), refused),
    };
    // Text that the database or a message can not hold must not become an error that the provider repeats for ever.
    if callback.delivery.contains('\0') || callback.job.contains('\0') || callback.job.len() > MAX_JOB {
        return refuse(provider.name(), CallbackRefused::Unreadable);
    }
    let fact = CallbackFact {
        provider: provider.name().to_owned(),
        delivery: callback.delivery,
        attempt: callback.attempt,
        job: callback.job,
        body_sha256: Sha256::digest(&body).into(),
    };
    match shared.state.store.record_callback(&fact).await {
        Ok(CallbackKept::New | CallbackKept::Repeated) => StatusCode::OK.into_response(),
        Ok(CallbackKept::UnknownAttempt) => {
            Problem::new(StatusCode::NOT_FOUND, "NOT_FOUND", "there is no such attempt").into_response()
        }
        Err(error) => Problem::unavailable(&error, correlation).into_response(),
    }
}

fn refuse(provider: &str, refused: CallbackRefused) -> Response {
    tracing::warn!(provider, reason = %refused, "a callback is not believed");
    let (status, code) = match refused {
        CallbackRefused::Unsigned | CallbackRefused::Forged | CallbackRefused::Stale => {
            (StatusCode::UNAUTHORIZED, "UNAUTHENTICATED")
        }
        CallbackRefused::Unreadable => (StatusCode::BAD_REQUEST, "UNREADABLE"),
    };
    Problem::new(status, code, refused.to_string()).into_response()
}
