//! Workers that are paused past everybody's patience, with an answer in hand, and then go on as if nothing had happened.

use super::consume::{SUBMIT, accepting, queued, state_of};
use super::support::{Anyhow, World, database, deliveries, fresh, invariants, request, tenant_with};
use domain::id::{AccountId, AttemptId, TaskId, TenantId};
use domain::message::Message;
use domain::message::kinds::AttemptRef;
use domain::outcome::{Answer, Call, Created, FaultClass, Found, JobState, Polled, ProviderFault};
use domain::process::{CaseKey, PollProvider, ProcessManager, Reconcile, SubmitTask, submit};
use domain::task::{Order, Place};
use domain::testkit::strategies::usual_order;
use eventstore::{CallContext, Caller, Committed, Outcome, Store, Submission};
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::Notify;

/// Has its answer at once, and sleeps with it.
struct Sleeper {
    answer: Answer,
    asleep: Notify,
    wake: Notify,
}

impl Sleeper {
    fn with(answer: Answer) -> Self {
        Self { answer, asleep: Notify::new(), wake: Notify::new() }
    }
}

impl Caller for Sleeper {
    fn call<'a>(
        &'a self,
        _call: &'a Committed<Call>,
        _context: CallContext,
    ) -> Pin<Box<dyn Future<Output = Answer> + Send + 'a>> {
        Box::pin(async move {
            self.asleep.notify_one();
            self.wake.notified().await;
            self.answer.clone()
        })
    }
}

async fn version_of(store: &Store, attempt: AttemptId) -> Anyhow<i64> {
    let newest = "SELECT max(version) FROM events WHERE category = 'attempt' AND stream_id = $1";
    Ok(sqlx::query_scalar(newest).bind(attempt.0).fetch_one(store.pool()).await?)
}

/// One worker sleeps with its answer; another handles the same wake-up, as after a redelivery. What the first one says then.
async fn slept_through(
    store: &Store,
    (tenant, task): (TenantId, TaskId),
    manager: &dyn ProcessManager,
    message: impl Fn(AttemptRef) -> Message,
    answers: (Answer, Answer),
) -> Anyhow<(Outcome, i64, i64)> {
    let attempt_id = AttemptId::of(task, 1);
    let about = AttemptRef { task_id: task, attempt_id, version: version_of(store, attempt_id).await? };
    let sleeper = Sleeper::with(answers.0);
    let first = fresh(tenant, &message(about))?;
    let second = fresh(tenant, &message(about))?;
    let others = async {
        sleeper.asleep.notified().await;
        let awake = World::new(move |_| answers.1.clone());
        let handled = store.consume(manager, &awake, &second).await?.outcome();
        assert_eq!(handled, Outcome::Done, "the other worker goes on");
        let before = version_of(store, attempt_id).await?;
        sleeper.wake.notify_one();
        Anyhow::<i64>::Ok(before)
    };
    let (slept, before) = tokio::join!(store.consume(manager, &sleeper, &first), others);
    Ok((slept?.outcome(), before?, version_of(store, attempt_id).await?))
}

#[tokio::test]
async fn a_worker_that_slept_with_a_poll_writes_nothing() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let (tenant, task) = queued(store).await?;
    let delivery = deliveries(store, task, SUBMIT).await?.remove(0);
    drop(store.consume(&SubmitTask, &accepting(), &delivery).await?);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let running = |percent| Answer::Polled(Polled::State(JobState::Running { percent }));
    let answers = (running(Some(10)), running(Some(60)));
    let (slept, before, after) = slept_through(store, (tenant, task), &PollProvider, Message::PollDue, answers).await?;
    assert_eq!((slept, before), (Outcome::Declined, after), "the late answer is refused, by its number");
    let polls = deliveries(store, task, "generation.poll.due").await?.len();
    assert_eq!(polls, 2, "and sets no wake-up beside the one that there is");
    invariants(store).await
}

