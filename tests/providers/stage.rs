//! Everything around the tasks of the matrix: PostgreSQL, the real relay, projector and scan, the API that takes callbacks, the
//! five providers' adapters and their simulators over HTTP, an object store in a folder.

use crate::broker::Broker;
use crate::cell::Cells;
use crate::steps::{Handler, Moment, Point};
use anyhow::{Context, ensure};
use api::{ApiConfig, ApiState, KeySet, LinkRefused, LinkVerifier, Readiness};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use domain::id::{AttemptId, TaskId};
use domain::process::Policy;
use domain::time::Timestamp;
use eventstore::Store;
use eventstore::testkit::TestDatabase;
use futures_util::future::BoxFuture;
use media::{Ffmpeg, MediaConfig, Objects, ObjectsConfig};
use projections::projector::{Projector, ProjectorConfig, Step};
use projections::query::Reader;
use projections::relay::{Relay, RelayConfig};
use projections::stalled::StalledTasks;
use providers::simulator::{Kind, SimulatorConfig, serve_on};
use providers::{ProviderConfig, Registry};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use workers::catalogue::{Catalogue, Model, SharedCatalogue};
use workers::ports::{Capabilities, ExportSpec, Media, MediaError, Probe};
use workers::{CallLimits, Outside, ScanConfig, StallScan, Stalled, StalledTask};

/// What one task holds, in minor units.
pub const HOLD: i64 = 30;

const TOKEN: &str = "r8_matrix_token";
const CALLBACK_SECRET: &str = "a secret for callback addresses";
/// The bytes 0 to 23.
const WEBHOOK_SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";

/// Rules with short waits, of which the longest are long enough for a busy machine.
fn policy() -> Policy {
    Policy {
        submit_timeout_ms: 3_000,
        lease_margin_ms: 1_000,
        settle_delay_ms: 800,
        max_unclear_seconds: 20,
        poll_first_ms: 300,
        poll_cap_ms: 1_000,
        max_running_seconds: 25,
        max_waiting_seconds: 90,
        backoff_base_ms: 300,
        backoff_cap_ms: 2_000,
        ..Policy::default()
    }
}

/// A provider and its simulator.
pub struct Place {
    pub name: &'static str,
    pub can: Capabilities,
    origin: String,
    http: reqwest::Client,
}

impl Place {
    /// The model's name in the catalogue.
    pub fn model(&self) -> String {
        format!("matrix/{}", self.name)
    }

    /// The jobs that the simulator accepted for an attempt.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn jobs_of(&self, attempt: AttemptId) -> anyhow::Result<Vec<String>> {
        let jobs: Value = self.http.get(format!("{}/_sim/jobs", self.origin)).send().await?.json().await?;
        let ours = attempt.to_string();
        let jobs = jobs.as_array().context("the simulator's jobs are no list")?;
        let ids = jobs.iter().filter(|job| job["client_ref"] == ours).filter_map(|job| job["id"].as_str());
        Ok(ids.map(str::to_owned).collect())
    }

    /// The most jobs that it accepted for any reference.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn most_jobs(&self) -> anyhow::Result<u64> {
        let counters: Value = self.http.get(format!("{}/_sim/counters", self.origin)).send().await?.json().await?;
        counters["max_per_ref"].as_u64().context("the simulator's counters have another shape")
    }
}

/// See the module.
pub struct Stage {
    pub cells: Arc<Cells>,
    pub places: Vec<Place>,
    database: TestDatabase,
    _background: JoinSet<()>,
    _folder: TempDir,
}

