//! The relay against a real database and a broker in memory. O-numbers name cases met in the field.

mod support;

use anyhow::{Result, ensure};
use projections::relay::{OutboundMessage, PublishFailure, RelayConfig, relay_status, release_parked};
use rand::RngExt;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use support::{Broker, Running, eventually, insert_message, insert_news, on_database, outbox_row, quick};
use uuid::Uuid;

/// O1: ids are given out at insert and become visible at commit; a row with a lower id may come later.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_commits_late_is_published() -> Result<()> {
    on_database(|pool| async move {
        let broker = Broker::healthy();
        let relay = Running::relay(&pool, &broker, RelayConfig::default());
        for _ in 0..200 {
            let mut late = pool.begin().await?;
            let first = insert_message(&mut late, Uuid::new_v4(), "notification.event").await?;
            let second = insert_news(&pool, Uuid::new_v4()).await?;
            broker.wait_for(second).await?;
            let hold = rand::rng().random_range(0..20);
            tokio::time::sleep(Duration::from_millis(hold)).await;
            ensure!(!broker.ids().contains(&first), "published before its commit");
            late.commit().await?;
            broker.wait_for(first).await?;
        }
        relay.stop().await?;
        ensure!(relay_status(&pool).await?.unsent == 0);
        Ok(())
    })
    .await
}

/// M6: wake-ups at any distance. The broker gets what its timer can keep, with its time; what is further ahead waits here, neither
/// tried again and again nor parked, and goes when its time comes near; what is in the past goes at once.
#[tokio::test(flavor = "multi_thread")]
async fn m6_a_wake_up_at_any_distance_is_sent_in_its_time() -> Result<()> {
    on_database(|pool| async move {
        let broker = Broker::healthy();
        let mut rows = Vec::new();
        for hours in [-24 * 365_i32, 25, 4 * 24, 40 * 24, 24 * 365 * 1_000] {
            let mut row = pool.begin().await?;
            let id = insert_message(&mut row, Uuid::new_v4(), "generation.poll.delay").await?;
            sqlx::query("UPDATE outbox_events SET deliver_at = clock_timestamp() + make_interval(hours => $2) WHERE event_id = $1")
                .bind(id)
                .bind(hours)
                .execute(&mut *row)
                .await?;
            row.commit().await?;
            rows.push(id);
        }
        let relay = Running::relay(&pool, &broker, quick());
        broker.wait_for(rows[0]).await?;
        broker.wait_for(rows[1]).await?;
        for id in &rows[2..] {
            let pool = &pool;
            eventually(async || {
                let row = outbox_row(pool, *id).await?;
                Ok(!row.leased && row.publish_attempts == 0 && row.waits > 24.0 * 3_600.0)
            })
            .await?;
            let row = outbox_row(pool, *id).await?;
            ensure!(!row.published && !row.parked && row.last_error_code.is_none(), "it waits, and is no failure");
        }
        let arrived = broker.arrived();
        let near = arrived.iter().find(|it| it.key.0 == rows[1]).and_then(|it| it.deliver_at);
        let ahead = near.map(|at| at - chrono::DateTime::from(std::time::SystemTime::now()));
        ensure!(ahead.is_some_and(|it| it.num_hours() == 24), "the broker was told {ahead:?}");
        // Its time comes near.
        sqlx::query(
            "UPDATE outbox_events SET deliver_at = clock_timestamp() + interval '1 day', available_at = clock_timestamp()
              WHERE event_id = $1",
        )
        .bind(rows[3])
        .execute(&pool)
        .await?;
        insert_news(&pool, Uuid::new_v4()).await?;
        broker.wait_for(rows[3]).await?;
        relay.stop().await
    })
    .await
}

