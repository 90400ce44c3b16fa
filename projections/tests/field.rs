//! Bad days met in the field, against a real database: see docs/field-cases.md for the numbers.

mod support;

use anyhow::{Context, Result, ensure};
use domain::id::TenantId;
use domain::message::envelope::MAX_BODY_BYTES;
use domain::message::{Envelope, Topic};
use domain::outcome::{Answer, Call, CancelAsked, Created, JobState, Polled};
use domain::time::Timestamp;
use eventstore::testkit::OwnServer;
use eventstore::{CallContext, Caller, Committed};
use projections::doctor::{Limits, examine};
use projections::projector::{Projector, ProjectorConfig, projection_status};
use projections::query::{Reader, Seen, Viewer};
use projections::rebuild::{rebuild, verify};
use projections::relay::{OutboundMessage, PublishFailure, RelayConfig, relay_status};
use sqlx::PgPool;
use sqlx::postgres::PgListener;
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::world::World;
use support::{Broker, Running, eventually, insert_news, on_database, on_server, outbox_row, quick};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

async fn tenant_of(world: &World) -> Result<TenantId> {
    let tenant = TenantId(Uuid::new_v4());
    world.grant(tenant, 1_000_000).await?;
    Ok(tenant)
}

async fn count(pool: &PgPool, query: &'static str) -> Result<i64> {
    Ok(sqlx::query_scalar(query).fetch_one(pool).await?)
}

/// O2: the broker takes three leases to answer two relays. What it gets more than once has one id and one content, a relay whose
/// lease is over changes nothing, each row is marked once, and the consumers see one effect.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_slow_broker_gets_twice_has_one_id_and_one_effect() -> Result<()> {
    on_database(|pool| async move {
        let world = World::on(&pool);
        let tenant = tenant_of(&world).await?;
        for _ in 0..100 {
            world.submit(tenant).await?;
        }
        sqlx::raw_sql(
            "CREATE TABLE marks (id bigint);
             CREATE FUNCTION note_mark() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN INSERT INTO marks VALUES (NEW.id); RETURN NULL; END $$;
             CREATE TRIGGER note_mark AFTER INSERT ON outbox_events FOR EACH ROW
                 WHEN (NEW.published_at IS NOT NULL) EXECUTE FUNCTION note_mark();",
        )
        .execute(&pool)
        .await?;
        let config = RelayConfig { lease: Duration::from_millis(300), ..quick() };
        let broker = Broker::answering(move |_| (config.lease * 3, Ok(())));
        let relays = [Running::relay(&pool, &broker, config), Running::relay(&pool, &broker, config)];
        tokio::time::sleep(config.lease * 8).await;
        broker.answer(|_| (Duration::ZERO, Ok(())));
        eventually(|| async { Ok(relay_status(&pool).await?.unsent == 0) }).await?;
        for relay in relays {
            relay.stop().await?;
        }
        let arrived = broker.arrived();
        let mut bodies: BTreeMap<Uuid, Vec<u8>> = BTreeMap::new();
        for message in &arrived {
            let before = bodies.insert(message.key.0, message.body.clone());
            ensure!(before.is_none_or(|body| body == message.body), "one id with two contents: {}", message.key.0);
        }
        ensure!(arrived.len() > bodies.len(), "nothing was sent twice: the case was not met");
        let rows = count(&pool, "SELECT count(*) FROM outbox_events").await?;
        let (marks, marked) = (
            count(&pool, "SELECT count(*) FROM marks").await?,
            count(&pool, "SELECT count(DISTINCT id) FROM marks").await?,
        );
        ensure!((marks, marked, bodies.len() as i64) == (rows, rows, rows), "{marks} marks of {marked} of {rows} rows");
        for message in &arrived {
            world.deliver(message).await?;
        }
        let begun = "SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM events
                      WHERE name = 'task.submission_begun' GROUP BY causation_id) c";
        ensure!(count(&pool, begun).await? == 1, "a message had its effect twice, or none");
        ensure!(count(&pool, "SELECT count(*) FROM inbox_dedup WHERE phase = 'done'").await? == rows);
        let effects = examine(&pool, Limits::default()).await?.into_iter().find(|it| it.invariant == "effect-once");
        ensure!(effects.as_ref().is_some_and(|it| it.ok), "{effects:?}");
        Ok(())
    })
    .await
}

