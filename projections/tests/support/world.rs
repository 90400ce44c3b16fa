//! Histories made by the real process managers over the real store, with a world outside that answers by chance.

use super::{Broker, Running, quick};
use anyhow::{Context, Result, ensure};
use domain::id::{AccountId, AttemptId, CausationId, CorrelationId, EventId, TaskId, TenantId};
use domain::money::Credits;
use domain::outcome::{
    Answer, Call, CancelAsked, Created, FaultClass, Fetched, Found, JobState, Polled, Probe, Processed, ProviderFault,
    Rendered, StoredObject,
};
use domain::process::{
    CaseKey, Policy, Turn, adjust, cancel, grant, manager_of, refund, resolve_adopt, resolve_canceled, resolve_failed,
    resolve_retry, submit,
};
use domain::task::{Container, ExportSpec, Order, Work};
use domain::time::Timestamp;
use eventstore::{Again, CallContext, CallbackFact, Caller, Committed, Delivery, Meta, Request, Store, Submission};
use projections::relay::OutboundMessage;
use rand::RngExt;
use sqlx::PgPool;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use uuid::Uuid;

/// Waits of a few milliseconds, so that whole histories take no time.
fn hasty() -> Policy {
    Policy {
        submit_timeout_ms: 2_000,
        lease_margin_ms: 500,
        settle_delay_ms: 1,
        poll_first_ms: 1,
        poll_cap_ms: 2,
        backoff_base_ms: 1,
        backoff_cap_ms: 2,
        max_attempts: 2,
        ..Policy::default()
    }
}

/// Answers calls by chance: everything a provider, a store or a tool may say.
struct Outside;

impl Caller for Outside {
    fn call<'a>(
        &'a self,
        call: &'a Committed<Call>,
        context: CallContext,
    ) -> Pin<Box<dyn Future<Output = Answer> + Send + 'a>> {
        Box::pin(async move { answer(call.get(), context) })
    }
}

fn answer(call: &Call, context: CallContext) -> Answer {
    let chance: u32 = rand::rng().random_range(0..100);
    let fault = |class| ProviderFault { class, code: "said_no".to_owned(), message: "the provider said no".to_owned() };
    let object = |key: &str, content_type: &str| StoredObject {
        key: key.to_owned(),
        bytes: 1_000,
        sha256: "ab".repeat(32),
        content_type: content_type.to_owned(),
    };
    match call {
        Call::Create { .. } => Answer::Created(match chance {
            0..50 => Created::Accepted { job: format!("job-{}", context.order.task) },
            50..60 => Created::Throttled { retry_after: None },
            60..65 => Created::NotSent { cause: "refused".to_owned() },
            65..90 => Created::Unknown { cause: "reset".to_owned() },
            _ => Created::Rejected(fault(FaultClass::Moderation)),
        }),
        Call::Find { .. } => Answer::Found(match chance {
            0..40 => Found::Job { job: format!("job-{}", context.order.task) },
            40..80 => Found::Absent,
            80..90 => Found::Inconclusive { cause: "no list".to_owned() },
            _ => Found::Ambiguous { jobs: vec!["one".to_owned(), "two".to_owned()] },
        }),
        Call::Poll { .. } => Answer::Polled(match chance {
            0..40 => Polled::State(JobState::Running { percent: u8::try_from(chance).ok() }),
            40..50 => Polled::Unavailable { cause: "503".to_owned(), retry_after: None },
            50..90 => {
                Polled::State(JobState::Succeeded { output_url: "https://output".to_owned(), usage_millis: None })
            }
            90..95 => Polled::State(JobState::Canceled),
            _ => Polled::State(JobState::Failed(fault(FaultClass::Internal))),
        }),
        Call::Cancel { .. } => Answer::CancelAsked(CancelAsked::Requested),
        Call::Fetch { key, .. } => Answer::Fetched(match chance {
            0..70 => Fetched::Stored(object(key, "video/mp4")),
            70..95 => Fetched::NotNow { cause: "503".to_owned() },
            _ => Fetched::Never { code: "gone", cause: "404".to_owned() },
        }),
        Call::Process { thumbnail_key, .. } => Answer::Processed(match chance {
            0..50 => Processed::Ready { probe: probe(chance), thumbnail: object(thumbnail_key, "image/jpeg") },
            50..75 => Processed::Partial { probe: probe(chance), cause: "no room".to_owned() },
            75..90 => Processed::NotNow { cause: "busy".to_owned() },
            _ => Processed::Corrupt { cause: "no moov".to_owned() },
        }),
        Call::Render { key, .. } => Answer::Rendered(match chance {
            0..70 => Rendered::Stored(object(key, "video/mp4")),
            70..95 => Rendered::NotNow { cause: "busy".to_owned() },
            _ => Rendered::Never { code: "source_unusable", cause: "no moov".to_owned() },
        }),
    }
}

