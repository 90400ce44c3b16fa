//! Random histories by the real process managers: read tables equal a fresh fold, and the named invariants hold; and each
//! kind of damage is found.

mod support;

use anyhow::{Context, Result, ensure};
use domain::aggregate::Category;
use domain::id::TenantId;
use domain::process::{Folded, StreamId};
use domain::stored::Stored;
use projections::doctor::{Finding, Limits, examine};
use projections::projector::{Projector, ProjectorConfig, Step, projection_status};
use projections::rebuild::{rebuild, verify};
use sqlx::PgPool;
use sqlx::postgres::PgListener;
use std::time::Duration;
use support::world::World;
use support::{append, on_database};
use uuid::Uuid;

async fn project(pool: &PgPool) -> Result<usize> {
    Ok(Projector::new(pool.clone(), ProjectorConfig { batch: 50, ..ProjectorConfig::default() }).catch_up().await?)
}

fn broken(findings: &[Finding]) -> Vec<&'static str> {
    findings.iter().filter(|finding| !finding.ok).map(|finding| finding.invariant).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn read_tables_equal_a_fresh_fold_and_every_invariant_holds() -> Result<()> {
    on_database(|pool| async move {
        let world = World::on(&pool);
        world.live(40).await?;
        project(&pool).await?;
        world.live(20).await?;
        let folded = project(&pool).await?;
        let tables = verify(&pool, |_| ()).await?;
        ensure!(tables.iter().all(|table| table.is_equal() && table.rows > 0), "{tables:?}");
        let findings = examine(&pool, Limits::default()).await?;
        ensure!(broken(&findings).is_empty(), "{findings:#?}");
        ensure!(findings.len() == 13);

        let states: Vec<(String, i64)> =
            sqlx::query_as("SELECT state, count(*) FROM read_tasks GROUP BY state ORDER BY state").fetch_all(&pool).await?;
        println!("{folded} events in the second round; {states:?}");
        ensure!(states.len() >= 3, "the histories are too much alike: {states:?}");
        let woken: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM read_tasks WHERE (wake_at IS NULL) <> (finished_at IS NOT NULL OR state = 'MANUAL_REVIEW')",
        )
        .fetch_one(&pool)
        .await?;
        ensure!(woken == 0, "{woken} tasks at rest would be woken");

        // Everything again, with the old rows damaged.
        sqlx::query("UPDATE read_accounts SET available = 7").execute(&pool).await?;
        sqlx::query("DELETE FROM read_attempts").execute(&pool).await?;
        let done = rebuild(&pool, |_| ()).await?;
        let events: i64 = sqlx::query_scalar("SELECT count(*) FROM events").fetch_one(&pool).await?;
        ensure!(done.events == events.unsigned_abs(), "{done:?}");
        ensure!(verify(&pool, |_| ()).await?.iter().all(|table| table.is_equal() && table.rows > 0));
        let status = projection_status(&pool).await?;
        ensure!(status.behind_events == 0 && status.fault.is_none(), "{status:?}");
        let left: i64 =
            sqlx::query_scalar("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'read_models%'").fetch_one(&pool).await?;
        ensure!(left == 0, "a schema was left behind");
        Ok(())
    })
    .await
}

/// Event by event: no open task is ever without a time at which it goes on, and in the end each row says what the domain's own
/// fold of its stream says.
#[tokio::test(flavor = "multi_thread")]
async fn rows_say_what_the_domain_says() -> Result<()> {
    on_database(|pool| async move {
        World::on(&pool).live(12).await?;
        let projector = Projector::new(pool.clone(), ProjectorConfig { batch: 1, ..ProjectorConfig::default() });
        let mut steps = 0;
        while matches!(projector.step().await?, Step::More(_)) {
            steps += 1;
            let asleep: Vec<String> = sqlx::query_scalar(
                "SELECT state FROM read_tasks WHERE wake_at IS NULL AND finished_at IS NULL AND state <> 'MANUAL_REVIEW'",
            )
            .fetch_all(&pool)
            .await?;
            ensure!(asleep.is_empty(), "after step {steps} nothing wakes {asleep:?}");
        }
        let rows: Vec<(String, Uuid, i64, String)> = sqlx::query_as(
            "SELECT 'task', task_id, version, state FROM read_tasks
             UNION ALL SELECT 'attempt', attempt_id, version, state FROM read_attempts",
        )
        .fetch_all(&pool)
        .await?;
        ensure!(rows.len() > 12 && steps > 12 * 4, "{} rows, {steps} steps", rows.len());
        for (category, id, version, state) in rows {
            let stream = StreamId { category: Category::parse(&category).context("a category")?, id };
            let (expected_version, expected_state) = fold_stream(&pool, stream).await?;
            ensure!((version, state.as_str()) == (expected_version, expected_state), "{stream}: {state} {version}");
        }
        Ok(())
    })
    .await
}

