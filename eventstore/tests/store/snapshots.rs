//! Snapshots on a real PostgreSQL: only ever a shortcut. Whatever is wrong with one, the stream is what its events say.

use super::log::{EDITABLE, Said, busy_account, cold, fold, polled_attempt, record, stored, warm};
use super::support::{Anyhow, database, invariants, policy, request, submitted, tenant_with};
use domain::aggregate::Category;
use domain::attempt::Attempt;
use domain::id::{AccountId, AttemptId, TaskId, TenantId};
use domain::ledger::Account;
use domain::money::Credits;
use domain::process::{CaseKey, Folded, StreamId, grant};
use domain::stored::Stored;
use domain::task::Task;
use domain::testkit::Subject;
use domain::testkit::strategies::histories;
use eventstore::testkit::TestDatabase;
use eventstore::{History, Store};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRunner};
use serde_json::Value;
use sqlx::PgPool;
use std::time::Duration;
use uuid::Uuid;

type Row = (i64, i16, Vec<u8>, Value);

async fn snapshot(pool: &PgPool, stream: StreamId) -> Anyhow<Option<Row>> {
    Ok(sqlx::query_as("SELECT version, shape, digest, state FROM snapshots WHERE category = $1 AND stream_id = $2")
        .bind(stream.category.name())
        .bind(stream.id)
        .fetch_optional(pool)
        .await?)
}

