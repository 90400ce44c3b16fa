//! Competing readers: a group shares the log by partition of the stream, and does something with each event once.
//!
//! A group has a fixed number of partitions; a stream belongs to one of them for ever. Each partition has a checkpoint and is read by
//! one member at a time, in the order of positions. Members find out by themselves who reads what: see `group`. A batch is handed
//! to a [`Handler`] together with the transaction in which the checkpoint moves: what it writes there counts once. A member that slept
//! past its lease can not move the checkpoint, and with that nothing that it did in that transaction counts.
//!
//! A member reads one batch after the other and renews its lease in between. For more at a time run more members, in one process or
//! in several.

mod group;
mod status;

pub use group::SubscriptionError;
pub use status::{GroupStatus, PartitionStatus, group_status};

use crate::bell::Bell;
use crate::projector::readable;
use eventstore::LoggedEvent;
use futures_util::future::BoxFuture;
use group::{Group, Held};
use sqlx::{PgConnection, PgPool};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// A member asks this often which partitions are its own, or three times a lease.
const CLAIM_EVERY: Duration = Duration::from_secs(1);
/// A checkpoint is moved over so many positions without an event of its partition: each move is a commit, and to read some
/// positions again costs less.
const EMPTY_STRETCH: i64 = 1_000;
/// Longest pause after a fault.
const FAULT_CAP: Duration = Duration::from_secs(30);

/// How a group reads.
#[derive(Clone, Debug)]
pub struct SubscriptionConfig {
    /// The group's name: 1 to 63 lower-case letters, digits, `_`, `.` and `-`, beginning with a letter.
    pub group: String,
    /// Into how many partitions the log is shared, 1 to 1024. Fixed when the group is made; more members than this are idle.
    pub partitions: u16,
    /// The group begins after this position, if it is new: 0 for all of the log.
    pub after: i64,
    /// Most events in one transaction.
    pub batch: u32,
    /// How long a member that is not heard of keeps its partitions, 0.1 s to 1 h. At least half as long again as the longest batch
    /// takes: one that takes longer than the lease never counts.
    pub lease: Duration,
    /// Longest time between two looks at the events.
    pub tick: Duration,
}

impl SubscriptionConfig {
    /// A group of this name with so many partitions, over all of the log, with times that suit most.
    #[must_use]
    pub fn new(group: impl Into<String>, partitions: u16) -> Self {
        Self {
            group: group.into(),
            partitions,
            after: 0,
            batch: 500,
            lease: Duration::from_secs(30),
            tick: Duration::from_millis(250),
        }
    }

    /// The database checks the rest.
    fn check(&self) -> Result<(), &'static str> {
        if self.batch == 0 {
            return Err("a group reads at least one event in a transaction: set its batch to 1 or more");
        }
        if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&self.lease) {
            return Err("a group's lease is 0.1 seconds to 1 hour");
        }
        Ok(())
    }
}

/// Events of one partition that follow each other in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Which partition, from 0.
    pub partition: u16,
    /// At least one, in the order of their positions; so the events of a stream are in the order of their versions.
    pub events: Vec<LoggedEvent>,
}

/// Why a handler could not do its work.
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// What a group does with events.
pub trait Handler: Send + Sync {
    /// Does it. What is written through `effects` counts once, with the checkpoint: it is committed afterwards, or nothing of it is.
    /// It may be called again with the same events; what it does elsewhere must bear that. An error leaves the partition where it is,
    /// to be tried again later; other partitions go on.
    fn handle<'a>(&'a self, batch: &'a Batch, effects: &'a mut PgConnection)
    -> BoxFuture<'a, Result<(), HandlerError>>;
}

/// A group of competing readers. Cheap to clone; each [`Subscription::run`] is a member of its own.
#[derive(Clone, Debug)]
pub struct Subscription {
    group: Group,
    config: SubscriptionConfig,
}

/// What a look at a partition came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// There may be more.
    More,
    /// All that may be read is read.
    CaughtUp,
}

/// A partition as its member knows it.
struct Reading {
    held: Held,
    faults: u32,
    not_before: Instant,
}

/// A member at work.
struct Member<'s> {
    subscription: &'s Subscription,
    id: Uuid,
    readings: Vec<Reading>,
    /// When it asks the next time which partitions are its own.
    claim_at: Instant,
}

impl Subscription {
    /// Opens a group; makes it where there is none of this name.
    ///
    /// # Errors
    /// [`SubscriptionError::Refused`]: there is one with another number of partitions or of somebody else, or the configuration says
    /// what can not be. [`SubscriptionError::Database`].
    pub async fn open(pool: PgPool, config: SubscriptionConfig) -> Result<Self, SubscriptionError> {
        config.check().map_err(|wrong| SubscriptionError::Refused(wrong.to_owned()))?;
        let group = Group { pool, name: config.group.clone() };
        group.make(config.partitions, config.after).await?;
        Ok(Self { group, config })
    }

