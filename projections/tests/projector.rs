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
        let status = projection_status(&pool).await?;
        ensure!(status.held_back_by.is_none() && status.behind_events == 0, "{status:?}");
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

/// Before the first event there is nothing to be behind of, and nobody to wait for.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_log_is_caught_up() -> Result<()> {
    on_database(|pool| async move {
        let mut foreign = pool.begin().await?;
        sqlx::query("CREATE TABLE somebody_elses (x integer)").execute(&mut *foreign).await?;
        for _ in 0..2 {
            let status = projection_status(&pool).await?;
            ensure!((status.position, status.readable, status.behind_events) == (0, 0, 0), "{status:?}");
            ensure!(status.held_back_by.is_none() && status.behind_seconds == 0.0, "{status:?}");
            Projector::new(pool.clone(), ProjectorConfig::default()).catch_up().await?;
        }
        foreign.rollback().await?;
        Ok(())
    })
    .await
}

/// Far behind, the status is reckoned from positions: counting would take as long as the projector is behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_way_behind_is_not_counted() -> Result<()> {
    on_database(|pool| async move {
        let fill = "INSERT INTO events (event_id, category, stream_id, version, name, schema_version, body, tenant_id,
                                        correlation_id, causation_id, actor, recorded_at)
                    SELECT id, 'account', id, 1, 'account.granted', 1, '{\"key\": \"welcome\", \"amount\": 100}', id, id, id, 'test',
                           clock_timestamp() - interval '1 hour'
                      FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, $1::integer)) AS given";
        sqlx::query(fill).bind(10_000).execute(&pool).await?;
        let status = projection_status(&pool).await?;
        ensure!(status.behind_events == 10_000 && !status.is_reckoned() && status.behind_seconds > 3_599.0, "{status:?}");
        sqlx::query(fill).bind(2_000).execute(&pool).await?;
        let status = projection_status(&pool).await?;
        ensure!(status.behind_events == 12_000 && status.is_reckoned() && status.behind_seconds > 3_599.0, "{status:?}");
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

