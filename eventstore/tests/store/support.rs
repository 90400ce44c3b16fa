//! A store on a database of its own, a scripted outside world, and the messages of the outbox, delivered by hand.

use domain::id::{AccountId, CausationId, CorrelationId, TaskId, TenantId};
use domain::message::{Envelope, Message};
use domain::money::Credits;
use domain::outcome::{Answer, Call};
use domain::process::{CaseKey, Policy, grant, submit};
use domain::task::Order;
use domain::testkit::strategies::usual_order;
use eventstore::testkit::TestDatabase;
use eventstore::{
    CallContext, Caller, Committed, Delivery, ExecuteError, Executed, IdempotencyKey, Meta, Request, Store, Submission,
};
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::time::Duration;
use uuid::Uuid;

pub type Anyhow<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Rules with short waits.
pub fn policy() -> Policy {
    Policy { settle_delay_ms: 1, poll_first_ms: 1, poll_cap_ms: 1, backoff_base_ms: 1, ..Policy::default() }
}

fn machine_time() -> domain::time::Timestamp {
    std::time::SystemTime::now().into()
}

pub async fn database() -> Anyhow<TestDatabase> {
    Ok(TestDatabase::with_policy(policy()).await?)
}

pub fn request(tenant: TenantId, key: Option<&str>) -> Request {
    let correlation = CorrelationId(Uuid::new_v4());
    Request {
        meta: Meta {
            tenant,
            correlation,
            causation: CausationId(correlation.0),
            actor: "user:test".to_owned(),
            trace: correlation.0.simple().to_string(),
        },
        key: key.map(|key| IdempotencyKey { operation: "submitGeneration", key: key.to_owned(), fingerprint: [7; 32] }),
        tenant_wall: true,
    }
}

pub async fn tenant_with(store: &Store, credits: i64) -> Anyhow<TenantId> {
    let tenant = TenantId(Uuid::new_v4());
    let account = CaseKey::account(AccountId::of(tenant));
    let command = |turn: &mut domain::process::Turn<'_>| grant(turn, "test".to_owned(), Credits(credits));
    store.execute(&request(tenant, None), account, None, command).await?;
    Ok(tenant)
}

pub async fn submitted(store: &Store, tenant: TenantId, key: Option<&str>) -> Result<Executed, ExecuteError> {
    let now = machine_time();
    let task = TaskId(Uuid::new_v4());
    let order = Order {
        tenant,
        account: AccountId::of(tenant),
        input_assets: vec![],
        hold: Credits(100),
        price_per_second: Credits(20),
        submitted_at: now,
        give_up_at: now + chrono::TimeDelta::hours(1),
        ..usual_order(task)
    };
    let case = CaseKey { account: Some(order.account), with_account: true, ..CaseKey::task(task) };
    let submission = Submission { task, prompt: "a boat".to_owned() };
    store.execute(&request(tenant, key), case, Some(&submission), |turn| submit(turn, order.clone())).await
}

/// Answers calls as scripted, and keeps count of them.
pub struct World {
    answer: Box<dyn Fn(&Call) -> Answer + Send + Sync>,
    pub calls: Mutex<Vec<Call>>,
    delay: Duration,
}

impl World {
    pub fn new(answer: impl Fn(&Call) -> Answer + Send + Sync + 'static) -> Self {
        Self { answer: Box::new(answer), calls: Mutex::default(), delay: Duration::ZERO }
    }

    pub fn slow(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    pub fn creates(&self) -> usize {
        let calls = self.calls.lock().expect("no test panics while it holds this");
        calls.iter().filter(|call| matches!(call, Call::Create { .. })).count()
    }
}

impl Caller for World {
    fn call<'a>(
        &'a self,
        call: &'a Committed<Call>,
        _context: CallContext,
    ) -> Pin<Box<dyn Future<Output = Answer> + Send + 'a>> {
        Box::pin(async move {
            self.calls.lock().expect("no test panics while it holds this").push(call.get().clone());
            tokio::time::sleep(self.delay).await;
            (self.answer)(call.get())
        })
    }
}

/// The outbox rows of a task, of one event type, as deliveries; oldest first.
pub async fn deliveries(store: &Store, task: TaskId, event_type: &str) -> Anyhow<Vec<Delivery>> {
    type Row = (Uuid, Uuid, Uuid, Uuid, chrono::DateTime<chrono::Utc>, serde_json::Value);
    let rows: Vec<Row> = sqlx::query_as(
        "SELECT event_id, tenant_id, correlation_id, causation_id, occurred_at, payload FROM outbox_events
          WHERE aggregate_id = $1 AND event_type = $2 ORDER BY id",
    )
    .bind(task.0)
    .bind(event_type)
    .fetch_all(store.pool())
    .await?;
    rows.into_iter()
        .map(|(event_id, tenant, correlation, causation, occurred_at, payload)| {
            let envelope = Envelope {
                event_id: event_id.into(),
                original_event_id: None,
                event_type: event_type.to_owned(),
                schema_version: 1,
                producer: "test".to_owned(),
                occurred_at,
                aggregate_type: "task".to_owned(),
                aggregate_id: task.0,
                tenant_id: tenant.into(),
                trace_id: String::new(),
                correlation_id: correlation.into(),
                causation_id: causation.into(),
                payload,
            };
            delivery(&envelope)
        })
        .collect()
}

pub fn delivery(envelope: &Envelope) -> Anyhow<Delivery> {
    Ok(Delivery {
        group: "cg_test",
        topic: "test".to_owned(),
        key: Some(envelope.event_id.to_string()),
        redeliveries: 0,
        body: envelope.to_body()?,
    })
}

/// A fresh message about a task: a new id each time, as a repair or a replay has.
pub fn fresh(tenant: TenantId, message: &Message) -> Anyhow<Delivery> {
    delivery(&Envelope {
        event_id: Uuid::new_v4().into(),
        original_event_id: None,
        event_type: message.event_type().to_owned(),
        schema_version: message.schema_version(),
        producer: "test".to_owned(),
        occurred_at: machine_time(),
        aggregate_type: "task".to_owned(),
        aggregate_id: message.task_id().0,
        tenant_id: tenant,
        trace_id: String::new(),
        correlation_id: Uuid::new_v4().into(),
        causation_id: Uuid::new_v4().into(),
        payload: message.payload()?,
    })
}

/// gapless-stream, conserved-credits, over the whole database.
pub async fn invariants(store: &Store) -> Anyhow {
    let gaps: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM (SELECT category, stream_id, count(*) AS n, max(version) AS last, min(version) AS first
                                 FROM events GROUP BY 1, 2) s WHERE n <> last OR first <> 1",
    )
    .fetch_one(store.pool())
    .await?;
    assert_eq!(gaps, 0, "streams with holes");
    let negative: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM (
            SELECT stream_id, sum(CASE name WHEN 'account.granted' THEN (body->>'amount')::bigint
                                            WHEN 'account.held' THEN -(body->>'amount')::bigint
                                            ELSE (body->>'released')::bigint END) AS available
              FROM events WHERE category = 'account' GROUP BY 1) a WHERE available < 0",
    )
    .fetch_one(store.pool())
    .await?;
    assert_eq!(negative, 0, "accounts below zero");
    Ok(())
}
