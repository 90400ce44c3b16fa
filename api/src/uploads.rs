//! `POST /uploads`: takes an image in, as the raw body, and streams it to the object store.

use crate::auth::Role;
use crate::clock::fresh_id;
use crate::http::{Problem, caller};
use crate::idempotency::{BadKey, HeaderKey, choose};
use crate::router::Shared;
use crate::sniff::{HEAD, content_type, is_image};
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use domain::id::{AssetId, CorrelationId, TenantId, derived};
use eventstore::{StoreError, Upload};
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use workers::ports::{TransferError, TransferLimits};

/// How long an upload may take: 20 MiB over a slow line.
const DEADLINE: Duration = Duration::from_secs(300);

/// What an upload is answered with.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Uploaded {
    asset_id: AssetId,
    bytes: u64,
    sha256: String,
    content_type: String,
}

impl From<Upload> for Uploaded {
    fn from(upload: Upload) -> Self {
        let object = upload.object;
        Self { asset_id: upload.asset, bytes: object.bytes, sha256: object.sha256, content_type: object.content_type }
    }
}

type Content = BoxStream<'static, Result<Bytes, std::io::Error>>;

pub(crate) async fn receive(
    State(shared): State<Arc<Shared>>,
    axum::Extension(correlation): axum::Extension<CorrelationId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Uploaded>, Problem> {
    let caller = caller(&headers, &shared.keys)?
        .ok_or_else(|| Problem::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", "a token is needed"))?;
    if !caller.has(Role::Creator) {
        return Err(Problem::new(StatusCode::FORBIDDEN, "FORBIDDEN", "only creators upload"));
    }
    let limit = shared.state.config.max_upload_bytes;
    check_declared(&headers, limit)?;
    let key = choose(None, &HeaderKey::of(&headers)).map_err(bad_key)?;
    let (content, read) = limited(body, limit);
    let content = image(content).await.map_err(|error| error.into_problem(&read, limit))?;
    let place = Place::of(caller.tenant, key.as_deref());
    let unavailable = |error: StoreError| Problem::unavailable(&error, correlation);
    let known = shared.state.store.uploads(caller.tenant, &[place.asset]).await.map_err(unavailable)?;
    if let Some(known) = known.into_iter().next() {
        return same(known, &digest(content).await.map_err(|_| too_large_or_broken(&read, limit))?);
    }
    let limits = TransferLimits { max_bytes: limit, deadline: DEADLINE };
    let object = shared.state.objects.put(&place.object_key, content, limits).await.map_err(|error| match error {
        _ if read.load(Ordering::Relaxed) > limit => too_large(limit),
        TransferError::Transient(_) => Problem::unavailable(&error, correlation),
        TransferError::Permanent(_) | TransferError::Expired => {
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "NOT_STORED", "the upload could not be stored")
        }
    })?;
    let upload = Upload { asset: place.asset, tenant: caller.tenant, object };
    shared.state.store.record_upload(&upload).await.map_err(unavailable)?;
    // Of two uploads with one key at the same time, the row that was first decides.
    let recorded = shared.state.store.uploads(caller.tenant, &[place.asset]).await.map_err(unavailable)?;
    match recorded.into_iter().next() {
        Some(recorded) => same(recorded, &upload.object.sha256),
        None => Ok(Json(upload.into())),
    }
}

fn same(known: Upload, sha256: &str) -> Result<Json<Uploaded>, Problem> {
    if known.object.sha256 == sha256 {
        return Ok(Json(known.into()));
    }
    let message = "the idempotency key was used before with another image";
    Err(Problem::new(StatusCode::CONFLICT, "IDEMPOTENCY_KEY_REUSED", message))
}

/// Where an upload goes.
struct Place {
    asset: AssetId,
    object_key: String,
}

impl Place {
    /// With a key, the asset is the same however often it is sent. Its object is not: two bodies that are sent with one key at
    /// the same time must not overwrite each other before the recorded row says which one counts.
    fn of(tenant: TenantId, key: Option<&str>) -> Self {
        let folder = format!("tenants/{tenant}/uploads");
        let nonce = fresh_id();
        match key {
            Some(key) => {
                let asset = AssetId(derived("upload", tenant.0, key));
                Self { asset, object_key: format!("{folder}/{asset}-{}", nonce.simple()) }
            }
            None => Self { asset: AssetId(nonce), object_key: format!("{folder}/{nonce}") },
        }
    }
}

fn check_declared(headers: &HeaderMap, limit: u64) -> Result<(), Problem> {
    let declared = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = declared.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if !is_image(&media_type) {
        return Err(not_an_image());
    }
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > limit) { Err(too_large(limit)) } else { Ok(()) }
}

/// The body, cut off with an error when it grows beyond the limit, and the count of what was read.
fn limited(body: Body, limit: u64) -> (Content, Arc<AtomicU64>) {
    let read = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&read);
    let content = body
        .into_data_stream()
        .map_err(|_| std::io::Error::other("the upload broke off"))
        .and_then(move |chunk| {
            let total = counter.fetch_add(chunk.len() as u64, Ordering::Relaxed) + chunk.len() as u64;
            let fits = total <= limit;
            async move { if fits { Ok(chunk) } else { Err(std::io::Error::other("the upload is too large")) } }
        })
        .boxed();
    (content, read)
}

enum NotTaken {
    BrokenOff,
    NotAnImage,
}

impl NotTaken {
    fn into_problem(self, read: &AtomicU64, limit: u64) -> Problem {
        match self {
            Self::BrokenOff => too_large_or_broken(read, limit),
            Self::NotAnImage => not_an_image(),
        }
    }
}

/// Looks at the first bytes, and hands the whole content on: what is not an image never reaches the store.
async fn image(mut content: Content) -> Result<Content, NotTaken> {
    let mut head: Vec<Bytes> = Vec::new();
    let mut bytes = Vec::with_capacity(HEAD);
    while bytes.len() < HEAD {
        let Some(chunk) = content.try_next().await.map_err(|_| NotTaken::BrokenOff)? else { break };
        bytes.extend_from_slice(&chunk[..chunk.len().min(HEAD)]);
        head.push(chunk);
    }
    match content_type(&bytes) {
        Some(found) if is_image(found) => Ok(stream::iter(head.into_iter().map(Ok)).chain(content).boxed()),
        _ => Err(NotTaken::NotAnImage),
    }
}

async fn digest(mut content: Content) -> Result<String, std::io::Error> {
    let mut hash = Sha256::new();
    while let Some(chunk) = content.try_next().await? {
        hash.update(&chunk);
    }
    Ok(hex::encode(hash.finalize()))
}

fn bad_key(bad: BadKey) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "BAD_IDEMPOTENCY_KEY", bad.to_string())
}

fn not_an_image() -> Problem {
    let message = "an upload is a PNG, JPEG, WebP or GIF image, and its Content-Type says so";
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "NOT_AN_IMAGE", message)
}

fn too_large(limit: u64) -> Problem {
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "TOO_LARGE", format!("an upload has at most {limit} bytes"))
}

fn too_large_or_broken(read: &AtomicU64, limit: u64) -> Problem {
    if read.load(Ordering::Relaxed) > limit {
        return too_large(limit);
    }
    Problem::new(StatusCode::BAD_REQUEST, "BROKEN_OFF", "the upload broke off")
}