    /// Reads as one more member until it is cancelled, then gives its partitions back. A fault never ends it: it is logged, and tried
    /// again.
    pub async fn run(&self, handler: &dyn Handler, cancel: CancellationToken) {
        let bell = Bell::on(&self.group.pool, "aivideo_events");
        let mut member = Member { subscription: self, id: Uuid::new_v4(), readings: vec![], claim_at: Instant::now() };
        let mut faults = 0;
        while !cancel.is_cancelled() {
            let pause = match member.round(handler, &cancel).await {
                Ok(Look::More) => {
                    faults = 0;
                    continue;
                }
                Ok(Look::CaughtUp) => {
                    faults = 0;
                    self.config.tick.min(member.claim_at.saturating_duration_since(Instant::now()))
                }
                Err(error) => {
                    faults += 1;
                    log(&self.config.group, &error, faults);
                    // Not woken by new events: they wait behind the fault.
                    tokio::select! {
                        () = cancel.cancelled() => break,
                        () = tokio::time::sleep(pause_after(faults)) => continue,
                    }
                }
            };
            tokio::select! {
                () = cancel.cancelled() => break,
                () = bell.wait(pause) => {}
            }
        }
        if let Err(error) = self.group.leave(member.id).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "its partitions are free when its lease ends");
        }
    }
}

impl Member<'_> {
    /// Looks at each partition that it has once. What is not committed when it is cancelled is given up; a claim is not, or it might
    /// reach the database after the member has left.
    async fn round(&mut self, handler: &dyn Handler, cancel: &CancellationToken) -> Result<Look, SubscriptionError> {
        let group = &self.subscription.group;
        let mut look = Look::CaughtUp;
        let (up_to, _) = readable(&mut *group.pool.acquire().await?).await?;
        let mut next = 0;
        loop {
            if Instant::now() >= self.claim_at {
                self.claim().await?;
            }
            let Some(reading) = self.readings.get_mut(next) else { return Ok(look) };
            next += 1;
            if reading.not_before > Instant::now() || reading.held.position >= up_to {
                continue;
            }
            let batch = tokio::select! {
                biased;
                () = cancel.cancelled() => return Ok(look),
                batch = self.subscription.batch(&mut reading.held, up_to, handler) => batch,
            };
            match batch {
                Ok(it) => {
                    reading.faults = 0;
                    look = if it == Look::More { it } else { look };
                }
                Err(SubscriptionError::Lost(said)) => {
                    tracing::warn!(group = %group.name, said, "what a member did does not count: is the lease too short?");
                    self.claim_at = Instant::now();
                    look = Look::More;
                }
                Err(error) => {
                    reading.faults += 1;
                    reading.not_before = Instant::now() + pause_after(reading.faults);
                    let (partition, position) = (reading.held.partition, reading.held.position);
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(group = %group.name, partition, position, error, "a partition stands still");
                }
            }
        }
    }

    /// Renews the lease, and learns which partitions it has. What it had already goes on where it was.
    async fn claim(&mut self) -> Result<(), SubscriptionError> {
        let lease = self.subscription.config.lease;
        let asked = Instant::now();
        let held = self.subscription.group.claim(self.id, lease).await?;
        self.claim_at = asked + (lease / 3).min(CLAIM_EVERY);
        let mut before = std::mem::take(&mut self.readings);
        self.readings = held
            .into_iter()
            .map(|held| match before.iter().position(|it| it.held.is_same_lease(&held)) {
                Some(at) => Reading { held, ..before.swap_remove(at) },
                None => Reading { held, faults: 0, not_before: asked },
            })
            .collect();
        Ok(())
    }
}

impl Subscription {
    /// Handles the next events of a partition, in one transaction.
    async fn batch(&self, held: &mut Held, up_to: i64, handler: &dyn Handler) -> Result<Look, SubscriptionError> {
        let limit = i64::from(self.config.batch);
        let mut tx = self.group.pool.begin().await?;
        let events = self.group.read(&mut tx, held, up_to, limit).await?;
        let full = !events.is_empty() && events.len() as i64 >= limit;
        let reached = if full { events.last().map_or(up_to, |event| event.position) } else { up_to };
        if !events.is_empty() {
            self.group.bound(&mut tx, self.config.lease).await?;
            let batch = Batch { partition: u16::try_from(held.partition).unwrap_or(u16::MAX), events };
            let handled = handler.handle(&batch, &mut tx).await;
            if let Err(error) = handled {
                tx.rollback().await?;
                return Err(SubscriptionError::Handler(error));
            }
        } else if reached - held.position < EMPTY_STRETCH {
            tx.rollback().await?;
            return Ok(Look::CaughtUp);
        }
        // The last statement: from here on nobody else can be given the partition before this is committed.
        self.group.move_checkpoint(&mut tx, held, reached).await?;
        tx.commit().await?;
        held.position = reached;
        Ok(if full { Look::More } else { Look::CaughtUp })
    }
}

fn log(group: &str, error: &SubscriptionError, faults: u32) {
    let error = error as &dyn std::error::Error;
    tracing::warn!(group, error, faults, "a member of a group of readers waits");
}

fn pause_after(faults: u32) -> Duration {
    FAULT_CAP.min(Duration::from_millis(100) * (1 << (faults - 1).min(16)))
}