#[tokio::test]
async fn a_reconciler_that_slept_with_a_look_up_writes_nothing() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let (tenant, task) = queued(store).await?;
    let delivery = deliveries(store, task, SUBMIT).await?.remove(0);
    let lost = World::new(|_| Answer::Created(Created::Unknown { cause: "reset".to_owned() }));
    drop(store.consume(&SubmitTask, &lost, &delivery).await?);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let answers = (Answer::Found(Found::Absent), Answer::Found(Found::Absent));
    let (slept, before, after) =
        slept_through(store, (tenant, task), &Reconcile, Message::ReconcileDue, answers).await?;
    assert_eq!((slept, before), (Outcome::Declined, after), "two look-ups of one moment are one absence");
    assert_eq!(state_of(store, task).await?, "task.track_lost", "nothing is submitted again on it");
    invariants(store).await
}

/// The lease of the submission ends while the worker sleeps with the provider's yes; others have lost track of it meanwhile.
#[tokio::test]
async fn a_worker_that_slept_past_its_lease_still_brings_its_job() -> Anyhow {
    let rules = domain::process::Policy { submit_timeout_ms: 1, lease_margin_ms: 50, ..super::support::policy() };
    let database = eventstore::testkit::TestDatabase::with_policy(rules).await?;
    let store = database.store();
    let (tenant, task) = queued(store).await?;
    let delivery = deliveries(store, task, SUBMIT).await?.remove(0);
    let sleeper = Sleeper::with(Answer::Created(Created::Accepted { job: "job-1".to_owned() }));
    let others = async {
        sleeper.asleep.notified().await;
        tokio::time::sleep(Duration::from_millis(80)).await;
        let about = domain::message::kinds::TaskRef { task_id: task, task_version: 0 };
        let nobody = World::new(|call| panic!("nothing may be called: {call:?}"));
        let handled = store.consume(&SubmitTask, &nobody, &fresh(tenant, &Message::SubmitRequested(about))?).await?;
        assert_eq!((handled.outcome(), state_of(store, task).await?.as_str()), (Outcome::Done, "task.track_lost"));
        sleeper.wake.notify_one();
        Anyhow::<()>::Ok(())
    };
    let (slept, others) = tokio::join!(store.consume(&SubmitTask, &sleeper, &delivery), others);
    others?;
    assert_eq!(slept?.outcome(), Outcome::Done, "late, and true");
    assert_eq!(state_of(store, task).await?, "task.accepted");
    invariants(store).await
}

/// M1: the worker is killed six times in the middle of its call, and the message comes again each time. One create call, and no
/// message becomes two.
#[tokio::test]
async fn m1_kills_in_the_middle_of_the_work_double_nothing() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let (_, task) = queued(store).await?;
    let delivery = deliveries(store, task, SUBMIT).await?.remove(0);
    let rows = "SELECT count(*) FROM outbox_events";
    let before = database.count(rows).await?;
    let sleeper = Sleeper::with(Answer::Created(Created::Accepted { job: "job-1".to_owned() }));
    tokio::select! {
        handled = store.consume(&SubmitTask, &sleeper, &delivery) => panic!("it can not end: {handled:?}"),
        () = sleeper.asleep.notified() => {}
    }
    let nobody = World::new(|call| panic!("it is not called again: {call:?}"));
    for _ in 0..5 {
        let handled = store.consume(&SubmitTask, &nobody, &delivery).await?;
        assert!(matches!(handled.outcome(), Outcome::Declined | Outcome::Duplicate), "{:?}", handled.outcome());
    }
    assert_eq!(database.count(rows).await?, before, "nothing was announced");
    assert_eq!(state_of(store, task).await?, "task.submission_begun", "its lease decides, not the broker");
    invariants(store).await
}

