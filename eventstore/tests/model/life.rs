//! One task's whole life on PostgreSQL, through a connection that may break: a client that asks again, a broker that delivers
//! until it is acknowledged, a scan that wakes what nobody wakes, and a provider that remembers what it made.

use super::Anyhow;
use super::action::{Ask, Command, Sent};
use super::clock::Clocked;
use super::facts::{Announced, Facts};
use super::memory::Memory;
use super::proxy::{Cut, Proxy};
use super::script::{fault, object, probe};
use super::steps::{delivery, envelope};
use chrono::TimeDelta;
use domain::id::{AccountId, AttemptId, CausationId, CorrelationId, TaskId, TenantId};
use domain::message::Topic;
use domain::money::Credits;
use domain::outcome::{
    Answer, Call, CancelAsked, Created, FaultClass, Fetched, Found, JobState, Polled, Processed, Rendered,
};
use domain::process::{CaseKey, Policy, manager_of, wake_up};
use domain::task::{Order, Task};
use domain::testkit::strategies::{start, usual_order};
use domain::time::Timestamp;
use eventstore::{
    Again, CallContext, Caller, Committed, ExecuteError, Executed, IdempotencyKey, Meta, Request, Store, StoreError,
};
use sqlx::PgPool;
use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use uuid::Uuid;

/// How the life goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Succeeded,
    Refused,
    UnclearThenFound,
    Canceled,
}

impl End {
    pub const ALL: [Self; 4] = [Self::Succeeded, Self::Refused, Self::UnclearThenFound, Self::Canceled];
}

#[derive(Debug, Default)]
struct Jobs {
    made: HashMap<AttemptId, usize>,
    polls: usize,
    canceled: bool,
}

/// A provider that makes at most what it is asked for, and shows it in its list at once.
struct Provider {
    end: End,
    jobs: Mutex<Jobs>,
}

impl Provider {
    fn answer(&self, call: &Call) -> Answer {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        match call {
            Call::Create { attempt, .. } => Answer::Created(self.create(*attempt, &mut jobs)),
            Call::Find { attempt, .. } => Answer::Found(if jobs.made.contains_key(attempt) {
                Found::Job { job: format!("job-{attempt}") }
            } else {
                Found::Absent
            }),
            Call::Poll { .. } => Answer::Polled(Polled::State(self.state(&mut jobs))),
            Call::Cancel { .. } => {
                jobs.canceled = true;
                Answer::CancelAsked(CancelAsked::Requested)
            }
            Call::Fetch { key, .. } => Answer::Fetched(Fetched::Stored(object(key, "video/mp4"))),
            Call::Process { thumbnail_key, .. } => {
                Answer::Processed(Processed::Ready { probe: probe(), thumbnail: object(thumbnail_key, "image/jpeg") })
            }
            Call::Render { key, .. } => Answer::Rendered(Rendered::Stored(object(key, "video/mp4"))),
        }
    }

    fn create(&self, attempt: AttemptId, jobs: &mut Jobs) -> Created {
        if self.end == End::Refused {
            return Created::Rejected(fault(FaultClass::Moderation));
        }
        *jobs.made.entry(attempt).or_default() += 1;
        match self.end {
            End::UnclearThenFound => Created::Unknown { cause: "timeout".to_owned() },
            _ => Created::Accepted { job: format!("job-{attempt}") },
        }
    }

    fn state(&self, jobs: &mut Jobs) -> JobState {
        jobs.polls += 1;
        match self.end {
            _ if jobs.canceled => JobState::Canceled,
            End::Canceled => JobState::Running { percent: None },
            // Once, so that a wake-up leads to the next one.
            _ if jobs.polls == 1 => JobState::Running { percent: Some(50) },
            _ => JobState::Succeeded { output_url: "https://out".to_owned(), usage_millis: None },
        }
    }
}

impl Caller for Provider {
    fn call<'a>(
        &'a self,
        call: &'a Committed<Call>,
        _context: CallContext,
    ) -> Pin<Box<dyn Future<Output = Answer> + Send + 'a>> {
        Box::pin(async move { self.answer(call.get()) })
    }
}

/// What is left of a life.
pub struct Lived {
    pub facts: Facts,
    /// Where the task and its account stand.
    pub memory: Memory,
    pub calls: usize,
    /// The most jobs that the provider made for one attempt.
    pub most_jobs: usize,
    /// Commands and deliveries that had to be repeated because the connection broke.
    pub repeated: usize,
}

/// A database and the way to it, for one life after the other.
pub struct Lane {
    database: Clocked,
    proxy: Proxy,
    pool: PgPool,
}

impl Lane {
    pub async fn create() -> Anyhow<Self> {
        let database = Clocked::create().await?;
        let proxy = Proxy::start(database.server()).await?;
        let pool = database.pool_through(proxy.port).await?;
        Ok(Self { database, proxy, pool })
    }
}

struct Life<'a> {
    database: &'a Clocked,
    store: Store,
    provider: Provider,
    now: Timestamp,
    acknowledged: HashSet<Uuid>,
    repeated: usize,
}

const TENANT: TenantId = TenantId(Uuid::from_u128(7));
pub const TASK: TaskId = TaskId(Uuid::from_u128(1));

