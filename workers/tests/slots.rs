//! Slots on a real database: tasks that wait, are called and go on; what runs is counted from the facts.

use admission::{AdmissionConfig, Desk, InFlight, Limits};
use domain::id::{AccountId, AttemptId, CausationId, CorrelationId, TaskId, TenantId};
use domain::message::kinds::{AttemptRef, TaskRef};
use domain::message::{Envelope, Message};
use domain::money::Credits;
use domain::outcome::{Answer, Call, Created, JobState, Polled};
use domain::process::{
    CaseKey, Entry, Policy, PollProvider, ProcessManager, Slot, SlotNote, StreamId, SubmitTask, cancel, grant, submit,
};
use domain::task::Order;
use domain::testkit::strategies::usual_order;
use eventstore::testkit::TestDatabase;
use eventstore::{CallContext, CalledUp, Caller, Committed, Delivery, LoggedEvent, Meta, Outcome, Request, Submission};
use futures_util::future::BoxFuture;
use projections::projector::{Projector, ProjectorConfig};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use workers::{Slots, Usher};

type Anyhow<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

struct Facts(projections::in_flight::InFlight);

impl InFlight for Facts {
    fn slots(&self) -> BoxFuture<'_, Result<Vec<Slot>, String>> {
        Box::pin(async move { self.0.slots().await.map_err(|error| error.to_string()) })
    }
}

/// A provider that takes everything, and says of each job that it is done; calls are counted.
struct Outside {
    slots: Slots,
    creates: Mutex<Vec<AttemptId>>,
}

impl Caller for Outside {
    fn call<'a>(&'a self, call: &'a Committed<Call>, _context: CallContext) -> BoxFuture<'a, Answer> {
        Box::pin(async move {
            match call.get() {
                Call::Create { attempt, .. } => {
                    self.creates.lock().expect("no test panics while it holds this").push(*attempt);
                    Answer::Created(Created::Accepted { job: format!("job-{attempt}") })
                }
                _ => Answer::Polled(Polled::State(JobState::Succeeded {
                    output_url: "https://out.example/1".to_owned(),
                    usage_millis: None,
                })),
            }
        })
    }

    fn admit<'a>(&'a self, slot: &'a Slot) -> BoxFuture<'a, Entry> {
        Box::pin(self.slots.ask(slot))
    }

    fn noted<'a>(&'a self, note: &'a SlotNote) -> BoxFuture<'a, ()> {
        Box::pin(self.slots.note(note))
    }
}

struct World {
    database: TestDatabase,
    outside: Outside,
    facts: projections::in_flight::InFlight,
    stop: CancellationToken,
    usher: JoinSet<()>,
}

impl World {
    /// One job at once.
    async fn begin() -> Anyhow<Self> {
        let database =
            TestDatabase::with_policy(Policy { poll_first_ms: 1, poll_cap_ms: 1, ..Policy::default() }).await?;
        let config = AdmissionConfig {
            providers: Limits { default: Some(1), ..Limits::default() },
            ..AdmissionConfig::default()
        };
        let desk = Arc::new(Desk::new(&config)?);
        let facts = projections::in_flight::InFlight::new(database.pool().clone());
        let (slots, usher): (Slots, Usher) =
            Slots::new(desk, database.store().clone(), Arc::new(Facts(facts.clone())), Duration::from_secs(3_600));
        let stop = CancellationToken::new();
        let mut running = JoinSet::new();
        running.spawn(usher.run(stop.clone()));
        let outside = Outside { slots, creates: Mutex::default() };
        Ok(Self { database, outside, facts, stop, usher: running })
    }

    async fn submitted(&self, number: u128) -> Anyhow<Order> {
        let (task, tenant) = (TaskId(Uuid::from_u128(number)), TenantId(Uuid::from_u128(number << 64)));
        let now: domain::time::Timestamp = std::time::SystemTime::now().into();
        let order = Order {
            tenant,
            account: AccountId::of(tenant),
            input_assets: vec![],
            submitted_at: now,
            give_up_at: now + chrono::TimeDelta::hours(1),
            ..usual_order(task)
        };
        let store = self.database.store();
        let granted = CaseKey::account(order.account);
        store.execute(&request(tenant), granted, None, |turn| grant(turn, "test".to_owned(), Credits(500))).await?;
        let case = CaseKey { account: Some(order.account), with_account: true, ..CaseKey::task(task) };
        let submission = Submission { task, prompt: "a boat".to_owned() };
        store.execute(&request(tenant), case, Some(&submission), |turn| submit(turn, order.clone())).await?;
        Ok(order)
    }

