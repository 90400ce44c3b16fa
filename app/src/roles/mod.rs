//! The roles of a process, and how it starts and stops them (chapter 7.14.4).
//!
//! On SIGTERM nothing new is taken; what is in flight is finished within the grace period or left unacknowledged; then the
//! connections are closed. A role that ends by itself stops the process: a process that looks alive and does nothing is worse.

mod keys;
mod outages;
mod parts;
mod project;
mod relay;
mod seal;
mod serve;
mod work;

pub use parts::{Parts, objects_of, scratch};
pub use relay::ToBroker;
pub use work::group_of;

use anyhow::Context;
use std::future::Future;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What a process does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// HTTP.
    Serve,
    /// Consumer groups; empty: all.
    Work(Vec<String>),
    /// Outbox relay.
    Relay,
    /// Read models.
    Project,
    /// Seals over the log.
    Seal,
}

impl Role {
    /// Every role, as in development.
    #[must_use]
    pub fn all() -> Vec<Self> {
        vec![Self::Project, Self::Relay, Self::Seal, Self::Work(vec![]), Self::Serve]
    }
}

/// The tasks of a process. Each is watched: its end, planned or not, is noticed.
pub struct Supervisor {
    tasks: JoinSet<(&'static str, anyhow::Result<()>)>,
    stop: CancellationToken,
}

impl Supervisor {
    fn new(stop: CancellationToken) -> Self {
        Self { tasks: JoinSet::new(), stop }
    }

    /// Runs a part of the process until it ends.
    pub fn watch(&mut self, name: &'static str, work: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        self.tasks.spawn(async move { (name, work.await) });
    }

    /// Waits until a part ends or the process is told to stop; then stops all parts.
    async fn run(mut self, grace: Duration) -> anyhow::Result<()> {
        let mut result = Ok(());
        tokio::select! {
            // Looked at first: a part that ends because it was told to has not ended by itself.
            biased;
            () = self.stop.cancelled() => tracing::info!("stopping: nothing new is taken"),
            ended = self.tasks.join_next() => result = judge(ended),
        }
        self.stop.cancel();
        let rest = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, rest).await.is_err() {
            tracing::warn!(grace_ms = grace.as_millis(), "some work was not done in time; it is left unacknowledged");
        }
        self.tasks.shutdown().await;
        result
    }
}

type Ended = Option<Result<(&'static str, anyhow::Result<()>), tokio::task::JoinError>>;

fn judge(ended: Ended) -> anyhow::Result<()> {
    match ended {
        Some(Ok((name, Err(error)))) => Err(error).with_context(|| format!("{name} ended")),
        Some(Ok((name, Ok(())))) => Err(anyhow::anyhow!("{name} ended although nobody asked it to")),
        Some(Err(error)) => Err(anyhow::anyhow!("a part of the process panicked: {error}")),
        None => Ok(()),
    }
}

/// Runs roles until SIGTERM or ctrl-c.
///
/// # Errors
/// Configuration, a database that is not there or not migrated, or a role that ended by itself.
pub async fn run(settings: &crate::Settings, roles: &[Role]) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    let mut supervisor = Supervisor::new(stop.clone());
    supervisor.watch("signals", stop_on_signal(stop.clone())?);
    let parts = Parts::open(settings, stop).await?;
    for role in roles {
        match role {
            Role::Serve => serve::start(&mut supervisor, &parts, settings).await?,
            Role::Work(groups) => work::start(&mut supervisor, &parts, settings, groups).await?,
            Role::Relay => relay::start(&mut supervisor, &parts, settings)?,
            Role::Project => project::start(&mut supervisor, &parts),
            Role::Seal => seal::start(&mut supervisor, &parts, settings, roles.len() == 1)?,
        }
    }
    if let Some(models) = parts.models_in_use() {
        supervisor.watch("catalogue", models.follow(parts.stop.clone()));
    }
    let grace = Duration::from_millis(settings.process.grace_ms);
    let result = supervisor.run(grace + Duration::from_secs(5)).await;
    parts.close().await;
    result
}

/// Tells the process to stop when it is asked to.
fn stop_on_signal(stop: CancellationToken) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + Send> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM can not be listened for")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT can not be listened for")?;
    // Asks for the catalogue to be read again. A process that has none must not end by it, which it would by default.
    let hang_up = signal(SignalKind::hangup()).context("SIGHUP can not be listened for")?;
    Ok(async move {
        let _listened_for = hang_up;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = stop.cancelled() => {}
        }
        stop.cancel();
        Ok(())
    })
}

/// Tries `start` until it works or the process is told to stop; a part that is away for a while is waited for, and said so.
async fn patiently<T, E, F>(what: &'static str, stop: &CancellationToken, mut start: impl FnMut() -> F) -> Option<T>
where
    E: std::fmt::Display,
    F: Future<Output = Result<T, E>>,
{
    let mut pause = Duration::from_millis(200);
    loop {
        match start().await {
            Ok(it) => return Some(it),
            Err(error) => tracing::warn!(%error, "{what} is not there yet; trying again"),
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(Duration::from_secs(5)),
        }
    }
}
