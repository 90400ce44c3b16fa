//! Appending what a turn came to: events, outbox rows, notices and the closed inbox row, in one statement, in the caller's
//! transaction.

use crate::error::StoreError;
use crate::transaction::Tx;
use crate::wakeup;
use chrono::TimeDelta;
use domain::id::{CausationId, CorrelationId, TenantId, derived, message_id};
use domain::process::{Announcement, Change, Notice, Origin, StreamId, Turn};
use domain::stored::{Stored, StoredEvent};
use domain::time::Timestamp;
use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use std::collections::HashMap;
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

#[derive(Default)]
struct EventColumns {
    event_id: Vec<Uuid>,
    category: Vec<&'static str>,
    stream_id: Vec<Uuid>,
    version: Vec<i64>,
    name: Vec<String>,
    schema_version: Vec<i16>,
    body: Vec<serde_json::Value>,
}

#[derive(Default)]
struct OutboxColumns {
    event_id: Vec<Uuid>,
    aggregate_type: Vec<&'static str>,
    aggregate_id: Vec<Uuid>,
    event_type: Vec<&'static str>,
    schema_version: Vec<i16>,
    topic: Vec<&'static str>,
    tag: Vec<&'static str>,
    payload: Vec<serde_json::Value>,
    deliver_at: Vec<Option<Timestamp>>,
    available_at: Vec<Timestamp>,
}

/// What a turn came to, ready to be written.
#[derive(Default)]
pub(crate) struct Writes {
    events: EventColumns,
    outbox: OutboxColumns,
    notices: Vec<Notice>,
}

impl Writes {
    /// Takes a turn's changes; `versions_before` are derived from the turn's case, whose versions count the changes already.
    pub(crate) fn of(turn: Turn<'_>, meta: &Meta) -> Result<Self, StoreError> {
        let mut versions = versions_before(&turn);
        let mut events = EventColumns::default();
        for change in &turn.changes {
            let stream = change.stream();
            let version = versions.entry(stream).or_default();
            *version += 1;
            events.push(stream, *version, encode(change)?);
        }
        let mut outbox = OutboxColumns::default();
        for announcement in &turn.announcements {
            outbox.push(announcement, meta, turn.now)?;
        }
        Ok(Self { events, outbox, notices: turn.notices })
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

impl EventColumns {
    fn push(&mut self, stream: StreamId, version: i64, stored: Stored) {
        self.event_id.push(event_id(stream, version));
        self.category.push(stream.category.name());
        self.stream_id.push(stream.id);
        self.version.push(version);
        self.name.push(stored.name);
        self.schema_version.push(stored.version);
        self.body.push(stored.body);
    }
}

impl OutboxColumns {
    fn push(&mut self, announcement: &Announcement, meta: &Meta, now: Timestamp) -> Result<(), StoreError> {
        let message = &announcement.message;
        let event_type = message.event_type();
        let (id, available_at) = match announcement.origin {
            Origin::Event { stream, version } => {
                (message_id(now, "message", event_id(stream, version), event_type), now)
            }
            Origin::Rearmed => {
                let kept = announcement.deliver_at.map_or(now, |due| due.min(now + EARLY_AGAIN));
                (message_id(now, "rearmed", meta.causation.0, event_type), kept)
            }
        };
        self.event_id.push(id);
        self.aggregate_type.push("task");
        self.aggregate_id.push(message.task_id().0);
        self.event_type.push(event_type);
        self.schema_version.push(i16::try_from(message.schema_version()).unwrap_or(i16::MAX));
        self.topic.push(message.topic().name());
        self.tag.push(message.tag());
        self.payload.push(message.payload()?);
        self.deliver_at.push(announcement.deliver_at);
        self.available_at.push(available_at);
        Ok(())
    }
}

/// Which inbox row is about a message, and what has become of the message.
pub(crate) struct InboxRow<'a> {
    pub(crate) consumer: &'a str,
    pub(crate) event_id: Uuid,
    pub(crate) aggregate: Uuid,
    pub(crate) payload_hash: &'a [u8],
    /// How it ended; `None`: it has not.
    pub(crate) ended: Option<(&'static str, Option<String>)>,
}

/// What is written beside the events, in the same statement.
#[derive(Clone, Copy)]
pub(crate) enum Beside<'a> {
    Nothing,
    /// The inbox row is made. Where there is one already, nothing at all is written: [`StoreError::Race`].
    Take(&'a InboxRow<'a>),
    /// The inbox row is closed if it is open, and made if there is none.
    Close(&'a InboxRow<'a>),
    /// The row of an idempotency key and that of a request, as far as given. Where there is a row of the key already, nothing at
    /// all is written: [`StoreError::Race`].
    Keep(Option<&'a KeyRow<'a>>, Option<&'a RequestRow<'a>>),
}

/// An idempotency key and what its request came to.
pub(crate) struct KeyRow<'a> {
    pub(crate) tenant: Uuid,
    pub(crate) operation: &'a str,
    pub(crate) key: &'a str,
    pub(crate) fingerprint: &'a [u8],
    pub(crate) result: serde_json::Value,
}