/// O3: more bad rows than one claim takes, all at the head.
#[tokio::test(flavor = "multi_thread")]
async fn bad_rows_hold_up_nobody_and_are_parked() -> Result<()> {
    on_database(|pool| async move {
        let config = quick();
        let mut connection = pool.acquire().await?;
        let mut bad = Vec::new();
        for _ in 0..config.concurrency + 10 {
            bad.push(insert_message(&mut connection, Uuid::new_v4(), "no.such.topic").await?);
        }
        let good = insert_news(&pool, Uuid::new_v4()).await?;
        let follower = {
            let aggregate: Uuid = sqlx::query_scalar("SELECT aggregate_id FROM outbox_events WHERE event_id = $1")
                .bind(bad[0])
                .fetch_one(&pool)
                .await?;
            insert_news(&pool, aggregate).await?
        };
        let broker = Broker::healthy();
        // Backing off for an hour: if the good one arrives, it was in one of the first two claims.
        let slow =
            RelayConfig { backoff_base: Duration::from_secs(3600), backoff_cap: Duration::from_secs(3600), ..config };
        let relay = Running::relay(&pool, &broker, slow);
        broker.wait_for(good).await?;
        relay.stop().await?;
        let row = outbox_row(&pool, bad[0]).await?;
        ensure!(row.publish_attempts == 1 && row.waits > 1000.0 && !row.parked, "{row:?}");
        ensure!(row.last_error_code.as_deref() == Some("unknown_topic"), "{row:?}");
        ensure!(!broker.ids().contains(&follower), "it overtook the row before it");

        sqlx::query("UPDATE outbox_events SET available_at = clock_timestamp() WHERE published_at IS NULL")
            .execute(&pool)
            .await?;
        let relay = Running::relay(&pool, &broker, config);
        // Parked rows are out of the way of those that follow.
        broker.wait_for(follower).await?;
        eventually(|| async { Ok(relay_status(&pool).await?.parked == bad.len() as i64) }).await?;
        ensure!(outbox_row(&pool, bad[0]).await?.publish_attempts == 3);
        eventually(|| async { Ok(relay_status(&pool).await?.unsent == 0) }).await?;

        sqlx::query("UPDATE outbox_events SET topic = 'notification.event' WHERE parked_at IS NOT NULL")
            .execute(&pool)
            .await?;
        ensure!(release_parked(&pool).await? == bad.len() as u64);
        for id in &bad {
            broker.wait_for(*id).await?;
        }
        relay.stop().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_large_is_parked() -> Result<()> {
    on_database(|pool| async move {
        let id = insert_news(&pool, Uuid::new_v4()).await?;
        sqlx::query("UPDATE outbox_events SET payload = jsonb_build_object('text', repeat('\u{4e2d}', 30000))")
            .execute(&pool)
            .await?;
        let broker = Broker::healthy();
        let relay = Running::relay(&pool, &broker, quick());
        eventually(|| async { Ok(outbox_row(&pool, id).await?.parked) }).await?;
        relay.stop().await?;
        let row = outbox_row(&pool, id).await?;
        ensure!(row.last_error_code.as_deref() == Some("too_large") && broker.ids().is_empty(), "{row:?}");
        Ok(())
    })
    .await
}

/// O4 and O5: a send that failed is not published, is not tried in a tight loop, and goes out when the broker is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_send_stays_unpublished_until_the_broker_heals() -> Result<()> {
    on_database(|pool| async move {
        let broker =
            Broker::answering(|_| (Duration::ZERO, Err(PublishFailure::unavailable("no_route", "nul \0 in the text"))));
        let relay = Running::relay(&pool, &broker, quick());
        let id = insert_news(&pool, Uuid::new_v4()).await?;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let row = outbox_row(&pool, id).await?;
        ensure!(!row.published && !row.parked, "{row:?}");
        // 20, 40, 80, 160, then 200 ms each, halved at most by chance.
        ensure!((5..=20).contains(&row.publish_attempts), "{row:?}");
        ensure!(row.last_error_code.as_deref() == Some("no_route"), "{row:?}");
        ensure!(row.last_error.as_deref() == Some("nul \u{fffd} in the text"), "{row:?}");
        let status = relay_status(&pool).await?;
        ensure!(status.unsent == 1 && status.oldest_seconds > 1.0, "{status:?}");

        broker.answer(|_| (Duration::ZERO, Ok(())));
        broker.wait_for(id).await?;
        relay.stop().await?;
        ensure!(outbox_row(&pool, id).await?.published);
        Ok(())
    })
    .await
}

/// A permanent failure counts only when it comes in a row: an outage before it does not make parking come sooner.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_does_not_count_as_refusals() -> Result<()> {
    on_database(|pool| async move {
        let calls = std::sync::atomic::AtomicU32::new(0);
        let broker = Broker::answering(move |_| {
            let call = calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let failure = match call {
                0 | 1 | 3 => PublishFailure::permanent("no_topic", "gone"),
                2 => PublishFailure::unavailable("timeout", "slow"),
                _ => return (Duration::ZERO, Ok(())),
            };
            (Duration::ZERO, Err(failure))
        });
        let relay = Running::relay(&pool, &broker, quick());
        let id = insert_news(&pool, Uuid::new_v4()).await?;
        broker.wait_for(id).await?;
        relay.stop().await?;
        let row = outbox_row(&pool, id).await?;
        ensure!(row.published && row.publish_attempts == 5, "{row:?}");
        Ok(())
    })
    .await
}

/// O6: the broker has it, and the relay dies before it writes that down.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_record_was_lost_comes_again_with_the_same_id() -> Result<()> {
    on_database(|pool| async move {
        let broker = Broker::answering(|_| (Duration::from_secs(60), Ok(())));
        let config = RelayConfig { lease: Duration::from_millis(300), ..quick() };
        let doomed = Running::relay(&pool, &broker, config);
        let id = insert_news(&pool, Uuid::new_v4()).await?;
        broker.wait_for(id).await?;
        doomed.task.abort();
        ensure!(!outbox_row(&pool, id).await?.published);

        broker.answer(|_| (Duration::ZERO, Ok(())));
        let next = Running::relay(&pool, &broker, config);
        eventually(|| async { Ok(outbox_row(&pool, id).await?.published) }).await?;
        next.stop().await?;
        ensure!(broker.ids() == [id, id], "{:?}", broker.ids());
        Ok(())
    })
    .await
}

