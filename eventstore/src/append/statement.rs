//! The statements that append.

use super::{Append, Beside, EventRow, InboxRow, KeyRow, OutboxRow, RequestRow};
use domain::process::Notice;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres};

/// Their opening: events and outbox rows.
///
/// The fence is what `announce_writer()` does (the migrations say why), without the call: a function in SQL is parsed and
/// planned each time, which took as long as both inserts together.
macro_rules! facts {
    () => {
        "WITH fence AS MATERIALIZED (
                 SELECT pg_advisory_xact_lock_shared((7::bigint << 56) | CASE WHEN is_called THEN last_value ELSE 0 END)
                   FROM events_position_seq WHERE cardinality($1::uuid[]) > 0),
             rows AS MATERIALIZED (
                 SELECT r.* FROM fence, unnest($1::uuid[], $2::text[], $3::uuid[], $4::bigint[], $5::text[], $6::smallint[],
                                               $7::jsonb[], $8::uuid[], $9::uuid[], $10::uuid[], $11::text[], $12::timestamptz[])
                        WITH ORDINALITY AS r (event_id, category, stream_id, version, name, schema_version, body,
                                              tenant_id, correlation_id, causation_id, actor, recorded_at, ord)),
             recorded AS (
                 INSERT INTO events (event_id, category, stream_id, version, name, schema_version, body,
                                     tenant_id, correlation_id, causation_id, actor, recorded_at)
                 SELECT event_id, category, stream_id, version, name, schema_version, body,
                        tenant_id, correlation_id, causation_id, actor, recorded_at
                   FROM rows ORDER BY ord),
             announced AS (
                 INSERT INTO outbox_events (event_id, aggregate_type, aggregate_id, event_type, schema_version, topic, tag,
                                            payload, deliver_at, available_at, tenant_id, trace_id, correlation_id, causation_id,
                                            occurred_at)
                 SELECT event_id, 'task', aggregate_id, event_type, schema_version, topic, tag,
                        payload, deliver_at, available_at, tenant_id, trace_id, correlation_id, causation_id, occurred_at
                   FROM unnest($13::uuid[], $14::uuid[], $15::text[], $16::smallint[], $17::text[], $18::text[], $19::jsonb[],
                               $20::timestamptz[], $21::timestamptz[], $22::uuid[], $23::text[], $24::uuid[], $25::uuid[],
                               $26::timestamptz[])
                        WITH ORDINALITY AS r (event_id, aggregate_id, event_type, schema_version, topic, tag, payload,
                                              deliver_at, available_at, tenant_id, trace_id, correlation_id, causation_id,
                                              occurred_at, ord)
                  ORDER BY ord)"
    };
}

/// Their end. In one order, as all rows that others may be writing too: two batches must not wait for each other.
macro_rules! notices {
    () => {
        "
             INSERT INTO notifications (task_id, task_version, tenant_id, state)
             SELECT * FROM unnest($27::uuid[], $28::bigint[], $29::uuid[], $30::text[]) ORDER BY 1, 2
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
                 SELECT consumer_name, event_id, aggregate_id, payload_hash, code, detail,
                        CASE WHEN code IS NULL THEN 'claimed' ELSE 'done' END,
                        CASE WHEN code IS NOT NULL THEN clock_timestamp() END
                   FROM unnest($31::text[], $32::uuid[], $33::uuid[], $34::bytea[], $35::text[], $36::text[])
                        AS r (consumer_name, event_id, aggregate_id, payload_hash, code, detail)
                  ORDER BY event_id, consumer_name)",
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
                 SELECT consumer_name, event_id, aggregate_id, 'done', payload_hash, code, detail, clock_timestamp()
                   FROM unnest($31::text[], $32::uuid[], $33::uuid[], $34::bytea[], $35::text[], $36::text[])
                        AS r (consumer_name, event_id, aggregate_id, payload_hash, code, detail)
                  ORDER BY event_id, consumer_name
                     ON CONFLICT (consumer_name, event_id)
                     DO UPDATE SET phase = 'done', result_code = excluded.result_code,
                                   result_detail = excluded.result_detail, processed_at = clock_timestamp()
                  WHERE row.phase = 'claimed')",
    notices!()
);
const APPEND_AND_KEEP: &str = concat!(
    "/* eventstore.append_and_keep */ ",
    facts!(),
    ",
             kept AS (
                 INSERT INTO idempotency_keys (tenant_id, operation, key, fingerprint, result)
                 SELECT * FROM unnest($31::uuid[], $32::text[], $33::text[], $34::bytea[], $35::jsonb[]) ORDER BY 1, 2, 3),
             requested AS (
                 INSERT INTO generation_requests (task_id, tenant_id, prompt)
                 SELECT * FROM unnest($36::uuid[], $37::uuid[], $38::text[]) ORDER BY 1)",
    notices!()
);

type Statement<'a> = Query<'a, Postgres, PgArguments>;

/// Appends what all of them came to, or nothing of it. They must have one kind of thing beside them. Rows are written in the order
/// given, and within an append in the order of its turn.
///
/// # Errors
/// A version or a row that somebody else took first is the violation of a unique constraint.
pub(crate) async fn append(connection: &mut PgConnection, appends: &[Append]) -> Result<(), sqlx::Error> {
    let statement = match appends.first().map(|it| &it.beside) {
        None => return Ok(()),
        Some(Beside::Nothing) => APPEND,
        Some(Beside::Take(_)) => APPEND_AND_TAKE,
        Some(Beside::Close(_)) => APPEND_AND_CLOSE,
        Some(Beside::Keep(..)) => APPEND_AND_KEEP,
    };
    let query = bind_notices(bind_outbox(bind_events(sqlx::query(statement), appends), appends), appends);
    let query = match appends.first().map(|it| &it.beside) {
        Some(Beside::Take(_) | Beside::Close(_)) => bind_inbox(query, appends),
        Some(Beside::Keep(..)) => bind_kept(query, appends),
        Some(Beside::Nothing) | None => query,
    };
    query.execute(connection).await?;
    Ok(())
}

