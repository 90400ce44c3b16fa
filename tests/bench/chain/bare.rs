//! The barest chain that is still correct: one statement a message (inbox row, event, the next outbox row); a relay that reads 256
//! unsent rows, sends them at once and deletes them. It decides nothing, checks no version, shows nothing to anybody, and loses
//! its order. The same client, the same broker, the same database, messages and events of the same size.

use super::{MESSAGES, THREADS, client, until};
use anyhow::Context;
use domain::message::Topic;
use eventstore::testkit::acknowledge;
use eventstore::{Ack, Again, Delivery};
use futures_util::future::{BoxFuture, join_all};
use messaging::{Group, Handler, Listener, OutboundMessage, Publisher};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tests::Stack;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The consumer group and the topic that are lent to it.
const GROUP: Group = Group::BillingSettle;
const TOPIC: Topic = Topic::BillingSettle;
/// Rows that the relay reads at once.
const ROWS: i64 = 256;

/// A message as long as ours.
#[derive(Clone, Serialize, Deserialize)]
struct Body {
    event_id: Uuid,
    task: Uuid,
    number: usize,
    filling: String,
}

impl Body {
    fn first() -> Self {
        Self { event_id: Uuid::new_v4(), task: Uuid::new_v4(), number: 1, filling: "x".repeat(420) }
    }

    fn next(&self) -> Option<Self> {
        (self.number < MESSAGES).then(|| Self { event_id: Uuid::new_v4(), number: self.number + 1, ..self.clone() })
    }
}

/// Runs so many tasks, and says how many messages were handled a second.
pub(super) async fn run(stack: &Stack, tasks: usize) -> anyhow::Result<f64> {
    let pool = PgPoolOptions::new().max_connections(24).test_before_acquire(false);
    let pool = pool.connect(stack.setting("AIVIDEO_DATABASE__OWNER_URL")?).await?;
    begin(&pool, tasks).await?;
    let client = client(stack, &[(GROUP, THREADS)])?;
    let handling = Arc::new(Bare { pool: pool.clone() });
    let listener = Listener::start(&client, GROUP, THREADS, handling, tokio::runtime::Handle::current()).await?;
    let producer = Publisher::start(&client).await?;
    // Queues are shared out.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let stop = CancellationToken::new();
    let begun = Instant::now();
    let mut relaying = JoinSet::new();
    relaying.spawn(relay(pool.clone(), producer, stop.clone()));
    let done = until("the barest chain", tasks * MESSAGES, || listener.counts().handled).await;
    let seconds = begun.elapsed().as_secs_f64();
    stop.cancel();
    listener.stop(Duration::from_secs(5)).await;
    relaying.join_all().await.into_iter().collect::<anyhow::Result<()>>()?;
    client.stop(Duration::from_secs(3)).await;
    pool.close().await;
    done?;
    Ok((tasks * MESSAGES) as f64 / seconds)
}

async fn begin(pool: &PgPool, tasks: usize) -> anyhow::Result<()> {
    sqlx::raw_sql(
        "CREATE TABLE IF NOT EXISTS bare_inbox (consumer text, event_id uuid, PRIMARY KEY (consumer, event_id));
         CREATE TABLE IF NOT EXISTS bare_events (position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, stream uuid,
                                                 version bigint, body jsonb, at timestamptz DEFAULT now(), UNIQUE (stream, version));
         CREATE TABLE IF NOT EXISTS bare_outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body jsonb);",
    )
    .execute(pool)
    .await?;
    let first: Vec<serde_json::Value> =
        (0..tasks).map(|_| serde_json::to_value(Body::first())).collect::<Result<_, _>>()?;
    sqlx::query("INSERT INTO bare_outbox (body) SELECT * FROM unnest($1::jsonb[])").bind(first).execute(pool).await?;
    Ok(())
}

struct Bare {
    pool: PgPool,
}

impl Handler for Bare {
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<Ack, Again>> {
        Box::pin(async move {
            self.write(&delivery.body)
                .await
                .map(|()| acknowledge())
                .map_err(|error| Again::Unfinished(error.to_string()))
        })
    }
}

impl Bare {
    async fn write(&self, body: &[u8]) -> anyhow::Result<()> {
        let body: Body = serde_json::from_slice(body).context("not a message of this chain")?;
        let event = serde_json::json!({ "job": body.event_id, "percent": 50, "next_poll_at": "2026-01-01T00:00:00Z" });
        sqlx::query(
            "WITH taken AS (
                 INSERT INTO bare_inbox VALUES ('bare', $1) ON CONFLICT DO NOTHING RETURNING event_id),
             recorded AS (
                 INSERT INTO bare_events (stream, version, body) SELECT $2, $3, $4 FROM taken)
             INSERT INTO bare_outbox (body) SELECT $5::jsonb FROM taken WHERE $5 IS NOT NULL",
        )
        .bind(body.event_id)
        .bind(body.task)
        .bind(i64::try_from(body.number)?)
        .bind(event)
        .bind(body.next().map(serde_json::to_value).transpose()?)
        .execute(&self.pool)
        .await?;
        Ok(())
    }
}

async fn relay(pool: PgPool, producer: Publisher, stop: CancellationToken) -> anyhow::Result<()> {
    while !stop.is_cancelled() {
        let rows: Vec<(i64, serde_json::Value)> =
            sqlx::query_as("SELECT id, body FROM bare_outbox ORDER BY id LIMIT $1").bind(ROWS).fetch_all(&pool).await?;
        if rows.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        let sent =
            join_all(rows.iter().map(|(id, body)| async { producer.send(outbound(body)).await.map(|_| *id) })).await;
        let sent: Vec<i64> = sent.into_iter().collect::<Result<_, _>>()?;
        sqlx::query("DELETE FROM bare_outbox WHERE id = ANY ($1)").bind(sent).execute(&pool).await?;
    }
    Ok(())
}

fn outbound(body: &serde_json::Value) -> OutboundMessage {
    OutboundMessage {
        topic: TOPIC,
        tag: String::new(),
        key: body["event_id"].as_str().unwrap_or_default().to_owned(),
        order_key: body["task"].as_str().unwrap_or_default().to_owned(),
        deliver_at: None,
        body: body.to_string().into_bytes(),
        properties: vec![],
    }
}
