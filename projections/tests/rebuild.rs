//! Rebuilding beside the live tables: what readers see, what stays as it was, and what is touched.

#![expect(clippy::disallowed_methods, reason = "a test ends what it starts, and sees how it ended")]

mod support;

use anyhow::{Context, Result, ensure};
use domain::id::{TaskId, TenantId};
use projections::ProjectError;
use projections::projector::{Projector, ProjectorConfig, projection_status};
use projections::query::{Reader, Viewer};
use projections::rebuild::{RebuildError, rebuild, verify};
use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Executor, PgPool};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::world::World;
use support::{append, append_grant, eventually, on_database};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const TABLES: [&str; 6] =
    ["read_tasks", "read_attempts", "read_assets", "read_accounts", "read_account_entries", "read_holds"];

/// A few histories, folded.
async fn some_history(pool: &PgPool) -> Result<()> {
    World::on(pool).live(6).await?;
    catch_up(pool).await
}

async fn catch_up(pool: &PgPool) -> Result<()> {
    Projector::new(pool.clone(), ProjectorConfig::default()).catch_up().await?;
    Ok(())
}

/// A sum over all rows of all read tables.
async fn rows(pool: &PgPool) -> Result<Vec<String>> {
    let mut sums = Vec::new();
    for table in TABLES {
        let query = format!("SELECT md5(coalesce(string_agg(t::text, '' ORDER BY t::text), '')) FROM {table} t");
        sums.push(sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(pool).await?);
    }
    Ok(sums)
}

async fn nothing_is_left(pool: &PgPool) -> Result<()> {
    let left: Vec<String> =
        sqlx::query_scalar("SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'read_models%'")
            .fetch_all(pool)
            .await?;
    ensure!(left.is_empty(), "{left:?} were left behind");
    Ok(())
}

/// What readers in a loop have met.
#[derive(Default)]
struct Seen {
    old: AtomicU64,
    new: AtomicU64,
    longest_micros: AtomicU64,
    stop: AtomicBool,
}

