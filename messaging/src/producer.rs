//! Sending: one shared producer, one message (or one batch) at a time, each answered by the broker.

use crate::admin;
use crate::client::{Client, ClientFault, cause, response_code};
use domain::message::Topic;
use domain::message::envelope::MAX_BODY_BYTES;
use domain::time::Timestamp;
use rocketmq_client_rust::{ClientError, DefaultMQProducer, MQClientException};
use rocketmq_model::common::message::message_queue::MessageQueue;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_model::result::{SendResult, SendStatus};
use rocketmq_protocol::code::response_code::ResponseCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How far ahead a timer message may be delivered: the limit of a broker with default settings (`timerMaxDelaySec`).
pub const MAX_DELAY: Duration = Duration::from_secs(3 * 24 * 3600);

/// The most bytes of bodies in one batch: a quarter of the broker's limit for one request (4 MiB).
pub const MAX_BATCH_BYTES: usize = 1024 * 1024;

/// A message on its way out. What is in it was decided when the outbox row was written.
#[derive(Clone, Debug)]
pub struct OutboundMessage {
    /// Where it goes.
    pub topic: Topic,
    /// The broker's tag; the event type, for people who search. May be empty.
    pub tag: String,
    /// The broker's key: the event id as text, so that a message can be found by it.
    pub key: String,
    /// Messages of one topic with equal order keys stay in one queue (unless delayed).
    pub order_key: String,
    /// When it is delivered: `None`, or a time gone by, is now. At most [`MAX_DELAY`] ahead.
    pub deliver_at: Option<Timestamp>,
    /// The body: the envelope as JSON.
    pub body: Vec<u8>,
    /// User properties, such as a trace id. Not read by any decision.
    pub properties: Vec<(String, String)>,
}

/// The broker's word that it has the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendReceipt {
    /// The id that the client gave the message.
    pub message_id: String,
    /// The queue it was put into.
    pub queue: i32,
    /// Its place in the queue (for a delayed message: in the broker's timer queue).
    pub offset: u64,
}

/// Why a message was not sent, or is not known to have been sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendFailure {
    /// Brokers are there and answer, and none of them has the topic.
    #[error("topic {topic} does not exist at the broker; create it with the catalogue's ensure")]
    TopicMissing {
        /// The physical topic.
        topic: String,
    },
    /// The body, or the batch, is larger than may be sent.
    #[error("{bytes} bytes are too many, at most {limit} may be sent")]
    TooLarge {
        /// What was to be sent.
        bytes: usize,
        /// What may be.
        limit: usize,
    },
    /// The delivery time is beyond what the broker's timer reaches: the database scan has to bring this one.
    #[error("the delivery time is more than {} days ahead", MAX_DELAY.as_secs() / 86_400)]
    TooFarAhead,
    /// A batch holds messages of several topics, delayed ones, or none.
    #[error("a batch takes one or more messages of one topic, none of them delayed")]
    BadBatch,
    /// The broker will not take this message.
    #[error("the broker refused the message (code {code})")]
    Refused {
        /// The broker's response code.
        code: i32,
    },
    /// The broker could not be asked, or its answer did not come or was not a plain yes. **The message may or may not have been
    /// stored**: send it again, with the same key.
    #[error("the broker did not confirm the message: {class}")]
    Unavailable {
        /// `timeout`, `unreachable`, `busy`, `not_durable` or `stopped`.
        class: &'static str,
    },
}

impl SendFailure {
    /// A stable word for the outbox row and for metrics.
    #[must_use]
    pub const fn class(&self) -> &'static str {
        match self {
            Self::TopicMissing { .. } => "topic_missing",
            Self::TooLarge { .. } => "too_large",
            Self::TooFarAhead => "too_far_ahead",
            Self::BadBatch => "bad_batch",
            Self::Refused { .. } => "refused",
            Self::Unavailable { class } => class,
        }
    }

    /// Whether sending the same message again is useless until somebody changes something.
    #[must_use]
    pub const fn is_permanent(&self) -> bool {
        !matches!(self, Self::Unavailable { .. })
    }
}

/// The one producer of a process. Shared by reference: sends run side by side.
pub struct Publisher {
    client: Arc<Client>,
    producer: Arc<DefaultMQProducer>,
}

impl Publisher {
    /// Starts the producer. The broker need not be there yet.
    ///
    /// # Errors
    /// [`ClientFault`] when the client can not start it.
    pub async fn start(client: &Arc<Client>) -> Result<Self, ClientFault> {
        let mut producer = DefaultMQProducer::builder(client.runtime())
            .client_config(client.client_config())
            .producer_group(format!("{}pg_aivideo_v1", client.config().topic_prefix))
            .send_msg_timeout(u32::try_from(client.config().send_timeout_ms).unwrap_or(u32::MAX))
            // The outbox repeats, with its own patience; a retry in here would only hide time.
            .retry_times_when_send_failed(0)
            .retry_times_when_send_async_failed(0)
            .build();
        let producer = client.run(async move { producer.start().await.map(|()| producer) }).await?;
        let producer = Arc::new(producer.map_err(|error| ClientFault::start("the producer", &error))?);
        Ok(Self { client: Arc::clone(client), producer })
    }

