//! Readiness: a message goes to the broker and comes back.
//!
//! An open port proves nothing: a broker whose start failed leaves a name server that answers, and sends that fail.

use crate::admin;
use crate::client::{Client, cause};
use crate::producer::{OutboundMessage, Publisher};
use domain::message::Topic;
use rocketmq_client_rust::{ClientResult, DefaultLitePullConsumer};
use rocketmq_model::common::message::message_queue::MessageQueue;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The broker did not pass a message through in time.
#[derive(Debug, thiserror::Error)]
#[error("no message went through the broker within {} ms; the last attempt failed at: {last}", waited.as_millis())]
pub struct NotReady {
    /// How long it was tried.
    pub waited: Duration,
    /// What failed last.
    pub last: String,
}

/// Sends a message to the probe topic (made if missing) and reads it back, again and again until it worked once. Answers with
/// the time that the successful round trip took.
///
/// # Errors
/// [`NotReady`] after `limit`.
pub async fn wait_until_ready(
    client: &Arc<Client>,
    publisher: &Publisher,
    limit: Duration,
) -> Result<Duration, NotReady> {
    let started = Instant::now();
    let mut last = "nothing was tried".to_owned();
    loop {
        let left = limit.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Err(NotReady { waited: started.elapsed(), last });
        }
        let attempt = Instant::now();
        match tokio::time::timeout(left, round_trip(client, publisher)).await {
            Ok(Ok(())) => return Ok(attempt.elapsed()),
            Ok(Err(cause)) => last = cause,
            Err(_elapsed) if last == "nothing was tried" => last = "a step that did not end in time".to_owned(),
            Err(_elapsed) => {}
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

async fn round_trip(client: &Arc<Client>, publisher: &Publisher) -> Result<(), String> {
    let (topic, group) = (client.catalogue().probe_topic(), client.catalogue().probe_group());
    admin::ensure_these(client, vec![topic.clone()], vec![group.clone()])
        .await
        .map_err(|error| format!("creating the probe topic: {error}"))?;
    let token = Uuid::new_v4().to_string();
    let message = OutboundMessage {
        // Which logical topic is of no account: the physical one is given below.
        topic: Topic::NotificationEvent,
        tag: "probe".to_owned(),
        key: token.clone(),
        order_key: String::new(),
        deliver_at: None,
        body: token.clone().into_bytes(),
        properties: Vec::new(),
    };
    let (receipt, queue) =
        publisher.send_to(&topic.name, message).await.map_err(|failure| format!("sending: {failure}"))?;
    let queue = queue.ok_or_else(|| "sending: the broker named no queue".to_owned())?;
    read_back(client, group, queue, receipt.offset, token).await
}

/// Reads one queue from one offset. The queue is assigned, not subscribed to: processes that probe at the same time do not
/// take each other's messages.
async fn read_back(
    client: &Arc<Client>,
    group: String,
    queue: MessageQueue,
    offset: u64,
    token: String,
) -> Result<(), String> {
    let offset = i64::try_from(offset).map_err(|_| "reading: an impossible offset".to_owned())?;
    let (runtime, name_server) = (client.runtime(), client.config().name_server.clone());
    let instance = format!("{}-probe-{token}", client.client_config().instance_name);
    let reading = async move {
        let consumer = DefaultLitePullConsumer::builder(runtime)
            .name_server_addr(name_server)
            .instance_name(instance)
            .consumer_group(group)
            .auto_commit(false)
            .build()?;
        consumer.start().await?;
        let found = poll_for(&consumer, queue, offset, &token).await;
        consumer.shutdown().await;
        found
    };
    match client.run(reading).await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err("reading: the message did not come back".to_owned()),
        Ok(Err(error)) => Err(format!("reading: {}", cause(&error))),
        Err(fault) => Err(format!("reading: {fault}")),
    }
}

async fn poll_for(
    consumer: &DefaultLitePullConsumer,
    queue: MessageQueue,
    offset: i64,
    token: &str,
) -> ClientResult<bool> {
    // Loads the route: without it, the consumer does not know the broker's address yet.
    consumer.fetch_message_queues(queue.topic()).await?;
    consumer.assign(vec![queue.clone()]).await?;
    consumer.seek(&queue, offset).await?;
    for _ in 0..10 {
        let messages = consumer.poll_with_timeout(500).await;
        if messages.iter().any(|message| message.body().is_some_and(|body| body.as_ref() == token.as_bytes())) {
            return Ok(true);
        }
    }
    Ok(false)
}
