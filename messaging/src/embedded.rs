//! The rocketmq-rust name server and broker in a process of our own: the broker of development machines.
//!
//! For production use a RocketMQ cluster. This one is a single copy: flushing is asynchronous, so a power failure (not a
//! killed process) can lose the last moments. That costs time, never truth: the outbox sends again.

use rocketmq_broker::Builder as BrokerBuilder;
use rocketmq_broker::config::raw::RawBrokerConfig;
use rocketmq_broker::config::validated::ValidatedBrokerConfig;
use rocketmq_model::common::mq_version::CURRENT_VERSION;
use rocketmq_namesrv::NamesrvConfig;
use rocketmq_namesrv::bootstrap::Builder as NameServerBuilder;
use rocketmq_observability::{TelemetryHandle, TelemetryRuntimeGuard};
use rocketmq_protocol::protocol::remoting_command_facade::initialize_remoting_defaults;
use rocketmq_runtime::{ChildServiceContext, RuntimeConfig, RuntimeOwner};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

/// Everything runs on this address: the embedded broker has no authentication, so it is never reachable from outside.
const LOOPBACK: &str = "127.0.0.1";

/// The broker's futures are large in unoptimised builds; tokio's 2 MiB overflow.
const STACK_BYTES: usize = 16 * 1024 * 1024;

/// How long an orderly stop may take: flushing the store.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Where the embedded broker listens and stores.
#[derive(Clone, Debug)]
pub struct EmbeddedConfig {
    /// TCP port of the name server, on 127.0.0.1.
    pub name_server_port: u16,
    /// TCP port of the broker, on 127.0.0.1. The port two below it (fast remoting) and the one above it (replication) are used
    /// as well: leave them free.
    pub broker_port: u16,
    /// Folder of everything that is stored. Made if missing.
    pub store_dir: PathBuf,
}

/// Why the embedded broker did not run, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// The store folder can not be used.
    #[error("the broker's store folder can not be used: {0}")]
    Store(#[from] std::io::Error),
    /// A configuration that name server or broker refuse.
    #[error("the embedded broker refuses its configuration: {0}")]
    Config(String),
    /// It did not start: most often because a port is taken.
    #[error("{part} did not start (is one of its ports taken, or its store folder in use?): {cause}")]
    Start {
        /// Name server or broker.
        part: &'static str,
        /// Its own words.
        cause: String,
    },
    /// The name server ended although nobody asked it to.
    #[error("the name server ended by itself: {0}")]
    NameServerEnded(String),
}

/// Runs name server and broker until SIGTERM or ctrl-c. Blocks; starts its own threads and runtime, so it may be called from
/// anywhere, but belongs into a process of its own: it can not be started twice in one.
///
/// # Errors
/// [`EmbeddedError`] when they can not start or the name server fails. An orderly stop is `Ok`.
pub fn run(config: &EmbeddedConfig) -> Result<(), EmbeddedError> {
    std::fs::create_dir_all(&config.store_dir)?;
    let config = EmbeddedConfig { store_dir: config.store_dir.canonicalize()?, ..config.clone() };
    std::thread::Builder::new()
        .name("embedded-broker".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || run_here(&config))?
        .join()
        .unwrap_or_else(|_| Err(EmbeddedError::Config("it panicked".to_owned())))
}

fn run_here(config: &EmbeddedConfig) -> Result<(), EmbeddedError> {
    let refused = |error: &dyn std::fmt::Display| EmbeddedError::Config(error.to_string());
    initialize_remoting_defaults(i32::try_from(CURRENT_VERSION as u32).unwrap_or(i32::MAX))
        .map_err(|error| refused(&error))?;
    let runtime = RuntimeConfig { thread_stack_size: Some(STACK_BYTES), ..RuntimeConfig::broker_default() };
    let owner = RuntimeOwner::plan(runtime)
        .map_err(|error| EmbeddedError::Config(format!("{error:?}")))?
        .build()
        .map_err(|error| refused(&error))?;
    let name_server = owner.root_context().component("name-server");
    let broker = owner.root_context().component("broker");
    let outcome = owner.block_on(run_both(name_server, broker, config));
    if let Err(error) = owner.shutdown_runtime_blocking_with_timeout(STOP_LIMIT) {
        tracing::warn!(%error, "the embedded broker's runtime did not stop cleanly");
    }
    outcome
}