/// The stream's snapshot, as soon as it is one that will do.
async fn settled(pool: &PgPool, stream: StreamId, will_do: impl Fn(&Row) -> bool) -> Anyhow<Row> {
    for _ in 0..500 {
        if let Some(row) = snapshot(pool, stream).await?.filter(&will_do) {
            return Ok(row);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(format!("{stream} got no such snapshot: {:?}", snapshot(pool, stream).await?.map(|it| (it.0, it.1))).into())
}

fn account(n: u128) -> StreamId {
    StreamId::account(AccountId(Uuid::from_u128(n)))
}

/// An account of many postings, and an attempt of many polls, in the log.
async fn long_streams(database: &TestDatabase) -> Anyhow<[(StreamId, Vec<Stored>); 2]> {
    let task = TaskId(Uuid::from_u128(5));
    let postings = stored(busy_account(1, 150))?;
    let polls = stored(polled_attempt(task, 120))?;
    let streams = [(account(1), postings), (StreamId::attempt(AttemptId::of(task, 1)), polls)];
    for (stream, events) in &streams {
        record(database.pool(), *stream, 0, events).await?;
    }
    Ok(streams)
}

/// The load that finds a long stream has its snapshot written; the next cold start begins there, and reads nothing before.
#[tokio::test]
async fn a_cold_start_begins_at_the_snapshot() -> Anyhow {
    let database = database().await?;
    for (stream, mut events) in long_streams(&database).await? {
        let whole = fold(stream, &events)?;
        assert_eq!(snapshot(database.pool(), stream).await?, None);
        assert_eq!(cold(database.pool(), stream).await?, whole);
        let (version, ..) = settled(database.pool(), stream, |_| true).await?;
        assert_eq!(version, i64::try_from(events.len())?);
        // What is before the snapshot is not read: it could not be folded any more.
        database.sql(EDITABLE).await?;
        let change = format!("UPDATE events SET name = 'unheard.of' WHERE stream_id = '{}' AND version = 2", stream.id);
        database.sql(&change).await?;
        assert_eq!(cold(database.pool(), stream).await?, whole);
        // What is after it is.
        let more = match stream.category {
            Category::Account => {
                stored([domain::ledger::Event::Granted { key: "v-2".to_owned(), amount: Credits(7) }])?
            }
            _ => stored([domain::attempt::Event::Succeeded { usage_millis: None }])?,
        };
        record(database.pool(), stream, version, &more).await?;
        events.extend(more);
        assert_eq!(cold(database.pool(), stream).await?, fold(stream, &events)?);
    }
    Ok(())
}

/// E2: in all its variants, and a few more.
#[tokio::test]
async fn whatever_is_wrong_with_a_snapshot_it_is_replaced_and_nobody_is_told_but_the_log() -> Anyhow {
    let common = [
        ("an old stamp", "shape = 0"),
        ("a stamp of later", "shape = shape + 1"),
        ("an older version than it has", "version = version - 1"),
        ("another digest", "digest = 'garbage'"),
        ("no digest", "digest = ''"),
        ("garbage", "state = '\"garbage\"'"),
        ("nothing", "state = 'null'"),
        ("an empty state", "state = '{}'"),
        ("a list", "state = '[1, 2, 3]'"),
        ("a field more", "state = state || '{\"more\": 1}'"),
        ("a version beyond the log", "version = version + 50"),
    ];
    let of_accounts = [
        ("a field dropped", "state = state - 'held'"),
        ("a field renamed", "state = (state - 'held') || jsonb_build_object('on_hold', state -> 'held')"),
        ("another balance", "state = jsonb_set(state, '{available}', '999999')"),
        ("a hold dropped", "state = jsonb_set(state, '{holds}', to_jsonb(substr(state ->> 'holds', 38)))"),
    ];
    let of_attempts = [
        ("a field dropped", "state = state - 'job'"),
        ("a field dropped that may be absent", "state = state - 'percent'"),
        ("a field renamed", "state = (state - 'polls') || jsonb_build_object('asked', state -> 'polls')"),
        ("another state", "state = jsonb_set(state, '{state}', '\"FAILED\"')"),
    ];
    let database = database().await?;
    for (stream, events) in long_streams(&database).await? {
        let whole = fold(stream, &events)?;
        assert_eq!(cold(database.pool(), stream).await?, whole);
        let sound = settled(database.pool(), stream, |_| true).await?;
        let own = if stream.category == Category::Account { of_accounts } else { of_attempts };
        for (what, change) in common.into_iter().chain(own) {
            let wrong = format!("UPDATE snapshots SET {change} WHERE stream_id = '{}'", stream.id);
            database.sql(&wrong).await?;
            assert_ne!(snapshot(database.pool(), stream).await?, Some(sound.clone()), "{what}: nothing was changed");
            let said = Said::default();
            let listening = said.listen();
            // Two that have read nothing yet meet it, one after the other.
            for _ in 0..2 {
                assert_eq!(cold(database.pool(), stream).await.map_err(|it| format!("{what}: {it}"))?, whole, "{what}");
            }
            let rewritten = settled(database.pool(), stream, |it| *it == sound).await;
            drop(rewritten.map_err(|it| format!("{what}: {it}"))?);
            assert_eq!(cold(database.pool(), stream).await?, whole, "{what}");
            drop(listening);
            let warnings = said.lines("snapshot");
            assert_eq!(warnings.len(), 1, "{what}: {warnings:?}");
            assert!(warnings[0].contains("WARN") && warnings[0].contains(&stream.to_string()), "{what}: {warnings:?}");
        }
    }
    Ok(())
}

/// A snapshot of another stream is none of this one, however sound it is.
#[tokio::test]
async fn a_snapshot_belongs_to_its_stream() -> Anyhow {
    let database = database().await?;
    let events = [stored(busy_account(1, 150))?, stored(busy_account(2, 150))?];
    for (n, events) in (1..).zip(&events) {
        record(database.pool(), account(n), 0, events).await?;
        drop(cold(database.pool(), account(n)).await?);
        drop(settled(database.pool(), account(n), |_| true).await?);
    }
    let swap =
        "UPDATE snapshots s SET digest = o.digest, state = o.state FROM snapshots o WHERE o.stream_id <> s.stream_id";
    database.sql(swap).await?;
    for (n, events) in (1..).zip(&events) {
        assert_eq!(cold(database.pool(), account(n)).await?, fold(account(n), events)?);
    }
    Ok(())
}

/// A restore took the end of the log away and left the snapshot; then the log goes on otherwise, past the snapshot's version.
#[tokio::test]
async fn a_snapshot_of_a_log_that_is_gone_is_not_used() -> Anyhow {
    let database = database().await?;
    let (stream, pool) = (account(1), database.pool());
    let events = stored(busy_account(1, 150))?;
    record(pool, stream, 0, &events).await?;
    drop(cold(pool, stream).await?);
    let (version, ..) = settled(pool, stream, |_| true).await?;
    let store = Store::on(pool.clone(), policy());
    drop(warm(&store, stream).await?);
    database.sql(EDITABLE).await?;
    database.sql("DELETE FROM events WHERE version > 250").await?;
    let mut left = events[..250].to_vec();
    // Who has it in memory finds out first, and reads again.
    assert!(matches!(warm(&store, stream).await.map_err(|it| it.to_string()), Err(text) if text.contains("first")));
    assert_eq!(warm(&store, stream).await?, fold(stream, &left)?);
    assert_eq!(settled(pool, stream, |it| it.0 < version).await?.0, 250);
    // The old one once more, and a log that went on otherwise.
    database.sql("DELETE FROM snapshots").await?;
    record(pool, stream, 250, &events[250..]).await?;
    drop(cold(pool, stream).await?);
    drop(settled(pool, stream, |it| it.0 == version).await?);
    database.sql("DELETE FROM events WHERE version > 250").await?;
    let others = (0..100).map(|n| domain::ledger::Event::Granted { key: format!("other-{n}"), amount: Credits(1) });
    let others = stored(others)?;
    record(pool, stream, 250, &others).await?;
    left.extend(others);
    assert_eq!(cold(pool, stream).await?, fold(stream, &left)?);
    assert_eq!(settled(pool, stream, |it| it.0 != version).await?.0, 350);
    Ok(())
}

/// Short streams have none: not a task's whole life, and not an account of 99 postings.
#[tokio::test]
async fn short_streams_get_no_snapshot() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let tenant = tenant_with(store, 100_000).await?;
    for n in 0..98 {
        drop(submitted(store, tenant, Some(&format!("order-{n}"))).await?);
    }
    let stream = StreamId::account(AccountId::of(tenant));
    assert_eq!(warm(store, stream).await?.version(), 99);
    assert_eq!(cold(database.pool(), stream).await?.version(), 99);
    // If one had been asked for, it would be there by the time that the next one is.
    drop(submitted(store, tenant, None).await?);
    drop(warm(store, stream).await?);
    assert_eq!(settled(database.pool(), stream, |_| true).await?.0, 100);
    assert_eq!(database.count("SELECT count(*) FROM snapshots").await?, 1);
    Ok(())
}

/// Where snapshots can not be written, everything else goes on, and the log says so.
#[tokio::test]
async fn a_snapshot_that_can_not_be_written_stops_nobody() -> Anyhow {
    let database = database().await?;
    database.sql("ALTER TABLE snapshots ADD CONSTRAINT none_today CHECK (false) NOT VALID").await?;
    let said = Said::default();
    let listening = said.listen();
    for (stream, events) in long_streams(&database).await? {
        assert_eq!(cold(database.pool(), stream).await?, fold(stream, &events)?);
    }
    for _ in 0..500 {
        if said.lines("was not written").len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(listening);
    assert_eq!(said.lines("was not written").len(), 2);
    assert_eq!(database.count("SELECT count(*) FROM snapshots").await?, 0);
    Ok(())
}

/// Two processes write to one account, while others start and read it cold. Nothing is lost, posted twice, or read otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn two_writers_and_cold_readers_agree() -> Anyhow {
    const EACH: usize = 260;
    let database = database().await?;
    let tenant = TenantId(Uuid::new_v4());
    let stream = StreamId::account(AccountId::of(tenant));
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..2 {
        let store = Store::on(database.pool().clone(), policy());
        tasks.spawn(async move {
            for n in 0..EACH {
                let key = CaseKey::account(AccountId::of(tenant));
                let command = |turn: &mut domain::process::Turn<'_>| grant(turn, format!("{writer}-{n}"), Credits(1));
                store.execute(&request(tenant, None), key, None, command).await?;
            }
            Anyhow::<()>::Ok(())
        });
    }
    let pool = database.pool().clone();
    tasks.spawn(async move {
        let mut before = 0;
        while before < i64::try_from(2 * EACH)? {
            let Folded::Account(read) = cold(&pool, stream).await? else { return Err("no account".into()) };
            assert_eq!(read.state.available, Credits(read.version), "each posting is one unit");
            assert!(read.version >= before, "the account went back");
            before = read.version;
        }
        Ok(())
    });
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    let (version, ..) = settled(database.pool(), stream, |it| it.0 >= 400).await?;
    assert!(version <= i64::try_from(2 * EACH)?);
    let all = database.store().past(stream, eventstore::Moment::Newest).await?;
    assert_eq!(cold(database.pool(), stream).await?, all.folded);
    invariants(database.store()).await?;
    Ok(())
}

async fn same_wherever_it_is_cut<A: Subject>(database: &TestDatabase, cases: u32) -> Anyhow {
    let mut runner = TestRunner::new(Config::with_cases(cases));
    let cases_of = (histories::<A>(40), proptest::prelude::any::<proptest::sample::Index>(), 0_usize..3);
    for _ in 0..cases {
        let (history, cut, later) = cases_of.new_tree(&mut runner).map_err(|it| it.to_string())?.current();
        let events = stored(history.events)?;
        if events.is_empty() {
            continue;
        }
        let stream = StreamId { category: A::CATEGORY, id: Uuid::new_v4() };
        let recorded = events.len() - later.min(events.len() - 1);
        record(database.pool(), stream, 0, &events[..recorded]).await?;
        let cut = i64::try_from(cut.index(recorded))? + 1;
        database.store().write_snapshot(stream, cut).await?;
        let store = Store::on(database.pool().clone(), policy());
        assert_eq!(warm(&store, stream).await?, fold(stream, &events[..recorded])?, "{stream} cut at {cut}");
        record(database.pool(), stream, i64::try_from(recorded)?, &events[recorded..]).await?;
        assert_eq!(warm(&store, stream).await?, fold(stream, &events)?, "{stream} cut at {cut}, and warm");
        assert_eq!(cold(database.pool(), stream).await?, fold(stream, &events)?, "{stream} cut at {cut}, and grown");
    }
    let written = format!("SELECT count(*) FROM snapshots WHERE category = '{}'", A::CATEGORY.name());
    assert!(database.count(&written).await? > i64::from(cases) / 2, "most histories have events");
    Ok(())
}

/// With a snapshot at any point of any history, a load is the fold of all events.
#[tokio::test]
async fn a_load_is_the_fold_of_all_events_wherever_the_snapshot_is() -> Anyhow {
    let database = database().await?;
    same_wherever_it_is_cut::<Account>(&database, 64).await?;
    same_wherever_it_is_cut::<Attempt>(&database, 64).await?;
    same_wherever_it_is_cut::<Task>(&database, 64).await
}
