//! Appending what turns came to: events, outbox rows, notices and what belongs beside them, in one statement.

mod statement;
mod together;

pub(crate) use statement::append;
pub(crate) use together::Appends;

use crate::error::StoreError;
use crate::wakeup;
use chrono::TimeDelta;
use domain::id::{CausationId, CorrelationId, TenantId, derived, message_id};
use domain::message::Message;
use domain::process::{Announcement, Change, Notice, Origin, StreamId, Turn};
use domain::stored::{Stored, StoredEvent};
use domain::time::Timestamp;
use std::collections::HashMap;
use std::sync::Arc;
use uuid::Uuid;

/// Who and why: stored with every event and message.
#[derive(Clone, Debug)]
pub struct Meta {
    /// Whose facts these are.
    pub tenant: TenantId,
    /// The request that started the chain.
    pub correlation: CorrelationId,
    /// The command or message that is being handled.
    pub causation: CausationId,
    /// Who acts: `user:…`, or the consumer's name.
    pub actor: String,
    /// Trace id, 32 hex digits.
    pub trace: String,
}

/// How long a wake-up that came before its time is kept before it is handed to the broker again, at most. Whoever delivered it has
/// another clock than the database, and would bring it back at once, again and again until the clocks agree.
const EARLY_AGAIN: TimeDelta = TimeDelta::seconds(30);

/// The id of an event: the same however often the step that records it is repeated.
fn event_id(stream: StreamId, version: i64) -> Uuid {
    derived("event", stream.id, &format!("{}:{version}", stream.category.name()))
}

/// A row of `events`, but for what all rows of an [`Append`] share.
struct EventRow {
    event_id: Uuid,
    stream: StreamId,
    version: i64,
    stored: Stored,
}

/// A row of `outbox_events`, but for what all rows of an [`Append`] share.
struct OutboxRow {
    event_id: Uuid,
    task: Uuid,
    event_type: &'static str,
    schema_version: i16,
    topic: &'static str,
    tag: &'static str,
    payload: serde_json::Value,
    deliver_at: Option<Timestamp>,
    available_at: Timestamp,
}

/// What one caller appends: all of it, or nothing.
pub(crate) struct Append {
    meta: Arc<Meta>,
    now: Timestamp,
    events: Vec<EventRow>,
    outbox: Vec<OutboxRow>,
    notices: Vec<Notice>,
    beside: Beside,
}

impl Append {
    /// Nothing yet, at `now`.
    pub(crate) const fn empty(meta: Arc<Meta>, now: Timestamp) -> Self {
        Self { meta, now, events: Vec::new(), outbox: Vec::new(), notices: Vec::new(), beside: Beside::Nothing }
    }

    /// What a turn came to; `versions_before` are derived from the turn's case, whose versions count the changes already.
    pub(crate) fn of(turn: Turn<'_>, meta: Arc<Meta>) -> Result<Self, StoreError> {
        let mut append = Self::empty(meta, turn.now);
        let mut versions = versions_before(&turn);
        for change in &turn.changes {
            let stream = change.stream();
            let version = versions.entry(stream).or_default();
            *version += 1;
            append.events.push(EventRow {
                event_id: event_id(stream, *version),
                stream,
                version: *version,
                stored: encode(change)?,
            });
        }
        for announcement in &turn.announcements {
            append.outbox.push(OutboxRow::of(announcement, &append.meta, append.now)?);
        }
        append.notices = turn.notices;
        Ok(append)
    }

    /// One message that no event announces (a callback, a repair). `id` makes it the same when it is repeated.
    pub(crate) fn message(id: Uuid, message: &Message, meta: Meta, now: Timestamp) -> Result<Self, StoreError> {
        let mut append = Self::empty(Arc::new(meta), now);
        let announcement = Announcement {
            origin: Origin::Rearmed,
            message: message.clone(),
            deliver_at: message.topic().is_delayed().then_some(now),
        };
        append.outbox.push(OutboxRow { event_id: id, ..OutboxRow::of(&announcement, &append.meta, now)? });
        Ok(append)
    }

    /// The same, with `beside`.
    pub(crate) fn with(self, beside: Beside) -> Self {
        Self { beside, ..self }
    }

    /// What readers are woken for after it.
    pub(crate) fn news(&self) -> u8 {
        let events = if self.events.is_empty() { 0 } else { wakeup::EVENTS };
        events | if self.outbox.is_empty() { 0 } else { wakeup::OUTBOX }
    }
}

fn versions_before(turn: &Turn<'_>) -> HashMap<StreamId, i64> {
    let mut versions: HashMap<StreamId, i64> = HashMap::new();
    for change in &turn.changes {
        let after = match change {
            Change::Task(..) => turn.case.task.version,
            Change::Attempt(..) => turn.case.attempt.version,
            Change::Account(..) => turn.case.account.version,
        };
        *versions.entry(change.stream()).or_insert(after) -= 1;
    }
    versions
}

fn encode(change: &Change) -> Result<Stored, serde_json::Error> {
    match change {
        Change::Task(_, event) => event.encode(),
        Change::Attempt(_, event) => event.encode(),
        Change::Account(_, event) => event.encode(),
    }
}

impl OutboxRow {
    fn of(announcement: &Announcement, meta: &Meta, now: Timestamp) -> Result<Self, StoreError> {
        let message = &announcement.message;
        let event_type = message.event_type();
        let (event_id, available_at) = match announcement.origin {
            Origin::Event { stream, version } => {
                (message_id(now, "message", event_id(stream, version), event_type), now)
            }
            Origin::Rearmed => {
                let kept = announcement.deliver_at.map_or(now, |due| due.min(now + EARLY_AGAIN));
                (message_id(now, "rearmed", meta.causation.0, event_type), kept)
            }
        };
        Ok(Self {
            event_id,
            task: message.task_id().0,
            event_type,
            schema_version: i16::try_from(message.schema_version()).unwrap_or(i16::MAX),
            topic: message.topic().name(),
            tag: message.tag(),
            payload: message.payload()?,
            deliver_at: announcement.deliver_at,
            available_at,
        })
    }
}

/// Which inbox row is about a message, and what has become of the message.
pub(crate) struct InboxRow {
    pub(crate) consumer: &'static str,
    pub(crate) event_id: Uuid,
    pub(crate) aggregate: Uuid,
    pub(crate) payload_hash: [u8; 32],
    /// How it ended; `None`: it has not.
    pub(crate) ended: Option<(&'static str, Option<String>)>,
}

/// What is written beside the events, in the same statement.
pub(crate) enum Beside {
    Nothing,
    /// The inbox row is made. Where there is one already, nothing at all is written: [`StoreError::Race`].
    Take(InboxRow),
    /// The inbox row is closed if it is open, and made if there is none.
    Close(InboxRow),
    /// The row of an idempotency key and that of a request, as far as given. Where there is a row of the key already, nothing at
    /// all is written: [`StoreError::Race`].
    Keep(Option<KeyRow>, Option<RequestRow>),
}

/// An idempotency key and what its request came to.
pub(crate) struct KeyRow {
    pub(crate) tenant: Uuid,
    pub(crate) operation: &'static str,
    pub(crate) key: String,
    pub(crate) fingerprint: [u8; 32],
    pub(crate) result: serde_json::Value,
}

/// What a person asked for, in their words.
pub(crate) struct RequestRow {
    pub(crate) tenant: Uuid,
    pub(crate) task: Uuid,
    pub(crate) prompt: String,
}