/// O2: a relay that slept past its lease can not finish the row that another one took over.
#[tokio::test(flavor = "multi_thread")]
async fn a_stale_lease_changes_nothing() -> Result<()> {
    on_database(|pool| async move {
        let broker =
            Broker::answering(|_| (Duration::from_millis(900), Err(PublishFailure::unavailable("late", "late"))));
        let config = RelayConfig { lease: Duration::from_millis(200), ..quick() };
        let slow = Running::relay(&pool, &broker, config);
        let id = insert_news(&pool, Uuid::new_v4()).await?;
        eventually(|| async { Ok(outbox_row(&pool, id).await?.leased) }).await?;
        let first: Uuid = sqlx::query_scalar("SELECT lease_token FROM outbox_events").fetch_one(&pool).await?;
        slow.cancel.cancel();

        // The second one takes it over and keeps it, while the first one's answer arrives.
        let second = Broker::answering(|_| (Duration::from_secs(3), Ok(())));
        let config = RelayConfig { lease: Duration::from_secs(30), ..config };
        let other = Running::relay(&pool, &second, config);
        second.wait_for(id).await?;
        slow.stop().await?;
        let row = outbox_row(&pool, id).await?;
        ensure!(row.leased && !row.published && row.last_error_code.is_none() && row.publish_attempts >= 2, "{row:?}");
        let token: Uuid = sqlx::query_scalar("SELECT lease_token FROM outbox_events").fetch_one(&pool).await?;
        ensure!(token != first);
        eventually(|| async { Ok(outbox_row(&pool, id).await?.published) }).await?;
        other.stop().await
    })
    .await
}

/// O11: each aggregate's messages go out in order, whatever else goes on at the same time and however many relays there are.
#[tokio::test(flavor = "multi_thread")]
async fn several_relays_share_the_work_and_keep_each_aggregates_order() -> Result<()> {
    on_database(|pool| async move {
        let flaky = |_: &OutboundMessage| {
            let mut chance = rand::rng();
            let delay = Duration::from_millis(chance.random_range(0..5));
            let lucky = chance.random_bool(0.95);
            (delay, if lucky { Ok(()) } else { Err(PublishFailure::unavailable("busy", "try again")) })
        };
        let broker = Broker::answering(flaky);
        let config = RelayConfig { concurrency: 7, ..quick() };
        let relays: Vec<Running> = (0..3).map(|_| Running::relay(&pool, &broker, config)).collect();
        let aggregates: Vec<Uuid> = (0..12).map(|_| Uuid::new_v4()).collect();
        let mut written: HashMap<Uuid, Vec<Uuid>> = HashMap::new();
        for _ in 0..25 {
            let mut tx = pool.begin().await?;
            for aggregate in &aggregates {
                let id = insert_message(&mut tx, *aggregate, "notification.event").await?;
                written.entry(*aggregate).or_default().push(id);
            }
            tx.commit().await?;
        }
        eventually(|| async { Ok(relay_status(&pool).await?.unsent == 0) }).await?;
        for relay in relays {
            relay.stop().await?;
        }
        let mut sent: HashMap<Uuid, Vec<Uuid>> = HashMap::new();
        for message in broker.arrived() {
            sent.entry(message.order_key).or_default().push(message.key.0);
        }
        ensure!(sent == written, "an aggregate's messages were reordered, lost or sent twice");
        Ok(())
    })
    .await
}

