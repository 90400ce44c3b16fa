//! The hub: who watches what, and the one reader that tells them.

use super::change::{Change, What};
use super::mailbox::{Mailbox, Told};
use super::read::{self, Happened};
use crate::fold::AtVersion;
use domain::id::{TaskId, TenantId};
use sqlx::PgPool;
use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

/// Longest time between two looks: notifications may be lost.
const TICK: Duration = Duration::from_millis(250);
/// Events in one look.
const BATCH: i64 = 500;
/// Pause after a fault.
const FAULT_PAUSE: Duration = Duration::from_millis(500);
/// Rows that are kept folded between two looks. What is not kept is folded again from its stream.
const KEPT: usize = 20_000;

/// What is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topic {
    /// These tasks.
    Tasks(BTreeSet<TaskId>),
    /// All tasks of a tenant.
    Tenant(TenantId),
}

type Boxes = HashMap<u64, Arc<Mailbox>>;

#[derive(Default)]
struct Registry {
    next: u64,
    tasks: HashMap<Uuid, Boxes>,
    tenants: HashMap<Uuid, Boxes>,
    subscribers: usize,
}

impl Registry {
    fn is_watched(&self, task: Uuid, tenant: Uuid) -> bool {
        self.tasks.contains_key(&task) || self.tenants.contains_key(&tenant)
    }

    fn boxes(&self, task: Uuid, tenant: Uuid) -> impl Iterator<Item = &Arc<Mailbox>> {
        self.tasks.get(&task).into_iter().chain(self.tenants.get(&tenant)).flat_map(HashMap::values)
    }

    fn everybody(&self) -> impl Iterator<Item = &Arc<Mailbox>> {
        self.tasks.values().chain(self.tenants.values()).flat_map(HashMap::values)
    }
}

struct Shared {
    registry: Mutex<Registry>,
    /// Whether the reader is at the log: changed under the registry's lock.
    reading: watch::Sender<bool>,
    ring: Notify,
}

/// Tells subscribers what happens. Clones share it.
#[derive(Clone)]
pub struct Hub {
    shared: Arc<Shared>,
}

impl Default for Hub {
    fn default() -> Self {
        let (registry, ring) = (Mutex::default(), Notify::new());
        Self { shared: Arc::new(Shared { registry, reading: watch::Sender::new(false), ring }) }
    }
}

/// As long as the log is read.
struct Running(Hub);

impl Drop for Running {
    fn drop(&mut self) {
        let registry = self.0.registry();
        self.0.shared.reading.send_replace(false);
        registry.everybody().for_each(|mailbox| mailbox.close());
    }
}

/// Somebody who watches, until it is dropped.
pub struct Subscriber {
    hub: Hub,
    number: u64,
    topic: Topic,
    mailbox: Arc<Mailbox>,
}

impl Hub {
    /// Watches from now on. What happened before is not told: see [`super::Feed`].
    #[must_use]
    pub fn subscribe(&self, topic: Topic) -> Subscriber {
        let mailbox = Arc::new(Mailbox::default());
        let number = {
            let mut registry = self.registry();
            registry.next += 1;
            registry.subscribers += 1;
            let number = registry.next;
            let join = |boxes: &mut HashMap<Uuid, Boxes>, id: Uuid| {
                boxes.entry(id).or_default().insert(number, Arc::clone(&mailbox));
            };
            match &topic {
                Topic::Tasks(tasks) => tasks.iter().for_each(|task| join(&mut registry.tasks, task.0)),
                Topic::Tenant(tenant) => join(&mut registry.tenants, tenant.0),
            }
            number
        };
        self.ring();
        Subscriber { hub: self.clone(), number, topic, mailbox }
    }

    /// How many watch.
    #[must_use]
    pub fn subscribers(&self) -> usize {
        self.registry().subscribers
    }

    /// Has the reader look at once.
    pub(crate) fn ring(&self) {
        self.shared.ring.notify_one();
    }

    /// Reads and tells, for ever. One of these per process.
    pub(crate) async fn run(&self, pool: &PgPool) -> Infallible {
        let _running = Running(self.clone());
        let mut reader = LogReader { hub: self.clone(), pool: pool.clone(), position: None, kept: HashMap::new() };
        loop {
            if self.rests() {
                reader.position = None;
                reader.kept = HashMap::new();
                self.shared.ring.notified().await;
                continue;
            }
            match reader.look().await {
                Ok(true) => {}
                Ok(false) => {
                    timeout(TICK, self.shared.ring.notified()).await.ok();
                }
                Err(error) => {
                    log(&error);
                    sleep(FAULT_PAUSE).await;
                }
            }
        }
    }

