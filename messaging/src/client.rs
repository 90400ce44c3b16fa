//! The RocketMQ client's runtime, on threads of its own.
//!
//! The client insists on a runtime that it is handed (`RuntimeOwner`) and ties its connections to it. The service has its own
//! tokio runtime, so every call into the client is spawned on the client's runtime and awaited from the caller's: a caller
//! that is dropped does not tear a half-written request, and the client's timers never compete with the service's.

use crate::catalogue::Catalogue;
use crate::config::{BadConfig, BrokerConfig};
use rocketmq_client_rust::{
    ClientConfig, ClientError, ClientRuntime, ClientRuntimeConfig, MQBrokerException, MQClientException,
};
use rocketmq_observability::TelemetryHandle;
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner, ShutdownDeadline};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use uuid::Uuid;

/// The longest that one handler call may run. The client's default is 30 s, after which it sends the message to the retry topic
/// while the handler still works on it. Longer than the broker's own view of a stuck consumer (15 minutes).
pub const HANDLER_TIME_LIMIT: Duration = Duration::from_secs(20 * 60);

/// Listener calls that may wait for a thread. Never reached while the threads fit into the lane; it is the client's default of
/// 16 on two cores that makes a backlog fail.
const LANE_QUEUE_DEPTH: usize = 8_192;

/// Why the client can not be built or used.
#[derive(Debug, thiserror::Error)]
pub enum ClientFault {
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] BadConfig),
    /// The client's runtime could not be built.
    #[error("the message client's runtime could not be built: {0}")]
    Runtime(String),
    /// The client refused to start a producer, consumer or admin session.
    #[error("the message client could not start {what}: {cause}")]
    Start {
        /// What was being started.
        what: &'static str,
        /// The client's own words.
        cause: String,
    },
    /// The client's runtime has been stopped.
    #[error("the message client has been stopped")]
    Stopped,
}

impl ClientFault {
    pub(crate) fn start(what: &'static str, error: &ClientError) -> Self {
        Self::Start { what, cause: cause(error) }
    }
}

/// Owns the client's threads. One per process: everything that talks to the broker borrows it.
pub struct Client {
    config: BrokerConfig,
    catalogue: Catalogue,
    runtime: Arc<ClientRuntime>,
    owner: RuntimeOwner,
    handle: tokio::runtime::Handle,
    instance: String,
    threads_taken: AtomicUsize,
}

impl Client {
    /// Builds the client's runtime. Nothing is connected yet.
    ///
    /// # Errors
    /// [`ClientFault::Config`] for a refused configuration, [`ClientFault::Runtime`] when the threads can not be had.
    pub fn new(config: BrokerConfig) -> Result<Arc<Self>, ClientFault> {
        config.validate()?;
        let catalogue = config.catalogue().map_err(BadConfig::from)?;
        let owner = build_owner(&config)?;
        let handle = handle_of(&owner)?;
        let runtime = ClientRuntime::try_new(
            owner.root_context().component("aivideo-messaging"),
            ClientRuntimeConfig::default(),
            TelemetryHandle::noop(),
        )
        .map_err(|error| ClientFault::Runtime(error.to_string()))?;
        // Two clients with one instance name look like one consumer to the broker and are given the same queues.
        let instance = format!("{}-{}", std::process::id(), Uuid::new_v4().simple());
        Ok(Arc::new(Self { config, catalogue, runtime, owner, handle, instance, threads_taken: AtomicUsize::new(0) }))
    }

    /// The configuration it was built with.
    #[must_use]
    pub const fn config(&self) -> &BrokerConfig {
        &self.config
    }

    /// The physical names it uses.
    #[must_use]
    pub const fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    pub(crate) fn runtime(&self) -> Arc<ClientRuntime> {
        Arc::clone(&self.runtime)
    }

