//! Competing readers against a real database: each event once, whatever is killed when; in order; shared fairly.

#![expect(clippy::disallowed_methods, reason = "a test ends what it starts, and sees how it ended")]

mod support;

use anyhow::{Context, Result, ensure};
use eventstore::testkit::TestDatabase;
use futures_util::future::BoxFuture;
use projections::subscription::{
    Batch, GroupStatus, Handler, HandlerError, Subscription, SubscriptionConfig, SubscriptionError, group_status,
};
use rand::RngExt;
use sqlx::{PgConnection, PgPool};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use support::{append, append_grant, eventually};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Where handlers write what they did. Nothing in it would refuse a second time.
const SEEN: &str =
    "CREATE TABLE seen (n bigint GENERATED ALWAYS AS IDENTITY, partition integer, position bigint, stream_id uuid,
                                       version bigint, member integer);
                    GRANT SELECT, INSERT ON seen TO aivideo_service";

async fn database() -> Result<TestDatabase> {
    let database = TestDatabase::create().await?;
    database.sql(SEEN).await?;
    Ok(database)
}

fn quick(group: &str, partitions: u16) -> SubscriptionConfig {
    SubscriptionConfig {
        batch: 7,
        lease: Duration::from_millis(400),
        tick: Duration::from_millis(50),
        ..SubscriptionConfig::new(group, partitions)
    }
}

async fn record(batch: &Batch, member: i32, effects: &mut PgConnection) -> Result<(), HandlerError> {
    for event in &batch.events {
        sqlx::query(
            "INSERT INTO seen (partition, position, stream_id, version, member) VALUES ($1::integer, $2, $3, $4, $5)",
        )
        .bind(i32::from(batch.partition))
        .bind(event.position)
        .bind(event.stream_id)
        .bind(event.version)
        .bind(member)
        .execute(&mut *effects)
        .await?;
    }
    Ok(())
}

/// Writes down what it is given. Now and then it takes its time, sometimes more than a lease.
struct Recorder(i32);

impl Handler for Recorder {
    fn handle<'a>(
        &'a self,
        batch: &'a Batch,
        effects: &'a mut PgConnection,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            record(batch, self.0, effects).await?;
            let dice = rand::rng().random_range(0..100);
            let pause = if dice < 3 { 600 } else { dice / 10 };
            tokio::time::sleep(Duration::from_millis(pause)).await;
            Ok(())
        })
    }
}

/// Does nothing.
struct Idle;

impl Handler for Idle {
    fn handle<'a>(&'a self, _: &'a Batch, _: &'a mut PgConnection) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async { Ok(()) })
    }
}

/// A member with connections of its own, as in a process of its own.
struct Member {
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl Member {
    async fn start(database: &TestDatabase, config: SubscriptionConfig, handler: Arc<dyn Handler>) -> Result<Self> {
        let pool = database.another_pool(3, &[]).await?;
        let subscription = Subscription::open(pool, config).await?;
        let cancel = CancellationToken::new();
        let token = cancel.clone();
        let task = tokio::spawn(async move { subscription.run(&*handler, token).await });
        Ok(Self { cancel, task })
    }

    async fn stop(self) -> Result<()> {
        self.cancel.cancel();
        Ok(self.task.await?)
    }

    /// Ends it wherever it is. Its connections break; nobody says that it left.
    async fn kill(self) {
        self.task.abort();
        self.task.await.ok();
    }
}

/// Appends to streams of its own, in transactions that are fast, slow, or rolled back.
async fn write(pool: PgPool, transactions: u32) -> Result<()> {
    let mut streams: Vec<(Uuid, i64)> = (0..6).map(|_| (Uuid::new_v4(), 0)).collect();
    for _ in 0..transactions {
        let chosen = rand::rng().random_range(0..streams.len());
        let (stream, before) = streams[chosen];
        let (events, dice) = (rand::rng().random_range(1..4), rand::rng().random_range(0..100));
        let mut tx = pool.begin().await?;
        for version in before + 1..=before + events {
            let body = serde_json::json!({"key": version.to_string(), "amount": 1});
            append(&mut tx, "account", stream, version, "account.granted", body).await?;
        }
        if dice < 30 {
            tokio::time::sleep(Duration::from_millis(dice)).await;
        }
        if dice % 5 == 0 {
            tx.rollback().await?;
        } else {
            tx.commit().await?;
            streams[chosen].1 = before + events;
        }
        sqlx::query("SELECT pg_notify('aivideo_events', '')").execute(&pool).await?;
    }
    Ok(())
}

/// Everything that is in the log is in `seen` once, in the partition that it belongs to, and in order.
async fn all_seen_once(database: &TestDatabase, partitions: u16) -> Result<()> {
    let events = database.count("SELECT count(*) FROM events").await?;
    eventually(|| async { Ok(database.count("SELECT count(*) FROM seen").await? >= events) }).await?;
    for (what, query) in [
        ("are missing or were counted twice", "SELECT abs((SELECT count(*) FROM events) - (SELECT count(*) FROM seen))"),
        ("are not in the log", "SELECT count(*) FROM seen WHERE position NOT IN (SELECT position FROM events)"),
        ("were counted twice", "SELECT count(*) - count(DISTINCT position) FROM seen"),
        (
            "came before an earlier one of their stream",
            "SELECT count(*) FROM (SELECT version - lag(version, 1, 0::bigint) OVER (PARTITION BY stream_id ORDER BY n) AS step
                                     FROM seen) s WHERE step <> 1",
        ),
        (
            "came before an earlier one of their partition",
            "SELECT count(*) FROM (SELECT position - lag(position, 1, 0::bigint) OVER (PARTITION BY partition ORDER BY n) AS step
                                     FROM seen) s WHERE step <= 0",
        ),
    ] {
        let found = database.count(query).await?;
        ensure!(found == 0, "{found} events {what}");
    }
    let strays = format!("SELECT count(*) FROM seen WHERE partition <> log_partition(stream_id, {partitions})");
    ensure!(database.count(&strays).await? == 0, "a partition got another one's events");
    Ok(())
}