    /// Whether nobody watches; then whoever comes next waits until the reader is at the log again.
    fn rests(&self) -> bool {
        let registry = self.registry();
        let rests = registry.subscribers == 0;
        if rests {
            self.shared.reading.send_replace(false);
        }
        rests
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.shared.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber {
    /// Waits until the reader is at the log: a snapshot that is read after this, and what is told, leave no gap. `false`: not in time.
    pub async fn is_live(&self, patience: Duration) -> bool {
        let mut reading = self.hub.shared.reading.subscribe();
        timeout(patience, reading.wait_for(|reading| *reading)).await.is_ok_and(|waited| waited.is_ok())
    }

    /// What happens next, in the order of positions.
    pub async fn next(&self) -> Told {
        self.mailbox.take().await
    }

    /// What is watched.
    #[must_use]
    pub const fn topic(&self) -> &Topic {
        &self.topic
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let mut registry = self.hub.registry();
        registry.subscribers -= 1;
        let number = self.number;
        let leave = |boxes: &mut HashMap<Uuid, Boxes>, id: Uuid| {
            if let Some(of_id) = boxes.get_mut(&id) {
                of_id.remove(&number);
                if of_id.is_empty() {
                    boxes.remove(&id);
                }
            }
        };
        match &self.topic {
            Topic::Tasks(tasks) => tasks.iter().for_each(|task| leave(&mut registry.tasks, task.0)),
            Topic::Tenant(tenant) => leave(&mut registry.tenants, tenant.0),
        }
    }
}

fn log(error: &sqlx::Error) {
    let error = error as &dyn std::error::Error;
    tracing::warn!(error, "changes for subscribers can not be read; trying again");
}

/// The one reader.
struct LogReader {
    hub: Hub,
    pool: PgPool,
    /// Everything up to here was told; `None` while nobody watches.
    position: Option<i64>,
    /// Rows of watched tasks that have not ended.
    kept: HashMap<Uuid, AtVersion>,
}

impl LogReader {
    /// Reads and tells the next events; says whether there may be more.
    async fn look(&mut self) -> Result<bool, sqlx::Error> {
        let folded = read::checkpoint(&self.pool).await?;
        let Some(position) = self.position else {
            self.position = Some(folded);
            let _registry = self.hub.registry();
            self.hub.shared.reading.send_replace(true);
            return Ok(false);
        };
        if folded < position {
            // The database is an older one now. Whatever was told, nobody can rely on it.
            tracing::warn!(position, folded, "the read models have gone back: subscribers begin anew");
            self.hub.registry().everybody().for_each(|mailbox| mailbox.lag());
            self.kept.clear();
            self.position = Some(folded);
            return Ok(false);
        }
        if folded == position {
            return Ok(false);
        }
        let events = read::happened(&self.pool, position, folded, BATCH).await?;
        let full = events.len() as i64 >= BATCH;
        let reached = if full { events.last().map_or(folded, |it| it.event.position) } else { folded };
        let (watched, others): (Vec<Happened>, Vec<Happened>) = {
            let registry = self.hub.registry();
            events.into_iter().partition(|it| registry.is_watched(it.task_id, it.event.tenant_id))
        };
        for happened in others {
            // Nobody watches it any more: a row that is kept would fall behind.
            self.kept.remove(&happened.task_id);
        }
        self.tell(watched, position).await?;
        self.position = Some(reached);
        Ok(full)
    }

    async fn tell(&mut self, events: Vec<Happened>, position: i64) -> Result<(), sqlx::Error> {
        self.load(&events, position).await?;
        for happened in events {
            let task = happened.task_id;
            match self.fold(&happened) {
                Ok(Some(change)) => {
                    let change = Arc::new(change);
                    let registry = self.hub.registry();
                    registry.boxes(task, happened.event.tenant_id).for_each(|mailbox| mailbox.put(&change));
                }
                Ok(None) => {}
                Err(fault) => {
                    // The projector would not have got past it; whoever watches the task looks at what it shows.
                    tracing::error!(error = &fault as &dyn std::error::Error, "a change can not be told");
                    self.kept.remove(&task);
                    self.hub.registry().boxes(task, happened.event.tenant_id).for_each(|mailbox| mailbox.lag());
                }
            }
        }
        if self.kept.len() > KEPT {
            self.kept.clear();
        }
        Ok(())
    }

    /// Folds what was not kept from its stream, up to where the reader was.
    async fn load(&mut self, events: &[Happened], position: i64) -> Result<(), sqlx::Error> {
        let begins = |it: &Happened| it.event.category == "task" && it.event.version == 1;
        let new: BTreeSet<Uuid> = events.iter().filter(|it| begins(it)).map(|it| it.task_id).collect();
        let missing: BTreeSet<Uuid> =
            events.iter().map(|it| it.task_id).filter(|it| !self.kept.contains_key(it)).collect();
        let missing: Vec<Uuid> = missing.difference(&new).copied().collect();
        if missing.is_empty() {
            return Ok(());
        }
        for event in read::streams(&self.pool, &missing, position).await? {
            let before = self.kept.remove(&event.stream_id);
            if let Ok(row) = AtVersion::after(before, &event) {
                self.kept.insert(event.stream_id, row);
            }
        }
        Ok(())
    }

    fn fold(&mut self, happened: &Happened) -> Result<Option<Change>, crate::FoldFault> {
        let Happened { event, task_id } = happened;
        if event.category != "task" {
            let row = self.kept.get(task_id).map(AtVersion::shown);
            return Ok(row.map(|row| Change::new(event.position, What::Progress, row)));
        }
        let row = AtVersion::after(self.kept.remove(task_id), event)?;
        let shown = row.shown();
        if !row.is_at_end() {
            self.kept.insert(*task_id, row);
        }
        let what = What::Event { name: event.name.clone(), at: event.recorded_at };
        Ok(Some(Change::new(event.position, what, shown)))
    }
}