/// The broker's timer does not reach so far: the row waits, and others of its aggregate do not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_days_ahead_is_kept() -> Result<()> {
    on_database(|pool| async move {
        let aggregate = Uuid::new_v4();
        let far = insert_news(&pool, aggregate).await?;
        sqlx::query("UPDATE outbox_events SET deliver_at = clock_timestamp() + interval '5 days'")
            .execute(&pool)
            .await?;
        let soon = insert_news(&pool, aggregate).await?;
        sqlx::query("UPDATE outbox_events SET deliver_at = clock_timestamp() + interval '1 day' WHERE event_id = $1")
            .bind(soon)
            .execute(&pool)
            .await?;
        let broker = Broker::healthy();
        let relay = Running::relay(&pool, &broker, quick());
        broker.wait_for(soon).await?;
        eventually(|| async { Ok(outbox_row(&pool, far).await?.waits > 1.0) }).await?;
        relay.stop().await?;
        let row = outbox_row(&pool, far).await?;
        ensure!((row.waits - 3.0 * 86_400.0).abs() < 60.0 && row.publish_attempts == 0 && !row.leased, "{row:?}");
        ensure!(broker.arrived().iter().all(|message| message.deliver_at.is_some()), "the delivery time goes along");
        ensure!(broker.ids() == [soon]);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_stops_finishes_or_lets_go() -> Result<()> {
    on_database(|pool| async move {
        let broker = Broker::answering(|_| (Duration::from_millis(200), Ok(())));
        let relay = Running::relay(&pool, &broker, quick());
        let quick_one = insert_news(&pool, Uuid::new_v4()).await?;
        broker.wait_for(quick_one).await?;
        relay.stop().await?;
        ensure!(outbox_row(&pool, quick_one).await?.published, "what is on its way is finished");

        broker.answer(|_| (Duration::from_secs(60), Ok(())));
        let config = RelayConfig { grace: Duration::from_millis(50), send_timeout: Duration::from_secs(70), ..quick() };
        let relay = Running::relay(&pool, &broker, config);
        let slow_one = insert_news(&pool, Uuid::new_v4()).await?;
        broker.wait_for(slow_one).await?;
        relay.stop().await?;
        let row = outbox_row(&pool, slow_one).await?;
        ensure!(!row.published && !row.leased && row.publish_attempts == 1, "{row:?}");
        Ok(())
    })
    .await
}

/// 200 messages, 50 a second: from the answer to COMMIT until the broker has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_at_the_broker_soon_after_its_commit() -> Result<()> {
    on_database(|pool| async move {
        let broker = Broker::healthy();
        let relay = Running::relay(&pool, &broker, RelayConfig::default());
        broker.wait_for(insert_news(&pool, Uuid::new_v4()).await?).await?;
        let mut latencies = Vec::new();
        for _ in 0..200 {
            let mut tx = pool.begin().await?;
            let id = insert_message(&mut tx, Uuid::new_v4(), "notification.event").await?;
            tx.commit().await?;
            let committed = Instant::now();
            broker.wait_for(id).await?;
            latencies.push(committed.elapsed());
            tokio::time::sleep(Duration::from_millis(20).saturating_sub(committed.elapsed())).await;
        }
        relay.stop().await?;
        latencies.sort_unstable();
        let (median, p99) = (latencies[100], latencies[198]);
        println!("commit to broker: median {median:?}, p99 {p99:?}");
        // The aim is 50 ms; a loaded machine gets some room, the 1 s timer would show.
        ensure!(
            median < Duration::from_millis(50) && p99 < Duration::from_millis(500),
            "median {median:?}, p99 {p99:?}"
        );
        Ok(())
    })
    .await
}
