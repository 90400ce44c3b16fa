//! What the tests of this crate share: a database of their own, a broker in memory, and rows to begin with.

#![expect(clippy::disallowed_methods, reason = "a test ends what it starts, and sees how it ended")]
#![expect(dead_code, reason = "each test binary uses a part of it")]

pub mod world;

use anyhow::{Context, Result};
use domain::id::EventId;
use domain::process::Policy;
use eventstore::testkit::TestDatabase;
use futures_util::future::BoxFuture;
use projections::relay::{OutboundMessage, PublishFailure, Publisher, Relay, RelayConfig};
use sqlx::{PgConnection, PgPool};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Runs a test on a fresh, migrated database, and drops it however the test ends.
pub async fn on_database<F, T>(test: F) -> Result<()>
where
    F: FnOnce(PgPool) -> T,
    T: Future<Output = Result<()>> + Send + 'static,
{
    let url = std::env::var("DATABASE_URL").context(
        "these tests need a PostgreSQL 15 or newer: run `./dev test`, which starts one, or set DATABASE_URL to a role that \
         may create databases",
    )?;
    on_server(&url, test).await
}

/// The same, on another server.
pub async fn on_server<F, T>(url: &str, test: F) -> Result<()>
where
    F: FnOnce(PgPool) -> T,
    T: Future<Output = Result<()>> + Send + 'static,
{
    // Dropped however the test ends, and last.
    let database = TestDatabase::on(url, Policy::default()).await?;
    let mut running = tokio::task::JoinSet::new();
    running.spawn(test(database.owner().clone()));
    let ended = running.join_next().await.context("a test was started")?;
    match ended {
        Ok(result) => result,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

type Answer = Box<dyn Fn(&OutboundMessage) -> (Duration, Result<(), PublishFailure>) + Send + Sync>;

/// A broker in memory. What it answers, and how fast, can be changed while it runs.
pub struct Broker {
    arrived: Mutex<Vec<OutboundMessage>>,
    answer: Mutex<Answer>,
}

impl Broker {
    pub fn healthy() -> Arc<Self> {
        Self::answering(|_| (Duration::ZERO, Ok(())))
    }

    pub fn answering(
        answer: impl Fn(&OutboundMessage) -> (Duration, Result<(), PublishFailure>) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { arrived: Mutex::default(), answer: Mutex::new(Box::new(answer)) })
    }

    pub fn answer(
        &self,
        answer: impl Fn(&OutboundMessage) -> (Duration, Result<(), PublishFailure>) + Send + Sync + 'static,
    ) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(answer);
    }

    /// What has arrived so far, in order of arrival.
    pub fn arrived(&self) -> Vec<OutboundMessage> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn ids(&self) -> Vec<Uuid> {
        self.arrived().into_iter().map(|message| message.key.0).collect()
    }

    pub async fn wait_for(&self, id: Uuid) -> Result<()> {
        eventually(|| async { Ok(self.ids().contains(&id)) })
            .await
            .with_context(|| format!("message {id} did not arrive"))
    }
}

impl Publisher for Broker {
    fn publish<'a>(&'a self, message: &'a OutboundMessage) -> BoxFuture<'a, Result<(), PublishFailure>> {
        Box::pin(async move {
            let (delay, answer) = {
                let decide = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
                let (delay, answer) = decide(message);
                if answer.is_ok() {
                    self.arrived.lock().unwrap_or_else(PoisonError::into_inner).push(message.clone());
                }
                (delay, answer)
            };
            // The answer is what takes time: the message has arrived before it.
            tokio::time::sleep(delay).await;
            answer
        })
    }
}

/// A relay in the background.
pub struct Running {
    pub cancel: CancellationToken,
    pub task: JoinHandle<()>,
}

impl Running {
    pub fn relay(pool: &PgPool, broker: &Arc<Broker>, config: RelayConfig) -> Self {
        let cancel = CancellationToken::new();
        let relay = Relay::new(pool.clone(), Arc::clone(broker) as Arc<dyn Publisher>, config);
        let token = cancel.clone();
        Self { cancel, task: tokio::spawn(async move { relay.run(token).await }) }
    }

    pub async fn stop(self) -> Result<()> {
        self.cancel.cancel();
        Ok(self.task.await?)
    }
}

