//! What the plain HTTP routes share: how they say no, and who calls.

use crate::auth::{Authority, BadToken, Caller, TokenKeys};
use axum::Json;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use domain::id::CorrelationId;
use std::error::Error;

/// A "no" of a plain HTTP route: `{"error": {"code", "message"}}`.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    message: String,
    correlation: Option<CorrelationId>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), correlation: None }
    }

    /// A fault of ours that may pass: it is logged here, and the caller is told its correlation id only.
    pub(crate) fn unavailable(error: &dyn Error, correlation: CorrelationId) -> Self {
        log_fault(error, correlation);
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            code: "UNAVAILABLE",
            message: "not now; try again".to_owned(),
            correlation: Some(correlation),
        }
    }
}

impl From<BadToken> for Problem {
    fn from(bad: BadToken) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", bad.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut error = serde_json::json!({"code": self.code, "message": self.message});
        if let Some(correlation) = self.correlation {
            error["correlationId"] = correlation.to_string().into();
        }
        let mut response = (self.status, Json(serde_json::json!({"error": error}))).into_response();
        let headers = response.headers_mut();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static("2"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Logs a fault with its causes. Causes name constraints, columns and addresses of ours, which is why they stay in the log.
pub(crate) fn log_fault(error: &dyn Error, correlation: CorrelationId) {
    let mut causes = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        causes = format!("{causes}: {cause}");
        source = cause.source();
    }
    tracing::error!(%correlation, fault = %causes, "a request failed");
}

/// Who calls: `None` without an `Authorization` header.
pub(crate) fn caller(headers: &HeaderMap, keys: &TokenKeys) -> Result<Option<Caller>, BadToken> {
    bearer(headers)?.map(|value| keys.verify_bearer(value)).transpose()
}

/// By what somebody calls, for whatever stays open.
pub(crate) fn authority(headers: &HeaderMap, keys: &TokenKeys) -> Option<Authority> {
    bearer(headers).ok().flatten().map(|value| Authority::new(keys, value))
}

fn bearer(headers: &HeaderMap) -> Result<Option<&str>, BadToken> {
    headers.get(header::AUTHORIZATION).map(|value| value.to_str().map_err(|_| BadToken::Invalid)).transpose()
}
