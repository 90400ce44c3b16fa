//! Q4 and invariant I-h: what a session that is ended inside a transaction costs, and who is in one while others are called.

use super::support::{Anyhow, World, database, deliveries, fresh, invariants, policy, submitted, tenant_with};
use domain::id::{TaskId, TenantId};
use domain::message::Message;
use domain::message::kinds::TaskRef;
use domain::outcome::{Answer, Call, Created, Found};
use domain::process::{Declined, Next, ProcessManager, SubmitTask, Turn, read};
use eventstore::testkit::TestDatabase;
use eventstore::{Ack, Again, CallContext, Caller, Committed, Delivery, Outcome, Store, StoreError};
use sqlx::PgPool;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const CONNECTIONS: u32 = 8;
const CONSUMER: &str = "cg.test.stalling";
const ROUNDS: usize = 500;
/// A tenth of what the case in the field had: the rounds take a minute less, and nothing else changes.
const SESSION_LIMIT: &str = "100";
const STALL: Duration = Duration::from_millis(150);

/// Stalls while it decides, or does not. A message that was begun before is decided on in a transaction, which holds its inbox row.
struct Stalling(Duration);

impl ProcessManager for Stalling {
    fn name(&self) -> &'static str {
        CONSUMER
    }

    fn react(&self, _: &Message, _: &mut Turn<'_>) -> Result<Next, Declined> {
        std::thread::sleep(self.0);
        Ok(Next::Done)
    }
}

/// Handles messages that were begun before, all at once, with so long a stall each; each waits for one of a few tasks.
async fn handled(store: &Store, count: usize, stall: Duration) -> Anyhow<Vec<Result<Ack, Again>>> {
    let tenant = tenant_with(store, 1_000).await?;
    let mut tasks = vec![];
    for _ in 0..CONNECTIONS {
        tasks.push(submitted(store, tenant, None).await?.task.ok_or("no task")?);
    }
    let mut running = JoinSet::new();
    for number in 0..count {
        let delivery = begun(store, tenant, tasks[number % tasks.len()]).await?;
        let store = store.clone();
        running.spawn(async move { store.consume(&Stalling(stall), &World::new(no_call), &delivery).await });
    }
    let mut ended = Vec::new();
    while let Some(one) = running.join_next().await {
        ended.push(one?);
    }
    Ok(ended)
}

fn no_call(call: &Call) -> Answer {
    panic!("nothing is called: {call:?}")
}

/// A message whose inbox row is there, and open.
async fn begun(store: &Store, tenant: TenantId, task: TaskId) -> Anyhow<Delivery> {
    let delivery = fresh(tenant, &Message::SubmitRequested(TaskRef { task_id: task, task_version: 1 }))?;
    let (envelope, _) = read(&delivery.body).map_err(|bad| format!("{bad:?}"))?;
    sqlx::query(
        "INSERT INTO inbox_dedup (consumer_name, event_id, aggregate_id, phase, payload_hash) VALUES ($1, $2, $3, 'claimed', '')",
    )
    .bind(CONSUMER)
    .bind(envelope.event_id.0)
    .bind(task.0)
    .execute(store.pool())
    .await?;
    Ok(delivery)
}

/// Fifty tasks of tenants of their own, one after the other.
async fn normal_load(store: &Store) -> Anyhow<Duration> {
    let begun = Instant::now();
    for _ in 0..50 {
        let tenant = tenant_with(store, 1_000).await?;
        submitted(store, tenant, None).await?;
    }
    Ok(begun.elapsed())
}

/// Every connection that the pool may have can be had at once, and works.
async fn all_connections(pool: &PgPool) -> Anyhow {
    let mut taken = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut connection = tokio::time::timeout(Duration::from_secs(5), pool.acquire()).await??;
        sqlx::query("SELECT 1").execute(&mut *connection).await?;
        taken.push(connection);
    }
    Ok(())
}

async fn in_a_transaction(database: &TestDatabase) -> Anyhow<i64> {
    Ok(database
        .count(
            "SELECT count(*) FROM pg_stat_activity
              WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
        )
        .await?)
}