/// Short times, so that tests are.
pub fn quick() -> RelayConfig {
    RelayConfig {
        backoff_base: Duration::from_millis(20),
        backoff_cap: Duration::from_millis(200),
        tick: Duration::from_millis(100),
        ..RelayConfig::default()
    }
}

/// Waits up to 10 s until a condition holds.
pub async fn eventually<F, T>(mut holds: F) -> Result<()>
where
    F: FnMut() -> T,
    T: Future<Output = Result<bool>>,
{
    let end = Instant::now() + Duration::from_secs(10);
    while !holds().await? {
        anyhow::ensure!(Instant::now() < end, "it did not happen within 10 s");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// Inserts a message that is to be sent at once, as a business transaction would; its id.
pub async fn insert_message(connection: &mut PgConnection, aggregate: Uuid, topic: &str) -> Result<Uuid> {
    let id = Uuid::new_v4();
    sqlx::query(
        "INSERT INTO outbox_events (event_id, aggregate_type, aggregate_id, event_type, schema_version, topic, tag, payload,
                                    tenant_id, trace_id, correlation_id, causation_id, occurred_at, available_at)
         VALUES ($1, 'task', $2, 'task.state.changed', 1, $3, 'STATE', jsonb_build_object('task_id', $2, 'task_version', 1),
                 $2, $4, $1, $1, clock_timestamp(), clock_timestamp())",
    )
    .bind(id)
    .bind(aggregate)
    .bind(topic)
    .bind(aggregate.simple().to_string())
    .execute(&mut *connection)
    .await?;
    sqlx::query("SELECT pg_notify('aivideo_outbox', '')").execute(connection).await?;
    Ok(id)
}

pub async fn insert_news(pool: &PgPool, aggregate: Uuid) -> Result<Uuid> {
    let mut connection = pool.acquire().await?;
    insert_message(&mut connection, aggregate, "notification.event").await
}

/// Appends an event the way the store does, in a transaction that the test holds; its position.
pub async fn append(
    connection: &mut PgConnection,
    category: &str,
    stream: Uuid,
    version: i64,
    name: &str,
    body: serde_json::Value,
) -> Result<i64> {
    Ok(sqlx::query_scalar(
        "WITH fence AS MATERIALIZED (SELECT announce_writer())
         INSERT INTO events (event_id, category, stream_id, version, name, schema_version, body, tenant_id, correlation_id,
                             causation_id, actor, recorded_at)
         SELECT $1, $2, $3, $4, $5, 1, $6, $3, $1, $1, 'test', clock_timestamp() FROM fence
         RETURNING position",
    )
    .bind(Uuid::new_v4())
    .bind(category)
    .bind(stream)
    .bind(version)
    .bind(name)
    .bind(body)
    .fetch_one(connection)
    .await?)
}

/// The first grant of a new account.
pub async fn append_grant(connection: &mut PgConnection, account: Uuid) -> Result<i64> {
    let body = serde_json::json!({"key": "welcome", "amount": 100});
    append(connection, "account", account, 1, "account.granted", body).await
}

pub async fn account_exists(pool: &PgPool, account: Uuid) -> Result<bool> {
    Ok(sqlx::query_scalar("SELECT EXISTS (SELECT FROM read_accounts WHERE account_id = $1)")
        .bind(account)
        .fetch_one(pool)
        .await?)
}

/// What a row of the outbox says about its publication.
#[derive(Debug, sqlx::FromRow)]
pub struct OutboxRow {
    pub published: bool,
    pub parked: bool,
    pub leased: bool,
    pub publish_attempts: i32,
    pub last_error_code: Option<String>,
    pub last_error: Option<String>,
    /// Seconds until it may be tried again.
    pub waits: f64,
}

pub async fn outbox_row(pool: &PgPool, id: impl Into<EventId>) -> Result<OutboxRow> {
    Ok(sqlx::query_as(
        "SELECT published_at IS NOT NULL AS published, parked_at IS NOT NULL AS parked, lease_token IS NOT NULL AS leased,
                publish_attempts, last_error_code, last_error,
                extract(epoch FROM available_at - clock_timestamp())::float8 AS waits
           FROM outbox_events WHERE event_id = $1",
    )
    .bind(id.into().0)
    .fetch_one(pool)
    .await?)
}