impl Stage {
    /// Starts everything.
    ///
    /// # Errors
    /// A part that can not be started.
    pub async fn up() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut background = JoinSet::new();
        let database = TestDatabase::with_policy(policy()).await?;
        let cells = Arc::new(Cells::default());
        let http = reqwest::Client::builder().no_proxy().build()?;
        let hooks = TcpListener::bind("127.0.0.1:0").await?;
        let base = format!("http://{}", hooks.local_addr()?);
        let mut places = vec![];
        let (mut sections, mut models, mut hosts) = (BTreeMap::new(), vec![], vec![]);
        for (name, kind) in Kind::ALL {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let (address, store) = (listener.local_addr()?, folder.path().join(name));
            background.spawn(simulate(listener, kind, store));
            let origin = format!("http://{address}");
            let section: ProviderConfig = serde_json::from_value(section(name, &origin, &base))?;
            let can = *section.capabilities();
            places.push(Place { name, can, origin, http: http.clone() });
            sections.insert(name.to_owned(), section);
            models.push((format!("matrix/{name}"), model_at(name)?));
            hosts.push(address.to_string());
        }
        let mut objects =
            ObjectsConfig::folder(folder.path().join("objects"), media::Secret::new("sixteen bytes and more"), base);
        objects.allow_hosts = hosts;
        let objects = Arc::new(Objects::new(&objects)?);
        let catalogue = SharedCatalogue::new(Catalogue::new(models));
        let providers = Registry::new(&sections)?.providers();
        let scratch = folder.path().join("scratch");
        std::fs::create_dir_all(&scratch)?;
        let store = database.store().clone();
        let outside = Arc::new(Outside {
            store: store.clone(),
            providers: providers.clone(),
            catalogue: catalogue.clone(),
            objects: Arc::<Objects>::clone(&objects),
            media: Arc::new(OnceEach::default()),
            limits: CallLimits { ask_seconds: 10, transfer_seconds: 20, ..CallLimits::default() },
            scratch,
        });
        let router = api::router(ApiState {
            store: store.clone(),
            reader: Reader::new(&store),
            objects,
            providers,
            catalogue,
            config: ApiConfig::with_secret("a secret for tests, of 32 bytes!"),
            readiness: Arc::new(Fine),
            keys: KeySet::default(),
            links: Arc::new(Fine),
        })?;
        let router = router.layer(from_fn_with_state(Arc::clone(&cells), mortal_hook));
        background.spawn(async move {
            axum::serve(hooks, router).await.ok();
        });
        let broker = Arc::new(Broker::default());
        let relay = Relay::new(
            database.pool().clone(),
            Arc::clone(&broker) as _,
            RelayConfig { tick: Duration::from_millis(100), ..RelayConfig::default() },
        );
        background.spawn(async move { relay.run(CancellationToken::new()).await });
        let projector = Projector::new(database.pool().clone(), ProjectorConfig::default());
        background.spawn(async move { projector.run(CancellationToken::new()).await });
        let config = ScanConfig { interval_ms: 500, slack_ms: 1_500, ..ScanConfig::default() };
        let scan = StallScan::new(store.clone(), Stalls(StalledTasks::new(database.pool().clone())), config);
        background.spawn(async move { scan.run(CancellationToken::new()).await });
        background.spawn(broker.deliver(store, outside, Arc::clone(&cells)));
        Ok(Self { cells, places, database, _background: background, _folder: folder })
    }

    pub const fn store(&self) -> &Store {
        self.database.store()
    }

    /// What a person was asked about a task.
    ///
    /// # Errors
    /// The database can not be used.
    pub async fn question(&self, task: TaskId) -> anyhow::Result<Option<String>> {
        Ok(sqlx::query_scalar(
            "SELECT body->>'reason' FROM events
              WHERE category = 'task' AND stream_id = $1 AND name = 'task.review_requested' ORDER BY version DESC LIMIT 1",
        )
        .bind(task.0)
        .fetch_optional(self.database.owner())
        .await?)
    }

    /// Every invariant, over all that was lived through.
    ///
    /// # Errors
    /// Names each that does not hold.
    pub async fn judged(&self) -> anyhow::Result<()> {
        for place in &self.places {
            let most = place.most_jobs().await?;
            ensure!(most <= 1, "{} accepted {most} jobs for one attempt", place.name);
        }
        let projector = Projector::new(self.database.pool().clone(), ProjectorConfig::default());
        while matches!(projector.step().await?, Step::More(_) | Step::HeldBack(_)) {}
        // The broker forgets what nobody waits for any more.
        let limits = projections::doctor::Limits { stall: Duration::from_secs(3_600), ..Default::default() };
        let findings = projections::doctor::examine(self.database.owner(), limits).await?;
        let broken: Vec<String> = findings
            .iter()
            .filter(|it| !it.ok)
            .map(|it| format!("{}: {} ({})", it.invariant, it.detail, it.count))
            .collect();
        ensure!(!findings.is_empty() && broken.is_empty(), "invariants do not hold:\n  {}", broken.join("\n  "));
        Ok(())
    }
}

async fn simulate(listener: TcpListener, kind: Kind, store_dir: std::path::PathBuf) {
    let config = SimulatorConfig {
        addr: ([127, 0, 0, 1], 0).into(),
        public_url: None,
        store_dir,
        ffmpeg: "ffmpeg".into(),
        token: TOKEN.into(),
        kind,
        webhook_secret: Some(WEBHOOK_SECRET.into()),
        default_duration_ms: 300,
    };
    if let Err(error) = serve_on(listener, config, std::future::pending()).await {
        eprintln!("a simulator ended: {error}");
    }
}

/// The settings of a provider, as a configuration file has them.
fn section(kind: &str, origin: &str, hooks: &str) -> Value {
    let more = match kind {
        "replicate" => {
            json!({ "base_url": format!("{origin}/v1"), "callback_base_url": hooks, "webhook_secret": WEBHOOK_SECRET })
        }
        "runway" => json!({ "base_url": origin }),
        other => json!({
            "base_url": match other {
                "runware" => format!("{origin}/v1"),
                "ark" => format!("{origin}/api/v3"),
                _ => origin.to_owned(),
            },
            "callback_base_url": hooks,
            "callback_secret": CALLBACK_SECRET,
        }),
    };
    // Failures are asked for here, by many tasks at once: the breaker has tests of its own.
    let mut section = json!({ "kind": kind, "token": TOKEN, "breaker": { "failure_percent": 101 } });
    match kind {
        "fal" => section["jwks_url"] = json!(format!("{origin}/.well-known/jwks.json")),
        "runware" => section["shows_after_s"] = json!(3),
        _ => {}
    }
    if let (Some(section), Value::Object(more)) = (section.as_object_mut(), more) {
        section.extend(more);
    }
    section
}