    pub(crate) fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::default();
        config.set_namesrv_addr(self.config.name_server.as_str().into());
        config.set_instance_name(self.instance.as_str().into());
        // The "VIP" port is listen port - 2: one more port to open for nothing.
        config.vip_channel_enabled = false;
        config
    }

    /// Runs a future on the client's threads and waits for its result.
    ///
    /// # Errors
    /// [`ClientFault::Stopped`] when the runtime is gone, or the future panicked.
    pub(crate) async fn run<F>(&self, future: F) -> Result<F::Output, ClientFault>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        // Boxed: the client's futures are tens of kilobytes, and would be copied into the task.
        self.handle.spawn(Box::pin(future)).await.map_err(|error| {
            if error.is_panic() {
                tracing::error!("the message client panicked");
            }
            ClientFault::Stopped
        })
    }

    /// Takes threads of the listener lane for a group.
    pub(crate) fn take_threads(&self, threads: usize) -> Result<(), BadConfig> {
        self.threads_taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
                self.config.fits(taken + threads).is_ok().then_some(taken + threads)
            })
            .map(drop)
            .or_else(|taken| self.config.fits(taken + threads))
    }

    /// Gives threads back when a group has stopped.
    pub(crate) fn give_threads_back(&self, threads: usize) {
        self.threads_taken.fetch_sub(threads, Ordering::AcqRel);
    }

    /// Stops everything that still runs on the client's threads, within `grace`. Stop the listeners first.
    pub async fn stop(&self, grace: Duration) {
        let deadline = ShutdownDeadline::after(grace);
        let runtime = self.runtime();
        let stopped = self.run(async move { runtime.shutdown_until(deadline).await.is_healthy() }).await;
        let healthy = self.owner.shutdown_tasks_until(deadline).await.is_healthy();
        if !matches!(stopped, Ok(true)) || !healthy {
            tracing::warn!("the message client did not stop within {} ms; it was cut off", grace.as_millis());
        }
    }
}

/// The response code that a broker or name server gave. The client hides it in one of three places, by the call.
pub(crate) fn response_code(error: &ClientError) -> Option<i32> {
    error
        .broker_response_code()
        .or_else(|| error.source_ref::<MQClientException>().map(MQClientException::response_code))
        .or_else(|| error.source_ref::<MQBrokerException>().map(MQBrokerException::response_code))
}

/// What went wrong in the client's own words: its `Display` says no more than "argument invalid" for most failures. Names topics,
/// groups and addresses; never bodies or credentials.
pub(crate) fn cause(error: &ClientError) -> String {
    let words = error
        .source_ref::<MQClientException>()
        .and_then(MQClientException::error_message)
        .or_else(|| error.source_ref::<MQBrokerException>().and_then(MQBrokerException::error_message));
    let words: String = words.unwrap_or_default().chars().take(300).collect();
    match (response_code(error), words.is_empty()) {
        (None, true) => error.to_string(),
        (None, false) => format!("{error} ({words})"),
        (Some(code), true) => format!("{error} (code {code})"),
        (Some(code), false) => format!("{error} (code {code}: {words})"),
    }
}

fn build_owner(config: &BrokerConfig) -> Result<RuntimeOwner, ClientFault> {
    let mut runtime = RuntimeConfig {
        worker_threads: config.worker_threads,
        max_blocking_threads: config.max_blocking_threads,
        thread_name: "rocketmq-client".to_owned(),
        ..RuntimeConfig::default()
    };
    let lane = &mut runtime.blocking_lane_policies.metadata_io;
    lane.max_concurrency = config.lane();
    lane.max_queue_depth = LANE_QUEUE_DEPTH;
    lane.queue_timeout = Duration::from_secs(60);
    lane.task_timeout = HANDLER_TIME_LIMIT;
    // Handlers wait for databases and providers; a second is nothing to warn about.
    lane.warn_after = Duration::from_secs(60);
    RuntimeOwner::plan(runtime)
        .map_err(|refused| ClientFault::Runtime(format!("{refused:?}")))?
        .build()
        .map_err(|error| ClientFault::Runtime(error.to_string()))
}

/// The owner lends its tokio handle only to what runs on it, and `block_on` may not be called on a thread that already
/// runs a runtime (the service's): hence a thread for this one question.
fn handle_of(owner: &RuntimeOwner) -> Result<tokio::runtime::Handle, ClientFault> {
    std::thread::scope(|scope| {
        scope
            .spawn(|| owner.block_on(async { tokio::runtime::Handle::current() }))
            .join()
            .map_err(|_| ClientFault::Runtime("its first thread panicked".to_owned()))
    })
}
