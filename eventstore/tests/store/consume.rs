//! Handling messages on a real PostgreSQL: duplicates, races, lost answers, poison. Each test has a database of its own.

use super::support::{Anyhow, World, database, deliveries, fresh, invariants, request, submitted, tenant_with};
use domain::id::{AttemptId, TaskId, TenantId};
use domain::message::Message;
use domain::message::kinds::{AttemptRef, CallbackRef, TaskRef};
use domain::outcome::{Answer, Call, Created, Found, JobState, Polled};
use domain::process::{
    ApplyCallback, CaseKey, PollProvider, ProcessManager, Reconcile, SettleHold, SubmitTask, Turn, cancel,
};
use eventstore::{Outcome, Store};
use std::sync::Arc;
use std::time::Duration;

pub const SUBMIT: &str = "generation.submit.requested";

pub fn accepting() -> World {
    World::new(|call| match call {
        Call::Create { attempt, .. } => Answer::Created(Created::Accepted { job: format!("job-{attempt}") }),
        Call::Poll { .. } => Answer::Polled(Polled::State(JobState::Running { percent: Some(10) })),
        Call::Cancel { .. } => Answer::CancelAsked(domain::outcome::CancelAsked::Requested),
        _ => Answer::Found(Found::Inconclusive { cause: "not asked for".to_owned() }),
    })
}

pub async fn state_of(store: &Store, task: TaskId) -> Anyhow<String> {
    Ok(sqlx::query_scalar(
        "SELECT name FROM events WHERE category = 'task' AND stream_id = $1 ORDER BY version DESC LIMIT 1",
    )
    .bind(task.0)
    .fetch_one(store.pool())
    .await?)
}

pub async fn queued(store: &Store) -> Anyhow<(TenantId, TaskId)> {
    let tenant = tenant_with(store, 1_000).await?;
    let task = submitted(store, tenant, None).await?.task.ok_or("no task")?;
    Ok((tenant, task))
}

/// Q3, effect-once: one event, delivered many times in parallel. One submit, duplicates acknowledged, no aborted transaction.
#[tokio::test(flavor = "multi_thread")]
async fn one_event_delivered_in_parallel_has_one_effect() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let (_, task) = queued(store).await?;
    let delivery = Arc::new(deliveries(store, task, SUBMIT).await?.remove(0));
    let world = Arc::new(accepting().slow(Duration::from_millis(30)));
    let mut handlings = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (store, world, delivery) = (store.clone(), Arc::clone(&world), Arc::clone(&delivery));
        handlings.spawn(async move { store.consume(&SubmitTask, world.as_ref(), &delivery).await });
    }
    let mut done = 0;
    while let Some(handled) = handlings.join_next().await {
        let outcome = handled??.outcome();
        assert!(matches!(outcome, Outcome::Done | Outcome::Duplicate | Outcome::Declined), "{outcome:?}");
        done += usize::from(outcome == Outcome::Done);
    }
    assert_eq!((world.creates(), done), (1, 1));
    assert_eq!(state_of(store, task).await?, "task.accepted");
    invariants(store).await?;
    Ok(())
}

/// Q3: one event, delivered twice in parallel, a thousand times over. The loser acknowledges a duplicate; nothing comes again.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_pairs_of_deliveries_are_a_thousand_effects() -> Anyhow {
    const PAIRS: u64 = 1_000;
    let database = database().await?;
    let store = database.store();
    let world = Arc::new(accepting());
    let mut lanes = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (store, world) = (store.clone(), Arc::clone(&world));
        lanes.spawn(async move {
            for _ in 0..PAIRS / 8 {
                let (_, task) = queued(&store).await?;
                let delivery = deliveries(&store, task, SUBMIT).await?.remove(0);
                let twice = tokio::join!(
                    store.consume(&SubmitTask, world.as_ref(), &delivery),
                    store.consume(&SubmitTask, world.as_ref(), &delivery)
                );
                for handled in [twice.0?, twice.1?] {
                    let outcome = handled.outcome();
                    assert!(matches!(outcome, Outcome::Done | Outcome::Duplicate | Outcome::Declined), "{outcome:?}");
                }
            }
            Anyhow::<()>::Ok(())
        });
    }
    while let Some(lane) = lanes.join_next().await {
        lane??;
    }
    assert_eq!(u64::try_from(world.creates())?, PAIRS);
    invariants(store).await?;
    Ok(())
}

