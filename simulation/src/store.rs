//! The store: streams with expected-version append, inbox rows, outbox rows, idempotency keys, and transactions.
//!
//! It keeps to the order of steps of `eventstore` (claim, read, decide, append, commit). Positions are given out when a
//! transaction appends and are visible when it commits, so a reader can meet holes that fill later.

use crate::clock::{Micros, SECOND};
use crate::relay::Outbox;
use domain::aggregate::Aggregate;
use domain::id::{EventId, TenantId, derived, message_id};
use domain::process::{Case, Change, Folded, Notice, StreamId, Turn, Versioned};
use domain::stored::{Stored, StoredEvent};
use domain::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use uuid::Uuid;

/// A map that hashes the same in every run. It is never iterated over.
pub(crate) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Mixer>>;

/// A fast hasher without a random key.
#[derive(Default)]
pub(crate) struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let word = chunk.iter().fold(0_u64, |word, byte| (word << 8) | u64::from(*byte));
            self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
    }
}

/// How long the server lets a transaction idle before it ends it: a paused process does not hold locks for ever.
const IDLE: Micros = 60 * SECOND;

pub(crate) type InboxKey = (u8, EventId);
pub(crate) type TxId = u64;

/// What two transactions can not have at the same time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lock {
    Inbox(InboxKey),
    Key(TenantId, String),
}

/// A transaction that has not ended.
struct Open {
    begun: Micros,
    lock: Option<Lock>,
    /// The last position given out before this transaction's own.
    floor: Option<u64>,
}

/// A recorded event.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) stream: StreamId,
    pub(crate) version: i64,
    pub(crate) change: Change,
    pub(crate) at: Timestamp,
}

/// What an idempotency key led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRow {
    pub(crate) fingerprint: u64,
    pub(crate) task: Option<domain::id::TaskId>,
}

/// Everything one transaction writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writes {
    pub(crate) events: Vec<(StreamId, i64, Change)>,
    pub(crate) outbox: Vec<NewRow>,
    pub(crate) notices: Vec<Notice>,
    /// The inbox row, and its outcome where it is done.
    pub(crate) inbox: Option<(InboxKey, Option<&'static str>)>,
    pub(crate) key: Option<(TenantId, String, KeyRow)>,
    pub(crate) callback: Option<String>,
    pub(crate) quarantine: Option<(u8, u64)>,
    pub(crate) tenant: Option<TenantId>,
    pub(crate) at: Timestamp,
    /// Positions for `events`, given out when it was appended.
    pub(crate) first_position: u64,
}

/// An outbox row to be inserted.
#[derive(Clone, Debug)]
pub(crate) struct NewRow {
    pub(crate) id: Uuid,
    pub(crate) original: Option<Uuid>,
    pub(crate) message: domain::message::Message,
    pub(crate) deliver_at: Option<Timestamp>,
    pub(crate) tenant: TenantId,
    pub(crate) cause: Uuid,
}

/// Why a transaction did not commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Another writer was first.
    Race,
    /// The server had ended it.
    Gone,
}

/// The facts.
#[derive(Default)]
pub(crate) struct Store {
    streams: Map<StreamId, Folded>,
    /// By position; a position whose transaction did not commit stays a hole.
    log: BTreeMap<u64, Recorded>,
    last_position: u64,
    inbox: Map<InboxKey, Option<&'static str>>,
    keys: Map<(TenantId, String), KeyRow>,
    callbacks: BTreeSet<String>,
    pub(crate) notices: Map<(domain::id::TaskId, i64), domain::task::State>,
    pub(crate) quarantine: BTreeMap<(u8, u64), u32>,
    pub(crate) outbox: Outbox,
    open: BTreeMap<TxId, Open>,
    last_tx: TxId,
    last_wins: bool,
}

/// The id of an event, as `eventstore` derives it.
pub(crate) fn event_id(stream: StreamId, version: i64) -> Uuid {
    derived("event", stream.id, &format!("{}:{version}", stream.category.name()))
}

impl Store {
    /// An empty store; `last_wins` is for a mutant: whoever commits last wins.
    pub(crate) fn new(last_wins: bool) -> Self {
        Self { last_wins, ..Self::default() }
    }

