//! Receiving: one push consumer per group, one message per call, and the one place that answers the broker.
//!
//! The client calls its listener on a blocking thread and wants the answer as a return value. So the listener is the one place
//! in the project that blocks on a future, and `acknowledged` the one function that names success: it takes the answer that
//! only a committed `consume` can make.

use crate::catalogue::Group;
use crate::client::{Client, ClientFault};
use eventstore::{Ack, Again, Delivery};
use futures_util::future::BoxFuture;
use rocketmq_client_rust::{
    ClientResult, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus, DefaultMQPushConsumer, MQPushConsumer,
    MessageListenerConcurrently,
};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::MessageTrait;
use rocketmq_model::common::message::message_ext::MessageExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Messages kept ahead per queue. Little: what a killed process had fetched is delivered again only after the broker noticed.
const FETCHED_AHEAD_PER_QUEUE: u32 = 256;

/// Handles what is delivered to a group.
pub trait Handler: Send + Sync + 'static {
    /// Handles one delivery. Runs on the service's runtime. A panic counts as [`Again`].
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<Ack, Again>>;
}

/// What may be turned into an acknowledgement. Outside of this crate's tests that is [`Ack`] alone: the trait can not be named
/// elsewhere, and [`Listener::start`] takes [`Handler`]s only.
pub(crate) trait Answer: Send + 'static {}

impl Answer for Ack {}

/// A [`Handler`] over any [`Answer`].
pub(crate) trait Answering: Send + Sync + 'static {
    type Answer: Answer;
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<Self::Answer, Again>>;
}

struct Committed(Arc<dyn Handler>);

impl Answering for Committed {
    type Answer = Ack;
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<Ack, Again>> {
        self.0.handle(delivery)
    }
}

/// The only place that tells the broker "done". Never write the status' `Default`: it means success, too.
fn acknowledged(answer: impl Answer) -> ConsumeConcurrentlyStatus {
    drop(answer);
    ConsumeConcurrentlyStatus::ConsumeSuccess
}

#[derive(Debug, Default)]
struct Counters {
    in_flight: AtomicU64,
    handled: AtomicU64,
    again: AtomicU64,
    panics: AtomicU64,
}

/// What a listener has done since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerCounts {
    /// Being handled now.
    pub in_flight: u64,
    /// Answered with an [`Ack`].
    pub handled: u64,
    /// Answered with [`Again`].
    pub again: u64,
    /// Handlers that panicked; the message comes again.
    pub panics: u64,
}

/// A running consumer group of this process.
pub struct Listener {
    client: Arc<Client>,
    group: Group,
    threads: usize,
    counters: Arc<Counters>,
    consumer: DefaultMQPushConsumer,
}

impl Listener {
    /// Subscribes to the group's topics (all tags) and starts to handle messages, `threads` at once. A group that is new to the
    /// broker starts at the oldest message. `app` is the runtime that handlers run on.
    ///
    /// # Errors
    /// [`ClientFault::Config`] when the threads of all groups together exceed the client's lane (it would drop work under load),
    /// [`ClientFault::Start`] when the client can not start the consumer.
    pub async fn start(
        client: &Arc<Client>,
        group: Group,
        threads: usize,
        handler: Arc<dyn Handler>,
        app: tokio::runtime::Handle,
    ) -> Result<Self, ClientFault> {
        Self::start_answering(client, group, threads, Committed(handler), app).await
    }

    pub(crate) async fn start_answering(
        client: &Arc<Client>,
        group: Group,
        threads: usize,
        handler: impl Answering,
        app: tokio::runtime::Handle,
    ) -> Result<Self, ClientFault> {
        client.take_threads(threads)?;
        let counters = Arc::new(Counters::default());
        let callback = Callback { group, handler: Arc::new(handler), app, counters: Arc::clone(&counters) };
        match start_consumer(client, group, threads, callback).await {
            Ok(consumer) => Ok(Self { client: Arc::clone(client), group, threads, counters, consumer }),
            Err(error) => {
                client.give_threads_back(threads);
                Err(error)
            }
        }
    }

    /// The group.
    #[must_use]
    pub const fn group(&self) -> Group {
        self.group
    }

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> ListenerCounts {
        ListenerCounts {
            in_flight: self.counters.in_flight.load(Ordering::Relaxed),
            handled: self.counters.handled.load(Ordering::Relaxed),
            again: self.counters.again.load(Ordering::Relaxed),
            panics: self.counters.panics.load(Ordering::Relaxed),
        }
    }