/// O5: the broker is away with 50 rows waiting. Each row is tried as often as the back-off says, and the database is asked no
/// more than the tries need. All times are a tenth of the case's and of the defaults: six seconds for a minute.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_broker_is_waited_for() -> Result<()> {
    on_database(|pool| async move {
        let broker = Broker::answering(|_| (Duration::ZERO, Err(PublishFailure::unavailable("unreachable", "away"))));
        for _ in 0..50 {
            insert_news(&pool, Uuid::new_v4()).await?;
        }
        let usual = RelayConfig::default();
        let config =
            RelayConfig { backoff_base: usual.backoff_base / 10, backoff_cap: usual.backoff_cap / 10, ..usual };
        let statements = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()";
        let before = count(&pool, statements).await?;
        let relay = Running::relay(&pool, &broker, config);
        tokio::time::sleep(Duration::from_secs(6)).await;
        let (most, all): (i32, i64) =
            sqlx::query_as("SELECT max(publish_attempts), sum(publish_attempts) FROM outbox_events")
                .fetch_one(&pool)
                .await?;
        let asked = count(&pool, statements).await? - before;
        println!("{all} tries, at most {most} of one row, {asked} transactions");
        // After n failures at least half of 50 + 100 + … ms have gone by: the ninth try comes after 6.3 s.
        ensure!((4..=8).contains(&most) && all <= 8 * 50, "{all} tries, {most} of one row");
        // A try is claimed and recorded, and the next due time is asked for.
        ensure!(asked <= 4 * all + 100, "{asked} transactions for {all} tries");
        broker.answer(|_| (Duration::ZERO, Ok(())));
        eventually(|| async { Ok(relay_status(&pool).await?.unsent == 0) }).await?;
        relay.stop().await
    })
    .await
}

/// A database whose clock differs from this machine's by so many minutes: sessions of the pool look here first.
async fn with_another_clock(pool: &PgPool, minutes: i32) -> Result<PgPool> {
    let at = |name: &str| {
        format!(
            "CREATE FUNCTION clock.{name}() RETURNS timestamptz LANGUAGE sql VOLATILE AS
                 'SELECT pg_catalog.{name}() + interval ''{minutes} minutes''';"
        )
    };
    let functions = ["clock_timestamp", "statement_timestamp", "now", "transaction_timestamp"].map(at).concat();
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("CREATE SCHEMA clock; {functions}"))).execute(pool).await?;
    let options = pool.connect_options().as_ref().clone().options([("search_path", "clock,public,pg_catalog")]);
    Ok(sqlx::postgres::PgPoolOptions::new().max_connections(16).connect_with(options).await?)
}