    // ------------------------------------------------------------------ transactions

    pub(crate) fn begin(&mut self, now: Micros) -> TxId {
        self.last_tx += 1;
        self.open.insert(self.last_tx, Open { begun: now, lock: None, floor: None });
        self.last_tx
    }

    /// Takes a lock; `false`: another transaction has it.
    pub(crate) fn lock(&mut self, tx: TxId, lock: Lock, now: Micros) -> bool {
        self.end_idle(now);
        if self.open.values().any(|it| it.lock.as_ref() == Some(&lock)) {
            return false;
        }
        if let Some(open) = self.open.get_mut(&tx) {
            open.lock = Some(lock);
        }
        true
    }

    fn end_idle(&mut self, now: Micros) {
        if self.open.first_key_value().is_some_and(|(_, it)| it.begun + IDLE < now) {
            self.open.retain(|_, it| it.begun + IDLE >= now);
        }
    }

    pub(crate) fn rollback(&mut self, tx: TxId) {
        self.open.remove(&tx);
    }

    /// Gives out positions for the events: they count from here on, whether the transaction commits or not.
    pub(crate) fn append(&mut self, tx: TxId, writes: &mut Writes) {
        if writes.events.is_empty() {
            return;
        }
        if let Some(open) = self.open.get_mut(&tx) {
            open.floor.get_or_insert(self.last_position);
        }
        writes.first_position = self.last_position + 1;
        self.last_position += writes.events.len() as u64;
    }

    /// Up to where nothing can appear any more.
    pub(crate) fn readable(&mut self, now: Micros) -> u64 {
        self.end_idle(now);
        self.open.values().filter_map(|it| it.floor).min().unwrap_or(u64::MAX).min(self.last_position)
    }

    /// The last position given out.
    pub(crate) const fn last_position(&self) -> u64 {
        self.last_position
    }

    /// Whether a transaction may commit. It has ended either way.
    pub(crate) fn may_commit(&mut self, tx: TxId, writes: &Writes, now: Micros) -> Result<(), Refused> {
        self.end_idle(now);
        if self.open.remove(&tx).is_none() {
            return Err(Refused::Gone);
        }
        if !self.last_wins && self.is_late(writes) {
            return Err(Refused::Race);
        }
        if writes.outbox.iter().any(|row| self.outbox.knows(row.id)) {
            return Err(Refused::Race);
        }
        Ok(())
    }

    fn is_late(&self, writes: &Writes) -> bool {
        let mut seen: Vec<StreamId> = Vec::with_capacity(2);
        writes.events.iter().any(|(stream, version, _)| {
            let first = !seen.contains(stream);
            seen.push(*stream);
            first && self.version(*stream) + 1 != *version
        })
    }

    /// Makes a transaction's writes durable, all of them.
    pub(crate) fn apply(&mut self, writes: &Writes) {
        for (offset, (stream, version, change)) in writes.events.iter().enumerate() {
            let change = stored_and_read(change);
            let folded = self.streams.remove(stream).unwrap_or_else(|| Folded::absent(stream.category));
            // What does not fit was reported by the watch, and ends the run.
            if let Some(folded) = evolve(folded, *version, &change) {
                self.streams.insert(*stream, folded);
            }
            let recorded = Recorded { stream: *stream, version: *version, change, at: writes.at };
            self.log.insert(writes.first_position + offset as u64, recorded);
        }
        for row in &writes.outbox {
            self.outbox.insert(row, writes.at);
        }
        for notice in &writes.notices {
            self.notices.entry((notice.task, notice.version)).or_insert(notice.state);
        }
        if let Some((key, outcome)) = writes.inbox {
            let row = self.inbox.entry(key).or_default();
            // `WHERE phase = 'claimed'`
            *row = row.or(outcome);
        }
        if let Some((tenant, key, row)) = &writes.key {
            self.keys.insert((*tenant, key.clone()), row.clone());
        }
        if let Some(delivery) = &writes.callback {
            self.callbacks.insert(delivery.clone());
        }
        if let Some(key) = writes.quarantine {
            *self.quarantine.entry(key).or_default() += 1;
        }
    }

    // ------------------------------------------------------------------ reading

