//! Claiming rows, and what a claimed row says.

use super::publisher::{OutboundMessage, PublishFailure};
use domain::id::{CausationId, CorrelationId, EventId, TenantId};
use domain::message::{BadMessage, Envelope, Topic};
use domain::time::Timestamp;
use sqlx::PgPool;
use std::time::Duration;
use uuid::Uuid;

/// How far ahead of its delivery a message is handed to the broker: a broker's timer reaches 3 days by default, and a day is
/// left for clocks and outages. The SQL below says the same.
pub const SEND_AHEAD: Duration = Duration::from_secs(2 * 24 * 3600);

/// How often a claim is tried when rows move away under it.
const TRIES: u32 = 5;

/// Who writes messages, as the envelope names it.
const PRODUCER: &str = "aivideo";

/// A row that is ours until its lease ends.
#[derive(Debug, sqlx::FromRow)]
pub(super) struct Claimed {
    pub(super) id: i64,
    pub(super) lease_token: Uuid,
    pub(super) publish_attempts: i32,
    /// It is to be delivered later than the broker can carry it.
    pub(super) is_far_ahead: bool,
    event_id: Uuid,
    original_event_id: Option<Uuid>,
    aggregate_type: String,
    aggregate_id: Uuid,
    event_type: String,
    schema_version: i16,
    topic: String,
    tag: String,
    payload: serde_json::Value,
    tenant_id: Uuid,
    trace_id: String,
    correlation_id: Uuid,
    causation_id: Uuid,
    occurred_at: Timestamp,
    deliver_at: Option<Timestamp>,
}

impl Claimed {
    /// The message, or why it can never be sent.
    pub(super) fn message(&self) -> Result<OutboundMessage, PublishFailure> {
        let topic = Topic::parse(&self.topic)
            .ok_or_else(|| PublishFailure::permanent("unknown_topic", "the row names no topic of this build"))?;
        let envelope = Envelope {
            event_id: EventId(self.event_id),
            original_event_id: self.original_event_id.map(EventId),
            event_type: self.event_type.clone(),
            schema_version: u16::try_from(self.schema_version)
                .map_err(|_| PublishFailure::permanent("bad_version", "the schema version is negative"))?,
            producer: PRODUCER.to_owned(),
            occurred_at: self.occurred_at,
            aggregate_type: self.aggregate_type.clone(),
            aggregate_id: self.aggregate_id,
            tenant_id: TenantId(self.tenant_id),
            trace_id: self.trace_id.clone(),
            correlation_id: CorrelationId(self.correlation_id),
            causation_id: CausationId(self.causation_id),
            payload: self.payload.clone(),
        };
        let body = envelope.to_body().map_err(|bad| match bad {
            BadMessage::TooLarge { bytes } => {
                PublishFailure::permanent("too_large", format!("the body would have {bytes} bytes"))
            }
            other => PublishFailure::permanent("not_encodable", other.class()),
        })?;
        Ok(OutboundMessage {
            topic,
            tag: self.tag.clone(),
            key: EventId(self.event_id),
            order_key: self.aggregate_id,
            deliver_at: self.deliver_at,
            body,
        })
    }
}

/// Claims up to `limit` rows that are due, at most one of each aggregate: the one whose turn it is. An earlier row of the same
/// aggregate holds the others back whether it is leased, backing off or waiting; a parked one does not, and neither does one
/// that is for later: its place is given by its time of delivery.
///
/// The first of an aggregate is asked for row by row, with a limit: as an anti-join it becomes a scan of all that is pending for
/// each row. A claim need not be on disk before it counts: if the database crashes, the row is simply claimed again.
///
/// Each mention of the outbox says `published_at IS NULL`: that leaves one small table of it, however many days are kept.
pub(super) async fn claim(pool: &PgPool, limit: usize, lease: Duration) -> Result<Vec<Claimed>, sqlx::Error> {
    let mut tries = 0;
    loop {
        tries += 1;
        match claim_once(pool, limit, lease).await {
            // A row that was due was published by another relay just then, which moved it to another table: PostgreSQL can not
            // follow it there. Looking again, it is not due any more.
            Err(error) if tries < TRIES && is_serialization_failure(&error) => {}
            other => return other,
        }
    }
}

fn is_serialization_failure(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|it| it.code()).as_deref() == Some("40001")
}

async fn claim_once(pool: &PgPool, limit: usize, lease: Duration) -> Result<Vec<Claimed>, sqlx::Error> {
    sqlx::query_as(
        "/* relay.claim */
         WITH due AS (
             SELECT o.ctid FROM outbox_events o
              WHERE o.published_at IS NULL AND o.parked_at IS NULL AND o.available_at <= statement_timestamp()
                AND (o.lease_until IS NULL OR o.lease_until <= statement_timestamp())
                AND o.id <= coalesce(
                    (SELECT e.id FROM outbox_events e
                      WHERE e.aggregate_id = o.aggregate_id AND e.published_at IS NULL AND e.parked_at IS NULL
                        AND (e.deliver_at IS NULL OR e.deliver_at <= statement_timestamp())
                      ORDER BY e.id LIMIT 1), o.id)
              ORDER BY o.available_at, o.id
              LIMIT $1
                FOR UPDATE SKIP LOCKED)
         UPDATE outbox_events o
            SET lease_token = $2, lease_until = clock_timestamp() + $3 * interval '1 millisecond',
                publish_attempts = o.publish_attempts + 1
           FROM due, set_config('synchronous_commit', 'off', true) WHERE o.ctid = due.ctid AND o.published_at IS NULL
         RETURNING o.id, o.lease_token, o.publish_attempts, o.event_id, o.original_event_id, o.aggregate_type, o.aggregate_id,
                   o.event_type, o.schema_version, o.topic, o.tag, o.payload, o.tenant_id, o.trace_id, o.correlation_id,
                   o.causation_id, o.occurred_at, o.deliver_at,
                   coalesce(o.deliver_at > statement_timestamp() + interval '2 days', false) AS is_far_ahead",
    )
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .bind(Uuid::new_v4())
    .bind(i64::try_from(lease.as_millis()).unwrap_or(i64::MAX))
    .fetch_all(pool)
    .await
}

/// How long until the next row is due, where one is waiting.
pub(super) async fn next_due(pool: &PgPool) -> Result<Option<Duration>, sqlx::Error> {
    let millis: Option<f64> = sqlx::query_scalar(
        "/* relay.next_due */
         SELECT (extract(epoch FROM least(
                    (SELECT min(available_at) FROM outbox_events
                      WHERE published_at IS NULL AND parked_at IS NULL AND available_at > statement_timestamp()),
                    -- Of a claim whose answer was lost nobody knows, until its lease ends.
                    (SELECT min(lease_until) FROM outbox_events
                      WHERE published_at IS NULL AND parked_at IS NULL AND available_at <= statement_timestamp()
                        AND lease_until > statement_timestamp())) - clock_timestamp()) * 1000)::float8",
    )
    .fetch_one(pool)
    .await?;
    // A row that became due meanwhile: look at once, but not in a tight loop.
    Ok(millis.map(|millis| Duration::from_secs_f64(millis.clamp(1.0, 60_000.0) / 1000.0)))
}