async fn run_both(
    name_server: ChildServiceContext,
    broker: ChildServiceContext,
    config: &EmbeddedConfig,
) -> Result<(), EmbeddedError> {
    let (stop_name_server, stop) = tokio::sync::oneshot::channel::<()>();
    let (ended, mut name_server_ended) = tokio::sync::oneshot::channel();
    let bootstrap = name_server_builder(name_server.clone(), config)?.build();
    name_server
        .spawn_service("name-server", async move {
            let outcome = bootstrap
                .boot_with_shutdown(async move {
                    // An error means that the sender is gone, which is a wish to stop as well.
                    drop(stop.await);
                })
                .await;
            drop(ended.send(outcome.map_err(|error| error.to_string())));
        })
        .map_err(|error| EmbeddedError::Start { part: "the name server", cause: error.to_string() })?;

    let bootstrap =
        BrokerBuilder::new(broker, TelemetryRuntimeGuard::noop()).with_validated_config(broker_config(config)?).build();
    let failed = |error: rocketmq_broker::BrokerStartupError| EmbeddedError::Start {
        part: "the broker",
        cause: error.to_string(),
    };
    let running = Box::pin(Box::pin(bootstrap.initialize()).await.map_err(failed)?.start()).await.map_err(failed)?;
    tracing::info!(name_server = config.name_server_port, broker = config.broker_port, "the embedded broker is up");

    let outcome = tokio::select! {
        ended = &mut name_server_ended => Err(EmbeddedError::NameServerEnded(match ended {
            Ok(Err(cause)) => cause,
            Ok(Ok(())) | Err(_) => "without a word".to_owned(),
        })),
        () = rocketmq_runtime::wait_for_signal() => Ok(()),
    };
    Box::pin(running.shutdown()).await;
    if stop_name_server.send(()).is_ok() && outcome.is_ok() {
        drop(tokio::time::timeout(STOP_LIMIT, name_server_ended).await);
    }
    outcome
}

fn name_server_builder(
    context: ChildServiceContext,
    config: &EmbeddedConfig,
) -> Result<NameServerBuilder, EmbeddedError> {
    let home = config.store_dir.join("name-server");
    std::fs::create_dir_all(&home)?;
    // Its type lives in a crate that is not ours to depend on: read as configuration instead.
    let server = serde_json::from_value(json!({
        "listenPort": config.name_server_port,
        "bindAddress": LOOPBACK,
    }))
    .map_err(|error| EmbeddedError::Config(error.to_string()))?;
    let name_server = NamesrvConfig {
        rocketmq_home: home.display().to_string(),
        kv_config_path: home.join("kvConfig.json").display().to_string(),
        config_store_path: home.join("namesrv.properties").display().to_string(),
        ..NamesrvConfig::default()
    };
    Ok(NameServerBuilder::new(context, TelemetryHandle::noop())
        .set_name_server_config(name_server)
        .set_server_config(server))
}

fn broker_config(config: &EmbeddedConfig) -> Result<ValidatedBrokerConfig, EmbeddedError> {
    let store = config.store_dir.join("store");
    std::fs::create_dir_all(&store)?;
    let raw: RawBrokerConfig = serde_json::from_value(json!({
        "broker": {
            "brokerIdentity": {"brokerName": "aivideo-embedded", "brokerClusterName": "aivideo", "brokerId": 0},
            "brokerIp1": LOOPBACK,
            "brokerServerConfig": {"bindAddress": LOOPBACK},
            "listenPort": config.broker_port,
            "namesrvAddr": format!("{LOOPBACK}:{}", config.name_server_port),
            "storePathRootDir": store,
            "authConfigPath": config.store_dir.join("auth.json"),
            // Topics and groups come from the catalogue: a misspelt one is an error, not a new topic.
            "autoCreateTopicEnable": false,
            "autoCreateSubscriptionGroup": false,
        },
        "store": {
            "storePathRootDir": store,
            "haListenAddress": LOOPBACK,
            "haListenPort": config.broker_port + 1,
            "flushDiskType": "ASYNC_FLUSH",
            // The default of 1 GiB per file is for servers.
            "mappedFileSizeCommitLog": 128 * 1024 * 1024,
        },
    }))
    .map_err(|error| EmbeddedError::Config(error.to_string()))?;
    ValidatedBrokerConfig::try_from(raw).map_err(|error| EmbeddedError::Config(error.to_string()))
}