    pub(crate) fn version(&self, stream: StreamId) -> i64 {
        self.streams.get(&stream).map_or(0, Folded::version)
    }

    pub(crate) fn folded(&self, stream: StreamId) -> Option<&Folded> {
        self.streams.get(&stream)
    }

    /// Reads a whole case.
    pub(crate) fn load(&self, mut case: Case) -> Case {
        loop {
            let wanted = case.wants();
            if wanted.is_empty() {
                return case;
            }
            for stream in wanted {
                let folded = self.streams.get(&stream).cloned().unwrap_or_else(|| Folded::absent(stream.category));
                case.supply(stream, folded);
            }
        }
    }

    /// The outcome of a message that is done.
    pub(crate) fn done(&self, key: InboxKey) -> Option<&'static str> {
        self.inbox.get(&key).copied().flatten()
    }

    pub(crate) fn key(&self, tenant: TenantId, key: &str) -> Option<&KeyRow> {
        self.keys.get(&(tenant, key.to_owned()))
    }

    pub(crate) fn has_callback(&self, delivery: &str) -> bool {
        self.callbacks.contains(delivery)
    }

    /// The events of these positions.
    pub(crate) fn events(&self, after: u64, up_to: u64) -> impl Iterator<Item = (u64, &Recorded)> {
        self.log.range(after + 1..up_to.max(after) + 1).map(|(position, it)| (*position, it))
    }
}

impl Writes {
    /// Takes a turn's changes and messages.
    pub(crate) fn of(turn: Turn<'_>, tenant: TenantId, cause: Uuid, at: Timestamp) -> Self {
        let mut versions: Vec<(StreamId, i64)> = Vec::with_capacity(3);
        for change in &turn.changes {
            let after = match change {
                Change::Task(..) => turn.case.task.version,
                Change::Attempt(..) => turn.case.attempt.version,
                Change::Account(..) => turn.case.account.version,
            };
            match versions.iter_mut().find(|(stream, _)| *stream == change.stream()) {
                Some((_, version)) => *version -= 1,
                None => versions.push((change.stream(), after - 1)),
            }
        }
        let mut events = Vec::with_capacity(turn.changes.len());
        for change in turn.changes {
            let stream = change.stream();
            if let Some((_, version)) = versions.iter_mut().find(|(it, _)| *it == stream) {
                *version += 1;
                events.push((stream, *version, change));
            }
        }
        let outbox = turn
            .announcements
            .into_iter()
            .map(|it| NewRow {
                id: match it.origin {
                    domain::process::Origin::Event { stream, version } => {
                        message_id(at, "message", event_id(stream, version), it.message.event_type())
                    }
                    domain::process::Origin::Rearmed => message_id(at, "rearmed", cause, it.message.event_type()),
                },
                original: None,
                message: it.message,
                deliver_at: it.deliver_at,
                tenant,
                cause,
            })
            .collect();
        Self { events, outbox, notices: turn.notices, tenant: Some(tenant), at, ..Self::default() }
    }
}

/// Every event goes through its stored form once, as it does in production.
fn stored_and_read(change: &Change) -> Change {
    fn round<E: StoredEvent>(event: &E) -> E {
        let stored: Stored = event.encode().expect("plain data encodes");
        E::decode(stored).expect("what was just encoded decodes")
    }
    match change {
        Change::Task(id, event) => Change::Task(*id, round(event)),
        Change::Attempt(id, event) => Change::Attempt(*id, round(event)),
        Change::Account(id, event) => Change::Account(*id, round(event)),
    }
}

/// Folds one event; `None` where it does not fit.
pub(crate) fn evolve(folded: Folded, version: i64, change: &Change) -> Option<Folded> {
    Some(match (folded, change) {
        (Folded::Task(it), Change::Task(_, event)) => {
            Folded::Task(Versioned { state: it.state.evolve(event).ok()?, version })
        }
        (Folded::Attempt(it), Change::Attempt(_, event)) => {
            Folded::Attempt(Versioned { state: it.state.evolve(event).ok()?, version })
        }
        (Folded::Account(it), Change::Account(_, event)) => {
            Folded::Account(Versioned { state: it.state.evolve(event).ok()?, version })
        }
        _ => return None,
    })
}