/// Lives a life to its end, with a break at one call or none.
pub async fn live(lane: &Lane, end: End, cut: Option<(usize, Cut)>) -> Anyhow<Lived> {
    let database = &lane.database;
    database.clear().await?;
    lane.proxy.plan(cut);
    // It has no memory of the lives before.
    let store = Store::on(lane.pool.clone(), Policy::default());
    let provider = Provider { end, jobs: Mutex::default() };
    let mut life = Life { database, store, provider, now: start(), acknowledged: HashSet::new(), repeated: 0 };
    life.database.set(life.now).await?;
    life.ask(&ask(CaseKey::account(AccountId::of(TENANT)), None, Command::Grant("g".to_owned(), Credits(500)))).await?;
    let submitted = life.ask(&submit(TASK)).await?;
    for _ in 0..200 {
        if !life.go_on().await? {
            let again = life.ask(&submit(TaskId(Uuid::from_u128(99)))).await?;
            if (again.task, again.version, again.replayed) != (submitted.task, submitted.version, true) {
                return Err(format!("the same key gave {submitted:?}, then {again:?}").into());
            }
            return life.over(&lane.proxy).await;
        }
    }
    Err("it does not come to rest".into())
}

impl Life<'_> {
    /// One more delivery or wake-up; `false` where nothing is left to do.
    async fn go_on(&mut self) -> Anyhow<bool> {
        let facts = self.database.history().await?;
        let memory = Memory { facts, policy: Policy::default(), now: self.now };
        let mut waiting: Vec<&Announced> = memory.facts.outbox.values().flatten().collect();
        waiting.retain(|row| !self.acknowledged.contains(&row.id));
        waiting.sort_by_key(|row| row.deliver_at.unwrap_or(row.at));
        let case = memory.load(CaseKey { with_account: true, ..CaseKey::task(TASK) })?;
        if self.provider.end == End::Canceled && matches!(case.task.state, Task::ProviderRunning(_)) {
            self.ask(&ask(CaseKey::task(TASK), Some("cancel"), Command::Cancel)).await?;
            return Ok(true);
        }
        if let Some(row) = waiting.first() {
            if let Some(due) = row.deliver_at.filter(|due| *due > self.now) {
                self.now = due;
                self.database.set(due).await?;
            }
            self.deliver(row).await?;
            return Ok(true);
        }
        if wake_up(&case, self.now + TimeDelta::days(9)).is_none() {
            return Ok(false);
        }
        while wake_up(&case, self.now).is_none() {
            self.now += TimeDelta::seconds(60);
        }
        self.database.set(self.now).await?;
        while let Err(fault) = self.store.wake(TASK, self.now.timestamp()).await {
            self.broken(&fault)?;
        }
        Ok(true)
    }

    /// Delivers until it is acknowledged.
    async fn deliver(&mut self, row: &Announced) -> Anyhow {
        let topic = Topic::parse(&row.topic).ok_or("a topic")?;
        let sent = Sent { topic, delivery: delivery(&envelope(row)), luck: 0 };
        loop {
            match self.store.consume(manager_of(topic), &self.provider, &sent.delivery).await {
                Ok(ack) => {
                    drop(ack);
                    self.acknowledged.insert(row.id);
                    return Ok(());
                }
                Err(Again::Database(_)) if self.repeated < 5 => self.repeated += 1,
                Err(again) => return Err(again.into()),
            }
        }
    }

    /// Asks until there is an answer, with the same key.
    async fn ask(&mut self, ask: &Ask) -> Anyhow<Executed> {
        loop {
            match ask.execute(&self.store).await {
                Ok(executed) => return Ok(executed),
                Err(ExecuteError::Store(fault)) => self.broken(&fault)?,
                Err(other) => return Err(other.into()),
            }
        }
    }

    fn broken(&mut self, fault: &StoreError) -> Anyhow {
        self.repeated += 1;
        match fault {
            StoreError::Database(_) if self.repeated < 5 => Ok(()),
            other => Err(format!("not a broken connection: {other:?}").into()),
        }
    }

    async fn over(self, proxy: &Proxy) -> Anyhow<Lived> {
        // There is one connection: when it is free, nothing of this life is on its way any more.
        drop(self.store.pool().acquire().await?);
        let calls = proxy.calls();
        let facts = self.database.facts().await?;
        let jobs = self.provider.jobs.into_inner().unwrap_or_else(PoisonError::into_inner);
        let most_jobs = jobs.made.values().copied().max().unwrap_or(0);
        let memory = Memory { facts: facts.clone(), policy: Policy::default(), now: self.now };
        Ok(Lived { facts, memory, calls, most_jobs, repeated: self.repeated })
    }
}

fn ask(key: CaseKey, operation: Option<&'static str>, command: Command) -> Ask {
    let correlation = CorrelationId(Uuid::from_u128(70));
    let meta = Meta {
        tenant: TENANT,
        correlation,
        causation: CausationId(correlation.0),
        actor: "user:1".to_owned(),
        trace: "0".repeat(32),
    };
    let idempotency =
        operation.map(|operation| IdempotencyKey { operation, key: "key".to_owned(), fingerprint: [7; 32] });
    let request = Request { meta, key: idempotency, tenant_wall: true };
    Ask { request, key, prompt: None, command }
}

fn submit(task: TaskId) -> Ask {
    let order = Order {
        tenant: TENANT,
        account: AccountId::of(TENANT),
        input_assets: vec![],
        hold: Credits(100),
        price_per_second: Credits(20),
        ..usual_order(task)
    };
    let key = CaseKey { account: Some(order.account), with_account: true, ..CaseKey::task(task) };
    Ask { prompt: Some("a boat".to_owned()), ..ask(key, Some("submit"), Command::Submit(order)) }
}