    /// A message about a task, under an id of its own.
    async fn deliver(&self, manager: &dyn ProcessManager, order: &Order, message: &Message) -> Anyhow<Outcome> {
        let delivery = delivery(order, message)?;
        Ok(self
            .database
            .store()
            .consume(manager, &self.outside, &delivery)
            .await
            .map_err(|again| again.to_string())?
            .outcome())
    }

    async fn submit(&self, order: &Order) -> Anyhow<Outcome> {
        let about = TaskRef { task_id: order.task, task_version: 1 };
        self.deliver(&SubmitTask, order, &Message::SubmitRequested(about)).await
    }

    /// The attempt's job is polled, and done.
    async fn finish(&self, order: &Order) -> Anyhow {
        let attempt_id = AttemptId::of(order.task, 1);
        let began = Instant::now();
        loop {
            let version = self.version(StreamId::attempt(attempt_id)).await?;
            let about = AttemptRef { task_id: order.task, attempt_id, version };
            self.deliver(&PollProvider, order, &Message::PollDue(about)).await?;
            if self.names(StreamId::attempt(attempt_id)).await?.iter().any(|it| it == "attempt.succeeded") {
                return Ok(());
            }
            if began.elapsed() > Duration::from_secs(20) {
                return Err("the job is never done".into());
            }
        }
    }

    async fn version(&self, stream: StreamId) -> Anyhow<i64> {
        Ok(i64::try_from(self.names(stream).await?.len())?)
    }

    /// The names of a stream's events, in order.
    async fn names(&self, stream: StreamId) -> Anyhow<Vec<String>> {
        let log = self.database.store().log_after(0, 10_000).await?;
        let of = |it: &LoggedEvent| it.category == stream.category.name() && it.stream_id == stream.id;
        Ok(log.into_iter().filter(of).map(|it| it.name).collect())
    }