    /// Sends one message and waits for the broker's answer, at most the configured send timeout.
    ///
    /// # Errors
    /// [`SendFailure`]; only `Unavailable` leaves open whether the broker has the message.
    pub async fn send(&self, message: OutboundMessage) -> Result<SendReceipt, SendFailure> {
        let topic = self.client.catalogue().topic_name(message.topic);
        self.send_to(&topic, message).await.map(|(receipt, _)| receipt)
    }

    /// Sends messages of one topic as one request that the broker stores whole or not at all: many times the rate of single
    /// sends. All of them go into one queue, whichever is next: `order_key` is not looked at.
    ///
    /// # Errors
    /// [`SendFailure`], for the whole batch.
    pub async fn send_batch(&self, messages: Vec<OutboundMessage>) -> Result<SendReceipt, SendFailure> {
        let now = now_millis();
        let topic = messages.first().ok_or(SendFailure::BadBatch)?.topic;
        let mixed = messages.iter().any(|message| message.topic != topic || delay(message, now).is_some());
        if mixed || topic.is_delayed() {
            return Err(SendFailure::BadBatch);
        }
        let bytes = messages.iter().map(|message| message.body.len()).sum();
        if bytes > MAX_BATCH_BYTES {
            return Err(SendFailure::TooLarge { bytes, limit: MAX_BATCH_BYTES });
        }
        let topic = self.client.catalogue().topic_name(topic);
        let batch: Vec<Message> =
            messages.into_iter().map(|message| wire(&topic, message, None)).collect::<Result<_, _>>()?;
        let (producer, limit) = (Arc::clone(&self.producer), self.client.config().send_timeout_ms);
        let sending = async move { producer.send_batch_with_timeout(batch, limit).await.map(Some) };
        self.answered(&topic, sending).await.and_then(confirmed).map(|(receipt, _)| receipt)
    }

    /// Sends to a physical topic; also tells the queue, for the readiness probe.
    pub(crate) async fn send_to(
        &self,
        topic: &str,
        message: OutboundMessage,
    ) -> Result<(SendReceipt, Option<MessageQueue>), SendFailure> {
        let deliver_at = delay(&message, now_millis());
        if deliver_at.is_some_and(|at| {
            at.saturating_sub(now_millis()) > u64::try_from(MAX_DELAY.as_millis()).unwrap_or(u64::MAX)
        }) {
            return Err(SendFailure::TooFarAhead);
        }
        let order_key = message.order_key.clone();
        let wire = wire(topic, message, deliver_at)?;
        let (producer, limit) = (Arc::clone(&self.producer), self.client.config().send_timeout_ms);
        let sending = async move {
            if deliver_at.is_some() || order_key.is_empty() {
                // The broker moves a delayed message through its timer: the queue chosen here would decide nothing useful.
                producer.send_with_timeout(wire, limit).await
            } else {
                let select = |queues: &[MessageQueue], _: &Message, key: &String| select_queue(queues, key);
                producer.send_with_selector_timeout(wire, select, order_key, limit).await
            }
        };
        self.answered(topic, sending).await.and_then(confirmed)
    }

    /// Runs a send on the client's threads, bounded even where the client's own timeout does not reach (looking up routes).
    async fn answered<F>(&self, topic: &str, sending: F) -> Result<Option<SendResult>, SendFailure>
    where
        F: Future<Output = Result<Option<SendResult>, ClientError>> + Send + 'static,
    {
        let limit = self.client.config().send_timeout();
        match self.client.run(async move { tokio::time::timeout(limit, sending).await }).await {
            Ok(Ok(Ok(result))) => Ok(result),
            Ok(Ok(Err(error))) => Err(match why(&error) {
                Failed::Because(failure) => failure,
                Failed::NoRoute => self.no_route(topic, limit).await,
            }),
            Ok(Err(_elapsed)) => Err(SendFailure::Unavailable { class: "timeout" }),
            Err(_stopped) => Err(SendFailure::Unavailable { class: "stopped" }),
        }
    }
}

impl Publisher {
    async fn no_route(&self, topic: &str, limit: Duration) -> SendFailure {
        match tokio::time::timeout(limit, admin::is_missing(&self.client, topic)).await {
            Ok(Ok(true)) => SendFailure::TopicMissing { topic: topic.to_owned() },
            _ => SendFailure::Unavailable { class: "unreachable" },
        }
    }
}