/// The worker dies after it announced the call: the redelivery does not call again; when the lease is over the answer counts as
/// lost, the job is looked up, and found.
#[tokio::test]
async fn a_redelivery_after_a_crash_looks_the_job_up() -> Anyhow {
    let rules = domain::process::Policy { submit_timeout_ms: 1, lease_margin_ms: 300, ..super::support::policy() };
    let database = eventstore::testkit::TestDatabase::with_policy(rules).await?;
    let store = database.store();
    let (tenant, task) = queued(store).await?;
    let attempt = AttemptId::of(task, 1);
    let delivery = deliveries(store, task, SUBMIT).await?.remove(0);
    let hanging = World::new(|_| Answer::Created(Created::Unknown { cause: "never answered".to_owned() }))
        .slow(Duration::from_secs(60));
    let crash = tokio::time::timeout(Duration::from_millis(150), store.consume(&SubmitTask, &hanging, &delivery)).await;
    assert!(crash.is_err() && hanging.creates() == 1, "the worker died while it waited for the answer");

    let world = World::new(move |call| match call {
        Call::Find { .. } => Answer::Found(Found::Job { job: "job-1".to_owned() }),
        other => panic!("nothing else may be called: {other:?}"),
    });
    let early = store.consume(&SubmitTask, &world, &delivery).await?;
    assert_eq!(early.outcome(), Outcome::Declined, "the lease is not over");
    tokio::time::sleep(Duration::from_millis(350)).await;
    let version = 0;
    let again = fresh(tenant, &Message::SubmitRequested(TaskRef { task_id: task, task_version: version }))?;
    assert_eq!(store.consume(&SubmitTask, &world, &again).await?.outcome(), Outcome::Done);
    assert_eq!(state_of(store, task).await?, "task.track_lost");
    tokio::time::sleep(Duration::from_millis(5)).await;
    let look = fresh(tenant, &Message::ReconcileDue(AttemptRef { task_id: task, attempt_id: attempt, version }))?;
    assert_eq!(store.consume(&Reconcile, &world, &look).await?.outcome(), Outcome::Done);
    assert_eq!(state_of(store, task).await?, "task.accepted");
    assert_eq!(world.creates(), 0);
    Ok(())
}

/// P2: the provider calls back before its answer, which then is lost. The callback is enough.
#[tokio::test]
async fn a_callback_before_the_answer_is_not_lost() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let (tenant, task) = queued(store).await?;
    let attempt = AttemptId::of(task, 1);
    let delivery = deliveries(store, task, SUBMIT).await?.remove(0);
    let callback = fresh(
        tenant,
        &Message::CallbackReceived(CallbackRef { task_id: task, attempt_id: attempt, job: "j".to_owned() }),
    )?;
    let inner = store.clone();
    let world = World::new(|call| match call {
        Call::Create { .. } => Answer::Created(Created::Unknown { cause: "reset".to_owned() }),
        _ => Answer::Polled(Polled::State(JobState::Running { percent: None })),
    })
    .slow(Duration::from_millis(200));
    let polling = accepting();
    let (submit, applied) = tokio::join!(inner.consume(&SubmitTask, &world, &delivery), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        store.consume(&ApplyCallback, &polling, &callback).await
    });
    assert_eq!(applied?.outcome(), Outcome::Done);
    assert_eq!(
        submit?.outcome(),
        Outcome::Declined,
        "the lost answer says nothing that the callback did not say better"
    );
    assert_eq!(state_of(store, task).await?, "task.accepted");
    Ok(())
}

/// E1: many commands at one task at once; the losers of each version decide again on fresh facts.
#[tokio::test(flavor = "multi_thread")]
async fn parallel_commands_on_one_task_never_contradict() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let world = Arc::new(accepting());
    for _ in 0..200 {
        let (tenant, task) = queued(store).await?;
        let delivery = deliveries(store, task, SUBMIT).await?.remove(0);
        drop(store.consume(&SubmitTask, world.as_ref(), &delivery).await?);
        let mut racers = tokio::task::JoinSet::new();
        for racer in 0..30 {
            let (store, world) = (store.clone(), Arc::clone(&world));
            racers.spawn(async move { race(&store, &world, tenant, task, racer).await });
        }
        while let Some(racer) = racers.join_next().await {
            racer??;
        }
    }
    let after_the_end: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM events e JOIN events t USING (category, stream_id)
          WHERE t.name IN ('task.canceled', 'task.failed', 'task.succeeded') AND e.version > t.version",
    )
    .fetch_one(store.pool())
    .await?;
    assert_eq!(after_the_end, 0, "events after an end");
    invariants(store).await?;
    Ok(())
}

