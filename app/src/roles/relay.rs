//! The outbox relay: from rows to the broker.

use super::{Parts, Supervisor, patiently};
use crate::Settings;
use futures_util::future::BoxFuture;
use messaging::producer::{OutboundMessage as Outbound, Publisher as Producer, SendFailure};
use projections::relay::{OutboundMessage, PublishFailure, Publisher, Relay, RelayConfig};
use projections::retention::keep_house;
use std::sync::Arc;

/// Hands the outbox to the broker.
pub struct ToBroker(pub Producer);

impl Publisher for ToBroker {
    fn publish<'a>(&'a self, message: &'a OutboundMessage) -> BoxFuture<'a, Result<(), PublishFailure>> {
        Box::pin(async move { self.0.send(outbound(message)).await.map(drop).map_err(|failure| failed(&failure)) })
    }
}

fn outbound(message: &OutboundMessage) -> Outbound {
    Outbound {
        topic: message.topic,
        tag: message.tag.clone(),
        key: message.key.to_string(),
        order_key: message.order_key.to_string(),
        deliver_at: message.deliver_at.filter(|_| message.topic.is_delayed()),
        body: message.body.clone(),
        properties: vec![],
    }
}

fn failed(failure: &SendFailure) -> PublishFailure {
    match failure {
        // Every process that consumes refuses to start without the catalogue's topics. One that is missing later is a broker
        // that has just come back and has not registered yet: the message waits for it.
        SendFailure::TopicMissing { .. } => PublishFailure::unavailable(failure.class(), failure.to_string()),
        other if other.is_permanent() => PublishFailure::permanent(other.class(), other.to_string()),
        other => PublishFailure::unavailable(other.class(), other.to_string()),
    }
}

pub(super) fn start(supervisor: &mut Supervisor, parts: &Parts, settings: &Settings) -> anyhow::Result<()> {
    let client = parts.client(settings)?;
    let (pool, stop, health) = (parts.store.pool().clone(), parts.stop.clone(), Arc::clone(&parts.health));
    health.not_ready("relay", "starting");
    supervisor.watch("relay", async move {
        let Some(producer) = patiently("the producer", &stop, || Producer::start(&client)).await else {
            return Ok(());
        };
        health.ready("relay");
        Relay::new(pool, Arc::new(ToBroker(producer)), RelayConfig::default()).run(stop).await;
        Ok(())
    });
    let (pool, stop, retention) = (parts.store.pool().clone(), parts.stop.clone(), settings.retention.clone());
    supervisor.watch("retention", async move {
        keep_house(&pool, &retention, stop).await;
        Ok(())
    });
    Ok(())
}