fn probe(chance: u32) -> Probe {
    Probe {
        duration_millis: (chance > 10).then_some(4_000 + u64::from(chance)),
        width: 640,
        height: 360,
        video_codec: "h264".to_owned(),
        audio_codec: (chance > 35).then(|| "aac".to_owned()),
        millihertz: Some(29_970),
    }
}

/// A store with a world around it.
pub struct World {
    pub store: Store,
}

impl World {
    pub fn on(pool: &PgPool) -> Self {
        Self::with(pool, hasty())
    }

    pub fn with(pool: &PgPool, policy: Policy) -> Self {
        Self { store: Store::on(pool.clone(), policy) }
    }

    fn request(tenant: TenantId) -> Request {
        let correlation = CorrelationId(Uuid::new_v4());
        Request {
            meta: Meta {
                tenant,
                correlation,
                causation: CausationId(Uuid::new_v4()),
                actor: "user:test".to_owned(),
                trace: correlation.0.simple().to_string(),
            },
            key: None,
            tenant_wall: true,
        }
    }

    pub async fn grant(&self, tenant: TenantId, amount: i64) -> Result<()> {
        let key = CaseKey::account(AccountId::of(tenant));
        let grant_key = Uuid::new_v4().to_string();
        self.store
            .execute(&Self::request(tenant), key, None, |turn| grant(turn, grant_key.clone(), Credits(amount)))
            .await?;
        Ok(())
    }

    pub async fn submit(&self, tenant: TenantId) -> Result<TaskId> {
        self.submit_work(tenant, Work::Generate, "a red boat").await
    }

    pub async fn submit_text(&self, tenant: TenantId, prompt: &str) -> Result<TaskId> {
        self.submit_work(tenant, Work::Generate, prompt).await
    }

    /// Orders an export of some other task's video.
    pub async fn export(&self, tenant: TenantId) -> Result<TaskId> {
        let spec = ExportSpec { container: Container::Mp4, height_px: 720 };
        let source_key = "tenants/t/tasks/s/video.mp4".to_owned();
        let work = Work::Export { source: TaskId(Uuid::new_v4()), source_key, spec };
        self.submit_work(tenant, work, "a red boat").await
    }

    async fn submit_work(&self, tenant: TenantId, work: Work, prompt: &str) -> Result<TaskId> {
        let task = TaskId(Uuid::new_v4());
        let now: Timestamp = sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(self.store.pool()).await?;
        let order = Order {
            task,
            tenant,
            account: AccountId::of(tenant),
            provider: "simulated".to_owned(),
            model: "fast".to_owned(),
            duration_seconds: 4,
            input_assets: Vec::new(),
            request_ref: format!("generation_request/{task}"),
            hold: Credits(50),
            price_per_second: Credits(10),
            submitted_at: now,
            give_up_at: now + Duration::from_secs(3600),
            retry_of: None,
            user: "user".to_owned(),
            priority: 0,
            work,
            seeded: false,
            alternatives: vec![],
        };
        let key = CaseKey { account: Some(order.account), with_account: true, ..CaseKey::task(task) };
        let submission = Submission { task, prompt: prompt.to_owned() };
        self.store.execute(&Self::request(tenant), key, Some(&submission), |turn| submit(turn, order.clone())).await?;
        Ok(task)
    }

    /// Asks for a cancel; whether it comes too late does not matter.
    pub async fn cancel(&self, tenant: TenantId, task: TaskId) {
        self.cancel_by(tenant, task, "user:test").await.ok();
    }

    pub async fn cancel_by(&self, tenant: TenantId, task: TaskId, by: &str) -> Result<()> {
        let command = |turn: &mut Turn<'_>| cancel(turn, by.to_owned());
        self.store.execute(&Self::request(tenant), CaseKey::task(task), None, command).await?;
        Ok(())
    }