/// Three members read eight partitions and are killed at any moment, while writers append.
#[tokio::test(flavor = "multi_thread")]
async fn each_event_counts_once_whoever_is_killed_when() -> Result<()> {
    const PARTITIONS: u16 = 8;
    let database = database().await?;
    let config = quick("tested", PARTITIONS);
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        writers.spawn(write(database.pool().clone(), 250));
    }
    let mut members = vec![];
    let mut started = 0;
    let mut start = async || {
        started += 1;
        Member::start(&database, config.clone(), Arc::new(Recorder(started))).await
    };
    for _ in 0..3 {
        members.push(start().await?);
    }
    let mut kills = 0;
    while !writers.is_empty() || kills < 15 {
        tokio::time::sleep(Duration::from_millis(rand::rng().random_range(20..300))).await;
        let victim = members.swap_remove(rand::rng().random_range(0..members.len()));
        victim.kill().await;
        kills += 1;
        members.push(start().await?);
        while let Some(ended) = writers.try_join_next() {
            ended??;
        }
    }
    all_seen_once(&database, PARTITIONS).await?;
    ensure!(database.count("SELECT count(*) FROM events").await? > 500);
    ensure!(database.count("SELECT count(DISTINCT member) FROM seen").await? > 3, "the others took over");
    for member in members {
        member.stop().await?;
    }
    Ok(())
}

/// How many partitions each member has, the most first.
fn shares(status: &GroupStatus) -> Vec<usize> {
    let mut members: Vec<Uuid> = status.partitions.iter().filter_map(|it| it.member).collect();
    members.sort_unstable();
    let mut shares: Vec<usize> = members.chunk_by(|one, other| one == other).map(<[Uuid]>::len).collect();
    shares.sort_unstable_by(|one, other| other.cmp(one));
    shares
}

async fn status(pool: &PgPool) -> Result<GroupStatus> {
    group_status(pool).await?.pop().context("there is a group")
}

async fn shared_as(database: &TestDatabase, expected: &[usize]) -> Result<()> {
    eventually(|| async { Ok(shares(&status(database.pool()).await?) == expected) })
        .await
        .with_context(|| format!("partitions are not shared as {expected:?}"))
}

/// What one member has more than another is one partition at most, as members come, leave and die.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_are_shared_fairly() -> Result<()> {
    let database = database().await?;
    let start = || Member::start(&database, quick("fair", 8), Arc::new(Idle));
    let mut members = vec![start().await?];
    shared_as(&database, &[8]).await?;
    for expected in [&[4, 4][..], &[3, 3, 2], &[2, 2, 2, 2], &[2, 2, 2, 1, 1]] {
        members.push(start().await?);
        shared_as(&database, expected).await?;
    }
    for _ in 0..4 {
        members.push(start().await?);
    }
    shared_as(&database, &[1; 8]).await?;
    ensure!(status(database.pool()).await?.members == 9, "one more than there are partitions waits");
    for _ in 0..7 {
        members.swap_remove(0).stop().await?;
    }
    shared_as(&database, &[4, 4]).await?;
    members.swap_remove(0).kill().await;
    shared_as(&database, &[8]).await?;
    members.swap_remove(0).stop().await?;
    let left = status(database.pool()).await?;
    ensure!(left.members == 0 && shares(&left).is_empty(), "{left:?}");
    Ok(())
}