/// M2: the broker takes a slow handler for dead and delivers again, three times, while it is still at its call.
#[tokio::test]
async fn m2_a_redelivery_beside_a_slow_handler_backs_off() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let (_, task) = queued(store).await?;
    let delivery = deliveries(store, task, SUBMIT).await?.remove(0);
    let sleeper = Sleeper::with(Answer::Created(Created::Accepted { job: "job-1".to_owned() }));
    let others = async {
        sleeper.asleep.notified().await;
        let nobody = World::new(|call| panic!("the first one is at it: {call:?}"));
        for _ in 0..3 {
            let handled = store.consume(&SubmitTask, &nobody, &delivery).await?;
            assert_ne!(handled.outcome(), Outcome::Done);
        }
        sleeper.wake.notify_one();
        Anyhow::<()>::Ok(())
    };
    let (slow, others) = tokio::join!(store.consume(&SubmitTask, &sleeper, &delivery), others);
    others?;
    assert_eq!(slow?.outcome(), Outcome::Done, "the slow one finishes what it began");
    assert_eq!(state_of(store, task).await?, "task.accepted");
    invariants(store).await
}

/// An attempt that is made elsewhere is called, asked about and cancelled at its own provider, by its own model.
#[tokio::test]
async fn an_attempt_elsewhere_is_called_at_its_own_provider() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let tenant = tenant_with(store, 1_000).await?;
    let task = TaskId(uuid::Uuid::new_v4());
    let elsewhere = Place { provider: "runway".to_owned(), model: "acme/ship".to_owned(), seeded: false };
    let order = Order {
        tenant,
        account: AccountId::of(tenant),
        give_up_at: domain::time::Timestamp::from(std::time::SystemTime::now()) + chrono::TimeDelta::hours(1),
        alternatives: vec![elsewhere],
        ..usual_order(task)
    };
    let case = CaseKey { account: Some(order.account), with_account: true, ..CaseKey::task(task) };
    let submission = Submission { task, prompt: "a boat".to_owned() };
    store.execute(&request(tenant, None), case, Some(&submission), |turn| submit(turn, order.clone())).await?;
    let places = Places::default();
    drop(store.consume(&SubmitTask, &places, &deliveries(store, task, SUBMIT).await?.remove(0)).await?);
    assert_eq!(state_of(store, task).await?, "task.attempt_replaced");
    tokio::time::sleep(Duration::from_millis(5)).await;
    let due = deliveries(store, task, "generation.submit.due").await?.remove(0);
    drop(store.consume(&SubmitTask, &places, &due).await?);
    let second = AttemptId::of(task, 2);
    let about = AttemptRef { task_id: task, attempt_id: second, version: version_of(store, second).await? };
    tokio::time::sleep(Duration::from_millis(5)).await;
    drop(store.consume(&PollProvider, &places, &fresh(tenant, &Message::PollDue(about))?).await?);
    let seen = places.0.lock().expect("no test panics while it holds this").clone();
    let first = ("replicate".to_owned(), "aivideo/paper-boat-1".to_owned());
    let other = ("runway".to_owned(), "acme/ship".to_owned());
    assert_eq!(seen, [first, other.clone(), other]);
    invariants(store).await
}

/// Breaks at the first provider, and works at any other.
#[derive(Default)]
struct Places(Mutex<Vec<(String, String)>>);

impl Caller for Places {
    fn call<'a>(
        &'a self,
        call: &'a Committed<Call>,
        context: CallContext,
    ) -> Pin<Box<dyn Future<Output = Answer> + Send + 'a>> {
        let breaks = context.order.provider == "replicate";
        let place = (context.order.provider, context.order.model);
        self.0.lock().expect("no test panics while it holds this").push(place);
        Box::pin(std::future::ready(match call.get() {
            Call::Create { .. } if breaks => Answer::Created(Created::Rejected(ProviderFault {
                class: FaultClass::Internal,
                code: "broke".to_owned(),
                message: "it broke".to_owned(),
            })),
            Call::Create { .. } => Answer::Created(Created::Accepted { job: "job-2".to_owned() }),
            _ => Answer::Polled(Polled::State(JobState::Running { percent: None })),
        }))
    }
}
