//! Output files. They need no token, as at the real provider: the address is the permission.

use super::render;
use super::reply::{cut_short, problem};
use super::world::{Stage, World};
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::sync::Arc;

#[derive(Deserialize)]
pub(super) struct Permission {
    #[serde(default)]
    n: u32,
    #[serde(default)]
    key: String,
}

enum Answer {
    Gone,
    Cut,
    Whole,
}

/// `GET /files/{id}.mp4`
pub(super) async fn get(
    State(world): State<Arc<World>>,
    method: Method,
    Path(file): Path<String>,
    Query(permission): Query<Permission>,
) -> Response {
    let id = file.strip_suffix(".mp4").unwrap_or_default();
    let Some(job) = world.job(id).filter(|job| job.stage == Stage::Succeeded) else {
        return problem(404, "Not found", "There is no such file.");
    };
    if permission.key != world.output_key(id, permission.n) {
        return problem(403, "Forbidden", "The address is not valid.");
    }
    let answer = world.change(id, |job| {
        if permission.n <= job.script.expire {
            job.address_refused |= permission.n == job.address;
            return Answer::Gone;
        }
        // Looking at the size is not a download.
        job.downloads += u32::from(method == Method::GET);
        if job.downloads <= job.script.cut { Answer::Cut } else { Answer::Whole }
    });
    let video = match render::video(&world, job.video_seconds()).await {
        Ok(path) => tokio::fs::read(path).await,
        Err(error) => Err(error),
    };
    match (answer, video) {
        (Some(Answer::Gone), _) => problem(403, "Forbidden", "The address has expired."),
        (_, Err(_)) => problem(500, "Internal error", "the file can not be read"),
        (Some(Answer::Cut), Ok(bytes)) => cut_short(StatusCode::OK, "video/mp4", Bytes::from(bytes)),
        (_, Ok(bytes)) => ([("content-type", "video/mp4")], Bytes::from(bytes)).into_response(),
    }
}
