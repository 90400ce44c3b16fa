//! `GET /objects/{key}`: serves objects by signed link, with ranges, so that a browser can play and seek in a video.

use crate::clock::now;
use crate::http::Problem;
use crate::ports::LinkRefused;
use crate::range::{Wanted, wanted};
use crate::router::Shared;
use crate::sniff::{HEAD, content_type};
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use domain::id::CorrelationId;
use futures_util::TryStreamExt;
use serde::Deserialize;
use std::sync::Arc;
use workers::ports::{ObjectStore, TransferError};

/// The signed part of a link.
#[derive(Deserialize)]
pub(crate) struct Signed {
    exp: u64,
    sig: String,
}

pub(crate) async fn serve(
    State(shared): State<Arc<Shared>>,
    Path(key): Path<String>,
    signed: Result<Query<Signed>, QueryRejection>,
    axum::Extension(correlation): axum::Extension<CorrelationId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Ok(Query(signed)) = signed else {
        return Err(Problem::new(StatusCode::FORBIDDEN, "BAD_LINK", LinkRefused::Forged.to_string()));
    };
    shared.state.links.verify(&key, signed.exp, &signed.sig, now()).map_err(|refused| {
        let code = if refused == LinkRefused::Expired { "LINK_EXPIRED" } else { "BAD_LINK" };
        Problem::new(StatusCode::FORBIDDEN, code, refused.to_string())
    })?;
    let failed = |error: TransferError| match error {
        TransferError::Transient(_) => Problem::unavailable(&error, correlation),
        TransferError::Permanent(_) | TransferError::Expired => {
            Problem::new(StatusCode::NOT_FOUND, "NOT_FOUND", "there is no such object")
        }
    };
    let objects = shared.state.objects.as_ref();
    let (size, media_type) = look_at(objects, &key).await.map_err(failed)?;
    let range = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    let part = match wanted(range, size) {
        Wanted::Whole => None,
        Wanted::Part(from, to) => Some((from, to)),
        Wanted::Outside => return Ok(outside(size)),
    };
    let (_, content) = objects.read(&key, part).await.map_err(failed)?;
    let response = Response::builder()
        .header(header::CONTENT_TYPE, media_type)
        .header(header::ACCEPT_RANGES, "bytes")
        .header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
        // The link is the permission: it may be kept by the browser that has it, not by a cache in between.
        .header(header::CACHE_CONTROL, "private, max-age=3600");
    let response = match part {
        None => response.status(StatusCode::OK).header(header::CONTENT_LENGTH, size),
        Some((from, to)) => response
            .status(StatusCode::PARTIAL_CONTENT)
            .header(header::CONTENT_LENGTH, to - from)
            .header(header::CONTENT_RANGE, format!("bytes {from}-{}/{size}", to - 1)),
    };
    response.body(Body::from_stream(content)).map_err(|error| Problem::unavailable(&error, correlation))
}

/// The size of an object, and its type by its first bytes.
async fn look_at(objects: &dyn ObjectStore, key: &str) -> Result<(u64, &'static str), TransferError> {
    let (size, mut content) = objects.read(key, Some((0, HEAD as u64))).await?;
    let mut head = Vec::with_capacity(HEAD);
    let broke_off = |_| TransferError::Transient("the object was read incompletely".to_owned());
    while let Some(chunk) = content.try_next().await.map_err(broke_off)? {
        head.extend_from_slice(&chunk);
    }
    Ok((size, content_type(&head).unwrap_or("application/octet-stream")))
}

fn outside(size: u64) -> Response {
    let headers = [(header::CONTENT_RANGE, format!("bytes */{size}"))];
    (StatusCode::RANGE_NOT_SATISFIABLE, headers).into_response()
}