/// O8: the database's clock and this machine's are five minutes apart, either way. News goes out at once, delayed rows neither
/// early nor late, and a live lease is nobody else's.
#[tokio::test(flavor = "multi_thread")]
async fn only_one_clock_counts() -> Result<()> {
    for minutes in [-5, 5] {
        on_database(move |pool| async move {
            let pool = with_another_clock(&pool, minutes).await?;
            let broker = Broker::answering(|_| (Duration::from_millis(1500), Ok(())));
            let config = RelayConfig { lease: Duration::from_secs(8), ..quick() };
            let relays = [Running::relay(&pool, &broker, config), Running::relay(&pool, &broker, config)];
            let begun = Instant::now();
            let soon = insert_news(&pool, Uuid::new_v4()).await?;
            let later = Uuid::new_v4();
            sqlx::query(
                "INSERT INTO outbox_events (event_id, aggregate_type, aggregate_id, event_type, schema_version, topic, tag,
                                            payload, tenant_id, trace_id, correlation_id, causation_id, occurred_at, available_at)
                 SELECT $1, aggregate_type, gen_random_uuid(), event_type, schema_version, topic, tag, payload, tenant_id,
                        trace_id, correlation_id, causation_id, occurred_at, clock_timestamp() + interval '2 seconds'
                   FROM outbox_events WHERE event_id = $2",
            )
            .bind(later)
            .bind(soon)
            .execute(&pool)
            .await?;
            broker.wait_for(soon).await?;
            let at_once = begun.elapsed();
            broker.wait_for(later).await?;
            let delayed = begun.elapsed();
            ensure!(at_once < Duration::from_secs(5), "news took {at_once:?} with {minutes} minutes between the clocks");
            let (early, late) = (Duration::from_millis(1990), Duration::from_secs(2) + config.tick + Duration::from_secs(2));
            ensure!((early..late).contains(&delayed), "2 s took {delayed:?} with {minutes} minutes between the clocks");
            eventually(|| async { Ok(relay_status(&pool).await?.unsent == 0) }).await?;
            for relay in relays {
                relay.stop().await?;
            }
            ensure!(broker.ids() == [soon, later], "a live lease was taken over: {:?}", broker.ids());
            pool.close().await;
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// A provider that accepts, and is at work for ever.
struct AtWork;

impl Caller for AtWork {
    fn call<'a>(
        &'a self,
        call: &'a Committed<Call>,
        _: CallContext,
    ) -> Pin<Box<dyn Future<Output = Answer> + Send + 'a>> {
        Box::pin(async move {
            match call.get() {
                Call::Create { attempt, .. } => Answer::Created(Created::Accepted { job: format!("job-{attempt}") }),
                Call::Cancel { .. } => Answer::CancelAsked(CancelAsked::Requested),
                _ => Answer::Polled(Polled::State(JobState::Running { percent: None })),
            }
        })
    }
}

/// O8: a broker whose clock is far ahead delivers each wake-up at once. It is set again, and kept by the database meanwhile: the
/// two must not play it back and forth until the clocks agree. Other messages of the task do not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_wake_up_that_comes_early_is_not_played_back_and_forth() -> Result<()> {
    on_database(|pool| async move {
        let policy = domain::process::Policy { poll_first_ms: 6_000, poll_cap_ms: 6_000, ..Default::default() };
        let world = World::with(&pool, policy);
        let tenant = tenant_of(&world).await?;
        let broker = Broker::healthy();
        let relay = Running::relay(&pool, &broker, quick());
        let task = world.submit(tenant).await?;
        let (mut delivered, mut early, mut last) = (0, 0, Instant::now());
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(2) {
            for message in broker.arrived().into_iter().skip(delivered) {
                delivered += 1;
                early += usize::from(message.topic == Topic::GenerationPollDelay);
                world.deliver_now(&message, &AtWork).await?;
                last = Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        ensure!(early == 1 && last < begun + Duration::from_secs(2), "the wake-up came {early} times in two seconds");
        world.cancel_by(tenant, task, "user:test").await?;
        let news = broker.arrived().len();
        eventually(|| async { Ok(broker.arrived().len() > news) }).await?;
        let polls = || broker.arrived().into_iter().filter(|it| it.topic == Topic::GenerationPollDelay).count();
        ensure!(polls() == 1, "other messages of the task waited for the wake-up");
        eventually(|| async { Ok(polls() == 2) }).await.context("it never came again")?;
        relay.stop().await
    })
    .await
}

/// O10: the limit is one of UTF-8 bytes of the whole body. What has exactly as many goes, one more does not, and it is the bytes
/// of the characters that count.
#[tokio::test(flavor = "multi_thread")]
async fn the_size_limit_counts_bytes() -> Result<()> {
    on_database(|pool| async move {
        let broker = Broker::healthy();
        let empty = insert_text(&pool, String::new()).await?;
        let relay = Running::relay(&pool, &broker, quick());
        broker.wait_for(empty).await?;
        let room = MAX_BODY_BYTES - broker.arrived()[0].body.len();
        let (wide, rest) = ("\u{4e2d}".repeat(room / 3), "x".repeat(room % 3));
        let fits = insert_text(&pool, format!("{wide}{rest}")).await?;
        let too_large = insert_text(&pool, format!("{wide}{rest}x")).await?;
        let far_too_large = insert_text(&pool, "\u{4e2d}".repeat(1_400_000)).await?;
        broker.wait_for(fits).await?;
        for id in [too_large, far_too_large] {
            eventually(|| async { Ok(outbox_row(&pool, id).await?.parked) }).await?;
            ensure!(outbox_row(&pool, id).await?.last_error_code.as_deref() == Some("too_large"));
        }
        relay.stop().await?;
        ensure!(broker.ids() == [empty, fits]);
        let body = &broker.arrived()[1].body;
        ensure!(body.len() == MAX_BODY_BYTES, "{} bytes", body.len());
        Envelope::parse(body).context("whoever consumes must have the same limit")?;
        Ok(())
    })
    .await
}

async fn insert_text(pool: &PgPool, text: String) -> Result<Uuid> {
    let id = Uuid::new_v4();
    sqlx::query(
        "INSERT INTO outbox_events (event_id, aggregate_type, aggregate_id, event_type, schema_version, topic, tag, payload,
                                    tenant_id, trace_id, correlation_id, causation_id, occurred_at, available_at)
         VALUES ($1, 'task', $1, 'task.state.changed', 1, 'notification.event', 'STATE', jsonb_build_object('text', $2::text),
                 $1, '', $1, $1, '2026-01-01 00:00:00.123456+00', clock_timestamp())",
    )
    .bind(id)
    .bind(text)
    .execute(pool)
    .await?;
    Ok(id)
}

/// O10: whatever a message brings along as its trace, no row that follows from it grows by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_trace_that_is_none_is_not_handed_on() -> Result<()> {
    on_database(|pool| async move {
        let world = World::on(&pool);
        let tenant = tenant_of(&world).await?;
        world.submit(tenant).await?;
        let broker = Broker::healthy();
        let relay = Running::relay(&pool, &broker, quick());
        eventually(|| async { Ok(relay_status(&pool).await?.unsent == 0) }).await?;
        relay.stop().await?;
        let mut message = broker.arrived().into_iter().next().context("a message")?;
        let mut envelope = Envelope::parse(&message.body)?;
        envelope.trace_id = "baggage=".repeat(5 * 1024);
        message.body = envelope.to_body()?;
        world.deliver(&message).await?;
        let rows = count(&pool, "SELECT count(*) FROM outbox_events WHERE published_at IS NULL").await?;
        let longest = count(&pool, "SELECT max(length(trace_id))::bigint FROM outbox_events").await?;
        ensure!(rows > 0 && longest == 32, "{rows} rows follow, with traces of up to {longest} characters");
        Ok(())
    })
    .await
}

