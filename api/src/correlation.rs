//! The correlation id of a request: what a person who reports a fault is asked for, and what logs and events carry.

use crate::clock::fresh_id;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use domain::id::CorrelationId;
use tracing::Instrument;

const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// Gives each request an id, the caller's own where it is a UUID, and says it in the answer.
pub(crate) async fn correlate(mut request: Request, next: Next) -> Response {
    let given = request.headers().get(&HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
    let id = CorrelationId(given.unwrap_or_else(fresh_id));
    request.extensions_mut().insert(id);
    // The path alone: a query string may hold a signature.
    let span =
        tracing::info_span!("request", correlation = %id, method = %request.method(), path = request.uri().path());
    let mut response = next.run(request).instrument(span).await;
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(HEADER, value);
    }
    response
}
