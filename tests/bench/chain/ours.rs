//! Ours: the relay, the consumer groups with their process managers, the projector.

use super::{MESSAGES, THREADS, client, until};
use anyhow::{Context, ensure};
use app::roles::{ToBroker, group_of};
use chrono::TimeDelta;
use domain::id::{AccountId, CausationId, CorrelationId, TaskId, TenantId};
use domain::money::Credits;
use domain::outcome::Call;
use domain::outcome::{
    Answer, CancelAsked, Created, Fetched, Found, JobState, Polled, Probe, Processed, Rendered, StoredObject,
};
use domain::process::{CaseKey, MANAGERS, Policy, ProcessManager, grant, submit};
use domain::task::{Order, Work};
use domain::time::Timestamp;
use eventstore::{Ack, Again, CallContext, Caller, Committed, Delivery, Meta, Request, Store, Submission};
use futures_util::future::BoxFuture;
use messaging::{Group, Handler, Listener, Publisher};
use projections::projector::{Projector, ProjectorConfig};
use projections::relay::{Relay, RelayConfig};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tests::Stack;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const TENANTS: usize = 100;
/// Polls of a job until it is done. Eight messages of a task are no polls.
const POLLS: usize = MESSAGES - 8;
/// Handlers of each group: polls are most of what there is to do.
const SHARES: [(Group, usize); 9] = [
    (Group::SchedulerSubmit, 8),
    (Group::ProviderPoll, 28),
    (Group::CallbackApply, 1),
    (Group::AssetFetch, 6),
    (Group::AssetPostprocess, 6),
    (Group::RenderExport, 1),
    (Group::BillingSettle, 6),
    (Group::NotificationPush, 7),
    (Group::Reconcile, 1),
];

/// Runs so many tasks, and says how many messages were handled a second.
pub(super) async fn run(stack: &Stack, tasks: usize) -> anyhow::Result<f64> {
    ensure!(SHARES.iter().map(|(_, threads)| threads).sum::<usize>() == THREADS, "the shares are not {THREADS}");
    let store = open(stack).await?;
    let submitted = submit_all(&store, tasks).await?;
    let client = client(stack, &SHARES)?;
    let world = Arc::new(AtOnce::default());
    let mut listeners = vec![];
    for (group, threads) in SHARES {
        let manager =
            MANAGERS.into_iter().find(|it| group_of(*it) == Some(group)).context("a group without a manager")?;
        let handling = Arc::new(Handling { store: store.clone(), manager, world: Arc::clone(&world) });
        let app = tokio::runtime::Handle::current();
        listeners.push(Listener::start(&client, group, threads, handling, app).await?);
    }
    let producer = Publisher::start(&client).await?;
    // Queues are shared out.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let stop = CancellationToken::new();
    let relay = Relay::new(store.pool().clone(), Arc::new(ToBroker(producer)), RelayConfig::default());
    let projector = Projector::new(store.pool().clone(), ProjectorConfig::default());
    let begun = Instant::now();
    let mut roles = JoinSet::new();
    let (told, told_too) = (stop.clone(), stop.clone());
    roles.spawn(async move { relay.run(told).await });
    roles.spawn(async move { projector.run(told_too).await });
    let handled = || listeners.iter().map(|it| it.counts().handled).sum();
    let done = until("ours", tasks * MESSAGES, handled).await;
    let seconds = begun.elapsed().as_secs_f64();
    let again: u64 = listeners.iter().map(|it| it.counts().again).sum();
    stop.cancel();
    futures_util::future::join_all(listeners.into_iter().map(|it| it.stop(Duration::from_secs(5)))).await;
    roles.join_all().await;
    client.stop(Duration::from_secs(3)).await;
    done?;
    ensure!(again == 0, "{again} messages came again");
    check(&store, &submitted).await?;
    store.close().await;
    Ok((tasks * MESSAGES) as f64 / seconds)
}

/// No pauses between polls.
async fn open(stack: &Stack) -> anyhow::Result<Store> {
    let url = stack.setting("AIVIDEO_DATABASE__URL")?;
    let config = serde_json::from_value(serde_json::json!({ "url": url }))?;
    let policy = Policy { poll_first_ms: 0, poll_cap_ms: 0, ..Policy::default() };
    Ok(Store::open(&config, policy).await?)
}

/// Every task has succeeded, with as many messages as were counted: otherwise the figure means nothing.
async fn check(store: &Store, tasks: &[TaskId]) -> anyhow::Result<()> {
    let ids: Vec<Uuid> = tasks.iter().map(|it| it.0).collect();
    let (succeeded, messages, unsent): (i64, i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM events WHERE category = 'task' AND stream_id = ANY ($1) AND name = 'task.succeeded'),
                (SELECT count(*) FROM outbox_events WHERE aggregate_id = ANY ($1)),
                (SELECT count(*) FROM outbox_events WHERE aggregate_id = ANY ($1) AND published_at IS NULL)",
    )
    .bind(&ids)
    .fetch_one(store.pool())
    .await?;
    let expected = i64::try_from(tasks.len() * MESSAGES)?;
    let all = i64::try_from(tasks.len())?;
    ensure!(
        (succeeded, messages, unsent) == (all, expected, 0),
        "{succeeded} of {all} tasks succeeded, {messages} of {expected} messages, {unsent} unsent"
    );
    Ok(())
}