/// O11: 100 messages of one task in one transaction, of fifty tasks, while the table is vacuumed. On the wire the versions of a task
/// only grow.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_messages_of_one_transaction_keep_their_order() -> Result<()> {
    on_database(|pool| async move {
        let broker = Broker::healthy();
        let config = RelayConfig { concurrency: 30, ..quick() };
        let relays = [Running::relay(&pool, &broker, config), Running::relay(&pool, &broker, config)];
        for _ in 0..50 {
            sqlx::query(
                "INSERT INTO outbox_events (event_id, aggregate_type, aggregate_id, event_type, schema_version, topic, tag,
                                            payload, tenant_id, trace_id, correlation_id, causation_id, occurred_at, available_at)
                 SELECT gen_random_uuid(), 'task', $1, 'task.state.changed', 1, 'notification.event', 'STATE',
                        jsonb_build_object('task_id', $1, 'task_version', n), $1, '', $1, $1, clock_timestamp(), clock_timestamp()
                   FROM generate_series(1, 100) AS n ORDER BY n",
            )
            .bind(Uuid::new_v4())
            .execute(&pool)
            .await?;
        }
        let end = Instant::now() + Duration::from_secs(60);
        while relay_status(&pool).await?.unsent > 0 {
            ensure!(Instant::now() < end, "{:?}", relay_status(&pool).await?);
            sqlx::query("VACUUM outbox_events").execute(&pool).await?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for relay in relays {
            relay.stop().await?;
        }
        let mut versions: HashMap<Uuid, Vec<i64>> = HashMap::new();
        for message in broker.arrived() {
            versions.entry(message.order_key).or_default().push(version_of(&message)?);
        }
        ensure!(versions.len() == 50);
        for (task, seen) in versions {
            ensure!(seen.iter().copied().eq(1..=100), "task {task} was told of in the order {seen:?}");
        }
        Ok(())
    })
    .await
}

fn version_of(message: &OutboundMessage) -> Result<i64> {
    Envelope::parse(&message.body)?.payload["task_version"].as_i64().context("a version")
}

/// Relay, projector and the hub of changes, none of them with a timer that would help here.
struct Readers {
    relay: Running,
    reader: Reader,
    stop: CancellationToken,
    _background: tokio::task::JoinSet<()>,
}

