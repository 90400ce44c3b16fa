//! A whole system with a state folder of its own, driven by `./dev`.

use anyhow::{Context, bail, ensure};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};
use tokio::process::Command;

/// Which broker a system runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broker {
    /// The rocketmq-rust name server and broker.
    Embedded,
    /// Apache RocketMQ.
    Apache,
}

impl Broker {
    /// As `./dev up --broker` wants it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Apache => "apache",
        }
    }
}

/// A running system.
pub struct Stack {
    state: PathBuf,
    extra: Vec<(String, String)>,
    env: BTreeMap<String, String>,
    pool: PgPool,
}

/// The repository's root.
#[must_use]
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

impl Stack {
    /// Starts everything, with `settings` (AIVIDEO_SECTION__KEY) over the usual ones. `service`: also the service itself.
    ///
    /// # Errors
    /// What `./dev up` said.
    pub async fn up(name: &str, broker: Broker, service: bool, settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        let state = std::env::temp_dir().join(format!("aivideo-e2e-{}-{name}", std::process::id()));
        let extra: Vec<_> = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let mut arguments = vec!["up", "--broker", broker.word()];
        if !service {
            arguments.push("--no-service");
        }
        let up = dev(&state, &extra, &arguments).await?;
        succeeded(&arguments, &up)?;
        let env = read_env(&state)?;
        // As the owner: a test puts rows where the service would not.
        let url = env.get("AIVIDEO_DATABASE__OWNER_URL").context("./dev env names no owner of the database")?;
        let pool = PgPoolOptions::new()
            .max_connections(4)
            .test_before_acquire(true)
            .acquire_timeout(Duration::from_secs(30))
            .connect_lazy(url)?;
        Ok(Self { state, extra, env, pool })
    }

    /// Runs `./dev` on this state.
    ///
    /// # Errors
    /// It could not be run, or failed: with what it printed.
    pub async fn dev(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = dev(&self.state, &self.extra, arguments).await?;
        succeeded(arguments, &output)
    }

    /// SIGKILL to a part.
    ///
    /// # Errors
    /// See [`Self::dev`].
    pub async fn kill(&self, part: &str) -> anyhow::Result<()> {
        self.dev(&["kill", part]).await.map(drop)
    }

    /// Starts a part and waits until it is ready.
    ///
    /// # Errors
    /// See [`Self::dev`].
    pub async fn start(&self, part: &str) -> anyhow::Result<()> {
        self.dev(&["start", part]).await.map(drop)
    }

    /// A setting of this system.
    ///
    /// # Errors
    /// It has none of that name.
    pub fn setting(&self, key: &str) -> anyhow::Result<&str> {
        self.env.get(key).map(String::as_str).with_context(|| format!("./dev env has no {key}"))
    }

    /// All settings, those of this stack included.
    #[must_use]
    pub fn environment(&self) -> BTreeMap<String, String> {
        let mut all = self.env.clone();
        all.extend(self.extra.iter().cloned());
        all
    }

    /// The state folder.
    #[must_use]
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The database.
    #[must_use]
    pub const fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Stops everything and deletes the state; where `keep` is set, it stays for a person to look at.
    ///
    /// # Errors
    /// See [`Self::dev`].
    pub async fn down(self, keep: bool) -> anyhow::Result<()> {
        self.pool.close().await;
        if keep {
            println!("    the state stays in {}", self.state.display());
            return self.dev(&["down"]).await.map(drop);
        }
        self.dev(&["reset", "--yes"]).await.map(drop)
    }
}

async fn dev(state: &Path, extra: &[(String, String)], arguments: &[&str]) -> anyhow::Result<Output> {
    Command::new(repository().join("dev"))
        .args(arguments)
        .env("AIVIDEO_STATE", state)
        .env("AIVIDEO_OWN_PARTS", "1")
        .envs(extra.iter().cloned())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("./dev could not be run")
}

fn succeeded(arguments: &[&str], output: &Output) -> anyhow::Result<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("./dev {} failed:\n{text}{}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}

fn read_env(state: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(state.join("env")).context("the state has no env file")?;
    Ok(text
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.to_owned(), unquoted(value)))
        .collect())
}

fn unquoted(value: &str) -> String {
    value.strip_prefix('\'').and_then(|it| it.strip_suffix('\'')).unwrap_or(value).to_owned()
}

/// Tries `check` until it says `Ok`, at most `limit`.
///
/// # Errors
/// What it said last.
pub async fn eventually<T, F>(limit: Duration, mut check: impl FnMut() -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    let start = Instant::now();
    loop {
        match check().await {
            Ok(it) => return Ok(it),
            Err(error) if start.elapsed() > limit => {
                return Err(error.context(format!("still so after {} s", limit.as_secs())));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Waits until a process's `/ready` says yes.
///
/// # Errors
/// It did not within `limit`.
pub async fn ready(base: &str, limit: Duration) -> anyhow::Result<()> {
    eventually(limit, async || {
        let response = reqwest::get(format!("{base}/ready")).await?;
        ensure!(response.status().is_success(), "{base}/ready says {}: {}", response.status(), response.text().await?);
        Ok(())
    })
    .await
}