    /// Stops fetching and waits up to `grace` for messages in flight. What was fetched but not begun, or is not answered by then,
    /// stays unacknowledged: it is delivered again, here or elsewhere.
    pub async fn stop(self, grace: Duration) {
        let Self { client, group, threads, counters, mut consumer } = self;
        consumer.set_await_termination_millis_when_shutdown(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        let stopping = client.run(async move {
            // The grace is for the handlers; the rest (offsets, leaving the group) gets some seconds of its own.
            tokio::time::timeout(grace + Duration::from_secs(10), consumer.shutdown()).await.is_ok()
        });
        let in_time = matches!(stopping.await, Ok(true));
        let left = counters.in_flight.load(Ordering::Relaxed);
        if !in_time || left > 0 {
            tracing::warn!(
                group = group.name(),
                left,
                "the listener was cut off; what is left will be delivered again"
            );
        }
        client.give_threads_back(threads);
    }
}

async fn start_consumer<H: Answering>(
    client: &Arc<Client>,
    group: Group,
    threads: usize,
    callback: Callback<H>,
) -> Result<DefaultMQPushConsumer, ClientFault> {
    let count = u32::try_from(threads).unwrap_or(u32::MAX).max(1);
    let mut consumer = DefaultMQPushConsumer::builder(client.runtime())
        .client_config(client.client_config())
        .consumer_group(client.catalogue().group_name(group))
        .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
        // One status answers a whole batch: with more than one message, one failure would repeat them all.
        .consume_message_batch_max_size(1)
        .consume_thread_min(count)
        .consume_thread_max(count)
        .pull_threshold_for_queue(FETCHED_AHEAD_PER_QUEUE)
        .max_reconsume_times(i32::try_from(client.config().max_redeliveries).unwrap_or(i32::MAX))
        .build();
    let topics: Vec<String> = group.topics().iter().map(|topic| client.catalogue().topic_name(*topic)).collect();
    client
        .run(async move {
            for topic in topics {
                consumer.subscribe(topic, "*").await?;
            }
            consumer.register_message_listener_concurrently(callback);
            consumer.start().await?;
            ClientResult::Ok(consumer)
        })
        .await?
        .map_err(|error| ClientFault::start("a consumer group", &error))
}

struct Callback<H> {
    group: Group,
    handler: Arc<H>,
    app: tokio::runtime::Handle,
    counters: Arc<Counters>,
}

impl<H: Answering> MessageListenerConcurrently for Callback<H> {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _context: &ConsumeConcurrentlyContext,
    ) -> ClientResult<ConsumeConcurrentlyStatus> {
        let [message] = messages else {
            // A batch size of 1 was asked for. Nothing is acknowledged on a broken assumption.
            tracing::error!(
                group = self.group.name(),
                count = messages.len(),
                "a listener call must carry one message"
            );
            return Ok(ConsumeConcurrentlyStatus::ReconsumeLater);
        };
        let delivery = self.delivery(message);
        let _in_flight = InFlight::enter(&self.counters.in_flight);
        let (key, redeliveries) = (delivery.key.clone(), delivery.redeliveries);
        // The handler runs on the service's runtime, and this thread sleeps until it is done. Polled on this thread, each answer of
        // the database would wake it by way of another one.
        let handler = Arc::clone(&self.handler);
        let handling = self.app.spawn(async move { handler.handle(delivery).await });
        match self.app.block_on(handling) {
            Ok(Ok(answer)) => {
                self.counters.handled.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(group = self.group.name(), key, "handled");
                Ok(acknowledged(answer))
            }
            Ok(Err(again)) => {
                self.counters.again.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(group = self.group.name(), key, redeliveries, reason = %again, "a message will come again");
                Ok(ConsumeConcurrentlyStatus::ReconsumeLater)
            }
            Err(stopped) if stopped.is_cancelled() => {
                tracing::info!(group = self.group.name(), key, "the service stops; the message will come again");
                Ok(ConsumeConcurrentlyStatus::ReconsumeLater)
            }
            Err(_panic) => {
                self.counters.panics.fetch_add(1, Ordering::Relaxed);
                tracing::error!(
                    group = self.group.name(),
                    key,
                    redeliveries,
                    "a handler panicked; the message will come again"
                );
                Ok(ConsumeConcurrentlyStatus::ReconsumeLater)
            }
        }
    }
}

impl<H> Callback<H> {
    fn delivery(&self, message: &MessageExt) -> Delivery {
        Delivery {
            group: self.group.name(),
            topic: message.topic().to_string(),
            key: message.message_inner().get_keys().map(|key| key.to_string()).filter(|key| !key.is_empty()),
            redeliveries: u32::try_from(message.reconsume_times()).unwrap_or(0),
            body: message.body().map(|body| body.to_vec()).unwrap_or_default(),
        }
    }
}

struct InFlight<'a>(&'a AtomicU64);

impl<'a> InFlight<'a> {
    fn enter(counter: &'a AtomicU64) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(counter)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