impl Readers {
    fn start(world: &World, broker: &Arc<Broker>) -> Self {
        let (pool, day) = (world.store.pool(), Duration::from_secs(24 * 3600));
        // What was claimed by a statement whose answer was lost goes on when its lease ends.
        let (lease, send_timeout) = (Duration::from_secs(4), Duration::from_secs(2));
        let config = RelayConfig { tick: day, lease, send_timeout, ..RelayConfig::default() };
        let relay = Running::relay(pool, broker, config);
        let projector = Projector::new(pool.clone(), ProjectorConfig { tick: day, batch: 500 });
        let (stop, reader) = (CancellationToken::new(), Reader::new(&world.store));
        let (token, listening) = (stop.clone(), reader.clone());
        let mut background = tokio::task::JoinSet::new();
        background.spawn(async move { projector.run(token).await });
        background.spawn(async move { match listening.listen().await {} });
        Self { relay, reader, stop, _background: background }
    }
}

/// Twenty tasks are submitted and one is cancelled while the server is away and comes back.
async fn through_a_restart(pool: PgPool, down: oneshot::Sender<()>, up: oneshot::Receiver<Instant>) -> Result<()> {
    let world = World::on(&pool);
    let tenant = tenant_of(&world).await?;
    let readers = Readers::start(&world, &Broker::healthy());
    let unsent = async || Ok(relay_status(&pool).await?.unsent == 0);
    let long = "\u{4e2d}".repeat(7_000);
    let task = world.submit_text(tenant, &long).await?;
    eventually(unsent).await?;
    let mut watch = readers.reader.changes().watch(task);
    down.send(()).ok();
    let mut committed = 0;
    while committed < 20 {
        committed += usize::from(world.submit(tenant).await.is_ok());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    while world.cancel_by(tenant, task, &long).await.is_err() {}
    let up = up.await?;
    tokio::time::timeout(Duration::from_secs(10), watch.changed()).await.context("who watches was not told")?;
    let seen = readers.reader.wait_for_version(Viewer::of(tenant), task, 2, Duration::from_secs(10)).await?;
    ensure!(matches!(&seen, Seen::Fresh(row) if row.state == "CANCELED"), "{seen:?}");
    eventually(unsent).await.context("the relay is deaf")?;
    let behind = async || Ok(projection_status(&pool).await?.behind_events == 0);
    eventually(behind).await.context("the projector is deaf")?;
    println!("all caught up {:?} after the restart", up.elapsed());
    readers.stop.cancel();
    readers.relay.stop().await
}

/// O12: changes of 20 KB commit; PostgreSQL is killed and comes back while 20 changes commit. Relay, projector and whoever watches
/// a task catch up from the tables within 10 s.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_everybody_catches_up_from_the_tables() -> Result<()> {
    let mut server = OwnServer::start("restart", "-c fsync=off -c full_page_writes=off")?;
    let url = server.url().to_owned();
    let (down, asked_down) = oneshot::channel();
    let (is_up, up) = oneshot::channel();
    let restart = async move {
        asked_down.await?;
        server.kill().await?;
        server.start_again().await?;
        is_up.send(Instant::now()).ok();
        anyhow::Ok(server)
    };
    let (server, tested) = tokio::join!(restart, on_server(&url, |pool| through_a_restart(pool, down, up)));
    tested?;
    drop(server?);
    Ok(())
}