type Event = (&'static str, u128, i64, &'static str, &'static str);

/// Histories that can not have happened, with what is wrong about the last event of each. `#1` is the id made of the number 1.
const IMPOSSIBLE: &[(&str, &[Event])] = &[
    (
        "repeats what exists already (read_attempts_task_id_number_key)",
        &[
            ("attempt", 1, 1, "attempt.planned", r##"{"task": "#2", "number": 1, "provider": "p"}"##),
            ("attempt", 3, 1, "attempt.planned", r##"{"task": "#2", "number": 1, "provider": "p"}"##),
        ],
    ),
    (
        "repeats what exists already (read_account_entries_account_id_business_key_key)",
        &[
            ("account", 4, 1, "account.granted", r#"{"key": "a", "amount": 1}"#),
            ("account", 4, 2, "account.granted", r#"{"key": "a", "amount": 1}"#),
        ],
    ),
    (
        "out of range",
        &[
            ("account", 5, 1, "account.granted", r#"{"key": "a", "amount": 9223372036854775807}"#),
            ("account", 5, 2, "account.granted", r#"{"key": "b", "amount": 1}"#),
        ],
    ),
    (
        "repeats what exists already (read_holds_pkey)",
        &[
            ("account", 6, 1, "account.held", r##"{"task": "#7", "amount": 50}"##),
            ("account", 8, 1, "account.held", r##"{"task": "#7", "amount": 50}"##),
        ],
    ),
    (
        "the open hold it is about does not exist",
        &[("account", 9, 1, "account.settled", r##"{"task": "#10", "charged": 1, "released": 1}"##)],
    ),
    (
        "the charge it is about does not exist",
        &[
            ("account", 11, 1, "account.held", r##"{"task": "#12", "amount": 50}"##),
            ("account", 11, 2, "account.settled", r##"{"task": "#12", "charged": 40, "released": 10}"##),
            ("account", 11, 3, "account.refunded", r##"{"task": "#12", "key": "a", "amount": 39, "reason": "r"}"##),
            ("account", 11, 4, "account.refunded", r##"{"task": "#12", "key": "b", "amount": 2, "reason": "r"}"##),
        ],
    ),
    (
        "the task it is about does not exist",
        &[
            ("attempt", 13, 1, "attempt.planned", r##"{"task": "#14", "number": 1, "provider": "p"}"##),
            ("attempt", 13, 2, "attempt.submission_begun", r#"{"round": 1, "give_up_at": "2030-01-01T00:00:00Z"}"#),
        ],
    ),
    (
        "the event before it in its stream is missing",
        &[("attempt", 15, 2, "attempt.submission_begun", r#"{"round": 1, "give_up_at": "2030-01-01T00:00:00Z"}"#)],
    ),
    (
        "the video it is about does not exist",
        &[
            ("task", 16, 1, "task.submitted", ORDER),
            (
                "task",
                16,
                2,
                "task.succeeded",
                r#"{"probe": {"duration_millis": null, "width": 1, "height": 1, "video_codec": "h264",
            "audio_codec": null, "millihertz": null}, "thumbnail": null, "charge": 1}"#,
            ),
        ],
    ),
    (
        "repeats what exists already (read_assets_pkey)",
        &[
            ("task", 17, 1, "task.submitted", ORDER),
            ("task", 17, 2, "task.video_stored", VIDEO),
            ("task", 18, 1, "task.submitted", ORDER),
            ("task", 18, 2, "task.video_stored", VIDEO),
        ],
    ),
    ("the category is not known", &[("ghost", 19, 1, "ghost.seen", "{}")]),
    ("does not decode", &[("account", 20, 1, "account.granted", r#"{"key": 7}"#)]),
];

const ORDER: &str = r##"{"order": {"task": "#16", "tenant": "#90", "account": "#90", "provider": "p", "model": "m",
    "duration_seconds": 4, "input_assets": ["#91", "#92"], "request_ref": "r", "hold": 50, "price_per_second": 10,
    "submitted_at": "2029-01-01T00:00:00Z", "give_up_at": "2030-01-01T00:00:00Z"}}"##;
const VIDEO: &str = r##"{"video": {"asset": "#93", "object": {"key": "k", "bytes": 1, "sha256": "ab", "content_type": "v"}},
    "at": "2029-01-01T00:00:00Z"}"##;

/// Also where the event that it can not follow came just before, in the same batch.
#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_have_happened_is_named_however_events_are_batched() -> Result<()> {
    for batch in [1, 500] {
        on_database(move |pool| async move {
            let mut connection = pool.acquire().await?;
            let projector = Projector::new(pool.clone(), ProjectorConfig { batch, ..ProjectorConfig::default() });
            for (wrong, events) in IMPOSSIBLE {
                let mut last = 0;
                for (category, stream, version, name, body) in *events {
                    let body = (0..100).rev().fold((*body).to_owned(), |body, id| {
                        body.replace(&format!("#{id}"), &Uuid::from_u128(id).to_string())
                    });
                    let body = serde_json::from_str(&body)?;
                    last = append(&mut connection, category, Uuid::from_u128(*stream), *version, name, body).await?;
                }
                let fault = match projector.catch_up().await {
                    Err(ProjectError::Corrupt(fault)) => fault,
                    other => anyhow::bail!("{wrong}: {other:?}"),
                };
                ensure!(fault.position == last && fault.to_string().contains(wrong), "{wrong} instead of {fault}");
                let status = projection_status(&pool).await?;
                ensure!(status.position == last - 1 && status.fault_position == Some(last), "{wrong}: {status:?}");
                // As if it had never been.
                sqlx::query("UPDATE projection_checkpoints SET position = $1").bind(last).execute(&pool).await?;
            }
            let inputs: Vec<Uuid> =
                sqlx::query_scalar("SELECT input_assets FROM read_tasks LIMIT 1").fetch_one(&pool).await?;
            ensure!(inputs == [Uuid::from_u128(91), Uuid::from_u128(92)]);
            Ok(())
        })
        .await?;
    }
    Ok(())
}
