//! The sealer: nothing is skipped, nothing is sealed twice, whoever dies or writes late.

use super::{Anyhow, hashes, key, record, record_in, report, sealer};
use crate::support::{submitted, tenant_with};
use eventstore::audit::{SealStep, Sealer, latest_seals, seal_status};
use eventstore::testkit::TestDatabase;
use serde_json::json;
use std::time::Duration;
use uuid::Uuid;

async fn fill(database: &TestDatabase, streams: u128, versions: i64) -> Anyhow {
    for version in 1..=versions {
        for stream in 1..=streams {
            record(database, "task", Uuid::from_u128(stream), version, json!({ "n": version })).await?;
        }
    }
    Ok(())
}

/// Every event has one hash, and the seals lie side by side: what a clean report says too, said by the tables.
async fn all_sealed(database: &TestDatabase) -> Anyhow {
    assert_eq!(
        database
            .count("SELECT count(*) FROM events LEFT JOIN event_hashes USING (position) WHERE hash IS NULL")
            .await?,
        0
    );
    let apart = "SELECT count(*) FROM (SELECT number, first_position, lag(last_position, 1, 0) OVER w AS before,
                                             row_number() OVER w AS nth FROM seals WINDOW w AS (ORDER BY number)) s
                  WHERE first_position <> before + 1 OR number <> nth";
    assert_eq!(database.count(apart).await?, 0);
    assert_eq!(database.count("SELECT sum(events)::bigint FROM seals").await?, hashes(database).await?.len() as i64);
    let report = report(database).await?;
    assert_eq!(report.findings, []);
    assert_eq!(report.events as i64, database.count("SELECT count(*) FROM events").await?);
    Ok(())
}

/// What the service writes is sealed, with what it had written before there was a sealer.
#[tokio::test]
async fn the_log_of_the_service_is_sealed_from_its_first_event() -> Anyhow {
    let database = TestDatabase::create().await?;
    let tenant = tenant_with(database.store(), 1000).await?;
    for _ in 0..3 {
        submitted(database.store(), tenant, None).await?;
    }
    let status = seal_status(database.pool()).await?;
    assert_eq!((status.newest, status.unsealed), (None, 7));
    assert!(status.oldest_seconds >= 0.0);
    assert_eq!(sealer(&database, 4).catch_up().await?, 7);
    all_sealed(&database).await?;
    let newest = latest_seals(database.pool(), 10).await?;
    assert_eq!(newest.iter().map(|it| it.seal.number).collect::<Vec<_>>(), [2, 1]);
    Ok(())
}

/// A seal waits for a batch, or for its time.
#[tokio::test]
async fn a_seal_is_made_when_there_is_a_batch_or_when_it_is_time() -> Anyhow {
    let database = TestDatabase::create().await?;
    let patient = Sealer::new(database.pool().clone(), key(), 10, Duration::from_secs(3600));
    assert_eq!(patient.step().await?, SealStep::Nothing);
    fill(&database, 2, 2).await?;
    // The first one is due at once.
    assert!(matches!(patient.step().await?, SealStep::Sealed(it) if it.seal.events == 4));
    record(&database, "task", Uuid::from_u128(1), 3, json!({})).await?;
    assert_eq!(patient.step().await?, SealStep::Nothing);
    let due = Sealer::new(database.pool().clone(), key(), 10, Duration::ZERO);
    assert!(matches!(due.step().await?, SealStep::Sealed(it) if it.seal.events == 1));
    for stream in 10..22 {
        record(&database, "task", Uuid::from_u128(stream), 1, json!({})).await?;
    }
    assert!(matches!(patient.step().await?, SealStep::Sealed(it) if it.seal.events == 10));
    assert_eq!(patient.step().await?, SealStep::Nothing, "two are left");
    assert_eq!(due.catch_up().await?, 2);
    all_sealed(&database).await
}

