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
use std::time::Duration;
use workers::ports::{CallbackRefused, Provider};

/// Longest job id, in bytes. It travels in a message, and one that is too large could never be sent.
const MAX_JOB: usize = 1024;

/// How long a provider waits for the answer, at least, as far as they say: past it they call again, so there is no use in going on.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

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
    // Cut short it is as if the process had died: what is recorded is so, and the provider calls again.
    let answer = take(&shared, provider.as_ref(), &headers, query.unwrap_or_default(), &body, correlation);
    tokio::time::timeout(ANSWERED_WITHIN, answer).await.unwrap_or_else(|_| {
        tracing::warn!(provider = provider.name(), "a callback could not be recorded in time");
        let message = "it could not be recorded in time: call again";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", message).into_response()
    })
}

async fn take(
    shared: &Shared,
    provider: &dyn Provider,
    headers: &HeaderMap,
    query: String,
    body: &Bytes,
    correlation: CorrelationId,
) -> Response {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    provider.renew_keys(false).await;
    let mut read = provider.callback(&header, &query, body, now());
    if read == Err(CallbackRefused::Forged) {
        provider.renew_keys(true).await;
        read = provider.callback(&header, &query, body, now());
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
        body_sha256: Sha256::digest(body).into(),
    };
    match shared.state.store.record_callback(&fact).await {
        Ok(CallbackKept::New | CallbackKept::Repeated) => StatusCode::OK.into_response(),
        // Kept: it is applied should the attempt turn up.
        Ok(CallbackKept::UnknownAttempt) => StatusCode::ACCEPTED.into_response(),
        Ok(CallbackKept::NotTheirs) => {
            tracing::warn!(provider = provider.name(), attempt = %fact.attempt, "a callback is about another provider's attempt");
            Problem::new(StatusCode::NOT_FOUND, "NOT_FOUND", "there is no such attempt here").into_response()
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
        CallbackRefused::NoKeys => (StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE"),
        CallbackRefused::Unreadable => (StatusCode::BAD_REQUEST, "UNREADABLE"),
    };
    Problem::new(status, code, refused.to_string()).into_response()
}
