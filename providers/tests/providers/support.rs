//! What the tests share: a raw server, a simulator, a receiver of callbacks.

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use domain::id::AttemptId;
use providers::Secret;
use providers::replicate::{Replicate, ReplicateConfig};
use providers::simulator::{Kind, SimulatorConfig, serve_on};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use uuid::Uuid;
use workers::ports::{CreateOrder, Created, FindOrder, GenerationRequest, JobState, Polled, Provider};

pub const CALLBACK_SECRET: &str = "a secret for addresses";
pub const MODEL: &str = "acme/video-1";
pub const TOKEN: &str = "r8_test_token";
/// The bytes 0 to 23.
pub const WEBHOOK_SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";

/// Settings for an adapter whose provider is at `base_url`.
pub fn config(base_url: &str, callback_base_url: &str) -> ReplicateConfig {
    let mut config = ReplicateConfig::new(TOKEN.into(), callback_base_url.to_owned(), WEBHOOK_SECRET.into());
    config.connection.base_url = Some(base_url.to_owned());
    config.connection.connect_timeout_ms = 1_000;
    config.connection.request_timeout_ms = 3_000;
    config.connection.breaker = providers::BreakerConfig::never();
    config
}

pub fn attempt() -> AttemptId {
    AttemptId(Uuid::new_v4())
}

/// A create order with a prompt, for a video of one second.
pub fn order(attempt: AttemptId, prompt: &str) -> CreateOrder {
    let request = GenerationRequest {
        model: MODEL.to_owned(),
        parameters: serde_json::Map::new(),
        accepts_seed: true,
        prompt: prompt.to_owned(),
        duration_seconds: 1,
        image_url: None,
    };
    CreateOrder { attempt, request, timeout: Duration::from_secs(5) }
}

/// A look-up of an attempt whose order was made as [`order`] makes it, just now.
pub fn sought(attempt: AttemptId) -> FindOrder {
    FindOrder {
        attempt,
        model: MODEL.to_owned(),
        accepts_seed: true,
        duration_seconds: 1,
        not_before: chrono::DateTime::from(std::time::SystemTime::now()) - chrono::TimeDelta::seconds(60),
        lost_at: chrono::DateTime::from_timestamp(1_790_000_000, 0).unwrap_or_default(),
    }
}

/// What a raw server does with a connection.
#[derive(Clone)]
pub enum Act {
    /// Reads the request, writes these bytes, closes.
    Say(Vec<u8>),
    /// Reads the request and keeps the connection, silent.
    Hang,
    /// Reads the request and resets the connection.
    Reset,
    /// Resets the connection without reading.
    ResetAtOnce,
}

impl Act {
    /// A whole HTTP reply.
    pub fn reply(status: &str, headers: &str, body: &str) -> Self {
        let length = body.len();
        Self::Say(format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n{body}").into_bytes())
    }
}

/// A server that does one thing per connection, in order; the last one for all that follow.
pub struct Raw {
    pub base_url: String,
    requests: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

/// A raw server that has its port and does nothing yet.
pub struct Listening(TcpListener, String);

impl Listening {
    /// `http://` and the address.
    pub fn origin(&self) -> &str {
        &self.1
    }

    pub fn serve(self, acts: Vec<Act>) -> Raw {
        Raw::serve(self, acts)
    }
}

impl Raw {
    pub async fn start(acts: Vec<Act>) -> anyhow::Result<Self> {
        Ok(Self::listen().await?.serve(acts))
    }

    pub async fn listen() -> anyhow::Result<Listening> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let origin = format!("http://{}", listener.local_addr()?);
        Ok(Listening(listener, origin))
    }

    /// `http://` and the address.
    pub fn origin(&self) -> &str {
        self.base_url.trim_end_matches("/v1")
    }

    fn serve(Listening(listener, origin): Listening, acts: Vec<Act>) -> Self {
        let base_url = format!("{origin}/v1");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        let heard = Arc::clone(&requests);
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            for count in 0.. {
                let Ok((stream, _)) = listener.accept().await else {
                    return;
                };
                let act = acts.get(count).or_else(|| acts.last()).cloned().unwrap_or(Act::Reset);
                let heard = Arc::clone(&heard);
                open.spawn(async move {
                    // A client that goes away is part of the test.
                    let _gone = answer(stream, act, &heard).await;
                });
            }
        });
        Self { base_url, requests, _tasks: tasks }
    }

    /// The requests so far, as text; an unread one is empty.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn answer(mut stream: TcpStream, act: Act, heard: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let request = if matches!(act, Act::ResetAtOnce) { String::new() } else { read_request(&mut stream).await? };
    heard.lock().unwrap_or_else(PoisonError::into_inner).push(request);
    match act {
        Act::Say(bytes) => {
            stream.write_all(&bytes).await?;
            stream.shutdown().await
        }
        Act::Hang => std::future::pending().await,
        Act::Reset | Act::ResetAtOnce => stream.set_zero_linger(),
    }
}

async fn read_request(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let lower = head.to_lowercase();
            let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return Ok(text);
            }
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(text);
        }
    }
}

/// A simulator in this process, on a free port.
pub struct Sim {
    pub origin: String,
    stop: Option<oneshot::Sender<()>>,
    task: JoinSet<Result<(), providers::simulator::SimulatorError>>,
    pub http: reqwest::Client,
}

