//! A provider to develop and test against: Replicate's wire format on loopback, real MP4 files, signed callbacks, and faults
//! on request. It runs as a process of its own, so that it can be killed, and so that the service under test can be killed
//! without it.
//!
//! Faults are asked for in the prompt, `[sim: key=value key=value:number]`; several combine, and an unknown word is refused
//! with 422. Faults of the create reply strike the first create of a reference (the first `N` with `:N`), so that a look-up
//! and a new try can then succeed.
//!
//! | word | what happens |
//! |---|---|
//! | `run=MS` | the job runs for so many milliseconds |
//! | `never` | the job never ends by itself |
//! | `refuse=STATUS`, `refuse=moderation` | the create call is refused, nothing is accepted |
//! | `fail=internal`, `fail=moderation` | the job fails after it ran |
//! | `fail=expired`, `fail=hidden` | it expires, or looks like a success until its output is asked for, where the provider has such ends |
//! | `throttle=N` | the first N creates of the reference answer 429, `Retry-After: 1` |
//! | `drop=before`, `drop=after` | the connection closes without a reply, before or after the job was accepted |
//! | `5xx=before`, `5xx=after` | a proxy's 502 page, before or after |
//! | `hang=before:S`, `hang=after:S` | no reply for S seconds (30), then the connection closes |
//! | `reply=cut`, `reply=junk`, `reply=noid` | accepted, but the 201 is truncated, not JSON, or names no job |
//! | `callback=early` | the job ends and is told before the create call is answered |
//! | `callback=duplicate:N` | each callback comes N (3) times, with the same id |
//! | `callback=none`, `callback=late:MS` | no callback; or only so long (3000) after the end |
//! | `cut=N` | the first N downloads end early |
//! | `expire=N` | N output addresses answer 403; looking at the job again then gives a fresh one |
//! | `status=weird` | half of the run shows an unknown status word |
//! | `cancel=fail:N`, `cancel=late` | the first N (1) cancels answer 500; or a cancel is accepted and the job succeeds all the same |
//! | `conflict=STATUS` | an id that is taken is refused with this status (400), where the caller chooses ids |
//! | `list=late:MS` | the job list does not show the job before it is so old (1000) |
//!
//! Beside the API: `GET /_sim/jobs`, `GET /_sim/counters`, `POST /_sim/down {"for_ms": N}`, `POST /_sim/pause`,
//! `POST /_sim/resume`, `POST /_sim/rotate_key` (where keys are published). `max_per_ref` of the counters is the witness for "never submitted twice", `most_at_once` the one for
//! "never more at once than allowed"; both survive a kill.

mod ark;
mod connection;
mod control;
mod create;
mod dialect;
mod fal;
mod files;
mod journal;
mod render;
mod replicate;
mod reply;
mod run;
mod runware;
mod runway;
mod script;
mod world;

use crate::Secret;
use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use connection::{Doorway, Wire};
pub use dialect::Kind;
use futures_util::future::BoxFuture;
use serde::Deserialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use world::World;

/// How long open connections may go on after the shutdown signal.
const GRACE: Duration = Duration::from_secs(2);

/// Settings of the simulator.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatorConfig {
    /// Where [`serve`] listens; loopback, port 7300 by default.
    #[serde(default = "default_addr")]
    pub addr: SocketAddr,
    /// How customers reach it, without a slash at the end; by default the address it listens on. It stands in output
    /// and page addresses.
    #[serde(default)]
    pub public_url: Option<String>,
    /// Folder of the journal and the videos; made if missing.
    pub store_dir: PathBuf,
    /// The ffmpeg program.
    #[serde(default = "default_ffmpeg")]
    pub ffmpeg: PathBuf,
    /// The API token that callers must send.
    pub token: Secret,
    /// Whose API it speaks.
    #[serde(default)]
    pub kind: Kind,
    /// The secret that callbacks are signed with, `whsec_…`; only Replicate signs with one.
    #[serde(default)]
    pub webhook_secret: Option<Secret>,
    /// How long a job runs when its prompt does not say, in milliseconds.
    #[serde(default = "default_duration_ms")]
    pub default_duration_ms: u64,
}