async fn submit_all(store: &Store, tasks: usize) -> anyhow::Result<Vec<TaskId>> {
    let tenants: Vec<Uuid> = (0..TENANTS).map(|_| Uuid::new_v4()).collect();
    for tenant in &tenants {
        let account = CaseKey::account(AccountId(*tenant));
        let give = |turn: &mut domain::process::Turn<'_>| grant(turn, "bench".to_owned(), Credits(1_000_000_000));
        store.execute(&request(*tenant), account, None, give).await?;
    }
    let now: Timestamp = sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(store.pool()).await?;
    let mut requests = JoinSet::new();
    for number in 0..tasks {
        let (store, tenant) = (store.clone(), tenants[number % tenants.len()]);
        requests.spawn(async move {
            let order = order(tenant, now);
            let key = CaseKey { account: Some(order.account), with_account: true, ..CaseKey::task(order.task) };
            let submission = Submission { task: order.task, prompt: "a paper boat on a stream".to_owned() };
            store.execute(&request(tenant), key, Some(&submission), |turn| submit(turn, order.clone())).await?;
            anyhow::Ok(order.task)
        });
    }
    requests.join_all().await.into_iter().collect()
}

fn request(tenant: Uuid) -> Request {
    let meta = Meta {
        tenant: TenantId(tenant),
        correlation: CorrelationId(Uuid::new_v4()),
        causation: CausationId(Uuid::new_v4()),
        actor: "user:bench".to_owned(),
        trace: Uuid::new_v4().simple().to_string(),
    };
    Request { meta, key: None, tenant_wall: true }
}

fn order(tenant: Uuid, now: Timestamp) -> Order {
    let task = TaskId(Uuid::new_v4());
    Order {
        task,
        tenant: TenantId(tenant),
        account: AccountId(tenant),
        provider: "replicate".to_owned(),
        model: "video-1".to_owned(),
        duration_seconds: 4,
        input_assets: vec![],
        request_ref: format!("generation_request/{task}"),
        hold: Credits(120),
        price_per_second: Credits(25),
        submitted_at: now,
        give_up_at: now + TimeDelta::hours(1),
        retry_of: None,
        work: Work::Generate,
        seeded: false,
        alternatives: vec![],
        priority: 0,
        user: "bench".to_owned(),
    }
}

struct Handling {
    store: Store,
    manager: &'static dyn ProcessManager,
    world: Arc<AtOnce>,
}

impl Handler for Handling {
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<Ack, Again>> {
        Box::pin(async move { self.store.consume(self.manager, self.world.as_ref(), &delivery).await })
    }
}

/// A provider and media tools that answer at once: a job is done after [`POLLS`] polls.
#[derive(Default)]
struct AtOnce {
    polls: Mutex<HashMap<String, usize>>,
}

impl AtOnce {
    fn poll(&self, job: &str) -> JobState {
        let mut polls = self.polls.lock().unwrap_or_else(PoisonError::into_inner);
        let polled = polls.entry(job.to_owned()).or_default();
        *polled += 1;
        if *polled < POLLS {
            return JobState::Running { percent: None };
        }
        JobState::Succeeded { output_url: "https://provider.example/video.mp4".to_owned(), usage_millis: Some(4_000) }
    }
}

impl Caller for AtOnce {
    fn call<'a>(&'a self, call: &'a Committed<Call>, _context: CallContext) -> BoxFuture<'a, Answer> {
        let answer = match call.get() {
            Call::Create { .. } => Answer::Created(Created::Accepted { job: Uuid::new_v4().simple().to_string() }),
            Call::Find { .. } => Answer::Found(Found::Absent),
            Call::Poll { job, .. } => Answer::Polled(Polled::State(self.poll(job))),
            Call::Cancel { .. } => Answer::CancelAsked(CancelAsked::Requested),
            Call::Fetch { key, .. } => Answer::Fetched(Fetched::Stored(stored(key, "video/mp4"))),
            Call::Process { thumbnail_key, .. } => {
                Answer::Processed(Processed::Ready { probe: probe(), thumbnail: stored(thumbnail_key, "image/jpeg") })
            }
            Call::Render { key, .. } => Answer::Rendered(Rendered::Stored(stored(key, "video/mp4"))),
        };
        Box::pin(std::future::ready(answer))
    }
}

fn stored(key: &str, content_type: &str) -> StoredObject {
    StoredObject {
        key: key.to_owned(),
        bytes: 1_000_000,
        sha256: "0".repeat(64),
        content_type: content_type.to_owned(),
    }
}

fn probe() -> Probe {
    Probe {
        duration_millis: Some(4_000),
        width: 1280,
        height: 720,
        video_codec: "h264".to_owned(),
        audio_codec: None,
        millihertz: Some(24_000),
    }
}