/// Reads until it is told to stop: every answer is all old (a hold beyond 1,000) or all new, and never old again.
async fn read_on(pool: PgPool, seen: Arc<Seen>, task: TaskId) -> Result<()> {
    let reader = Reader::new(&World::on(&pool).store);
    let mut switched = false;
    while !seen.stop.load(Ordering::SeqCst) {
        let begun = Instant::now();
        let (all, old): (i64, i64) = sqlx::query_as(
            "SELECT count(*), count(*) FILTER (WHERE t.hold > 1000)
               FROM read_attempts a JOIN read_tasks t USING (task_id) JOIN read_holds h USING (task_id)",
        )
        .fetch_one(&pool)
        .await?;
        ensure!(all > 0 && (old == 0 || old == all), "{old} old rows of {all}");
        ensure!(!switched || old == 0, "the old rows are back");
        switched = old == 0;
        let row = reader.task(Viewer::everything(), task).await?.context("the task is gone")?;
        ensure!(!switched || row.hold < 1000, "the old row is back");
        seen.longest_micros.fetch_max(u64::try_from(begun.elapsed().as_micros())?, Ordering::SeqCst);
        if switched { &seen.new } else { &seen.old }.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

/// Readers with prepared statements and the projector go on through the switch, and new events arrive.
#[tokio::test(flavor = "multi_thread")]
async fn readers_see_the_old_rows_then_the_new_ones_and_no_error() -> Result<()> {
    on_database(|pool| async move {
        some_history(&pool).await?;
        sqlx::query("UPDATE read_tasks SET hold = hold + 1000").execute(&pool).await?;
        let task: Uuid = sqlx::query_scalar("SELECT min(task_id::text)::uuid FROM read_tasks").fetch_one(&pool).await?;
        let seen = Arc::new(Seen::default());
        let mut readers = JoinSet::new();
        for _ in 0..4 {
            readers.spawn(read_on(pool.clone(), Arc::clone(&seen), TaskId(task)));
        }
        let cancel = CancellationToken::new();
        let projector = Projector::new(pool.clone(), ProjectorConfig::default());
        let running = tokio::spawn({
            let cancel = cancel.clone();
            async move { projector.run(cancel).await }
        });
        let writing = tokio::spawn({
            let (pool, seen) = (pool.clone(), Arc::clone(&seen));
            async move {
                while !seen.stop.load(Ordering::SeqCst) {
                    append_grant(&mut *pool.acquire().await?, Uuid::new_v4()).await?;
                }
                anyhow::Ok(())
            }
        });
        eventually(|| async { Ok(seen.old.load(Ordering::SeqCst) > 20) }).await?;
        rebuild(&pool, |_| ()).await?;
        eventually(|| async { Ok(seen.new.load(Ordering::SeqCst) > 20) }).await?;
        // And once more, with the statements of the first switch still prepared.
        rebuild(&pool, |_| ()).await?;
        seen.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = readers.join_next().await {
            ended??;
        }
        writing.await??;
        eventually(|| async { Ok(projection_status(&pool).await?.behind_events == 0) }).await?;
        cancel.cancel();
        running.await?;
        let tables = verify(&pool, |_| ()).await?;
        ensure!(tables.iter().all(|table| table.is_equal()), "{tables:?}");
        println!("the longest read took {} µs", seen.longest_micros.load(Ordering::SeqCst));
        nothing_is_left(&pool).await
    })
    .await
}

/// What the catalogs say of the read tables.
async fn shape(pool: &PgPool) -> Result<Vec<String>> {
    Ok(sqlx::query_scalar(
        "WITH t AS (SELECT c.oid, c.* FROM pg_class c WHERE relnamespace = 'public'::regnamespace AND relname LIKE 'read\\_%'
                       AND relkind = 'r')
         SELECT concat_ws('|', relname, relowner, relacl::text, reloptions::text, obj_description(oid)) FROM t
         UNION ALL SELECT concat_ws('|', relname, attnum, attname, atttypid, attnotnull, attacl::text,
                                    (SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = t.oid AND adnum = attnum))
                     FROM t JOIN pg_attribute a ON attrelid = t.oid AND attnum > 0
         UNION ALL SELECT concat_ws('|', relname, conname, pg_get_constraintdef(k.oid)) FROM t JOIN pg_constraint k ON conrelid = t.oid
         UNION ALL SELECT pg_get_indexdef(indexrelid) FROM t JOIN pg_index ON indrelid = t.oid
         ORDER BY 1",
    )
    .fetch_all(pool)
    .await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_new_tables_are_made_like_the_old_ones() -> Result<()> {
    on_database(|pool| async move {
        // Roles that every server has.
        for statement in [
            "GRANT SELECT ON read_tasks, read_holds TO pg_monitor WITH GRANT OPTION",
            "GRANT SELECT (account_id, available), UPDATE (held) ON read_accounts TO pg_monitor",
            "GRANT SELECT ON read_assets TO PUBLIC",
            "COMMENT ON TABLE read_tasks IS 'one row a task; it''s folded'",
        ] {
            pool.execute(statement).await?;
        }
        let before = shape(&pool).await?;
        rebuild(&pool, |_| ()).await?;
        let after = shape(&pool).await?;
        ensure!(before.len() > 120 && before.iter().any(|line| line.contains("fillfactor=50")), "{before:#?}");
        ensure!(before == after, "{before:#?} became {after:#?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_that_can_not_fold_leaves_everything_as_it_was() -> Result<()> {
    on_database(|pool| async move {
        some_history(&pool).await?;
        let before = (rows(&pool).await?, projection_status(&pool).await?.position);
        let bad = append(
            &mut *pool.acquire().await?,
            "account",
            Uuid::new_v4(),
            2,
            "account.granted",
            serde_json::json!({"key": "no first one", "amount": 5}),
        )
        .await?;
        match rebuild(&pool, |_| ()).await {
            Err(RebuildError::Project(ProjectError::Corrupt(fault))) => ensure!(fault.position == bad, "{fault}"),
            other => anyhow::bail!("{other:?}"),
        }
        ensure!(before == (rows(&pool).await?, projection_status(&pool).await?.position));
        nothing_is_left(&pool).await
    })
    .await
}

/// Something made of a read table would go on showing the old one.
#[tokio::test(flavor = "multi_thread")]
async fn a_view_on_a_read_table_is_not_left_behind_in_silence() -> Result<()> {
    on_database(|pool| async move {
        pool.execute("CREATE VIEW report AS SELECT state, count(*) FROM read_tasks GROUP BY state").await?;
        let error = rebuild(&pool, |_| ()).await.err().context("it was switched away from under the view")?;
        ensure!(error.to_string().contains("report depends on a read table"), "{error}");
        pool.execute("DROP VIEW report").await?;
        pool.execute("CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'").await?;
        pool.execute("CREATE TRIGGER told AFTER INSERT ON read_tasks FOR EACH ROW EXECUTE FUNCTION nothing()").await?;
        let error = rebuild(&pool, |_| ()).await.err().context("the trigger was lost")?;
        ensure!(error.to_string().contains("read_tasks trigger told"), "{error}");
        nothing_is_left(&pool).await
    })
    .await
}

/// Cut off in the middle, a rebuild leaves live tables and projector alone, and the next one begins anew.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_rebuild_left_is_removed_by_the_next() -> Result<()> {
    on_database(|pool| async move {
        some_history(&pool).await?;
        let before = rows(&pool).await?;
        // It can not switch while this transaction has read a live table.
        let mut reading = pool.begin().await?;
        sqlx::query("SELECT count(*) FROM read_tasks").execute(&mut *reading).await?;
        let switching = Arc::new(AtomicBool::new(false));
        let dying = tokio::spawn({
            let (pool, switching) = (pool.clone(), Arc::clone(&switching));
            async move { rebuild(&pool, |it| switching.store(it.events > 0, Ordering::SeqCst)).await.map(|_| ()) }
        });
        eventually(|| async { Ok(switching.load(Ordering::SeqCst)) }).await?;
        dying.abort();
        ensure!(dying.await.is_err_and(|it| it.is_cancelled()));
        reading.rollback().await?;
        ensure!(rows(&pool).await? == before);
        append_grant(&mut *pool.acquire().await?, Uuid::new_v4()).await?;
        catch_up(&pool).await?;
        // The database ends the dead one's session in a moment.
        eventually(|| async {
            match rebuild(&pool, |_| ()).await {
                Ok(_) => Ok(true),
                Err(RebuildError::Running(_)) => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
        .await?;
        ensure!(verify(&pool, |_| ()).await?.iter().all(|table| table.is_equal()));
        nothing_is_left(&pool).await
    })
    .await
}

/// While somebody reads a live table for long, the switch waits, in small pieces: other readers and the projector go on.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_queues_for_long_behind_a_switch_that_waits() -> Result<()> {
    on_database(|pool| async move {
        some_history(&pool).await?;
        let mut report = pool.begin().await?;
        sqlx::query("SELECT count(*) FROM read_holds").execute(&mut *report).await?;
        let rebuilding = tokio::spawn({
            let pool = pool.clone();
            async move { rebuild(&pool, |_| ()).await }
        });
        eventually(|| async {
            Ok(sqlx::query_scalar(
                "SELECT EXISTS (SELECT FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted
                                   AND relation = 'public.read_holds'::regclass)",
            )
            .fetch_one(&pool)
            .await?)
        })
        .await?;
        let second = rebuild(&pool, |_| ()).await;
        ensure!(matches!(second, Err(RebuildError::Running(pid)) if pid > 0), "{second:?}");
        let (begun, mut longest) = (Instant::now(), Duration::ZERO);
        let account = Uuid::new_v4();
        append_grant(&mut *pool.acquire().await?, account).await?;
        catch_up(&pool).await?;
        while begun.elapsed() < Duration::from_secs(2) {
            let one = Instant::now();
            sqlx::query("SELECT count(*) FROM read_tasks t JOIN read_holds h USING (task_id)").execute(&pool).await?;
            longest = longest.max(one.elapsed());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        println!("the longest read beside the waiting switch took {longest:?}");
        ensure!(longest < Duration::from_millis(1_500), "{longest:?}");
        ensure!(!rebuilding.is_finished(), "it switched under a reader");
        report.rollback().await?;
        rebuilding.await??;
        ensure!(support::account_exists(&pool, account).await?);
        Ok(())
    })
    .await
}

/// Field case E5: neither calls anything, writes anything but read rows, or tells anybody.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_and_a_check_have_no_side_effects() -> Result<()> {
    const COUNTS: &str = "SELECT ARRAY[(SELECT count(*) FROM events), (SELECT count(*) FROM outbox_events),
        (SELECT count(*) FROM inbox_dedup), (SELECT count(*) FROM notifications), (SELECT count(*) FROM repairs),
        (SELECT count(*) FROM message_quarantine), (SELECT count(*) FROM read_account_entries),
        (SELECT count(*) FROM idempotency_keys), (SELECT last_value FROM events_position_seq)]";
    on_database(|pool| async move {
        some_history(&pool).await?;
        let before: (Vec<i64>, Vec<String>) = (sqlx::query_scalar(COUNTS).fetch_one(&pool).await?, rows(&pool).await?);
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen_all(["aivideo_read", "aivideo_events", "aivideo_outbox"]).await?;
        rebuild(&pool, |_| ()).await?;
        verify(&pool, |_| ()).await?;
        let after = (sqlx::query_scalar(COUNTS).fetch_one(&pool).await?, rows(&pool).await?);
        ensure!(before == after, "{before:?} became {after:?}");
        let heard = tokio::time::timeout(Duration::from_millis(300), listener.recv()).await;
        ensure!(heard.is_err(), "{heard:?}");
        // The listener does hear.
        let tenant = TenantId(Uuid::new_v4());
        World::on(&pool).grant(tenant, 100).await?;
        World::on(&pool).submit(tenant).await?;
        catch_up(&pool).await?;
        tokio::time::timeout(Duration::from_secs(5), listener.recv()).await??;
        Ok(())
    })
    .await
}

/// A projector that is down, or far behind, is overtaken.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_goes_on_to_the_end_of_the_log_without_a_projector() -> Result<()> {
    on_database(|pool| async move {
        World::on(&pool).live(3).await?;
        let mut doomed = pool.begin().await?;
        append_grant(&mut doomed, Uuid::new_v4()).await?;
        doomed.rollback().await?;
        let done = rebuild(&pool, |_| ()).await?;
        let status = projection_status(&pool).await?;
        ensure!(done.events > 0 && status.behind_events == 0 && status.position == status.readable, "{status:?}");
        ensure!(verify(&pool, |_| ()).await?.iter().all(|table| table.is_equal() && table.rows > 0));
        Ok(())
    })
    .await
}