    async fn state(&self, order: &Order) -> Anyhow<&'static str> {
        let case = self.database.store().load_case(CaseKey::task(order.task)).await?;
        Ok(case.task.state.state().name())
    }

    fn creates(&self) -> usize {
        self.outside.creates.lock().expect("no test panics while it holds this").len()
    }

    /// Waits until the task was called: its next try is due.
    async fn called(&self, order: &Order) -> Anyhow {
        let began = Instant::now();
        while !self.names(StreamId::task(order.task)).await?.iter().any(|it| it == "task.retry_requested") {
            if began.elapsed() > Duration::from_secs(20) {
                return Err(format!("nobody calls {}", order.task).into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn project(&self) -> Anyhow {
        Projector::new(self.database.owner().clone(), ProjectorConfig::default()).catch_up().await?;
        Ok(())
    }

    async fn end(mut self) -> Anyhow {
        self.stop.cancel();
        while let Some(ended) = self.usher.join_next().await {
            ended?;
        }
        Ok(())
    }
}

fn request(tenant: TenantId) -> Request {
    let correlation = CorrelationId(Uuid::new_v4());
    Request {
        meta: Meta {
            tenant,
            correlation,
            causation: CausationId(correlation.0),
            actor: "user:test".to_owned(),
            trace: correlation.0.simple().to_string(),
        },
        key: None,
        tenant_wall: true,
    }
}

fn delivery(order: &Order, message: &Message) -> Anyhow<Delivery> {
    let envelope = Envelope {
        event_id: Uuid::new_v4().into(),
        original_event_id: None,
        event_type: message.event_type().to_owned(),
        schema_version: message.schema_version(),
        producer: "test".to_owned(),
        occurred_at: std::time::SystemTime::now().into(),
        aggregate_type: "task".to_owned(),
        aggregate_id: message.task_id().0,
        tenant_id: order.tenant,
        trace_id: String::new(),
        correlation_id: Uuid::new_v4().into(),
        causation_id: Uuid::new_v4().into(),
        payload: message.payload()?,
    };
    Ok(Delivery {
        group: "cg_test",
        topic: "test".to_owned(),
        key: Some(envelope.event_id.to_string()),
        redeliveries: 0,
        body: envelope.to_body()?,
    })
}

/// The message of a task without a slot is handled, not failed; when the slot is free, the task is called, and the whole wait
/// leaves two events however long it was.
#[tokio::test]
async fn a_task_without_a_slot_waits_and_is_called() -> Anyhow {
    let world = World::begin().await?;
    let (first, second) = (world.submitted(1).await?, world.submitted(2).await?);
    assert_eq!(world.submit(&first).await?, Outcome::Done);
    assert_eq!(world.submit(&second).await?, Outcome::Done, "a limit is no failure: the message is acknowledged");
    assert_eq!((world.state(&second).await?, world.creates()), ("WAITING_RETRY", 1));
    world.finish(&first).await?;
    world.called(&second).await?;
    assert_eq!(world.submit(&second).await?, Outcome::Done);
    assert_eq!((world.state(&second).await?, world.creates()), ("PROVIDER_RUNNING", 2));
    let names = world.names(StreamId::task(second.task)).await?;
    let expected =
        ["task.submitted", "task.deferred", "task.retry_requested", "task.submission_begun", "task.accepted"];
    assert_eq!(names, expected);
    world.end().await
}

/// S2: the one whose turn it is was cancelled meanwhile, by a process that knows nothing of slots: the next one is called.
#[tokio::test]
async fn s2_the_turn_of_a_cancelled_task_goes_to_the_next() -> Anyhow {
    let world = World::begin().await?;
    let orders = [world.submitted(1).await?, world.submitted(2).await?, world.submitted(3).await?];
    for order in &orders {
        world.submit(order).await?;
    }
    let [first, second, third] = &orders;
    let case = CaseKey::task(second.task);
    world
        .database
        .store()
        .execute(&request(second.tenant), case, None, |turn| cancel(turn, "user:test".to_owned()))
        .await?;
    assert_eq!(world.state(second).await?, "CANCELED");
    world.finish(first).await?;
    world.called(third).await?;
    world.submit(third).await?;
    assert_eq!((world.state(third).await?, world.creates()), ("PROVIDER_RUNNING", 2));
    world.end().await
}

/// M1, M2: the same message many times at once, under ids of its own: one slot, one round, one job.
#[tokio::test]
async fn m2_deliveries_at_the_same_time_take_one_slot() -> Anyhow {
    let world = Arc::new(World::begin().await?);
    let order = world.submitted(1).await?;
    let mut all = JoinSet::new();
    for _ in 0..12 {
        let (world, order) = (Arc::clone(&world), order.clone());
        all.spawn(async move { world.submit(&order).await });
    }
    while let Some(one) = all.join_next().await {
        one??;
    }
    assert_eq!(world.creates(), 1);
    let other = world.submitted(2).await?;
    world.submit(&other).await?;
    assert_eq!(world.state(&other).await?, "WAITING_RETRY", "the one slot is taken");
    world.finish(&order).await?;
    world.called(&other).await?;
    Ok(())
}

/// Called while its message is being handled: too soon. Called for an attempt that it does not wait for: it is gone.
#[tokio::test]
async fn only_a_task_that_waits_is_called() -> Anyhow {
    let world = World::begin().await?;
    let (store, order) = (world.database.store(), world.submitted(1).await?);
    let attempt = AttemptId::of(order.task, 1);
    assert_eq!(store.call_up(order.task, attempt).await?, CalledUp::NotYet, "it is queued");
    world.submit(&order).await?;
    assert_eq!(store.call_up(order.task, attempt).await?, CalledUp::Gone, "it runs");
    let second = world.submitted(2).await?;
    world.submit(&second).await?;
    let (own, other) = (AttemptId::of(second.task, 1), AttemptId::of(second.task, 2));
    assert_eq!(store.call_up(second.task, other).await?, CalledUp::Gone, "it waits for its first attempt");
    assert_eq!(store.call_up(second.task, own).await?, CalledUp::Told);
    assert_eq!(store.call_up(second.task, own).await?, CalledUp::NotYet, "it has been told");
    assert_eq!(store.call_up(TaskId(Uuid::from_u128(77)), own).await?, CalledUp::Gone, "there is no such task");
    world.end().await
}

/// What the counts are made from again: every attempt that has begun and not ended, also while the read models lag behind.
#[tokio::test]
async fn what_runs_is_read_from_the_facts() -> Anyhow {
    let world = World::begin().await?;
    let order = world.submitted(1).await?;
    assert!(world.facts.slots().await?.is_empty());
    world.submit(&order).await?;
    let expected = vec![Slot::of(&order, 1, 1)];
    assert_eq!(world.facts.slots().await?, expected, "the read models know nothing of it yet");
    world.project().await?;
    assert_eq!(world.facts.slots().await?, expected);
    world.finish(&order).await?;
    assert_eq!(world.facts.slots().await?, expected, "what has just ended may still be among them");
    world.project().await?;
    assert!(world.facts.slots().await?.is_empty());
    world.end().await
}