/// What a person asked for, in their words.
pub(crate) struct RequestRow<'a> {
    pub(crate) tenant: Uuid,
    pub(crate) task: Uuid,
    pub(crate) prompt: &'a str,
}

/// The opening of the statements that append: events and outbox rows.
///
/// The fence is what `announce_writer()` does (the migrations say why), without the call: a function in SQL is parsed and
/// planned each time, which took as long as both inserts together.
macro_rules! facts {
    () => {
        "WITH fence AS MATERIALIZED (
                 SELECT pg_advisory_xact_lock_shared((7::bigint << 56) | CASE WHEN is_called THEN last_value ELSE 0 END)
                   FROM events_position_seq WHERE cardinality($1::uuid[]) > 0),
             rows AS MATERIALIZED (
                 SELECT r.* FROM fence, unnest($1::uuid[], $2::text[], $3::uuid[], $4::bigint[], $5::text[],
                                               $6::smallint[], $7::jsonb[])
                        WITH ORDINALITY AS r (event_id, category, stream_id, version, name, schema_version, body, ord)),
             recorded AS (
                 INSERT INTO events (event_id, category, stream_id, version, name, schema_version, body,
                                     tenant_id, correlation_id, causation_id, actor, recorded_at)
                 SELECT event_id, category, stream_id, version, name, schema_version, body, $8, $9, $10, $11, $12
                   FROM rows ORDER BY ord),
             announced AS (
                 INSERT INTO outbox_events (event_id, aggregate_type, aggregate_id, event_type, schema_version, topic, tag,
                                            payload, deliver_at, tenant_id, trace_id, correlation_id, causation_id,
                                            occurred_at, available_at)
                 SELECT event_id, aggregate_type, aggregate_id, event_type, schema_version, topic, tag, payload, deliver_at,
                        $8, $22, $9, $10, $12, available_at
                   FROM unnest($13::uuid[], $14::text[], $15::uuid[], $16::text[], $17::smallint[], $18::text[],
                               $19::text[], $20::jsonb[], $21::timestamptz[], $27::timestamptz[])
                        WITH ORDINALITY AS r (event_id, aggregate_type, aggregate_id, event_type, schema_version, topic, tag,
                                              payload, deliver_at, available_at, ord)
                  ORDER BY ord)"
    };
}

/// Their end.
macro_rules! notices {
    () => {
        "
             INSERT INTO notifications (task_id, task_version, tenant_id, state)
             SELECT * FROM unnest($23::uuid[], $24::bigint[], $25::uuid[], $26::text[])
             ON CONFLICT DO NOTHING"
    };
}

const APPEND: &str = concat!("/* eventstore.append */ ", facts!(), notices!());
const APPEND_AND_TAKE: &str = concat!(
    "/* eventstore.append_and_take */ ",
    facts!(),
    ",
             taken AS (
                 INSERT INTO inbox_dedup (consumer_name, event_id, aggregate_id, payload_hash, result_code, result_detail,
                                          phase, processed_at)
                 SELECT $28::text, $29::uuid, $30::uuid, $31::bytea, $32::text, $33::text,
                        CASE WHEN $32 IS NULL THEN 'claimed' ELSE 'done' END,
                        CASE WHEN $32 IS NOT NULL THEN clock_timestamp() END)",
    notices!()
);
/// The row to close is found by the conflict of an INSERT, because that goes to the one table of the message's day; an UPDATE would
/// lock those of all days.
const APPEND_AND_CLOSE: &str = concat!(
    "/* eventstore.append_and_close */ ",
    facts!(),
    ",
             closed AS (
                 INSERT INTO inbox_dedup AS row (consumer_name, event_id, aggregate_id, phase, payload_hash, result_code,
                                                 result_detail, processed_at)
                 SELECT $28::text, $29::uuid, $30::uuid, 'done', $31::bytea, $32::text, $33::text, clock_timestamp()
                     ON CONFLICT (consumer_name, event_id)
                     DO UPDATE SET phase = 'done', result_code = $32, result_detail = $33, processed_at = clock_timestamp()
                  WHERE row.phase = 'claimed')",
    notices!()
);
const APPEND_AND_KEEP: &str = concat!(
    "/* eventstore.append_and_keep */ ",
    facts!(),
    ",
             kept AS (
                 INSERT INTO idempotency_keys (tenant_id, operation, key, fingerprint, result)
                 SELECT $28::uuid, $29::text, $30::text, $31::bytea, $32::jsonb WHERE $28 IS NOT NULL),
             requested AS (
                 INSERT INTO generation_requests (task_id, tenant_id, prompt)
                 SELECT $33::uuid, $34::uuid, $35::text WHERE $33 IS NOT NULL)",
    notices!()
);

