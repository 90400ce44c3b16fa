//! What only a real broker can answer. The broker runs in a child process; see `support`.

mod support;

use crate::admin::{self, AdminError, Mismatch, Subscription};
use crate::catalogue::{Group, MessageType, PhysicalTopic};
use crate::client::{Client, ClientFault};
use crate::config::{BadConfig, BrokerConfig};
use crate::producer::{OutboundMessage, Publisher, SendFailure};
use anyhow::{Context, Result};
use chrono::TimeDelta;
use domain::message::Topic;
use eventstore::{Again, Delivery};
use rocketmq_client_rust::{
    ClientResult, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus, DefaultMQPushConsumer, MQPushConsumer,
};
use rocketmq_model::common::message::message_ext::MessageExt;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Broker, Done, Fixture, accept, free_ports, message, next};

const GRACE: Duration = Duration::from_secs(10);

fn text(delivery: &Delivery) -> String {
    String::from_utf8_lossy(&delivery.body).into_owned()
}

fn in_seconds(seconds: i64) -> Option<domain::time::Timestamp> {
    let now = std::time::SystemTime::now();
    Some(domain::time::Timestamp::from(now) + TimeDelta::seconds(seconds))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_comes_as_it_was_sent() -> Result<()> {
    let fixture = Fixture::new("rt").await?;
    // Sent before the group first connects: a new group starts at the oldest message.
    fixture.publisher.send(message(Topic::BillingSettle, "early")).await?;
    let (listener, mut told) = fixture.listen(Group::BillingSettle, 2, accept).await?;
    let (_, early) = next(&mut told, 30).await?;
    assert_eq!(text(&early), "early");

    let receipt = fixture.publisher.send(message(Topic::BillingSettle, "late")).await?;
    assert!(!receipt.message_id.is_empty());
    let (_, late) = next(&mut told, 10).await?;
    assert_eq!((late.group, late.redeliveries), ("cg_billing_settle_v1", 0));
    assert_eq!(late.topic, fixture.client.catalogue().topic_name(Topic::BillingSettle));
    assert_eq!((late.key.as_deref(), text(&late).as_str()), (Some("key-late"), "late"));

    listener.stop(GRACE).await;
    let lag = admin::lag(&fixture.client).await?;
    let waiting: i64 = lag.iter().filter(|lag| lag.group == Group::BillingSettle).map(|lag| lag.waiting).sum();
    assert_eq!(waiting, 0, "{lag:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_message_comes_at_its_time_and_a_late_one_at_once() -> Result<()> {
    let fixture = Fixture::new("dl").await?;
    let (listener, mut told) = fixture.listen(Group::ProviderPoll, 2, accept).await?;
    fixture.publisher.send(message(Topic::GenerationPollDelay, "warm-up")).await?;
    next(&mut told, 30).await?;

    let sent = Instant::now();
    let due = OutboundMessage { deliver_at: in_seconds(2), ..message(Topic::GenerationPollDelay, "due") };
    fixture.publisher.send(due).await?;
    let past = OutboundMessage { deliver_at: in_seconds(-60), ..message(Topic::GenerationPollDelay, "past") };
    fixture.publisher.send(past).await?;

    let (at, first) = next(&mut told, 10).await?;
    assert_eq!((text(&first).as_str(), first.redeliveries), ("past", 0));
    assert!(at - sent < Duration::from_millis(1_500), "a time gone by is now, it took {:?}", at - sent);
    let (at, second) = next(&mut told, 15).await?;
    assert_eq!(text(&second), "due");
    assert_eq!(second.topic, fixture.client.catalogue().topic_name(Topic::GenerationPollDelay));
    let waited = at - sent;
    assert!((1_900..6_000).contains(&waited.as_millis()), "asked for 2 s, came after {waited:?}");

    let far = OutboundMessage { deliver_at: in_seconds(4 * 86_400), ..message(Topic::GenerationPollDelay, "far") };
    assert_eq!(fixture.publisher.send(far).await, Err(SendFailure::TooFarAhead));
    listener.stop(GRACE).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ensure_creates_once_and_check_names_every_difference() -> Result<()> {
    let fixture = Fixture::bare(&support::name_server()?, "ec").await?;
    let (client, catalogue) = (&fixture.client, fixture.client.catalogue());
    let AdminError::Mismatch(missing) = admin::check(client).await.expect_err("nothing was created") else {
        anyhow::bail!("not a list of differences");
    };
    assert_eq!(missing.iter().filter(|one| matches!(one, Mismatch::TopicMissing { .. })).count(), Topic::ALL.len());

    // One topic with the wrong type, made by hand before `ensure`, which must not paper over it.
    let wrong = PhysicalTopic { message_type: MessageType::Delay, ..catalogue.topic(Topic::BillingSettle) };
    admin::ensure_these(client, vec![wrong.clone()], Vec::new()).await?;
    let created = admin::ensure(client).await?;
    assert_eq!(created.topics.len(), Topic::ALL.len() - 1, "{created:?}");
    assert_eq!(admin::ensure(client).await?, admin::Created::default(), "the second time there is nothing to do");
    let refused = admin::check(client).await.expect_err("one topic has the wrong type");
    let AdminError::Mismatch(differences) = &refused else { anyhow::bail!("{refused}") };
    let [Mismatch::WrongType { topic, found, expected, .. }] = differences.as_slice() else {
        anyhow::bail!("{differences:?}")
    };
    assert_eq!((topic, found.as_str(), *expected), (&wrong.name, "DELAY", "NORMAL"));
    assert!(refused.to_string().contains("correct the attribute"), "{refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn check_refuses_a_group_whose_members_subscribe_to_something_else() -> Result<()> {
    let fixture = Fixture::new("sb").await?;
    let client = &fixture.client;
    let (listener, mut told) = fixture.listen(Group::BillingSettle, 1, accept).await?;
    fixture.publisher.send(message(Topic::BillingSettle, "warm-up")).await?;
    next(&mut told, 30).await?;
    let subscriptions = admin::check(client).await?;
    assert_eq!(subscriptions.get(&Group::BillingSettle), Some(&Subscription::AsExpected), "{subscriptions:?}");
    assert_eq!(subscriptions.get(&Group::Reconcile), Some(&Subscription::NobodyConnected), "{subscriptions:?}");

    // An "old version" of the submit group that knows one of its two topics.
    let other = Client::new(client.config().clone())?;
    let group = other.catalogue().group_name(Group::SchedulerSubmit);
    let mut old = DefaultMQPushConsumer::builder(other.runtime())
        .client_config(other.client_config())
        .consumer_group(group.clone())
        .build();
    let topic = other.catalogue().topic_name(Topic::GenerationSubmit);
    let mut old = other
        .run(async move {
            old.subscribe(topic, "*").await?;
            old.register_message_listener_concurrently(|_: &[&MessageExt], _: &ConsumeConcurrentlyContext| {
                Ok(ConsumeConcurrentlyStatus::ReconsumeLater)
            });
            old.start().await?;
            ClientResult::Ok(old)
        })
        .await??;
    let refused = admin::check(client).await.expect_err("a member subscribes to half of the topics");
    let AdminError::Mismatch(differences) = &refused else { anyhow::bail!("{refused}") };
    let [Mismatch::OtherSubscription { group: named, found, expected, .. }] = differences.as_slice() else {
        anyhow::bail!("{differences:?}")
    };
    assert_eq!(named, &group);
    assert!(expected.contains("generation_submit_delay") && !found.contains("generation_submit_delay"), "{refused}");

    other.run(async move { old.shutdown().await }).await?;
    other.stop(GRACE).await;
    listener.stop(GRACE).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_order_keys_stay_in_one_queue() -> Result<()> {
    let fixture = Fixture::new("ok").await?;
    let mut of_one_key = HashSet::new();
    let mut of_all_keys = HashSet::new();
    for number in 0..20 {
        let one = OutboundMessage { order_key: "task-7".to_owned(), ..message(Topic::GenerationSubmit, "x") };
        of_one_key.insert(fixture.publisher.send(one).await?.queue);
        of_all_keys
            .insert(fixture.publisher.send(message(Topic::GenerationSubmit, &format!("t{number}"))).await?.queue);
    }
    assert_eq!(of_one_key.len(), 1, "{of_one_key:?}");
    assert!(of_all_keys.len() > 4, "20 keys spread over 8 queues: {of_all_keys:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_finished_and_what_panicked_comes_again() -> Result<()> {
    let fixture = Fixture::new("ag").await?;
    let script = |delivery: &Delivery| -> futures_util::future::BoxFuture<'static, Result<Done, Again>> {
        let (first, words) = (delivery.redeliveries == 0, text(delivery));
        Box::pin(async move {
            match words.as_str() {
                "again" if first => Err(Again::Unfinished("not yet".to_owned())),
                "panic" if first => panic!("the handler's own fault (wanted by this test)"),
                _ => Ok(Done),
            }
        })
    };
    let (listener, mut told) = fixture.listen(Group::CallbackApply, 4, script).await?;
    for words in ["again", "panic", "fine"] {
        fixture.publisher.send(message(Topic::GenerationCallback, words)).await?;
    }
    let mut seen = BTreeSet::new();
    while seen.len() < 5 {
        let (_, delivery) = next(&mut told, 60).await?;
        assert_eq!(
            delivery.topic,
            fixture.client.catalogue().topic_name(Topic::GenerationCallback),
            "not the retry topic"
        );
        seen.insert((text(&delivery), delivery.redeliveries));
    }
    let expected = [("again", 0), ("again", 1), ("fine", 0), ("panic", 0), ("panic", 1)];
    assert_eq!(seen, expected.map(|(words, times)| (words.to_owned(), times)).into());
    // The last answer is counted just after it was told.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let counts = listener.counts();
    assert_eq!((counts.handled, counts.again, counts.panics, counts.in_flight), (3, 1, 1, 0));
    listener.stop(GRACE).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_waits_for_what_is_in_flight_and_leaves_the_rest_unacknowledged() -> Result<()> {
    let fixture = Fixture::new("st").await?;
    for number in 0..5 {
        let one = OutboundMessage {
            order_key: "one queue".to_owned(),
            ..message(Topic::AssetPostprocess, &format!("m{number}"))
        };
        fixture.publisher.send(one).await?;
    }
    let slow = |_: &Delivery| -> futures_util::future::BoxFuture<'static, Result<Done, Again>> {
        Box::pin(async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok(Done)
        })
    };
    let (listener, mut told) = fixture.listen(Group::AssetPostprocess, 1, slow).await?;
    let (_, first) = next(&mut told, 30).await?;
    let stopping = Instant::now();
    listener.stop(GRACE).await;
    assert!(stopping.elapsed() > Duration::from_secs(1), "it did not wait for the handler");
    assert!(stopping.elapsed() < GRACE, "it waited for more than the one in flight: {:?}", stopping.elapsed());
    assert!(told.recv().await.is_none(), "a second message was begun");

    let (listener, mut told) = fixture.listen(Group::AssetPostprocess, 1, accept).await?;
    let mut rest = BTreeSet::new();
    for _ in 0..4 {
        let (_, delivery) = next(&mut told, 60).await?;
        assert_eq!(delivery.redeliveries, 0, "an unanswered message is not a failed one");
        rest.insert(text(&delivery));
    }
    let mut all: BTreeSet<String> = (0..5).map(|number| format!("m{number}")).collect();
    all.remove(&text(&first));
    assert_eq!(rest, all, "the one that was acknowledged stays so, the others come");
    listener.stop(GRACE).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_of_20000_is_drained_without_one_refusal() -> Result<()> {
    const COUNT: usize = 20_000;
    let fixture = Fixture::new("bl").await?;
    for batch in 0..COUNT / 100 {
        let messages =
            (0..100).map(|number| message(Topic::NotificationEvent, &format!("{}", batch * 100 + number))).collect();
        fixture.publisher.send_batch(messages).await?;
    }
    let (listener, mut told) = fixture.listen(Group::NotificationPush, 64, accept).await?;
    let started = Instant::now();
    let mut distinct = HashSet::new();
    while distinct.len() < COUNT {
        let (_, delivery) = next(&mut told, 60).await?;
        assert_eq!(delivery.redeliveries, 0, "the client sent a message back by itself");
        distinct.insert(text(&delivery));
    }
    println!("drained {COUNT} in {:?}", started.elapsed());
    assert_eq!(listener.counts().again, 0);
    listener.stop(GRACE).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_to_send_say_what_they_are() -> Result<()> {
    let fixture = Fixture::bare(&support::name_server()?, "fs").await?;
    let missing = fixture.publisher.send(message(Topic::AssetFetch, "x")).await;
    let topic = fixture.client.catalogue().topic_name(Topic::AssetFetch);
    assert_eq!(missing, Err(SendFailure::TopicMissing { topic }));
    let large = OutboundMessage { body: vec![b'x'; 70_000], ..message(Topic::AssetFetch, "x") };
    assert_eq!(fixture.publisher.send(large).await, Err(SendFailure::TooLarge { bytes: 70_000, limit: 65_536 }));
    let mixed = vec![message(Topic::AssetFetch, "x"), message(Topic::BillingSettle, "y")];
    assert_eq!(fixture.publisher.send_batch(mixed).await, Err(SendFailure::BadBatch));

    let nobody = free_ports()?.0;
    let config =
        BrokerConfig { name_server: format!("127.0.0.1:{nobody}"), send_timeout_ms: 1_000, ..BrokerConfig::default() };
    let alone = Client::new(config)?;
    let publisher = Publisher::start(&alone).await?;
    let started = Instant::now();
    let failure = publisher.send(message(Topic::AssetFetch, "x")).await.expect_err("nobody listens");
    assert!(!failure.is_permanent(), "{failure:?}");
    assert!(started.elapsed() < Duration::from_secs(3), "the send timeout of 1 s holds: {:?}", started.elapsed());
    alone.stop(GRACE).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_that_do_not_fit_into_the_lane_are_refused_at_start() -> Result<()> {
    let fixture = Fixture::new("ln").await?;
    let (listener, _told) = fixture.listen(Group::Reconcile, 100, accept).await?;
    let refused = fixture.listen(Group::AssetFetch, 30, accept).await.err().context("130 threads in a lane of 120")?;
    let fault = refused.downcast_ref::<ClientFault>().context("another error")?;
    assert!(matches!(fault, ClientFault::Config(BadConfig::TooManyThreads { wanted: 130, lane: 120, .. })), "{fault}");
    listener.stop(GRACE).await;
    let (again, _told) = fixture.listen(Group::AssetFetch, 30, accept).await?;
    again.stop(GRACE).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_broker_keeps_what_it_confirmed() -> Result<()> {
    let (store, (name_server_port, broker_port)) = (tempfile::tempdir()?, free_ports()?);
    let broker = Broker::start(name_server_port, broker_port, store.path())?;
    let address = broker.name_server.clone();
    let fixture = Fixture::with_prefix(&address, "k_").await?;
    admin::ensure(&fixture.client).await?;
    for number in 0..50 {
        fixture.publisher.send(message(Topic::GenerationSubmit, &number.to_string())).await?;
    }
    broker.kill()?;
    let failure = fixture.publisher.send(message(Topic::GenerationSubmit, "lost")).await.expect_err("it is dead");
    assert!(!failure.is_permanent(), "{failure:?}");
    fixture.client.stop(GRACE).await;

    let _again = Broker::start(name_server_port, broker_port, store.path())?;
    let fixture = Fixture::with_prefix(&address, "k_").await?;
    assert_eq!(admin::ensure(&fixture.client).await?, admin::Created::default(), "topics and groups survive");
    let (listener, mut told) = fixture.listen(Group::SchedulerSubmit, 8, accept).await?;
    let mut distinct = BTreeSet::new();
    while distinct.len() < 50 {
        distinct.insert(text(&next(&mut told, 60).await?.1));
    }
    listener.stop(GRACE).await;
    fixture.client.stop(GRACE).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_publisher_is_shared_by_many_senders() -> Result<()> {
    let fixture = Fixture::new("sh").await?;
    let mut sends = tokio::task::JoinSet::new();
    for number in 0..64 {
        let publisher = Arc::clone(&fixture.publisher);
        sends.spawn(async move { publisher.send(message(Topic::AssetFetch, &number.to_string())).await });
    }
    let mut places = HashSet::new();
    while let Some(send) = sends.join_next().await {
        let receipt = send??;
        places.insert((receipt.queue, receipt.offset));
    }
    assert_eq!(places.len(), 64, "every message has a place of its own");
    Ok(())
}