/// A writer that took its position early and commits late: the sealer stops before it, and takes it with the next seal.
#[tokio::test]
async fn a_late_commit_is_sealed_and_not_skipped() -> Anyhow {
    let database = TestDatabase::create().await?;
    fill(&database, 1, 2).await?;
    let mut late = database.pool().begin().await?;
    let held = record_in(&mut late, "task", Uuid::from_u128(50), 1, json!({})).await?;
    let mut given_up = database.pool().begin().await?;
    record_in(&mut given_up, "task", Uuid::from_u128(51), 1, json!({})).await?;
    fill_after(&database).await?;
    let sealer = sealer(&database, 100);
    assert_eq!(sealer.catch_up().await?, 2, "only what is before the writer");
    given_up.rollback().await?;
    assert_eq!(sealer.catch_up().await?, 0);
    late.commit().await?;
    assert_eq!(sealer.catch_up().await?, 4);
    let sealed = database.count(&format!("SELECT count(*) FROM event_hashes WHERE position = {held}")).await?;
    assert_eq!(sealed, 1);
    all_sealed(&database).await
}

async fn fill_after(database: &TestDatabase) -> Anyhow {
    for version in 3..=5 {
        record(database, "task", Uuid::from_u128(1), version, json!({ "n": version })).await?;
    }
    Ok(())
}

/// The sealer is killed at any moment, again and again, while writers write: each time it leaves all of a batch or nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_sealer_leaves_nothing_half_done() -> Anyhow {
    let database = TestDatabase::create().await?;
    fill(&database, 20, 5).await?;
    for round in 0..40_u64 {
        let sealer = sealer(&database, 7);
        let work = async {
            loop {
                if sealer.step().await? == SealStep::Nothing {
                    return Anyhow::Ok(());
                }
            }
        };
        if let Ok(ended) = tokio::time::timeout(Duration::from_millis(round % 13), work).await {
            ended?;
        }
        if round % 4 == 0 {
            record(&database, "account", Uuid::from_u128(1), 1 + round as i64 / 4, json!({})).await?;
        }
        let halves =
            "SELECT count(*) FROM event_hashes WHERE position > (SELECT coalesce(max(last_position), 0) FROM seals)";
        assert_eq!(database.count(halves).await?, 0, "hashes without a seal after round {round}");
    }
    sealer(&database, 7).catch_up().await?;
    all_sealed(&database).await
}

/// Several sealers: one works at a time, none disturbs the others, and when one ends another goes on.
#[tokio::test(flavor = "multi_thread")]
async fn sealers_at_once_make_one_row_of_seals() -> Anyhow {
    let database = TestDatabase::create().await?;
    let mut sealers = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let sealer = sealer(&database, 5);
        sealers.spawn(async move { sealer.run(tokio::time::sleep(Duration::from_secs(4))).await });
    }
    fill(&database, 10, 12).await?;
    while let Some(ended) = sealers.join_next().await {
        ended?;
    }
    sealer(&database, 5).catch_up().await?;
    all_sealed(&database).await
}

/// While another one holds the lock, a sealer stands by; it is free with the other's connection.
#[tokio::test]
async fn a_sealer_stands_by_while_another_one_works() -> Anyhow {
    let database = TestDatabase::create().await?;
    fill(&database, 1, 1).await?;
    let mut other = database.pool().begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock(10::bigint << 56)").execute(&mut *other).await?;
    let sealer = sealer(&database, 5);
    assert_eq!(sealer.step().await?, SealStep::Standby);
    other.rollback().await?;
    assert!(matches!(sealer.step().await?, SealStep::Sealed(_)));
    Ok(())
}

/// Hashes and seals are append-only, for their owner too.
#[tokio::test]
async fn hashes_and_seals_can_not_be_changed_or_removed() -> Anyhow {
    let database = TestDatabase::create().await?;
    fill(&database, 1, 1).await?;
    sealer(&database, 5).catch_up().await?;
    for table in ["event_hashes", "seals"] {
        for statement in [format!("DELETE FROM {table}"), format!("TRUNCATE {table}")] {
            let error = database.sql(&statement).await.expect_err(&statement);
            assert!(format!("{:?}", error).contains("append-only"), "{error:?}");
        }
    }
    for statement in ["UPDATE event_hashes SET hash = sha256('x')", "UPDATE seals SET root = sha256('x')"] {
        let error = database.sql(statement).await.expect_err(statement);
        assert!(format!("{:?}", error).contains("append-only"), "{error:?}");
    }
    Ok(())
}