fn model_at(kind: &str) -> anyhow::Result<Model> {
    let (name, parameters) = match kind {
        "runware" => ("klingai:5@3", json!({ "width": 1280, "height": 720 })),
        "fal" => ("acme/video/v1/text-to-video", json!({ "duration": "{seconds}" })),
        "ark" => ("doubao-seedance-1-0-pro", json!({ "resolution": "720p", "ratio": "16:9" })),
        "runway" => ("gen4.5", json!({ "ratio": "1280:720" })),
        _ => ("acme/video-1", json!({})),
    };
    Ok(serde_json::from_value(json!({
        "provider": kind, "provider_model": name, "parameters": parameters, "accepts_seed": true,
        "price_per_second": 25, "min_seconds": 1, "max_seconds": 8,
    }))?)
}

/// The process dies before it has recorded a callback, or before it has answered it.
async fn mortal_hook(State(cells): State<Arc<Cells>>, request: Request<Body>, next: Next) -> Response {
    let attempt = request.uri().query().and_then(|query| {
        let (_, rest) = query.split_once("ref=")?;
        rest.split('&').next()?.parse().ok()
    });
    let Some(cell) = attempt.and_then(|attempt| cells.of_attempt(attempt)) else { return next.run(request).await };
    // What a load balancer answers for a process that is gone.
    let gone = || StatusCode::BAD_GATEWAY.into_response();
    if cell.reaches(Point(Handler::Hook, Moment::Taken)) {
        return gone();
    }
    let response = next.run(request).await;
    if !response.status().is_success() {
        cell.note(format!("a callback was answered {}", response.status()));
    }
    if cell.reaches(Point(Handler::Hook, Moment::Recorded)) { gone() } else { response }
}

struct Fine;

impl LinkVerifier for Fine {
    fn verify(&self, _key: &str, _expires: u64, _signature: &str, _now: Timestamp) -> Result<(), LinkRefused> {
        Err(LinkRefused::Forged)
    }
}

impl Readiness for Fine {
    fn reasons(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(std::future::ready(vec![]))
    }
}

struct Stalls(StalledTasks);

impl Stalled for Stalls {
    fn stalled(&self, slack: Duration, limit: i64) -> BoxFuture<'_, Result<Vec<StalledTask>, String>> {
        Box::pin(async move {
            let found = self.0.find(slack, limit).await.map_err(|error| error.to_string())?;
            Ok(found.into_iter().map(|(task, round)| StalledTask { task, round }).collect())
        })
    }
}

/// A video, what the tools said of it, and its thumbnail.
type Seen = (Vec<u8>, Probe, Vec<u8>);

/// The real tools, which look at each video once: all these tasks have the same few.
struct OnceEach {
    tools: Ffmpeg,
    seen: tokio::sync::Mutex<Vec<Seen>>,
}

impl Default for OnceEach {
    fn default() -> Self {
        Self { tools: Ffmpeg::new(MediaConfig::default()), seen: tokio::sync::Mutex::default() }
    }
}

impl OnceEach {
    async fn look(&self, file: &Path) -> Result<(Probe, Vec<u8>), MediaError> {
        let tool = |error: std::io::Error| MediaError::Tool(error.kind().to_string());
        let bytes = tokio::fs::read(file).await.map_err(tool)?;
        let mut seen = self.seen.lock().await;
        if let Some((_, probe, thumbnail)) = seen.iter().find(|it| it.0 == bytes) {
            return Ok((probe.clone(), thumbnail.clone()));
        }
        let probe = self.tools.probe(file).await?;
        let picture = file.with_extension("first.jpg");
        self.tools.thumbnail(file, &probe, &picture).await?;
        let thumbnail = tokio::fs::read(&picture).await.map_err(tool)?;
        seen.push((bytes, probe.clone(), thumbnail.clone()));
        Ok((probe, thumbnail))
    }
}

impl Media for OnceEach {
    fn probe<'a>(&'a self, file: &'a Path) -> BoxFuture<'a, Result<Probe, MediaError>> {
        Box::pin(async move { Ok(self.look(file).await?.0) })
    }

    fn thumbnail<'a>(
        &'a self,
        file: &'a Path,
        _probe: &'a Probe,
        to: &'a Path,
    ) -> BoxFuture<'a, Result<(), MediaError>> {
        Box::pin(async move {
            let (_, thumbnail) = self.look(file).await?;
            tokio::fs::write(to, thumbnail).await.map_err(|error| MediaError::Tool(error.kind().to_string()))
        })
    }

    fn render<'a>(
        &'a self,
        file: &'a Path,
        probe: &'a Probe,
        spec: ExportSpec,
        to: &'a Path,
        max_bytes: u64,
    ) -> BoxFuture<'a, Result<(), MediaError>> {
        self.tools.render(file, probe, spec, to, max_bytes)
    }
}
