//! Clients that ask until they are answered, over a database that fails, and what they were told. Each one submits a task, cancels
//! it, and delivers the message that gives its credits back; an unclear answer is asked again with the same key.

use super::support::{Anyhow, World, deliveries, invariants, request, submitted, tenant_with};
use domain::id::{TaskId, TenantId};
use domain::outcome::{Answer, Found};
use domain::process::{CaseKey, SettleHold, Turn, cancel};
use eventstore::{Again, Delivery, ExecuteError, Executed, IdempotencyKey, Store, StoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

const GRANTED: i64 = 100_000_000;

/// What was answered to one key.
#[derive(Debug)]
struct Told {
    key: String,
    executed: Executed,
}

/// What happened to all clients together.
#[derive(Default)]
pub struct Tally {
    /// Answers that came.
    pub answered: AtomicUsize,
    /// Questions that had to be asked again.
    pub asked_again: AtomicUsize,
    /// Of those, the ones that had been carried out: only their answer was lost.
    pub had_been_done: AtomicUsize,
    /// Whether the clients are to begin nothing new.
    pub enough: AtomicBool,
}

impl Tally {
    fn add(counter: &AtomicUsize) {
        counter.fetch_add(1, Ordering::SeqCst);
    }

    pub fn count(counter: &AtomicUsize) -> usize {
        counter.load(Ordering::SeqCst)
    }
}

enum Ask {
    Submit,
    Cancel(TaskId),
}

struct Client {
    store: Store,
    tenant: TenantId,
    tally: Arc<Tally>,
}

impl Client {
    /// One task after the other, until it is enough.
    async fn work(self, name: usize) -> Anyhow<Vec<Told>> {
        let mut all = Vec::new();
        while !self.tally.enough.load(Ordering::SeqCst) {
            let key = format!("submit-{name}-{}", all.len());
            let submitted = self.answer(&key, Ask::Submit).await?;
            let task = submitted.task.ok_or("a submitted task has an id")?;
            all.push(Told { key, executed: submitted });
            let key = format!("cancel-{name}-{}", all.len());
            let canceled = self.answer(&key, Ask::Cancel(task)).await?;
            if canceled.state != "CANCELED" {
                return Err(format!("a queued task that is cancelled is {}", canceled.state).into());
            }
            all.push(Told { key, executed: canceled });
            self.settle(task).await?;
        }
        Ok(all)
    }

    /// Asks until there is an answer.
    async fn answer(&self, key: &str, ask: Ask) -> Anyhow<Executed> {
        for tries in 0.. {
            let said = match &ask {
                Ask::Submit => submitted(&self.store, self.tenant, Some(key)).await,
                Ask::Cancel(task) => {
                    let command = |turn: &mut Turn<'_>| cancel(turn, "user:test".to_owned());
                    self.store.execute(&request(self.tenant, Some(key)), CaseKey::task(*task), None, command).await
                }
            };
            match said {
                Ok(executed) => {
                    Tally::add(&self.tally.answered);
                    if executed.replayed && tries == 0 {
                        return Err(format!("{key} was answered before it was asked").into());
                    }
                    if executed.replayed {
                        Tally::add(&self.tally.had_been_done);
                    }
                    return Ok(executed);
                }
                Err(ExecuteError::Store(StoreError::Database(_))) => self.wait().await,
                Err(other) => return Err(format!("{key}: {other:?}").into()),
            }
        }
        Err("asked for ever".into())
    }

    /// Delivers the message that the cancel announced, until it is acknowledged.
    async fn settle(&self, task: TaskId) -> Anyhow {
        let delivery = self.settlement(task).await?;
        let world = World::new(|_| Answer::Found(Found::Inconclusive { cause: "nobody calls".to_owned() }));
        loop {
            match self.store.consume(&SettleHold, &world, &delivery).await {
                Ok(ack) => {
                    drop(ack);
                    Tally::add(&self.tally.answered);
                    return Ok(());
                }
                Err(Again::Database(_)) => self.wait().await,
                Err(other) => return Err(other.into()),
            }
        }
    }

    async fn settlement(&self, task: TaskId) -> Anyhow<Delivery> {
        loop {
            match deliveries(&self.store, task, "billing.settle.requested").await {
                Ok(rows) => return rows.into_iter().next().ok_or_else(|| "an announced message is lost".into()),
                Err(_) => self.wait().await,
            }
        }
    }

    async fn wait(&self) {
        Tally::add(&self.tally.asked_again);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Clients at work, each with a tenant of its own for every second of them: the others share one.
pub struct Workload {
    pub tally: Arc<Tally>,
    clients: JoinSet<Anyhow<Vec<Told>>>,
    tenants: Vec<TenantId>,
}

impl Workload {
    /// Starts so many clients on one store. `sure` is a store on a connection that does not fail.
    pub async fn start(store: &Store, sure: &Store, clients: usize) -> Anyhow<Self> {
        let shared = tenant_with(sure, GRANTED).await?;
        let mut workload = Self { tally: Arc::default(), clients: JoinSet::new(), tenants: vec![shared] };
        for name in 0..clients {
            let tenant = if name % 2 == 0 { shared } else { tenant_with(sure, GRANTED).await? };
            workload.tenants.push(tenant);
            let client = Client { store: store.clone(), tenant, tally: Arc::clone(&workload.tally) };
            workload.clients.spawn(async move { client.work(name).await });
        }
        Ok(workload)
    }

    /// Whether one of the clients has given up; it says why.
    pub async fn check(&mut self) -> Anyhow {
        match self.clients.try_join_next() {
            Some(ended) => ended?.map(drop),
            None => Ok(()),
        }
    }

    /// Lets the clients finish, and holds what they were told against what is there.
    pub async fn judge(mut self, sure: &Store) -> Anyhow {
        self.tally.enough.store(true, Ordering::SeqCst);
        let mut all = Vec::new();
        while let Some(ended) = self.clients.join_next().await {
            all.extend(ended??);
        }
        for told in &all {
            let key = IdempotencyKey { operation: "submitGeneration", key: told.key.clone(), fingerprint: [7; 32] };
            let mut kept = None;
            for tenant in &self.tenants {
                kept = kept.or(sure.replayed(*tenant, &key).await?);
            }
            let expected = Executed { replayed: true, ..told.executed.clone() };
            if kept.as_ref() != Some(&expected) {
                return Err(format!("{} was told {:?}, and is {kept:?}", told.key, told.executed).into());
            }
        }
        facts(sure, i64::try_from(all.len() / 2)?).await?;
        invariants(sure).await
    }
}

/// So many tasks were submitted, cancelled and settled, each once, and nothing else is there.
async fn facts(store: &Store, tasks: i64) -> Anyhow {
    let counted: Vec<(String, i64, i64)> = sqlx::query_as(
        "SELECT name, count(*), count(DISTINCT coalesce(body->>'task', stream_id::text)) FROM events
          WHERE name IN ('task.submitted', 'task.canceled', 'account.held', 'account.released') GROUP BY 1 ORDER BY 1",
    )
    .fetch_all(store.pool())
    .await?;
    let expected = ["account.held", "account.released", "task.canceled", "task.submitted"];
    assert_eq!(counted, expected.map(|name| (name.to_owned(), tasks, tasks)), "events, and tasks they are about");
    let messages: Vec<(String, i64)> = sqlx::query_as(
        "SELECT event_type, count(DISTINCT aggregate_id) FROM outbox_events
          WHERE event_type IN ('generation.submit.requested', 'billing.settle.requested') GROUP BY 1 ORDER BY 1",
    )
    .fetch_all(store.pool())
    .await?;
    let expected = ["billing.settle.requested", "generation.submit.requested"];
    assert_eq!(messages, expected.map(|name| (name.to_owned(), tasks)), "messages");
    let kept: (i64, i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM idempotency_keys WHERE result <> 'null'), (SELECT count(*) FROM idempotency_keys),
                (SELECT count(*) FROM inbox_dedup WHERE phase = 'done')",
    )
    .fetch_one(store.pool())
    .await?;
    assert_eq!(kept, (2 * tasks, 2 * tasks, tasks), "keys with an answer, keys, inbox rows");
    // All of it was given back.
    let missing: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM (
            SELECT stream_id, sum(CASE name WHEN 'account.granted' THEN (body->>'amount')::bigint - $1
                                            WHEN 'account.held' THEN -(body->>'amount')::bigint
                                            ELSE (body->>'released')::bigint END) AS missing
              FROM events WHERE category = 'account' GROUP BY 1) a WHERE missing <> 0",
    )
    .bind(GRANTED)
    .fetch_one(store.pool())
    .await?;
    assert_eq!(missing, 0, "accounts whose credits are not as they were");
    Ok(())
}