/// Milliseconds of the wall clock, which the broker's timer goes by.
fn now_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// The delivery time in milliseconds if it is in the future.
fn delay(message: &OutboundMessage, now: u64) -> Option<u64> {
    let at = u64::try_from(message.deliver_at?.timestamp_millis()).ok()?;
    (at > now).then_some(at)
}

fn wire(topic: &str, message: OutboundMessage, deliver_at: Option<u64>) -> Result<Message, SendFailure> {
    if message.body.len() > MAX_BODY_BYTES {
        return Err(SendFailure::TooLarge { bytes: message.body.len(), limit: MAX_BODY_BYTES });
    }
    let mut builder = Message::builder().topic(topic).key(message.key).body(message.body);
    if !message.tag.is_empty() {
        builder = builder.tags(message.tag);
    }
    if let Some(at) = deliver_at {
        builder = builder.deliver_time_ms(at);
    }
    for (name, value) in message.properties {
        // Fails for names that the broker uses itself.
        let refused = |_| SendFailure::Refused { code: ResponseCode::MessageIllegal as i32 };
        builder = builder.raw_property(name, value).map_err(refused)?;
    }
    Ok(builder.build_unchecked())
}

/// FNV-1a: the same queue for a key in every process and every build.
fn select_queue(queues: &[MessageQueue], order_key: &str) -> Option<MessageQueue> {
    let hash = order_key
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let index = usize::try_from(hash % u64::try_from(queues.len().max(1)).unwrap_or(1)).unwrap_or(0);
    queues.get(index).cloned()
}

fn confirmed(result: Option<SendResult>) -> Result<(SendReceipt, Option<MessageQueue>), SendFailure> {
    // No result at all is what the client gives for one-way sends; here it would be a send nobody confirmed.
    let result = result.ok_or(SendFailure::Unavailable { class: "not_durable" })?;
    if result.send_status != SendStatus::SendOk {
        return Err(SendFailure::Unavailable { class: "not_durable" });
    }
    let receipt = SendReceipt {
        message_id: result.msg_id.map(|id| id.to_string()).unwrap_or_default(),
        queue: result.message_queue.as_ref().map_or(-1, MessageQueue::queue_id),
        offset: result.queue_offset,
    };
    Ok((receipt, result.message_queue))
}

enum Failed {
    /// The client found no queue to send to. It says so for a missing topic and for a missing name server alike.
    NoRoute,
    Because(SendFailure),
}

fn why(error: &ClientError) -> Failed {
    let code = response_code(error);
    let is = |wanted: ResponseCode| code == Some(wanted as i32);
    let words = error.source_ref::<MQClientException>().and_then(MQClientException::error_message).unwrap_or_default();
    if is(ResponseCode::TopicNotExist)
        || error.is(&rocketmq_error::ROUTE_TOPIC_NOT_FOUND)
        || words.starts_with("No route info")
    {
        return Failed::NoRoute;
    }
    tracing::debug!(cause = cause(error), "a send failed");
    Failed::Because(if is(ResponseCode::MessageIllegal) || is(ResponseCode::NoPermission) {
        SendFailure::Refused { code: code.unwrap_or_default() }
    } else if is(ResponseCode::SystemBusy) || is(ResponseCode::FlushDiskTimeout) {
        SendFailure::Unavailable { class: "busy" }
    } else {
        SendFailure::Unavailable { class: "unreachable" }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(count: i32) -> Vec<MessageQueue> {
        (0..count).map(|id| MessageQueue::from_parts("t", "b", id)).collect()
    }

    #[test]
    fn equal_keys_choose_equal_queues_and_keys_spread() {
        let queues = queues(8);
        let chosen = |key: &str| select_queue(&queues, key).map(|queue| queue.queue_id());
        assert_eq!(chosen("task-1"), chosen("task-1"));
        let spread: std::collections::HashSet<_> = (0..200).map(|number| chosen(&format!("task-{number}"))).collect();
        assert_eq!(spread.len(), 8, "200 keys use all 8 queues");
        assert_eq!(select_queue(&[], "k"), None);
    }

    #[test]
    fn anything_but_send_ok_is_not_a_receipt() {
        for status in [SendStatus::FlushDiskTimeout, SendStatus::FlushSlaveTimeout, SendStatus::SlaveNotAvailable] {
            let result = SendResult { send_status: status, ..SendResult::default() };
            assert_eq!(confirmed(Some(result)), Err(SendFailure::Unavailable { class: "not_durable" }));
        }
        assert_eq!(confirmed(None), Err(SendFailure::Unavailable { class: "not_durable" }));
        assert!(confirmed(Some(SendResult::default())).is_ok());
    }
}
