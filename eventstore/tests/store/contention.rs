//! Q1 and Q2: locks taken in opposite order, and requests of PostgreSQL's for another try, stay inside.

use super::support::{Anyhow, World, database, deliveries, fresh, invariants, policy, submitted, tenant_with};
use domain::id::{AttemptId, TaskId, TenantId};
use domain::message::Message;
use domain::message::kinds::{AttemptRef, CallbackRef};
use domain::outcome::{Answer, Call, Created, Found, JobState, Polled};
use domain::process::{ApplyCallback, PollProvider, ProcessManager, SubmitTask};
use eventstore::{Delivery, ExecuteError, Store};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const ROUNDS: usize = 100;
const BATCH: usize = 10;
const WRITERS: usize = 30;
/// A tenth of the case's minute.
const BUSY_FOR: Duration = Duration::from_secs(6);

fn running() -> World {
    World::new(|call| match call {
        Call::Create { attempt, .. } => Answer::Created(Created::Accepted { job: format!("job-{attempt}") }),
        Call::Poll { .. } => Answer::Polled(Polled::State(JobState::Running { percent: Some(10) })),
        _ => Answer::Found(Found::Absent),
    })
}

async fn accepted(store: &Store, tenant: TenantId, world: &World) -> Anyhow<TaskId> {
    let task = submitted(store, tenant, None).await?.task.ok_or("no task")?;
    let delivery = deliveries(store, task, "generation.submit.requested").await?.remove(0);
    drop(store.consume(&SubmitTask, world, &delivery).await?);
    Ok(task)
}

/// Two messages about each task: a wake-up to poll, and a callback. Both write to the task's and the attempt's streams.
fn about(tenant: TenantId, task: TaskId) -> Anyhow<[(&'static dyn ProcessManager, Delivery); 2]> {
    let attempt_id = AttemptId::of(task, 1);
    let poll = Message::PollDue(AttemptRef { task_id: task, attempt_id, version: 3 });
    let callback = CallbackRef { task_id: task, attempt_id, job: format!("job-{attempt_id}") };
    Ok([(&PollProvider, fresh(tenant, &poll)?), (&ApplyCallback, fresh(tenant, &Message::CallbackReceived(callback))?)])
}

/// Q1: two consumers get the same messages in opposite order, a thousand messages each. Every one is acknowledged by both, and
/// PostgreSQL has no deadlock to break.
#[tokio::test(flavor = "multi_thread")]
async fn batches_in_opposite_order_do_not_deadlock() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let tenant = tenant_with(store, 1_000_000).await?;
    let world = Arc::new(running());
    let mut tasks = Vec::new();
    for _ in 0..BATCH / 2 {
        tasks.push(accepted(store, tenant, &world).await?);
    }
    for _ in 0..ROUNDS {
        let mut batch = Vec::new();
        for task in &tasks {
            batch.extend(about(tenant, *task)?);
        }
        let forth = consume_all(store, &world, batch.iter());
        let back = consume_all(store, &world, batch.iter().rev());
        let (forth, back) = tokio::join!(forth, back);
        forth?;
        back?;
    }
    let deadlocks = database.count("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").await?;
    assert_eq!(deadlocks, 0, "deadlocks");
    let open = database.count("SELECT count(*) FROM inbox_dedup WHERE phase <> 'done'").await?;
    let parked = database.count("SELECT count(*) FROM message_quarantine").await?;
    assert_eq!((open, parked), (0, 0), "open inbox rows, and messages in quarantine");
    invariants(store).await
}

async fn consume_all(
    store: &Store,
    world: &World,
    batch: impl Iterator<Item = &(&'static dyn ProcessManager, Delivery)>,
) -> Anyhow {
    for (manager, delivery) in batch {
        drop(store.consume(*manager, world, delivery).await?);
    }
    Ok(())
}

/// Thirty writers on one balance, for as long as `BUSY_FOR`; what each is told is a task or that the credits are spent.
async fn thirty_writers(store: &Store, tenant: TenantId) -> Anyhow<(usize, usize)> {
    let end = Instant::now() + BUSY_FOR;
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let store = store.clone();
        writers.spawn(async move {
            let (mut taken, mut refused) = (0, 0);
            while Instant::now() < end {
                match submitted(&store, tenant, None).await {
                    Ok(_) => taken += 1,
                    Err(ExecuteError::Refused(refusal)) if refusal.code == "insufficient_credits" => refused += 1,
                    Err(other) => return Err(other),
                }
            }
            Ok((taken, refused))
        });
    }
    let (mut taken, mut refused) = (0, 0);
    while let Some(writer) = writers.join_next().await {
        let (more, no) = writer??;
        (taken, refused) = (taken + more, refused + no);
    }
    Ok((taken, refused))
}

/// Q2: thirty writers on one tenant's balance, for six seconds. Nobody is told of a race.
#[tokio::test(flavor = "multi_thread")]
async fn thirty_writers_on_one_balance_see_no_conflict() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let tenant = tenant_with(store, 20_000).await?;
    let (taken, refused) = thirty_writers(store, tenant).await?;
    println!("{taken} tasks, {refused} refusals");
    // Each holds 100.
    assert_eq!(taken, 200);
    assert!(refused > WRITERS, "the end of the credits was met by {refused}");
    invariants(store).await
}

/// Q2: PostgreSQL asks for another try (40001, 40P01) at one append in five, and at one commit in ten. It gets it, on facts that
/// are read again.
#[tokio::test(flavor = "multi_thread")]
async fn serialization_failures_stay_inside() -> Anyhow {
    let database = database().await?;
    database
        .sql(
            "CREATE FUNCTION another_try() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 IF random() < TG_ARGV[0]::float8 THEN
                     RAISE EXCEPTION 'another try' USING ERRCODE = CASE WHEN random() < 0.5 THEN '40001' ELSE '40P01' END;
                 END IF;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER at_append AFTER INSERT ON events FOR EACH STATEMENT EXECUTE FUNCTION another_try(0.2);
             CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON generation_requests DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION another_try(0.1);",
        )
        .await?;
    let store = Store::on(database.another_pool(16, &[]).await?, policy());
    let tenant = tenant_with(&store, 1_000_000).await?;
    let mut tasks = Vec::new();
    for _ in 0..200 {
        tasks.push(submitted(&store, tenant, None).await?.task);
    }
    let held = database.count("SELECT count(*) FROM events WHERE name = 'account.held'").await?;
    let distinct: std::collections::BTreeSet<_> = tasks.iter().collect();
    assert_eq!((held, distinct.len()), (200, 200));
    let world = running();
    for task in tasks.into_iter().flatten().take(50) {
        let delivery = deliveries(&store, task, "generation.submit.requested").await?.remove(0);
        drop(store.consume(&SubmitTask, &world, &delivery).await?);
    }
    assert_eq!(world.creates(), 50, "each task's job was asked for once");
    invariants(&store).await
}