/// One value of each row.
fn column<'a, R, T>(rows: &[R], value: impl Fn(&R) -> T + 'a) -> Vec<T> {
    rows.iter().map(value).collect()
}

fn bind_events<'a>(query: Statement<'a>, appends: &'a [Append]) -> Statement<'a> {
    let rows: Vec<(&Append, &EventRow)> =
        appends.iter().flat_map(|by| by.events.iter().map(move |it| (by, it))).collect();
    query
        .bind(column(&rows, |(_, it)| it.event_id))
        .bind(column(&rows, |(_, it)| it.stream.category.name()))
        .bind(column(&rows, |(_, it)| it.stream.id))
        .bind(column(&rows, |(_, it)| it.version))
        .bind(column(&rows, |(_, it)| it.stored.name.as_str()))
        .bind(column(&rows, |(_, it)| it.stored.version))
        .bind(column(&rows, |(_, it)| &it.stored.body))
        .bind(column(&rows, |(by, _)| by.meta.tenant.0))
        .bind(column(&rows, |(by, _)| by.meta.correlation.0))
        .bind(column(&rows, |(by, _)| by.meta.causation.0))
        .bind(column(&rows, |(by, _)| by.meta.actor.as_str()))
        .bind(column(&rows, |(by, _)| by.now))
}

fn bind_outbox<'a>(query: Statement<'a>, appends: &'a [Append]) -> Statement<'a> {
    let rows: Vec<(&Append, &OutboxRow)> =
        appends.iter().flat_map(|by| by.outbox.iter().map(move |it| (by, it))).collect();
    query
        .bind(column(&rows, |(_, it)| it.event_id))
        .bind(column(&rows, |(_, it)| it.task))
        .bind(column(&rows, |(_, it)| it.event_type))
        .bind(column(&rows, |(_, it)| it.schema_version))
        .bind(column(&rows, |(_, it)| it.topic))
        .bind(column(&rows, |(_, it)| it.tag))
        .bind(column(&rows, |(_, it)| &it.payload))
        .bind(column(&rows, |(_, it)| it.deliver_at))
        .bind(column(&rows, |(_, it)| it.available_at))
        .bind(column(&rows, |(by, _)| by.meta.tenant.0))
        .bind(column(&rows, |(by, _)| by.meta.trace.as_str()))
        .bind(column(&rows, |(by, _)| by.meta.correlation.0))
        .bind(column(&rows, |(by, _)| by.meta.causation.0))
        .bind(column(&rows, |(by, _)| by.now))
}

fn bind_notices<'a>(query: Statement<'a>, appends: &'a [Append]) -> Statement<'a> {
    let rows: Vec<&Notice> = appends.iter().flat_map(|by| &by.notices).collect();
    query
        .bind(column(&rows, |it| it.task.0))
        .bind(column(&rows, |it| it.version))
        .bind(column(&rows, |it| it.tenant.0))
        .bind(column(&rows, |it| it.state.name()))
}

fn bind_inbox<'a>(query: Statement<'a>, appends: &'a [Append]) -> Statement<'a> {
    let rows: Vec<&InboxRow> = appends.iter().filter_map(|by| by.beside.inbox()).collect();
    query
        .bind(column(&rows, |it| it.consumer))
        .bind(column(&rows, |it| it.event_id))
        .bind(column(&rows, |it| it.aggregate))
        .bind(column(&rows, |it| it.payload_hash.as_slice()))
        .bind(column(&rows, |it| it.ended.as_ref().map(|(code, _)| *code)))
        .bind(column(&rows, |it| it.ended.as_ref().and_then(|(_, detail)| detail.as_deref())))
}

fn bind_kept<'a>(query: Statement<'a>, appends: &'a [Append]) -> Statement<'a> {
    let (keys, requests): (Vec<Option<&KeyRow>>, Vec<Option<&RequestRow>>) =
        appends.iter().map(|by| by.beside.kept()).unzip();
    let keys: Vec<&KeyRow> = keys.into_iter().flatten().collect();
    let requests: Vec<&RequestRow> = requests.into_iter().flatten().collect();
    query
        .bind(column(&keys, |it| it.tenant))
        .bind(column(&keys, |it| it.operation))
        .bind(column(&keys, |it| it.key.as_str()))
        .bind(column(&keys, |it| it.fingerprint.as_slice()))
        .bind(column(&keys, |it| &it.result))
        .bind(column(&requests, |it| it.task))
        .bind(column(&requests, |it| it.tenant))
        .bind(column(&requests, |it| it.prompt.as_str()))
}

impl Beside {
    pub(super) const fn inbox(&self) -> Option<&InboxRow> {
        match self {
            Self::Take(row) | Self::Close(row) => Some(row),
            Self::Nothing | Self::Keep(..) => None,
        }
    }

    const fn kept(&self) -> (Option<&KeyRow>, Option<&RequestRow>) {
        match self {
            Self::Keep(key, request) => (key.as_ref(), request.as_ref()),
            Self::Nothing | Self::Take(_) | Self::Close(_) => (None, None),
        }
    }
}