/// Version and state of a stream, by the domain.
async fn fold_stream(pool: &PgPool, stream: StreamId) -> Result<(i64, &'static str)> {
    let events: Vec<(i64, String, i16, serde_json::Value)> = sqlx::query_as(
        "SELECT version, name, schema_version, body FROM events WHERE category = $1 AND stream_id = $2 ORDER BY version",
    )
    .bind(stream.category.name())
    .bind(stream.id)
    .fetch_all(pool)
    .await?;
    let events = events.into_iter().map(|(at, name, version, body)| (at, Stored { name, version, body }));
    Ok(match Folded::absent(stream.category).fold(stream, events)? {
        Folded::Task(it) => (it.version, it.state.state().name()),
        Folded::Attempt(it) => (it.version, it.state.state().name()),
        Folded::Account(it) => (it.version, "ACTIVE"),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_read_row_is_found() -> Result<()> {
    on_database(|pool| async move {
        let world = World::on(&pool);
        world.live(5).await?;
        project(&pool).await?;
        let task: Uuid = sqlx::query_scalar(
            "UPDATE read_tasks SET hold = hold + 1
             WHERE task_id = (SELECT min(task_id::text)::uuid FROM read_tasks) RETURNING task_id",
        )
        .fetch_one(&pool)
        .await?;
        sqlx::query("DELETE FROM read_holds WHERE task_id = $1").bind(task).execute(&pool).await?;
        let tables = verify(&pool, |_| ()).await?;
        for table in &tables {
            let expected = match table.table {
                "read_tasks" => (1, 1, vec![task.to_string()]),
                "read_holds" => (1, 0, vec![task.to_string()]),
                _ => (0, 0, vec![]),
            };
            ensure!((table.missing, table.extra, table.keys.clone()) == expected, "{table:?}");
        }
        let findings = examine(&pool, Limits::default()).await?;
        ensure!(broken(&findings) == ["replayable"], "{findings:#?}");
        Ok(())
    })
    .await
}

/// A change is announced to subscribers with its task, version and tenant.
#[tokio::test(flavor = "multi_thread")]
async fn changed_tasks_are_announced() -> Result<()> {
    on_database(|pool| async move {
        let world = World::on(&pool);
        let tenant = TenantId(Uuid::new_v4());
        world.grant(tenant, 100).await?;
        let task = world.submit(tenant).await?;
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen("aivideo_read").await?;
        project(&pool).await?;
        let heard = tokio::time::timeout(Duration::from_secs(5), listener.recv()).await??;
        let payload: serde_json::Value = serde_json::from_str(heard.payload())?;
        let expected = serde_json::json!({"t": task, "v": 1, "tenant": tenant});
        ensure!(payload == expected, "{payload}");
        let wakes: bool = sqlx::query_scalar(
            "SELECT t.wake_at = e.recorded_at + interval '30 seconds' FROM read_tasks t
               JOIN events e ON e.category = 'task' AND e.stream_id = t.task_id",
        )
        .fetch_one(&pool)
        .await?;
        ensure!(wakes);
        Ok(())
    })
    .await
}

/// One damage for each check; each is found by its name.
#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_names_what_is_broken() -> Result<()> {
    on_database(|pool| async move {
        let world = World::on(&pool);
        let tenant = TenantId(Uuid::new_v4());
        world.grant(tenant, 100).await?;
        let task = world.submit(tenant).await?.0;
        project(&pool).await?;
        let strict = Limits { unsent: Duration::ZERO, claimed: Duration::ZERO, ..Limits::default() };
        let findings = examine(&pool, strict).await?;
        ensure!(broken(&findings) == ["no-lost-message"], "two messages are overdue: {findings:#?}");
        sqlx::query("UPDATE outbox_events SET published_at = clock_timestamp()").execute(&pool).await?;
        ensure!(broken(&examine(&pool, strict).await?).is_empty());

        damage(&pool, tenant.0, task).await?;
        let findings = examine(&pool, strict).await?;
        let expected = [
            "one-task-per-key",
            "gapless-stream",
            "no-lost-message",
            "effect-once",
            "no-blind-resubmit",
            "one-winner",
            "terminal-is-terminal",
            "conserved-credits",
            "no-silent-stall",
            "poison-once",
            "tenant-wall",
            "replayable",
        ];
        ensure!(broken(&findings) == expected, "{findings:#?}");
        let lost = findings.iter().find(|it| it.invariant == "no-lost-message").context("not examined")?;
        ensure!(lost.count >= 1 && lost.detail.contains("never announced"), "{lost:?}");
        Ok(())
    })
    .await
}

/// A refund beyond the charge, also in two steps, and a hold that expired though its charge is due.
#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_adds_refunds_up() -> Result<()> {
    on_database(|pool| async move {
        let account = Uuid::new_v4();
        let (charged, expired) = (Uuid::new_v4(), Uuid::new_v4());
        let json = |text: String| serde_json::from_str::<serde_json::Value>(&text);
        let refunded = |key: &str, amount| {
            json(format!(r#"{{"task":"{charged}","key":"{key}","amount":{amount},"reason":"a test"}}"#))
        };
        let history = [
            ("account.granted", json(r#"{"key":"welcome","amount":100}"#.to_owned())?),
            ("account.held", json(format!(r#"{{"task":"{charged}","amount":50}}"#))?),
            ("account.settled", json(format!(r#"{{"task":"{charged}","charged":40,"released":10}}"#))?),
            ("account.refunded", refunded("a", 39)?),
            ("account.refunded", refunded("b", 2)?),
            ("account.held", json(format!(r#"{{"task":"{expired}","amount":10}}"#))?),
            (
                "account.hold_expired",
                json(format!(r#"{{"task":"{expired}","released":10,"at":"2030-01-01T00:00:00Z"}}"#))?,
            ),
        ];
        let mut connection = pool.acquire().await?;
        for (version, (name, body)) in (1_i64..).zip(history) {
            append(&mut connection, "account", account, version, name, body).await?;
        }
        append(&mut connection, "task", expired, 1, "task.succeeded", json("{}".to_owned())?).await?;
        let findings = examine(&pool, Limits::default()).await?;
        let credits = findings.iter().find(|it| it.invariant == "conserved-credits").context("not examined")?;
        ensure!(credits.detail.contains(&format!("task {charged} was refunded 41 of 40")), "{credits:#?}");
        ensure!(credits.detail.contains(&format!("the hold of task {expired} expired")), "{credits:#?}");
        Ok(())
    })
    .await
}

async fn damage(pool: &PgPool, tenant: Uuid, task: Uuid) -> Result<()> {
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text);
    let mut connection = pool.acquire().await?;
    let attempt = Uuid::new_v4();
    let planned = serde_json::json!({"task": task, "number": 1, "provider": "simulated"});
    // `append` uses the stream's id as the tenant: these attempt events name another tenant than their task.
    append(&mut connection, "attempt", attempt, 1, "attempt.planned", planned).await?;
    let begun = |round: u32| serde_json::json!({"round": round, "give_up_at": "2030-01-01T00:00:00Z"});
    append(&mut connection, "attempt", attempt, 2, "attempt.submission_begun", begun(1)).await?;
    append(&mut connection, "attempt", attempt, 3, "attempt.submission_begun", begun(2)).await?;
    append(&mut connection, "task", task, 2, "task.failed", json(r#"{"class":"output","code":"x","message":"x"}"#)?)
        .await?;
    let video = json(r#"{"video":{"object":{"key":"nowhere"}}}"#)?;
    append(&mut connection, "task", task, 4, "task.video_stored", video).await?;
    let settled = serde_json::json!({"task": task, "charged": 1, "released": 1});
    append(&mut connection, "account", tenant, 3, "account.settled", settled.clone()).await?;
    append(&mut connection, "account", tenant, 4, "account.settled", settled).await?;
    for statement in [
        "INSERT INTO idempotency_keys VALUES (gen_random_uuid(), 'submitGeneration', 'k', '', 'null')",
        "INSERT INTO inbox_dedup (consumer_name, event_id, aggregate_id, phase, payload_hash)
         VALUES ('cg.test', gen_random_uuid(), gen_random_uuid(), 'claimed', '')",
        "UPDATE read_tasks SET wake_at = clock_timestamp() - interval '1 day'",
        "INSERT INTO message_quarantine (consumer_name, original_event_id, topic, payload_hash, payload_snapshot, error_class,
                                         error_message)
         SELECT 'cg.test', '00000000-0000-0000-0000-000000000001', 't', h, '', 'malformed', ''
           FROM (VALUES ('a'::bytea), ('b'::bytea)) AS bodies (h)",
    ] {
        sqlx::query(statement).execute(&mut *connection).await?;
    }
    Ok(())
}
