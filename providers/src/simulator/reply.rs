//! Answers, right and wrong.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{Html, IntoResponse, Response};
use futures_util::stream::{self, StreamExt};
use serde_json::json;
use std::io;
use std::time::Duration;

/// The provider's own error document (RFC 7807).
pub(super) fn problem(status: u16, title: &str, detail: &str) -> Response {
    let code = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response =
        (code, Json(json!({ "title": title, "detail": detail, "status": code.as_u16() }))).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}

/// What a proxy in front of the provider says.
pub(super) fn proxy_page(status: StatusCode) -> Response {
    let page = format!("<html><body><h1>{status}</h1><hr>proxy</body></html>");
    (status, Html(page)).into_response()
}

/// A body that ends after half of what `Content-Length` promised.
pub(super) fn cut_short(status: StatusCode, content_type: &'static str, body: Bytes) -> Response {
    let length = body.len();
    let half = body.slice(..length / 2);
    // The pause lets the first half reach the wire before the connection ends.
    let end = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Err(io::Error::from(io::ErrorKind::ConnectionAborted))
    };
    let pieces = stream::iter([Ok(half)]).chain(stream::once(end));
    let headers = [(CONTENT_LENGTH, length.to_string()), (CONTENT_TYPE, content_type.to_owned())];
    (status, headers, Body::from_stream(pieces)).into_response()
}