impl Sim {
    pub async fn start(store: &Path) -> anyhow::Result<Self> {
        Self::of(Kind::Replicate, store).await
    }

    pub async fn of(kind: Kind, store: &Path) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let origin = format!("http://{}", listener.local_addr()?);
        let config = SimulatorConfig {
            addr: SocketAddr::from(([127, 0, 0, 1], 0)),
            public_url: None,
            store_dir: store.to_owned(),
            ffmpeg: "ffmpeg".into(),
            token: Secret::from(TOKEN),
            kind,
            webhook_secret: Some(Secret::from(WEBHOOK_SECRET)),
            default_duration_ms: 100,
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let mut task = JoinSet::new();
        task.spawn(serve_on(listener, config, async move {
            // An error means that the sender is gone, which is a stop, too.
            let _stopped = stopped.await;
        }));
        let http = reqwest::Client::builder().no_proxy().build()?;
        Ok(Self { origin, stop: Some(stop), task, http })
    }

    pub fn adapter(&self, callback_base_url: &str) -> anyhow::Result<Replicate> {
        Ok(Replicate::new("replicate", config(&format!("{}/v1", self.origin), callback_base_url))?)
    }

    /// Ends it in order.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        drop(self.stop.take());
        self.task.join_next().await.context("it runs")???;
        Ok(())
    }

    /// Ends it as a kill does: nothing more is written.
    pub async fn kill(mut self) {
        self.task.shutdown().await;
    }

    pub async fn look(&self, path: &str) -> anyhow::Result<Value> {
        let text =
            self.http.get(format!("{}/_sim/{path}", self.origin)).send().await?.error_for_status()?.text().await?;
        Ok(serde_json::from_str(&text)?)
    }

    pub async fn order(&self, path: &str, body: Value) -> anyhow::Result<()> {
        let request = self.http.post(format!("{}/_sim/{path}", self.origin)).json(&body);
        request.send().await?.error_for_status()?;
        Ok(())
    }

    /// How many jobs a reference has.
    pub async fn accepted(&self, attempt: AttemptId) -> anyhow::Result<u64> {
        Ok(self.look("counters").await?["by_ref"][attempt.to_string()].as_u64().unwrap_or(0))
    }

    /// How many create calls came in for a reference.
    pub async fn creates(&self, attempt: AttemptId) -> anyhow::Result<u64> {
        Ok(self.look("counters").await?["creates"][attempt.to_string()].as_u64().unwrap_or(0))
    }
}

/// A simulator and its folder.
pub async fn sim() -> anyhow::Result<(TempDir, Sim)> {
    let store = tempfile::tempdir()?;
    let sim = Sim::start(store.path()).await?;
    Ok((store, sim))
}

/// A callback as it came in.
#[derive(Clone, Debug)]
pub struct Told {
    pub headers: HeaderMap,
    pub path_and_query: (String, String),
    pub body: Vec<u8>,
    pub at: Instant,
}

impl Told {
    pub fn header(&self) -> impl Fn(&str) -> Option<String> + '_ {
        |name| self.headers.get(name)?.to_str().ok().map(str::to_owned)
    }
}

/// Takes callbacks: refuses the first few with 500.
pub struct Receiver {
    pub base_url: String,
    told: Arc<Mutex<Vec<Told>>>,
    _task: JoinSet<std::io::Result<()>>,
}

impl Receiver {
    pub async fn start(refuse: usize) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let base_url = format!("http://{}/hooks", listener.local_addr()?);
        let told = Arc::new(Mutex::new(Vec::new()));
        let app = Router::new().fallback(take).with_state((refuse, Arc::clone(&told)));
        let mut task = JoinSet::new();
        task.spawn(async move { axum::serve(listener, app).await });
        Ok(Self { base_url, told, _task: task })
    }

    pub fn told(&self) -> Vec<Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until so many callbacks came.
    pub async fn wait(&self, count: usize) -> anyhow::Result<Vec<Told>> {
        let until = Instant::now() + Duration::from_secs(20);
        while self.told().len() < count {
            anyhow::ensure!(Instant::now() < until, "{} of {count} callbacks came", self.told().len());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(self.told())
    }
}

type Taken = (usize, Arc<Mutex<Vec<Told>>>);

async fn take(
    State((refuse, told)): State<Taken>,
    RawQuery(query): RawQuery,
    uri: axum::http::Uri,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
    let path_and_query = (uri.path().to_owned(), query.unwrap_or_default());
    told.push(Told { headers, path_and_query, body: body.to_vec(), at: Instant::now() });
    if told.len() <= refuse { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK }
}

/// Polls until the job's state is one that is looked for.
pub async fn wait_for(
    adapter: &dyn Provider,
    job: &str,
    wanted: impl Fn(&JobState) -> bool,
) -> anyhow::Result<JobState> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let polled = adapter.poll(job).await;
        match polled {
            Polled::State(state) if wanted(&state) => return Ok(state),
            other => anyhow::ensure!(Instant::now() < until, "still {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The job of an accepted create call.
pub fn job_of(created: &Created) -> anyhow::Result<&str> {
    match created {
        Created::Accepted { job } => Ok(job),
        other => anyhow::bail!("not accepted: {other:?}"),
    }
}
