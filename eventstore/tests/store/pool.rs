//! Q4 and invariant I-h: what a session that is ended inside a transaction costs, and who is in one while others are called.

use super::support::{Anyhow, World, database, deliveries, invariants, policy, request, submitted, tenant_with};
use domain::id::{AccountId, TenantId};
use domain::money::Credits;
use domain::outcome::{Answer, Call, Created, Found};
use domain::process::{CaseKey, SubmitTask, Turn, grant};
use eventstore::testkit::TestDatabase;
use eventstore::{CallContext, Caller, Committed, ExecuteError, Store, StoreError};
use sqlx::PgPool;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const CONNECTIONS: u32 = 8;
const ROUNDS: usize = 500;
/// A tenth of what the case in the field had: the rounds take a minute less, and nothing else changes.
const SESSION_LIMIT: &str = "100";
const STALL: Duration = Duration::from_millis(150);

/// Grants that stall in the middle of their transaction, or do not.
async fn grants(
    store: &Store,
    tenant: TenantId,
    count: usize,
    stall: Duration,
) -> Anyhow<Vec<Result<(), ExecuteError>>> {
    let mut running = JoinSet::new();
    for number in 0..count {
        let store = store.clone();
        running.spawn(async move {
            let key = format!("{stall:?}-{number}");
            let command = |turn: &mut Turn<'_>| {
                std::thread::sleep(stall);
                grant(turn, key.clone(), Credits(1))
            };
            let account = CaseKey::account(AccountId::of(tenant));
            // With a key: a command without one needs no transaction around its one statement.
            store.execute(&request(tenant, Some(&key)), account, None, command).await.map(drop)
        });
    }
    let mut ended = Vec::new();
    while let Some(one) = running.join_next().await {
        ended.push(one?);
    }
    Ok(ended)
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
    let tenant = TenantId(uuid::Uuid::new_v4());
    let mut ended = 0;
    for round in grants(&store, tenant, ROUNDS, STALL).await? {
        match round {
            Err(ExecuteError::Store(error @ StoreError::Database(_))) => {
                assert!(error.is_passing(), "{error:?}");
                ended += 1;
            }
            other => return Err(format!("a session that was ended: {other:?}").into()),
        }
    }
    assert_eq!(ended, ROUNDS);
    let recorded: i64 = database.count("SELECT count(*) FROM events WHERE body->>'key' LIKE '%ms-%'").await?;
    assert_eq!(recorded, 0, "events of transactions that were ended");
    all_connections(&pool).await?;
    assert_eq!(in_a_transaction(&database).await?, 0);
    let after = normal_load(&store).await?;
    println!("normal load took {before:.0?} before and {after:.0?} after");
    assert!(after < before * 3 + Duration::from_secs(1), "{before:?} before, {after:?} after");
    for done in grants(&store, tenant, 20, Duration::ZERO).await? {
        done?;
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