/// Its first batch takes longer than the lease.
struct Sleeper {
    calls: AtomicU32,
    member: i32,
}

impl Handler for Sleeper {
    fn handle<'a>(
        &'a self,
        batch: &'a Batch,
        effects: &'a mut PgConnection,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            record(batch, self.member, effects).await?;
            if self.calls.fetch_add(1, Ordering::SeqCst) == 0 {
                tokio::time::sleep(Duration::from_millis(1_500)).await;
            }
            Ok(())
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_slept_past_its_lease_moves_nothing() -> Result<()> {
    let database = database().await?;
    append_grant(&mut *database.owner().acquire().await?, Uuid::new_v4()).await?;
    let sleeper = Arc::new(Sleeper { calls: AtomicU32::new(0), member: 1 });
    let asleep = Member::start(&database, quick("fenced", 1), Arc::clone(&sleeper) as Arc<dyn Handler>).await?;
    eventually(|| async { Ok(sleeper.calls.load(Ordering::SeqCst) == 1) }).await?;
    let awake = Member::start(&database, quick("fenced", 1), Arc::new(Recorder(2))).await?;
    // While the first one still sleeps in its transaction.
    eventually(|| async { Ok(database.count("SELECT count(*) FROM seen WHERE member = 2").await? == 1) }).await?;
    ensure!(sleeper.calls.load(Ordering::SeqCst) == 1);
    tokio::time::sleep(Duration::from_millis(2_000)).await;
    ensure!(database.count("SELECT count(*) FROM seen").await? == 1, "what the sleeper did does not count");
    awake.stop().await?;
    asleep.stop().await?;
    // Alone it fares no better: a lease that ran out is over, also where nobody else wanted the partition.
    append_grant(&mut *database.owner().acquire().await?, Uuid::new_v4()).await?;
    let sleeper = Arc::new(Sleeper { calls: AtomicU32::new(0), member: 3 });
    let alone = Member::start(&database, quick("fenced", 1), Arc::clone(&sleeper) as Arc<dyn Handler>).await?;
    eventually(|| async { Ok(database.count("SELECT count(*) FROM seen WHERE member = 3").await? == 1) }).await?;
    ensure!(sleeper.calls.load(Ordering::SeqCst) == 2, "the first time did not count");
    alone.stop().await?;
    all_seen_once(&database, 1).await
}

/// The lower position commits later; what came after it waits, and nothing is skipped.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_commits_late_is_not_skipped() -> Result<()> {
    let database = database().await?;
    let members = [
        Member::start(&database, quick("late", 2), Arc::new(Recorder(1))).await?,
        Member::start(&database, quick("late", 2), Arc::new(Recorder(2))).await?,
    ];
    for _ in 0..30 {
        let mut late = database.owner().begin().await?;
        let lower = append_grant(&mut late, Uuid::new_v4()).await?;
        let mut doomed = database.owner().begin().await?;
        append_grant(&mut doomed, Uuid::new_v4()).await?;
        let higher = append_grant(&mut *database.owner().acquire().await?, Uuid::new_v4()).await?;
        database.sql("NOTIFY aivideo_events").await?;
        tokio::time::sleep(Duration::from_millis(rand::rng().random_range(0..15))).await;
        ensure!(database.count("SELECT coalesce(max(position), 0) FROM seen").await? < lower);
        late.commit().await?;
        doomed.rollback().await?;
        database.sql("NOTIFY aivideo_events").await?;
        let both = format!("SELECT count(*) FROM seen WHERE position IN ({lower}, {higher})");
        eventually(|| async { Ok(database.count(&both).await? == 2) }).await?;
    }
    for member in members {
        member.stop().await?;
    }
    all_seen_once(&database, 2).await
}

/// Can not handle one partition until it is healed, and has written half of it each time.
struct Picky {
    healed: AtomicBool,
    calls: AtomicU32,
}

