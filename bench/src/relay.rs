//! How fast a relay picks up what waits, with a broker that answers at once.

use anyhow::ensure;
use eventstore::Store;
use futures_util::future::BoxFuture;
use projections::relay::{OutboundMessage, PublishFailure, Publisher, Relay, RelayConfig};
use sqlx::PgPool;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Messages that wait when the relay starts.
const WAITING: u64 = 3_000;
/// Longer than this it does not take.
const PATIENCE: Duration = Duration::from_secs(60);

struct AtOnce(AtomicU64, CancellationToken);

impl Publisher for AtOnce {
    fn publish<'a>(&'a self, _: &'a OutboundMessage) -> BoxFuture<'a, Result<(), PublishFailure>> {
        Box::pin(async {
            if self.0.fetch_add(1, Ordering::Relaxed) + 1 == WAITING {
                self.1.cancel();
            }
            Ok(())
        })
    }
}

/// Messages a second from waiting to handed over: claim, send, record.
///
/// # Errors
/// The server's, or the relay is not done in a minute.
pub async fn pick_up(store: &Store) -> anyhow::Result<f64> {
    let pool = store.pool();
    settle_all(pool).await?;
    wait_again(pool).await?;
    let all_sent = CancellationToken::new();
    let broker = Arc::new(AtOnce(AtomicU64::new(0), all_sent.clone()));
    let relay = Relay::new(pool.clone(), Arc::clone(&broker) as Arc<dyn Publisher>, RelayConfig::default());
    let begun = Instant::now();
    let done = tokio::time::timeout(PATIENCE, relay.run(all_sent)).await;
    ensure!(done.is_ok(), "the relay sent {} of {WAITING} messages in a minute", broker.0.load(Ordering::Relaxed));
    Ok(WAITING as f64 / begun.elapsed().as_secs_f64())
}

/// What was written by appends before is not part of it.
async fn settle_all(pool: &PgPool) -> Result<(), sqlx::Error> {
    sqlx::query("/* bench.settle */ UPDATE outbox_events SET published_at = now() WHERE published_at IS NULL")
        .execute(pool)
        .await?;
    Ok(())
}

/// New messages of as many tasks, like one that was sent before.
async fn wait_again(pool: &PgPool) -> Result<(), sqlx::Error> {
    sqlx::query(
        "/* bench.waiting */
         INSERT INTO outbox_events (event_id, aggregate_type, aggregate_id, event_type, schema_version, topic, tag, payload,
                                    tenant_id, trace_id, correlation_id, causation_id, occurred_at, available_at)
         SELECT gen_random_uuid(), o.aggregate_type, gen_random_uuid(), o.event_type, o.schema_version, o.topic, o.tag,
                o.payload, o.tenant_id, o.trace_id, o.correlation_id, o.causation_id, now(), now()
           FROM (SELECT * FROM outbox_events WHERE deliver_at IS NULL ORDER BY id LIMIT 1) o, generate_series(1, $1)",
    )
    .bind(i64::try_from(WAITING).unwrap_or(i64::MAX))
    .execute(pool)
    .await?;
    Ok(())
}