/// E4: an instant is the same to the microsecond wherever it is met: in the order that was decided on, in SQL, in the message on
/// the wire, in the read model.
#[tokio::test(flavor = "multi_thread")]
async fn instants_are_the_same_everywhere() -> Result<()> {
    on_database(|pool| async move {
        let world = World::on(&pool);
        world.live(30).await?;
        Projector::new(pool.clone(), ProjectorConfig::default()).catch_up().await?;
        let finer =
            "SELECT count(*) FROM (SELECT body::text FROM events UNION ALL SELECT payload::text FROM outbox_events) t
                      WHERE body ~ 'T\\d\\d:\\d\\d:\\d\\d\\.\\d{7,}'";
        ensure!(
            count(&pool, finer).await? == 0,
            "{} texts have instants finer than a microsecond",
            count(&pool, finer).await?
        );
        let differ = "SELECT count(*) FROM events e JOIN read_tasks t ON t.task_id = e.stream_id
                       WHERE e.name = 'task.submitted'
                         AND (e.body->'order'->>'submitted_at')::timestamptz <> t.created_at";
        ensure!(count(&pool, differ).await? == 0, "created at another time than ordered");
        let differ = "SELECT count(*) FROM read_tasks t
                        JOIN (SELECT stream_id, max(recorded_at) AS at FROM events WHERE category = 'task' GROUP BY 1) e
                          ON e.stream_id = t.task_id WHERE e.at <> t.updated_at";
        ensure!(count(&pool, differ).await? == 0, "updated at another time than recorded");
        let tasks = count(&pool, "SELECT count(*) FROM read_tasks").await?;
        ensure!(tasks == 30, "{tasks} tasks");
        // On the wire: some of them sent once more, for the test to see.
        let recorded: Vec<(Uuid, Timestamp)> = sqlx::query_as(
            "UPDATE outbox_events SET published_at = NULL WHERE id % 4 = 0 RETURNING event_id, occurred_at",
        )
        .fetch_all(&pool)
        .await?;
        let broker = Broker::healthy();
        let relay = Running::relay(&pool, &broker, quick());
        eventually(|| async { Ok(relay_status(&pool).await?.unsent == 0) }).await?;
        relay.stop().await?;
        let recorded: HashMap<Uuid, Timestamp> = recorded.into_iter().collect();
        ensure!(recorded.len() > 30);
        for message in broker.arrived() {
            let told = Envelope::parse(&message.body)?.occurred_at;
            ensure!(recorded.get(&message.key.0) == Some(&told), "{told} is not {:?}", recorded.get(&message.key.0));
        }
        Ok(())
    })
    .await
}

/// Everything but the read models and their checkpoint, as one number for each table and one for its content.
async fn facts(pool: &PgPool) -> Result<BTreeMap<String, (i64, Option<String>)>> {
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT tablename::text FROM pg_tables
          WHERE schemaname = 'public' AND tablename NOT LIKE 'read\\_%' AND tablename <> 'projection_checkpoints'",
    )
    .fetch_all(pool)
    .await?;
    let mut all = BTreeMap::new();
    for table in tables {
        let query = format!("SELECT count(*), md5(string_agg(t::text, '' ORDER BY t::text)) FROM {table} t");
        all.insert(table, sqlx::query_as(sqlx::AssertSqlSafe(query)).fetch_one(pool).await?);
    }
    Ok(all)
}

/// E5: a rebuild, a comparison and the doctor over 10,000 streams leave every fact, message and notification as it was, and wake
/// nobody. (They are handed a database and nothing else: a provider they could not call.)
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_has_no_side_effects() -> Result<()> {
    on_database(|pool| async move {
        World::on(&pool).live(40).await?;
        sqlx::query(
            "INSERT INTO events (event_id, category, stream_id, version, name, schema_version, body, tenant_id, correlation_id,
                                 causation_id, actor, recorded_at)
             SELECT gen_random_uuid(), 'account', id, 1, 'account.granted', 1, '{\"key\": \"welcome\", \"amount\": 100}', id, id,
                    id, 'test', clock_timestamp()
               FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, 10000)) AS accounts",
        )
        .execute(&pool)
        .await?;
        Projector::new(pool.clone(), ProjectorConfig::default()).catch_up().await?;
        let before = facts(&pool).await?;
        for table in ["events", "outbox_events", "inbox_dedup", "notifications"] {
            ensure!(before.get(table).is_some_and(|(rows, _)| *rows > 0), "{table} is empty: {before:?}");
        }
        let mut bell = PgListener::connect_with(&pool).await?;
        bell.listen_all(["aivideo_events", "aivideo_outbox", "aivideo_read"]).await?;
        rebuild(&pool, |_| ()).await?;
        let tables = verify(&pool, |_| ()).await?;
        ensure!(tables.iter().all(|table| table.is_equal() && table.rows > 0), "{tables:?}");
        examine(&pool, Limits::default()).await?;
        let after = facts(&pool).await?;
        ensure!(before == after, "before {before:?}\nafter {after:?}");
        let rung = tokio::time::timeout(Duration::from_millis(500), bell.recv()).await;
        ensure!(rung.is_err(), "somebody was woken: {rung:?}");
        Ok(())
    })
    .await
}
