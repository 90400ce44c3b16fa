//! A broker for the tests: an embedded one in a child process, shared by all tests, or the one that
//! `AIVIDEO_TEST_NAME_SERVER` names (for Apache RocketMQ).

use crate::catalogue::Group;
use crate::client::Client;
use crate::config::BrokerConfig;
use crate::listener::{Answer, Answering, Listener};
use crate::producer::{OutboundMessage, Publisher};
use crate::{admin, ready};
use anyhow::{Context, Result, ensure};
use domain::message::Topic;
use eventstore::{Again, Delivery};
use futures_util::future::BoxFuture;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// An answer that tests may make; the real one comes from a commit only.
#[derive(Debug)]
pub struct Done;
impl Answer for Done {}

/// Handles with a function, and tells the test what came.
pub struct Script<F>(pub F, pub mpsc::UnboundedSender<(Instant, Delivery)>);

impl<F> Answering for Script<F>
where
    F: Fn(&Delivery) -> BoxFuture<'static, Result<Done, Again>> + Send + Sync + 'static,
{
    type Answer = Done;
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<Done, Again>> {
        let answer = self.0(&delivery);
        drop(self.1.send((Instant::now(), delivery)));
        answer
    }
}

/// Acknowledges everything.
pub fn accept(_delivery: &Delivery) -> BoxFuture<'static, Result<Done, Again>> {
    Box::pin(async { Ok(Done) })
}

/// An embedded broker in a process of its own; it dies with this value, or when this process does.
pub struct Broker {
    child: Child,
    pub name_server: String,
}

impl Broker {
    pub fn start(name_server_port: u16, broker_port: u16, store: &Path) -> Result<Self> {
        let mut program = std::env::current_exe()?;
        program.pop();
        program.pop();
        program.push("examples/embedded_broker");
        let child = Command::new(&program)
            .args([name_server_port.to_string(), broker_port.to_string()])
            .arg(store)
            .stdin(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        Ok(Self { child, name_server: format!("127.0.0.1:{name_server_port}") })
    }

    /// `kill -9`.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A free name server port and a broker port whose neighbours are free as well.
pub fn free_ports() -> Result<(u16, u16)> {
    for _ in 0..50 {
        let name_server = TcpListener::bind("127.0.0.1:0")?;
        let broker = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let neighbours = [broker - 2, broker, broker + 1].map(|port| TcpListener::bind(("127.0.0.1", port)));
        if neighbours.iter().all(Result::is_ok) {
            return Ok((name_server.local_addr()?.port(), broker));
        }
    }
    anyhow::bail!("no free ports")
}

/// The shared broker's name server. `RUST_LOG` shows what the client does.
pub fn name_server() -> Result<String> {
    // Fails for every test but the first of the process, which is as good.
    drop(
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init(),
    );
    if let Ok(given) = std::env::var("AIVIDEO_TEST_NAME_SERVER") {
        return Ok(given);
    }
    // Never dropped: the child ends when this process does, because its standard input closes.
    static SHARED: OnceLock<std::result::Result<(Broker, tempfile::TempDir), String>> = OnceLock::new();
    let started = SHARED.get_or_init(|| {
        let start = || -> Result<_> {
            let (store, (name_server, broker)) = (tempfile::tempdir()?, free_ports()?);
            Ok((Broker::start(name_server, broker, store.path())?, store))
        };
        start().map_err(|error| format!("{error:#}"))
    });
    match started {
        Ok((broker, _)) => Ok(broker.name_server.clone()),
        Err(error) => anyhow::bail!("{error}"),
    }
}

/// Client and producer on topics of the test's own.
pub struct Fixture {
    pub client: Arc<Client>,
    pub publisher: Arc<Publisher>,
}

impl Fixture {
    /// With all topics and groups created.
    pub async fn new(name: &str) -> Result<Self> {
        let fixture = Self::bare(&name_server()?, name).await?;
        let created = admin::ensure(&fixture.client).await?;
        ensure!(created.topics.len() >= Topic::ALL.len(), "only {created:?}");
        Ok(fixture)
    }

    /// With a broker that passes messages, but none of the catalogue's topics.
    pub async fn bare(name_server: &str, name: &str) -> Result<Self> {
        let prefix = format!("{name}{}_", &uuid::Uuid::new_v4().simple().to_string()[..8]);
        Self::with_prefix(name_server, &prefix).await
    }

    pub async fn with_prefix(name_server: &str, prefix: &str) -> Result<Self> {
        let config = BrokerConfig {
            name_server: name_server.to_owned(),
            topic_prefix: prefix.to_owned(),
            ..BrokerConfig::default()
        };
        let client = Client::new(config)?;
        let publisher = Arc::new(Publisher::start(&client).await?);
        ready::wait_until_ready(&client, &publisher, Duration::from_secs(30)).await?;
        Ok(Self { client, publisher })
    }

    /// A listener that answers by `script`, and what was delivered to it.
    pub async fn listen<F>(
        &self,
        group: Group,
        threads: usize,
        script: F,
    ) -> Result<(Listener, mpsc::UnboundedReceiver<(Instant, Delivery)>)>
    where
        F: Fn(&Delivery) -> BoxFuture<'static, Result<Done, Again>> + Send + Sync + 'static,
    {
        let (tell, told) = mpsc::unbounded_channel();
        let app = tokio::runtime::Handle::current();
        let listener = Listener::start_answering(&self.client, group, threads, Script(script, tell), app).await?;
        Ok((listener, told))
    }
}

/// A message that says `text`.
pub fn message(topic: Topic, text: &str) -> OutboundMessage {
    OutboundMessage {
        topic,
        tag: "test".to_owned(),
        key: format!("key-{text}"),
        order_key: text.to_owned(),
        deliver_at: None,
        body: text.as_bytes().to_vec(),
        properties: vec![("trace_id".to_owned(), "0af7651916cd43dd8448eb211c80319c".to_owned())],
    }
}

/// The next delivery, or an error after `seconds`.
pub async fn next(
    told: &mut mpsc::UnboundedReceiver<(Instant, Delivery)>,
    seconds: u64,
) -> Result<(Instant, Delivery)> {
    tokio::time::timeout(Duration::from_secs(seconds), told.recv())
        .await
        .with_context(|| format!("nothing was delivered in {seconds} s"))?
        .context("the listener is gone")
}