    /// An operator does one thing or another with a task, if it is in review.
    async fn resolve(&self, tenant: TenantId, task: TaskId) {
        let fate: u32 = rand::rng().random_range(0..5);
        let command = |turn: &mut Turn<'_>| match fate {
            0 => resolve_retry(turn, "op:test"),
            1 => resolve_adopt(turn, format!("job-{task}"), "op:test".to_owned()),
            2 => resolve_failed(turn, "op:test"),
            3 => resolve_canceled(turn, "op:test"),
            _ => Ok(()),
        };
        self.store.execute(&Self::request(tenant), CaseKey::task(task), None, command).await.ok();
    }

    /// A provider calls back about a task's first attempt, perhaps with a job nobody knows.
    pub async fn call_back(&self, task: TaskId, job: String) -> Result<()> {
        let fact = CallbackFact {
            provider: "simulated".to_owned(),
            delivery: Uuid::new_v4().to_string(),
            attempt: AttemptId::of(task, 1),
            job,
            body_sha256: [7; 32],
        };
        self.store.record_callback(&fact).await?;
        Ok(())
    }

    /// Delivers a message until it is acknowledged, and sometimes once more.
    pub async fn deliver(&self, message: &OutboundMessage) -> Result<()> {
        if let Some(at) = message.deliver_at {
            let now: Timestamp = sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(self.store.pool()).await?;
            tokio::time::sleep((at - now).to_std().unwrap_or_default()).await;
        }
        self.deliver_now(message, &Outside).await
    }

    /// The same, at once, whatever time it says, with somebody else outside.
    pub async fn deliver_now(&self, message: &OutboundMessage, outside: &dyn Caller) -> Result<()> {
        let manager = manager_of(message.topic);
        let EventId(key) = message.key;
        let delivery = Delivery {
            group: manager.name(),
            topic: message.topic.name().to_owned(),
            key: Some(key.to_string()),
            redeliveries: 0,
            body: message.body.clone(),
        };
        let repeats = if rand::rng().random_bool(0.2) { 2 } else { 1 };
        for _ in 0..repeats {
            while let Err(again) = self.store.consume(manager, outside, &delivery).await {
                ensure!(matches!(again, Again::Unfinished(_) | Again::Busy { .. }), "{again:?}");
            }
        }
        Ok(())
    }

    /// Random histories of `tasks` tasks of a few tenants, through relay and consumers, until nothing moves any more.
    pub async fn live(&self, tasks: usize) -> Result<()> {
        let broker = Broker::healthy();
        let relay = Running::relay(self.store.pool(), &broker, quick());
        let tenants: Vec<TenantId> = (0..3).map(|_| TenantId(Uuid::new_v4())).collect();
        for tenant in &tenants {
            self.grant(*tenant, 100_000).await?;
        }
        let mut delivered = 0;
        let mut submitted = Vec::new();
        for number in 0..tasks {
            let tenant = tenants[number % tenants.len()];
            let task = if number % 5 == 4 { self.export(tenant).await? } else { self.submit(tenant).await? };
            submitted.push((tenant, task));
            delivered = self.deliver_from(&broker, delivered).await?;
            let fate: u32 = rand::rng().random_range(0..6);
            match fate {
                0 => self.cancel(tenant, task).await,
                1 => self.call_back(task, format!("job-{task}")).await?,
                2 => self.call_back(task, "a stranger".to_owned()).await?,
                _ => {}
            }
        }
        delivered = self.settle_down(&broker, delivered).await?;
        for (number, (tenant, task)) in submitted.into_iter().enumerate() {
            if number % 2 == 0 {
                self.cancel(tenant, task).await;
            }
            self.resolve(tenant, task).await;
        }
        self.settle_down(&broker, delivered).await?;
        for tenant in &tenants {
            self.correct(*tenant).await?;
        }
        relay.stop().await
    }

    /// What operators do to an account afterwards: a correction down and up, and a refund of each charge.
    async fn correct(&self, tenant: TenantId) -> Result<()> {
        let key = CaseKey::account(AccountId::of(tenant));
        for amount in [-5, 3] {
            let command = |turn: &mut Turn<'_>| {
                adjust(turn, format!("by {amount}"), Credits(amount), "a test".to_owned(), "operator:test".to_owned())
            };
            self.store.execute(&Self::request(tenant), key, None, command).await?;
        }
        let charged: Vec<(Uuid, i64)> = sqlx::query_as(
            "SELECT (body->>'task')::uuid, (body->>'charged')::bigint FROM events
              WHERE name = 'account.settled' AND stream_id = $1",
        )
        .bind(tenant.0)
        .fetch_all(self.store.pool())
        .await?;
        for (task, charge) in charged {
            let command = |turn: &mut Turn<'_>| {
                let amount = Credits(rand::rng().random_range(1..=charge));
                refund(turn, TaskId(task), task.to_string(), amount, "a test".to_owned())
            };
            self.store.execute(&Self::request(tenant), key, None, command).await?;
        }
        Ok(())
    }

    async fn deliver_from(&self, broker: &Broker, from: usize) -> Result<usize> {
        let arrived = broker.arrived();
        for message in arrived.iter().skip(from) {
            self.deliver(message).await?;
        }
        Ok(arrived.len())
    }

    async fn settle_down(&self, broker: &Broker, mut delivered: usize) -> Result<usize> {
        for _ in 0..5_000 {
            delivered = self.deliver_from(broker, delivered).await?;
            let unsent: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox_events WHERE published_at IS NULL")
                .fetch_one(self.store.pool())
                .await?;
            if unsent == 0 && broker.arrived().len() == delivered {
                return Ok(delivered);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        None.context("the histories do not come to rest")
    }
}
