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

/// The inbox row that is closed together with the writes.
pub(crate) struct Closing<'a> {
    pub(crate) consumer: &'a str,
    pub(crate) event_id: Uuid,
    pub(crate) aggregate: Uuid,
    pub(crate) payload_hash: &'a [u8],
    pub(crate) code: &'static str,
    pub(crate) detail: Option<String>,
}

impl Tx<'_> {
    /// Appends everything, and closes the inbox row where there is one, in one statement. A version that somebody else took
    /// first is [`StoreError::Race`].
    ///
    /// The row to close was claimed in this transaction. It is found by the conflict of an INSERT, because that goes to the
    /// one table of the message's day; an UPDATE would lock those of all days.
    ///
    /// The fence is what `announce_writer()` does (the migrations say why), without the call: a function in SQL is parsed and
    /// planned each time, which took as long as both inserts together.
    pub(crate) async fn append(
        &mut self,
        writes: &Writes,
        meta: &Meta,
        now: Timestamp,
        closing: Option<&Closing<'_>>,
    ) -> Result<(), StoreError> {
        let Writes { events, outbox, notices } = writes;
        let appended = sqlx::query(
            "/* eventstore.append */
             WITH fence AS MATERIALIZED (
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
                               $19::text[], $20::jsonb[], $21::timestamptz[], $31::timestamptz[])
                        WITH ORDINALITY AS r (event_id, aggregate_type, aggregate_id, event_type, schema_version, topic, tag,
                                              payload, deliver_at, available_at, ord)
                  ORDER BY ord),
             noticed AS (
                 INSERT INTO notifications (task_id, task_version, tenant_id, state)
                 SELECT * FROM unnest($23::uuid[], $24::bigint[], $25::uuid[], $26::text[])
                 ON CONFLICT DO NOTHING)
             INSERT INTO inbox_dedup AS row (consumer_name, event_id, aggregate_id, phase, payload_hash)
             SELECT $27::text, $28::uuid, $32::uuid, 'claimed', $33::bytea WHERE $27 IS NOT NULL
             ON CONFLICT (consumer_name, event_id)
             DO UPDATE SET phase = 'done', result_code = $29, result_detail = $30, processed_at = clock_timestamp()
              WHERE row.phase = 'claimed'",
        )
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
        .bind(closing.map(|it| it.consumer))
        .bind(closing.map(|it| it.event_id))
        .bind(closing.map(|it| it.code))
        .bind(closing.and_then(|it| it.detail.as_deref()))
        .bind(&outbox.available_at)
        .bind(closing.map(|it| it.aggregate))
        .bind(closing.map(|it| it.payload_hash))
        .execute(&mut *self.inner)
        .await;
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
        self.append(&writes, meta, now, None).await
    }
}