impl Handler for Picky {
    fn handle<'a>(
        &'a self,
        batch: &'a Batch,
        effects: &'a mut PgConnection,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            record(batch, 1, effects).await?;
            if batch.partition == 1 && !self.healed.load(Ordering::SeqCst) {
                self.calls.fetch_add(1, Ordering::SeqCst);
                return Err("it can not be handled".into());
            }
            Ok(())
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_handled_stays_and_stops_no_other_partition() -> Result<()> {
    let database = database().await?;
    let fill = |count: u32| write(database.pool().clone(), count);
    fill(60).await?;
    // Streams have random ids: perhaps none of them is in the partition that the handler can not handle.
    let stuck = "SELECT count(*) FROM events WHERE log_partition(stream_id, 4) = 1";
    while database.count(stuck).await? == 0 {
        fill(10).await?;
    }
    let picky = Arc::new(Picky { healed: AtomicBool::new(false), calls: AtomicU32::new(0) });
    let member = Member::start(&database, quick("picky", 4), Arc::clone(&picky) as Arc<dyn Handler>).await?;
    let others = "SELECT count(*) FROM events WHERE log_partition(stream_id, 4) <> 1";
    eventually(|| async { Ok(database.count("SELECT count(*) FROM seen").await? == database.count(others).await?) })
        .await?;
    tokio::time::sleep(Duration::from_millis(600)).await;
    let calls = picky.calls.load(Ordering::SeqCst);
    ensure!((1..8).contains(&calls), "{calls} tries: it is tried again, but not at once");
    let stuck = status(database.pool()).await?.partitions.remove(1);
    ensure!(stuck.position == 0 && stuck.behind_events > 0 && stuck.behind_seconds > 0.5, "{stuck:?}");
    picky.healed.store(true, Ordering::SeqCst);
    all_seen_once(&database, 4).await?;
    member.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_can_not_be_is_refused_with_a_sentence() -> Result<()> {
    let database = database().await?;
    let open = async |config| Subscription::open(database.pool().clone(), config).await;
    open(quick("mine", 8)).await?;
    open(quick("mine", 8)).await?;
    database
        .sql(
            "SELECT make_reader_group('theirs', 8, 0); UPDATE reader_groups SET owner = 'nobody' WHERE name = 'theirs'",
        )
        .await?;
    for (config, said) in [
        (quick("mine", 4), "has 8 partitions, not 4: their number is fixed when a group is made"),
        (quick("Mine", 8), "lower-case letters"),
        (quick("more", 0), "1 to 1024 partitions, not 0"),
        (SubscriptionConfig { after: -1, ..quick("more", 8) }, "can not begin after -1"),
        (quick("theirs", 8), "belongs to nobody"),
    ] {
        match open(config).await {
            Err(SubscriptionError::Refused(sentence)) => ensure!(sentence.contains(said), "{sentence}"),
            other => anyhow::bail!("{said}: {other:?}"),
        }
    }
    Ok(())
}

/// Lag by partition; a group that begins later; checkpoints that move where nothing is for them.
#[tokio::test(flavor = "multi_thread")]
async fn the_lag_is_told_by_partition() -> Result<()> {
    let database = database().await?;
    ensure!(group_status(database.pool()).await?.is_empty());
    let stream = Uuid::new_v4();
    let fill = format!(
        "INSERT INTO events (event_id, category, stream_id, version, name, schema_version, body, tenant_id, correlation_id,
                             causation_id, actor, recorded_at)
         SELECT gen_random_uuid(), 'account', '{stream}', n, 'account.granted', 1, '{{}}', '{stream}', '{stream}', '{stream}', 'test',
                clock_timestamp() - interval '1 hour' FROM generate_series(1, 3000) AS n"
    );
    database.sql(&fill).await?;
    let config = SubscriptionConfig { after: 1_000, ..quick("lagging", 4) };
    let subscription = Subscription::open(database.pool().clone(), config).await?;
    let its_own = database.count(&format!("SELECT log_partition('{stream}', 4)::bigint")).await?;
    let before = status(database.pool()).await?;
    for it in &before.partitions {
        let behind = if i64::from(it.partition) == its_own { 2_000 } else { 0 };
        ensure!(it.behind_events == behind && it.position == 1_000 && !it.is_reckoned, "{it:?}");
        ensure!((it.behind_seconds > 3_599.0) == (behind > 0), "{it:?}");
    }
    ensure!(before.behind_events() == 2_000 && before.members == 0, "{before:?}");
    let cancel = CancellationToken::new();
    let running = tokio::spawn({
        let cancel = cancel.clone();
        async move { subscription.run(&Idle, cancel).await }
    });
    eventually(|| async { Ok(status(database.pool()).await?.partitions.iter().all(|it| it.position == 3_000)) })
        .await?;
    cancel.cancel();
    running.await?;
    database
        .sql(&fill.replace("n, 'account.granted'", "n + 3000, 'account.granted'").replace("3000) AS", "14000) AS"))
        .await?;
    let far = status(database.pool()).await?;
    ensure!(far.is_reckoned() && far.behind_events() >= 14_000, "{far:?}");
    ensure!(far.partitions.iter().all(|it| it.behind_seconds > 3_599.0), "{far:?}");
    Ok(())
}

/// A group that is forgotten and made again under its name is another one: who was a member of the first can not move its checkpoints.
#[tokio::test]
async fn a_member_of_a_group_that_was_forgotten_moves_no_checkpoint_of_the_next() -> Result<()> {
    let database = database().await?;
    let pool = database.pool();
    append_grant(&mut *pool.acquire().await?, Uuid::new_v4()).await?;
    let (asleep, awake) = (Uuid::new_v4(), Uuid::new_v4());
    let claim = "SELECT partition, token, position FROM claim_partitions('g', $1, $2 * interval '1 millisecond')";
    let make = |partitions: i32| sqlx::query("SELECT make_reader_group('g', $1, 0)").bind(partitions);
    make(8).execute(pool).await?;
    let before: Vec<(i32, i64, i64)> = sqlx::query_as(claim).bind(asleep).bind(100).fetch_all(pool).await?;
    // As soon as its lease has ended.
    eventually(async || Ok(sqlx::query("SELECT drop_reader_group('g')").execute(pool).await.is_ok())).await?;
    make(6).execute(pool).await?;
    let after: Vec<(i32, i64, i64)> = sqlx::query_as(claim).bind(awake).bind(60_000).fetch_all(pool).await?;
    ensure!((before.len(), after.len()) == (8, 6));
    let (partition, token, position) = before[3];
    let moved = sqlx::query("SELECT move_checkpoint('g', $1, $2, $3, 1)");
    let refused = moved.bind(partition).bind(token).bind(position).execute(pool).await.err().context("it was moved")?;
    let code = refused.as_database_error().and_then(|it| it.code()).map(|it| it.to_string());
    ensure!(code.as_deref() == Some("LR001"), "{refused}");
    Ok(())
}

/// What would be skipped in silence, or never work, is refused when a group is opened.
#[tokio::test]
async fn a_group_that_can_not_work_is_refused() -> Result<()> {
    let database = database().await?;
    let usual = SubscriptionConfig::new("g", 4);
    for (wrong, word) in [
        (SubscriptionConfig { batch: 0, ..usual.clone() }, "batch"),
        (SubscriptionConfig { lease: Duration::ZERO, ..usual.clone() }, "lease"),
        (SubscriptionConfig { after: 1_000_000, ..usual.clone() }, "begin after"),
    ] {
        match Subscription::open(database.pool().clone(), wrong).await {
            Err(SubscriptionError::Refused(said)) => ensure!(said.contains(word), "{said}"),
            other => anyhow::bail!("{word}: {other:?}"),
        }
    }
    Ok(())
}

/// Adds to one row, and then hangs: the first time for ever.
struct Hanging(AtomicBool);

impl Handler for Hanging {
    fn handle<'a>(
        &'a self,
        batch: &'a Batch,
        effects: &'a mut PgConnection,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            let add = "INSERT INTO total VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET n = total.n + $1";
            sqlx::query(add).bind(batch.events.len() as i64).execute(effects).await?;
            if self.0.swap(false, Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            Ok(())
        })
    }
}

/// Whoever gets a hung member's partition needs the rows that it has locked: its transaction ends with its lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_hangs_locks_nobody_out() -> Result<()> {
    let database = database().await?;
    database.sql("CREATE TABLE total (id int PRIMARY KEY, n bigint); GRANT SELECT, INSERT, UPDATE ON total TO aivideo_service").await?;
    let mut connection = database.pool().acquire().await?;
    for _ in 0..20 {
        append_grant(&mut connection, Uuid::new_v4()).await?;
    }
    let hung = Member::start(&database, quick("g", 2), Arc::new(Hanging(AtomicBool::new(true)))).await?;
    eventually(async || {
        let open = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()";
        Ok(database.count(open).await? > 0)
    })
    .await?;
    let other = Member::start(&database, quick("g", 2), Arc::new(Hanging(AtomicBool::new(false)))).await?;
    let read = "SELECT coalesce(sum(n), 0)::bigint FROM total";
    eventually(async || Ok(database.count(read).await? == 20)).await?;
    other.stop().await?;
    hung.kill().await;
    Ok(())
}