/// Q4: handlers stall inside their transactions until the server ends their sessions, 500 times. It is a fault that may be tried
/// again, nothing of it is recorded, no place in the pool is lost, and normal load goes as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn sessions_that_the_server_ends_cost_no_place_in_the_pool() -> Anyhow {
    let database = database().await?;
    let limit = [("idle_in_transaction_session_timeout", SESSION_LIMIT)];
    let pool = database.another_pool(CONNECTIONS, &limit).await?;
    let store = Store::on(pool.clone(), policy());
    let before = normal_load(&store).await?;
    let mut ended = 0;
    for one in handled(&store, ROUNDS, STALL).await? {
        match one {
            Err(Again::Database(error)) => {
                let passing = error.downcast_ref::<StoreError>().is_some_and(StoreError::is_passing);
                assert!(passing, "{error:?}");
                ended += 1;
            }
            other => return Err(format!("a session that was ended: {other:?}").into()),
        }
    }
    assert_eq!(ended, ROUNDS);
    let done = format!("SELECT count(*) FROM inbox_dedup WHERE consumer_name = '{CONSUMER}' AND phase = 'done'");
    assert_eq!(database.count(&done).await?, 0, "inbox rows of transactions that were ended");
    all_connections(&pool).await?;
    assert_eq!(in_a_transaction(&database).await?, 0);
    let after = normal_load(&store).await?;
    println!("normal load took {before:.0?} before and {after:.0?} after");
    assert!(after < before * 3 + Duration::from_secs(1), "{before:?} before, {after:?} after");
    for done in handled(&store, 20, Duration::ZERO).await? {
        assert_eq!(done?.outcome(), Outcome::Done);
    }
    invariants(&store).await
}

/// Looks, while it is called, who is in a transaction.
struct Onlooker<'a> {
    database: &'a TestDatabase,
    scripted: World,
}

impl Caller for Onlooker<'_> {
    fn call<'a>(
        &'a self,
        call: &'a Committed<Call>,
        context: CallContext,
    ) -> Pin<Box<dyn Future<Output = Answer> + Send + 'a>> {
        Box::pin(async move {
            let seen = in_a_transaction(self.database).await;
            assert_eq!(seen.ok(), Some(0), "a transaction is open while the provider is called");
            self.scripted.call(call, context).await
        })
    }
}

/// The provider is held, and nobody is in a transaction meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn no_transaction_is_open_during_a_call() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let tenant = tenant_with(store, 1_000).await?;
    let task = submitted(store, tenant, None).await?.task.ok_or("no task")?;
    let delivery = deliveries(store, task, "generation.submit.requested").await?.remove(0);
    let scripted = World::new(|call| match call {
        Call::Create { attempt, .. } => Answer::Created(Created::Accepted { job: format!("job-{attempt}") }),
        _ => Answer::Found(Found::Absent),
    });
    let onlooker = Onlooker { database: &database, scripted: scripted.slow(Duration::from_millis(50)) };
    drop(store.consume(&SubmitTask, &onlooker, &delivery).await?);
    assert_eq!(onlooker.scripted.creates(), 1);
    Ok(())
}

/// What a reader looks up while scans are switched off is run, not compiled: compiling it takes longer than all else it does.
#[tokio::test]
async fn nothing_is_compiled_for_a_look_at_the_log() -> Anyhow {
    let config = serde_json::json!({ "url": std::env::var("DATABASE_URL")? });
    let store = Store::connect(&serde_json::from_value(config)?, policy()).await?;
    let mut session = store.pool().acquire().await?;
    sqlx::query("CREATE TEMPORARY SEQUENCE positions").execute(&mut *session).await?;
    sqlx::query("SET enable_seqscan = off").execute(&mut *session).await?;
    let look = "EXPLAIN (ANALYZE, FORMAT TEXT) SELECT last_value FROM positions";
    let plan: Vec<String> = sqlx::query_scalar(look).fetch_all(&mut *session).await?;
    assert!(
        plan.iter().any(|line| line.contains("Seq Scan")) && !plan.iter().any(|line| line.contains("JIT")),
        "{plan:?}"
    );
    Ok(())
}