const fn default_addr() -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7300)
}
fn default_ffmpeg() -> PathBuf {
    PathBuf::from("ffmpeg")
}
const fn default_duration_ms() -> u64 {
    2_000
}

/// Why the simulator does not start or stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum SimulatorError {
    /// The webhook secret can not be used.
    #[error("webhook_secret: {0}")]
    Secret(String),
    /// The token is empty.
    #[error("token is empty")]
    Token,
    /// The HTTP client for callbacks can not be built.
    #[error("the HTTP client can not be built")]
    Client,
    /// The address is taken, or the store can not be used.
    #[error("input or output failed: {0}")]
    Io(#[from] std::io::Error),
}

/// Listens on `config.addr` and serves until `shutdown` completes. See [`serve_on`].
///
/// # Errors
/// [`SimulatorError`] if it can not start.
pub async fn serve(
    config: SimulatorConfig,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), SimulatorError> {
    let listener = TcpListener::bind(config.addr).await?;
    serve_on(listener, config, shutdown).await
}

/// Serves on a listener that the caller bound (to a free port, for instance) until `shutdown` completes. Jobs that an earlier
/// process had accepted and not ended start over.
///
/// # Errors
/// [`SimulatorError`] if it can not start.
pub async fn serve_on(
    listener: TcpListener,
    config: SimulatorConfig,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), SimulatorError> {
    let public_url = match &config.public_url {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None => format!("http://{}", listener.local_addr()?),
    };
    let (work, queue) = mpsc::unbounded_channel();
    let (stop, stopping) = watch::channel(false);
    let world = Arc::new(World::open(config, public_url, work, stopping.clone())?);
    for job in world.page(None, usize::MAX).0.into_iter().filter(|job| !job.stage.is_end()) {
        world.start(run::live(Arc::clone(&world), job));
    }
    let graceful = async move {
        shutdown.await;
        stop.send_replace(true);
    };
    let service = router(world).into_make_service_with_connect_info::<Wire>();
    let serving = axum::serve(Doorway(listener), service).with_graceful_shutdown(graceful);
    tokio::select! {
        served = serving => Ok(served?),
        () = supervise(queue) => Ok(()),
        () = overdue(stopping) => Ok(()),
    }
}

/// Completes some time after the stop signal: a connection that stays open must not keep the process.
async fn overdue(mut stopping: watch::Receiver<bool>) {
    if stopping.wait_for(|stopping| *stopping).await.is_ok() {
        tokio::time::sleep(GRACE).await;
    } else {
        std::future::pending::<()>().await;
    }
}

/// Runs the jobs. One that panics is reported, and the others go on; all end with this future.
async fn supervise(mut queue: mpsc::UnboundedReceiver<BoxFuture<'static, ()>>) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            work = queue.recv() => match work {
                Some(work) => drop(running.spawn(work)),
                None => return,
            },
            Some(ended) = running.join_next() => if let Err(error) = ended {
                tracing::error!(panicked = error.is_panic(), "a simulated job broke");
            },
        }
    }
}

fn router(world: Arc<World>) -> Router {
    let api = world
        .dialect
        .routes()
        .layer(from_fn_with_state(Arc::clone(&world), control::authenticated))
        .merge(world.dialect.open_routes())
        .route("/files/{file}", get(files::get))
        .layer(from_fn_with_state(Arc::clone(&world), control::unless_down));
    Router::new()
        .route("/_sim/jobs", get(control::jobs))
        .route("/_sim/counters", get(control::counters))
        .route("/_sim/down", post(control::down))
        .route("/_sim/pause", post(control::pause))
        .route("/_sim/resume", post(control::resume))
        .route("/_sim/rotate_key", post(control::rotate_key))
        .merge(api)
        .with_state(world)
}
