//! As much of the S3 protocol as the store uses, in memory, with answers that get lost on demand.

#![expect(clippy::disallowed_methods, reason = "a test ends what it starts, and sees how it ended")]

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, Method, Response, StatusCode, Uri};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::JoinHandle;

/// What the store holds and did.
#[derive(Default)]
pub struct Contents {
    pub objects: HashMap<String, (Vec<u8>, String)>,
    /// Parts of unfinished uploads by upload id.
    pub uploads: HashMap<String, BTreeMap<u32, Vec<u8>>>,
    /// How many answers to a completed write are still to be replaced by a 503.
    pub lost_answers: u32,
    /// Requests that changed something, as method and query.
    pub writes: Vec<String>,
    started: u32,
}

/// A running bucket named `bucket`.
pub struct Bucket {
    contents: Arc<Mutex<Contents>>,
    pub endpoint: String,
    task: JoinHandle<()>,
}

impl Bucket {
    pub async fn start() -> anyhow::Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let contents = Arc::new(Mutex::new(Contents::default()));
        let app = Router::new().fallback(handle).layer(DefaultBodyLimit::disable()).with_state(Arc::clone(&contents));
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                eprintln!("the bucket stopped: {error}");
            }
        });
        Ok(Self { contents, endpoint, task })
    }

    pub fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn handle(
    State(contents): State<Arc<Mutex<Contents>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let mut contents = contents.lock().unwrap_or_else(PoisonError::into_inner);
    let key = uri.path().trim_start_matches("/bucket/").to_owned();
    let query: HashMap<_, _> =
        uri.query().unwrap_or_default().split('&').map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
    if method == Method::GET || method == Method::HEAD {
        let range = headers.get("range").and_then(|value| value.to_str().ok());
        return read(&contents, &key, range, method == Method::HEAD);
    }
    contents.writes.push(format!("{method} {}", uri.query().unwrap_or_default()));
    let content_type = headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    write(&mut contents, &method, key, &query, content_type, &body)
}

fn read(contents: &Contents, key: &str, range: Option<&str>, head_only: bool) -> Response<Body> {
    let Some((object, content_type)) = contents.objects.get(key) else { return reply(StatusCode::NOT_FOUND, "") };
    let bounds = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let bounds = bounds.and_then(|(from, to)| Some((from.parse().ok()?, to.parse::<usize>().ok()?)));
    let (status, (from, to)) = match bounds {
        Some(bounds) => (StatusCode::PARTIAL_CONTENT, bounds),
        None => (StatusCode::OK, (0, object.len().saturating_sub(1))),
    };
    let part = object.get(from..(to + 1).min(object.len())).unwrap_or_default();
    let answer = Response::builder()
        .status(status)
        .header("etag", "\"tag\"")
        .header("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT")
        .header("content-type", content_type)
        .header("content-range", format!("bytes {from}-{to}/{}", object.len()))
        .header("content-length", part.len());
    answer.body(if head_only { Body::empty() } else { part.to_vec().into() }).expect("a fixed answer")
}

fn write(
    contents: &mut Contents,
    method: &Method,
    key: String,
    query: &HashMap<&str, &str>,
    content_type: String,
    body: &[u8],
) -> Response<Body> {
    let upload = query.get("uploadId").map(|id| (*id).to_owned());
    match (method.as_str(), upload) {
        ("POST", None) => {
            contents.started += 1;
            let id = format!("{}{}", contents.started, content_type.replace('/', "-"));
            contents.uploads.insert(id.clone(), BTreeMap::new());
            let names = format!("<Bucket>bucket</Bucket><Key>{key}</Key><UploadId>{id}</UploadId>");
            reply(StatusCode::OK, &format!("<InitiateMultipartUploadResult>{names}</InitiateMultipartUploadResult>"))
        }
        ("PUT", Some(id)) => {
            let number = query.get("partNumber").and_then(|number| number.parse().ok()).unwrap_or_default();
            let Some(parts) = contents.uploads.get_mut(&id) else { return reply(StatusCode::NOT_FOUND, "") };
            parts.insert(number, body.to_vec());
            reply(StatusCode::OK, "")
        }
        ("POST", Some(id)) => {
            let Some(parts) = contents.uploads.remove(&id) else { return reply(StatusCode::NOT_FOUND, "") };
            let whole = parts.into_values().flatten().collect();
            contents.objects.insert(key.clone(), (whole, id.trim_start_matches(char::is_numeric).replace('-', "/")));
            let names = format!("<Location>x</Location><Bucket>bucket</Bucket><Key>{key}</Key><ETag>\"tag\"</ETag>");
            done(contents, &format!("<CompleteMultipartUploadResult>{names}</CompleteMultipartUploadResult>"))
        }
        ("PUT", None) => {
            contents.objects.insert(key, (body.to_vec(), content_type));
            done(contents, "")
        }
        ("DELETE", Some(id)) => {
            contents.uploads.remove(&id);
            reply(StatusCode::NO_CONTENT, "")
        }
        _ => reply(StatusCode::METHOD_NOT_ALLOWED, ""),
    }
}

/// The write is done; whether the other side learns it is another matter.
fn done(contents: &mut Contents, body: &str) -> Response<Body> {
    if contents.lost_answers > 0 {
        contents.lost_answers -= 1;
        return reply(StatusCode::SERVICE_UNAVAILABLE, "");
    }
    reply(StatusCode::OK, body)
}

fn reply(status: StatusCode, body: &str) -> Response<Body> {
    let answer = Response::builder().status(status).header("etag", "\"tag\"");
    answer.body(body.to_owned().into()).expect("a fixed answer")
}