async fn race(store: &Store, world: &World, tenant: TenantId, task: TaskId, racer: usize) -> Anyhow {
    let attempt_id = AttemptId::of(task, 1);
    let about = AttemptRef { task_id: task, attempt_id, version: 3 };
    match racer % 3 {
        0 => {
            let request = request(tenant, None);
            let command = |turn: &mut Turn<'_>| cancel(turn, "user:test".to_owned());
            drop(store.execute(&request, CaseKey::task(task), None, command).await);
        }
        1 => {
            let done = World::new(|_| Answer::Polled(Polled::State(JobState::Canceled)));
            let job = format!("job-{attempt_id}");
            let callback = Message::CallbackReceived(CallbackRef { task_id: task, attempt_id, job });
            drop(store.consume(&ApplyCallback, &done, &fresh(tenant, &callback)?).await?);
        }
        _ => drop(store.consume(&PollProvider, world, &fresh(tenant, &Message::PollDue(about))?).await?),
    }
    Ok(())
}

/// S1: after the end, late news of every kind and version changes nothing.
#[tokio::test]
async fn late_news_does_not_change_a_cancelled_task() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let (tenant, task) = queued(store).await?;
    store
        .execute(&request(tenant, None), CaseKey::task(task), None, |turn| cancel(turn, "user:test".to_owned()))
        .await?;
    let attempt_id = AttemptId::of(task, 1);
    let world = World::new(|call| panic!("nothing may be called for a cancelled task: {call:?}"));
    for version in [0, 1, 2, 9] {
        let about = TaskRef { task_id: task, task_version: version };
        for message in [Message::SubmitRequested(about), Message::SubmitDue(about)] {
            let handled = store.consume(&SubmitTask, &world, &fresh(tenant, &message)?).await?;
            assert_eq!(handled.outcome(), Outcome::Declined);
        }
        // No attempt was ever made: who speaks of one speaks of something that does not exist.
        let late = Message::PollDue(AttemptRef { task_id: task, attempt_id, version });
        assert_eq!(store.consume(&PollProvider, &world, &fresh(tenant, &late)?).await?.outcome(), Outcome::Parked);
    }
    assert_eq!(state_of(store, task).await?, "task.canceled");
    let settle = deliveries(store, task, "billing.settle.requested").await?.remove(0);
    assert_eq!(store.consume(&SettleHold, &world, &settle).await?.outcome(), Outcome::Done);
    assert_eq!(store.consume(&SettleHold, &world, &settle).await?.outcome(), Outcome::Duplicate);
    // K6, L9: the inbox row is gone, or the message comes with a new id: the business key decides.
    sqlx::query("DELETE FROM inbox_dedup").execute(store.pool()).await?;
    drop(store.consume(&SettleHold, &world, &settle).await?);
    let replay = Message::SettleRequested(TaskRef { task_id: task, task_version: 2 });
    drop(store.consume(&SettleHold, &world, &fresh(tenant, &replay)?).await?);
    let released: i64 = sqlx::query_scalar("SELECT count(*) FROM events WHERE name = 'account.released'")
        .fetch_one(store.pool())
        .await?;
    assert_eq!(released, 1, "one posting per task, ever");
    invariants(store).await?;
    Ok(())
}

/// poison-once, tenant-wall: what can never be handled is one row in quarantine, acknowledged.
#[tokio::test]
async fn poison_is_parked_once() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let (_, task) = queued(store).await?;
    let world = World::new(|call| panic!("poison leads to no call: {call:?}"));
    let mut torn = deliveries(store, task, SUBMIT).await?.remove(0);
    torn.body.truncate(20);
    let stranger =
        fresh(TenantId(uuid::Uuid::new_v4()), &Message::SubmitRequested(TaskRef { task_id: task, task_version: 1 }))?;
    for poison in [&torn, &stranger] {
        for _ in 0..3 {
            assert_eq!(store.consume(&SubmitTask, &world, poison).await?.outcome(), Outcome::Parked);
        }
    }
    let rows: Vec<(String, i32)> =
        sqlx::query_as("SELECT error_class, delivery_count FROM message_quarantine ORDER BY error_class")
            .fetch_all(store.pool())
            .await?;
    assert_eq!(rows, [("malformed".to_owned(), 3), ("tenant_mismatch".to_owned(), 3)]);
    assert_eq!(state_of(store, task).await?, "task.submitted");
    Ok(())
}

/// Every manager meets every kind of message without panic, whatever the state.
#[tokio::test]
async fn a_message_of_the_wrong_kind_is_declined() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let (tenant, task) = queued(store).await?;
    let world = accepting();
    drop(store.consume(&SubmitTask, &world, &deliveries(store, task, SUBMIT).await?.remove(0)).await?);
    let about = AttemptRef { task_id: task, attempt_id: AttemptId::of(task, 1), version: 1 };
    let managers: [&dyn ProcessManager; 3] = [&PollProvider, &ApplyCallback, &SettleHold];
    for manager in managers {
        let handled = store.consume(manager, &world, &fresh(tenant, &Message::FetchRequested(about))?).await?;
        assert_eq!(handled.outcome(), Outcome::Declined, "{}", manager.name());
    }
    Ok(())
}
