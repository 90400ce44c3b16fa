//! The projector against a real database: what it must never skip, and what it must never wait for.

#![expect(clippy::disallowed_methods, reason = "a test ends what it starts, and sees how it ended")]

mod support;

use anyhow::{Context, Result, ensure};
use projections::ProjectError;
use projections::projector::{Projector, ProjectorConfig, Step, projection_status};
use rand::RngExt;
use std::time::Duration;
use support::{account_exists, append, append_grant, eventually, on_database};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// An event with a lower position commits after one with a higher position, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_commits_late_is_not_skipped() -> Result<()> {
    on_database(|pool| async move {
        let cancel = CancellationToken::new();
        let projector = Projector::new(pool.clone(), ProjectorConfig::default());
        let running = tokio::spawn({
            let cancel = cancel.clone();
            async move { projector.run(cancel).await }
        });
        // The first round begins on an empty log, where the sequence has not been called yet.
        for _ in 0..200 {
            let (slow, fast) = (Uuid::new_v4(), Uuid::new_v4());
            let mut late = pool.begin().await?;
            let lower = append_grant(&mut late, slow).await?;
            let mut early = pool.begin().await?;
            let higher = append_grant(&mut early, fast).await?;
            early.commit().await?;
            ensure!(lower < higher);
            let hold = rand::rng().random_range(0..15);
            tokio::time::sleep(Duration::from_millis(hold)).await;
            ensure!(!account_exists(&pool, fast).await?, "it was folded before an earlier one");
            late.commit().await?;
            eventually(|| async { Ok(account_exists(&pool, slow).await? && account_exists(&pool, fast).await?) })
                .await?;
        }
        cancel.cancel();
        running.await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolled_back_append_holds_nobody_up() -> Result<()> {
    on_database(|pool| async move {
        let projector = Projector::new(pool.clone(), ProjectorConfig::default());
        let (gone, kept) = (Uuid::new_v4(), Uuid::new_v4());
        let mut doomed = pool.begin().await?;
        let gap = append_grant(&mut doomed, gone).await?;
        let mut connection = pool.acquire().await?;
        let position = append_grant(&mut connection, kept).await?;
        ensure!(matches!(projector.step().await?, Step::HeldBack(0) | Step::More(0)));
        doomed.rollback().await?;
        projector.catch_up().await?;
        ensure!(account_exists(&pool, kept).await? && !account_exists(&pool, gone).await?);
        let status = projection_status(&pool).await?;
        ensure!(gap < position && status.position == position && status.behind_events == 0, "{status:?}");
        Ok(())
    })
    .await
}

/// Old snapshots elsewhere (backups, analysts) write no events and are not waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_foreign_transaction_holds_nobody_up() -> Result<()> {
    on_database(|pool| async move {
        let mut foreign = pool.begin().await?;
        sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *foreign).await?;
        sqlx::query("SELECT count(*) FROM events").execute(&mut *foreign).await?;
        sqlx::query("CREATE TABLE somebody_elses (x integer)").execute(&mut *foreign).await?;
        let account = Uuid::new_v4();
        let mut connection = pool.acquire().await?;
        append_grant(&mut connection, account).await?;
        let projector = Projector::new(pool.clone(), ProjectorConfig::default());
        ensure!(projector.catch_up().await? == 1);
        ensure!(account_exists(&pool, account).await?);
        foreign.rollback().await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_hangs_is_named() -> Result<()> {
    on_database(|pool| async move {
        let mut hanging = pool.begin().await?;
        sqlx::query("SET LOCAL application_name = 'a worker'").execute(&mut *hanging).await?;
        // The log is empty: the sequence has not been called yet.
        append_grant(&mut hanging, Uuid::new_v4()).await?;
        let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *hanging).await?;
        let behind = Uuid::new_v4();
        let mut connection = pool.acquire().await?;
        append_grant(&mut connection, behind).await?;
        let projector = Projector::new(pool.clone(), ProjectorConfig::default());
        ensure!(projector.catch_up().await? == 0);
        tokio::time::sleep(Duration::from_millis(50)).await;
        let status = projection_status(&pool).await?;
        let held_by = status.held_back_by.as_ref().context("nobody is named")?;
        ensure!(held_by.pid == pid && held_by.application == "a worker", "{status:?} instead of {pid}");
        ensure!(held_by.state == "idle in transaction" && held_by.seconds > 0.04, "{status:?}");
        ensure!(status.behind_events == 1 && status.behind_seconds > 0.04 && status.readable == 0, "{status:?}");
        hanging.commit().await?;
        ensure!(projector.catch_up().await? == 2);
        let status = projection_status(&pool).await?;
        ensure!(
            status.held_back_by.is_none() && status.behind_events == 0 && status.behind_seconds == 0.0,
            "{status:?}"
        );
        Ok(())
    })
    .await
}

/// What is before a corrupt event is folded; the event itself is named and never passed.
#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_event_stops_the_projector_by_name() -> Result<()> {
    on_database(|pool| async move {
        let mut connection = pool.acquire().await?;
        let (before, after) = (Uuid::new_v4(), Uuid::new_v4());
        let last_good = append_grant(&mut connection, before).await?;
        let bad = append(&mut connection, "task", Uuid::new_v4(), 1, "task.teleported", serde_json::json!({})).await?;
        append_grant(&mut connection, after).await?;
        let projector = Projector::new(pool.clone(), ProjectorConfig::default());
        for _ in 0..3 {
            let fault = match projector.catch_up().await {
                Err(ProjectError::Corrupt(fault)) => fault,
                other => anyhow::bail!("{other:?}"),
            };
            ensure!(fault.position == bad && fault.name == "task.teleported", "{fault}");
        }
        ensure!(account_exists(&pool, before).await? && !account_exists(&pool, after).await?);
        let status = projection_status(&pool).await?;
        ensure!(status.position == last_good && status.fault_position == Some(bad), "{status:?}");
        ensure!(status.fault.context("no fault is shown")?.contains("task.teleported"));
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_does_not_follow_is_corrupt() -> Result<()> {
    on_database(|pool| async move {
        let mut connection = pool.acquire().await?;
        let account = Uuid::new_v4();
        append_grant(&mut connection, account).await?;
        let body = serde_json::json!({"key": "more", "amount": 5});
        append(&mut connection, "account", account, 3, "account.granted", body).await?;
        let projector = Projector::new(pool.clone(), ProjectorConfig::default());
        let error = projector.catch_up().await.err().context("a gap was folded")?;
        ensure!(matches!(error, ProjectError::Corrupt(_)), "{error:?}");
        let available: i64 = sqlx::query_scalar("SELECT available FROM read_accounts").fetch_one(&pool).await?;
        ensure!(available == 100);
        Ok(())
    })
    .await
}

/// Two at once: one works, one stands by, nothing is folded twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_projector_stands_by() -> Result<()> {
    on_database(|pool| async move {
        let projector = Projector::new(pool.clone(), ProjectorConfig { batch: 7, ..ProjectorConfig::default() });
        ensure!(projector.step().await? == Step::More(0), "the first step makes the checkpoint");
        let mut other = pool.begin().await?;
        sqlx::query("SELECT * FROM projection_checkpoints FOR UPDATE").execute(&mut *other).await?;
        ensure!(projector.step().await? == Step::Standby);
        other.rollback().await?;

        let cancel = CancellationToken::new();
        let running: Vec<_> = (0..2)
            .map(|_| {
                let (projector, cancel) = (projector.clone(), cancel.clone());
                tokio::spawn(async move { projector.run(cancel).await })
            })
            .collect();
        let mut connection = pool.acquire().await?;
        for _ in 0..100 {
            append_grant(&mut connection, Uuid::new_v4()).await?;
        }
        eventually(|| async { Ok(projection_status(&pool).await?.behind_events == 0) }).await?;
        cancel.cancel();
        for task in running {
            task.await?;
        }
        let (rows, sum): (i64, i64) =
            sqlx::query_as("SELECT count(*), sum(available)::bigint FROM read_accounts").fetch_one(&pool).await?;
        ensure!(rows == 100 && sum == 10_000);
        Ok(())
    })
    .await
}