impl<'a> Beside<'a> {
    const fn statement(self) -> &'static str {
        match self {
            Self::Nothing => APPEND,
            Self::Take(_) => APPEND_AND_TAKE,
            Self::Close(_) => APPEND_AND_CLOSE,
            Self::Keep(..) => APPEND_AND_KEEP,
        }
    }

    fn bind(self, query: Statement<'a>) -> Statement<'a> {
        match self {
            Self::Nothing => query,
            Self::Take(row) | Self::Close(row) => query
                .bind(row.consumer)
                .bind(row.event_id)
                .bind(row.aggregate)
                .bind(row.payload_hash)
                .bind(row.ended.as_ref().map(|(code, _)| *code))
                .bind(row.ended.as_ref().and_then(|(_, detail)| detail.as_deref())),
            Self::Keep(key, request) => query
                .bind(key.map(|it| it.tenant))
                .bind(key.map(|it| it.operation))
                .bind(key.map(|it| it.key))
                .bind(key.map(|it| it.fingerprint))
                .bind(key.map(|it| &it.result))
                .bind(request.map(|it| it.task))
                .bind(request.map(|it| it.tenant))
                .bind(request.map(|it| it.prompt)),
        }
    }
}

type Statement<'a> = Query<'a, Postgres, PgArguments>;

impl Tx<'_> {
    /// Appends everything, and writes what belongs beside it, in one statement. A version that somebody else took first is
    /// [`StoreError::Race`].
    pub(crate) async fn append(
        &mut self,
        writes: &Writes,
        meta: &Meta,
        now: Timestamp,
        beside: Beside<'_>,
    ) -> Result<(), StoreError> {
        let Writes { events, outbox, notices } = writes;
        let query = sqlx::query(beside.statement())
            .bind(&events.event_id)
            .bind(&events.category)
            .bind(&events.stream_id)
            .bind(&events.version)
            .bind(&events.name)
            .bind(&events.schema_version)
            .bind(&events.body)
            .bind(meta.tenant.0)
            .bind(meta.correlation.0)
            .bind(meta.causation.0)
            .bind(&meta.actor)
            .bind(now)
            .bind(&outbox.event_id)
            .bind(&outbox.aggregate_type)
            .bind(&outbox.aggregate_id)
            .bind(&outbox.event_type)
            .bind(&outbox.schema_version)
            .bind(&outbox.topic)
            .bind(&outbox.tag)
            .bind(&outbox.payload)
            .bind(&outbox.deliver_at)
            .bind(&meta.trace)
            .bind(notices.iter().map(|notice| notice.task.0).collect::<Vec<_>>())
            .bind(notices.iter().map(|notice| notice.version).collect::<Vec<_>>())
            .bind(notices.iter().map(|notice| notice.tenant.0).collect::<Vec<_>>())
            .bind(notices.iter().map(|notice| notice.state.name()).collect::<Vec<_>>())
            .bind(&outbox.available_at);
        let appended = beside.bind(query).execute(&mut *self.inner).await;
        self.news |= if events.event_id.is_empty() { 0 } else { wakeup::EVENTS };
        self.news |= if outbox.event_id.is_empty() { 0 } else { wakeup::OUTBOX };
        if appended.is_err() {
            self.lost();
        }
        appended?;
        Ok(())
    }

    /// Publishes one message that no event announces (a callback, a repair). `id` makes it the same when it is repeated.
    pub(crate) async fn publish(
        &mut self,
        id: Uuid,
        message: &domain::message::Message,
        meta: &Meta,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut writes = Writes::default();
        let announcement = Announcement {
            origin: Origin::Rearmed,
            message: message.clone(),
            deliver_at: message.topic().is_delayed().then_some(now),
        };
        writes.outbox.push(&announcement, meta, now)?;
        writes.outbox.event_id = vec![id];
        self.append(&writes, meta, now, Beside::Nothing).await
    }
}
