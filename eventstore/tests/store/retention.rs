//! Outbox and inbox by day: moving there with data, the statements of the release before, and messages that come again when
//! the table of their day is gone. K-numbers name cases met in the field.

use super::consume::{SUBMIT, accepting, queued, state_of};
use super::support::{Anyhow, World, database, deliveries, fresh, invariants, policy, request};
use domain::id::{EventId, TaskId, message_id};
use domain::message::Envelope;
use domain::message::Message;
use domain::message::kinds::TaskRef;
use domain::process::{CaseKey, SettleHold, SubmitTask, cancel};
use domain::time::Timestamp;
use eventstore::testkit::TestDatabase;
use eventstore::{Delivery, Outcome, Store};
use sqlx::PgPool;
use std::time::Duration;
use uuid::Uuid;

/// The migration that gives outbox and inbox their tables by day.
const MIGRATION: i64 = 7;

/// The same delivery under another id.
fn renamed(delivery: &Delivery, id: Uuid) -> Anyhow<Delivery> {
    let envelope: Envelope = serde_json::from_slice(&delivery.body)?;
    super::support::delivery(&Envelope { event_id: EventId(id), ..envelope })
}

async fn inbox_table(pool: &PgPool, id: Uuid) -> Anyhow<String> {
    Ok(sqlx::query_scalar("SELECT tableoid::regclass::text FROM inbox_dedup WHERE event_id = $1")
        .bind(id)
        .fetch_one(pool)
        .await?)
}

fn id_of(delivery: &Delivery) -> Anyhow<Uuid> {
    Ok(serde_json::from_slice::<Envelope>(&delivery.body)?.event_id.0)
}

/// Rows of every phase by what tells them apart, the same before and after.
const PHASES: &str = "
    SELECT 'outbox ' || concat_ws(' ', id, event_id, published_at, parked_at, lease_token, publish_attempts, deliver_at)
      FROM outbox_events
    UNION ALL
    SELECT 'inbox ' || concat_ws(' ', consumer_name, event_id, phase, result_code, deliveries, processed_at) FROM inbox_dedup
    ORDER BY 1";

/// One row of the outbox and of the inbox for each thing that can have happened to it; one id looks like one of a day.
const FILL: &str = "
    INSERT INTO outbox_events (event_id, aggregate_type, aggregate_id, event_type, schema_version, topic, tag, payload, tenant_id,
                               trace_id, correlation_id, causation_id, occurred_at, available_at, published_at, parked_at,
                               lease_token, lease_until, deliver_at)
    SELECT gen_random_uuid(), 'task', gen_random_uuid(), 'task.state.changed', 1, 'notification.event', 'STATE', '{}',
           gen_random_uuid(), '', gen_random_uuid(), gen_random_uuid(), now(), now(),
           CASE n WHEN 1 THEN now() - interval '20 days' WHEN 2 THEN now() END, CASE n WHEN 3 THEN now() END,
           CASE n WHEN 4 THEN gen_random_uuid() END, CASE n WHEN 4 THEN now() + interval '1 hour' END,
           CASE n WHEN 5 THEN now() + interval '9 days' END
      FROM generate_series(1, 6) AS n;
    INSERT INTO inbox_dedup (consumer_name, event_id, aggregate_id, phase, result_code, payload_hash, processed_at)
    SELECT 'cg.test', CASE n WHEN 3 THEN (lpad(to_hex(((now() AT TIME ZONE 'UTC')::date - date '1970-01-01') * 86400000::bigint),
                                               12, '0') || repeat('5', 20))::uuid
                             ELSE gen_random_uuid() END,
           gen_random_uuid(), CASE n WHEN 1 THEN 'claimed' ELSE 'done' END, CASE WHEN n > 1 THEN 'applied' END, '',
           CASE WHEN n > 1 THEN now() - n * interval '9 days' END
      FROM generate_series(1, 4) AS n";

/// A database with data is migrated: every row is there as it was, what was handled is not handled again, what was not is.
#[tokio::test]
async fn a_database_with_data_is_migrated() -> Anyhow {
    let database = TestDatabase::before_migration(MIGRATION, policy()).await?;
    let store = database.store();
    database.sql(FILL).await?;
    let (tenant, task) = queued(store).await?;
    let (_, other) = queued(store).await?;
    let before = |delivery: &Delivery| renamed(delivery, Uuid::new_v4());
    let handled = before(&deliveries(store, task, SUBMIT).await?.remove(0))?;
    let unhandled = before(&deliveries(store, other, SUBMIT).await?.remove(0))?;
    assert_eq!(store.consume(&SubmitTask, &accepting(), &handled).await?.outcome(), Outcome::Done);
    // Its handler died after it had taken the row.
    database
        .sql(&format!(
            "INSERT INTO inbox_dedup (consumer_name, event_id, aggregate_id, phase, payload_hash)
             VALUES ('cg.scheduler.submit.v1', '{}', '{}', 'claimed', '')",
            id_of(&unhandled)?,
            other.0
        ))
        .await?;
    let rows: Vec<String> = sqlx::query_scalar(PHASES).fetch_all(store.pool()).await?;
    let last: i64 = database.count("SELECT max(id) FROM outbox_events").await?;

    database.migrate().await?;
    assert_eq!(rows, sqlx::query_scalar::<_, String>(PHASES).fetch_all(store.pool()).await?);
    let unsent = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL
                     AND tableoid <> 'outbox_unsent'::regclass";
    assert_eq!(database.count(unsent).await?, 0, "what is unsent is in the table of that");
    let world = accepting();
    assert_eq!(store.consume(&SubmitTask, &world, &handled).await?.outcome(), Outcome::Duplicate);
    assert_eq!(store.consume(&SubmitTask, &world, &unhandled).await?.outcome(), Outcome::Done);
    assert_eq!(store.consume(&SubmitTask, &world, &unhandled).await?.outcome(), Outcome::Duplicate);
    assert_eq!(world.creates(), 1);
    store
        .execute(&request(tenant, None), CaseKey::task(task), None, |turn| cancel(turn, "user:test".to_owned()))
        .await?;
    assert!(database.count("SELECT max(id) FROM outbox_events").await? > last, "ids go on, and with them the order");
    invariants(store).await
}

/// What the release before asks of the outbox and the inbox, in its words.
mod release_before {
    pub const CLAIM: &str =
        "INSERT INTO inbox_dedup AS row (consumer_name, event_id, aggregate_id, phase, payload_hash)
             VALUES ($1, $2, $2, 'claimed', '')
             ON CONFLICT (consumer_name, event_id) DO UPDATE SET deliveries = row.deliveries + 1
             RETURNING phase";
    pub const CLOSE: &str = "UPDATE inbox_dedup SET phase = 'done', result_code = $3, processed_at = clock_timestamp()
              WHERE consumer_name = $1 AND event_id = $2 AND phase = 'claimed'";
    pub const RELAY_CLAIM: &str = "WITH due AS (
             SELECT o.id FROM outbox_events o
              WHERE o.published_at IS NULL AND o.parked_at IS NULL AND o.available_at <= statement_timestamp()
                AND (o.lease_until IS NULL OR o.lease_until <= statement_timestamp())
                AND o.id <= coalesce(
                    (SELECT e.id FROM outbox_events e
                      WHERE e.aggregate_id = o.aggregate_id AND e.published_at IS NULL AND e.parked_at IS NULL
                        AND (e.deliver_at IS NULL OR e.deliver_at <= statement_timestamp() + interval '2 days')
                      ORDER BY e.id LIMIT 1), o.id)
              ORDER BY o.available_at, o.id
              LIMIT $1
                FOR UPDATE SKIP LOCKED)
         UPDATE outbox_events o
            SET lease_token = $2, lease_until = clock_timestamp() + $3 * interval '1 millisecond',
                publish_attempts = o.publish_attempts + 1
           FROM due, set_config('synchronous_commit', 'off', true) WHERE o.id = due.id
         RETURNING o.id";
    pub const RELAY_MARK: &str = "UPDATE outbox_events o SET published_at = clock_timestamp(), lease_token = NULL,
                lease_until = NULL, refusals = 0
           FROM unnest($1::bigint[], $2::uuid[]) AS r (id, token), set_config('synchronous_commit', 'off', true)
          WHERE o.id = ANY ($1) AND o.id = r.id AND o.lease_token = r.token AND o.published_at IS NULL";
    pub const PRUNE_OUTBOX: &str = "DELETE FROM outbox_events WHERE id IN (
             SELECT id FROM outbox_events WHERE published_at < statement_timestamp() - $1 * interval '1 second'
              ORDER BY published_at LIMIT $2 FOR UPDATE SKIP LOCKED)";
    pub const PRUNE_INBOX: &str = "DELETE FROM inbox_dedup WHERE (consumer_name, event_id) IN (
             SELECT consumer_name, event_id FROM inbox_dedup
              WHERE processed_at < statement_timestamp() - $1 * interval '1 second' AND phase = 'done'
              ORDER BY processed_at LIMIT $2 FOR UPDATE SKIP LOCKED)";
}

#[tokio::test]
async fn the_release_before_works_on_the_new_tables() -> Anyhow {
    let database = database().await?;
    let pool = database.pool();
    queued(database.store()).await?;
    let now: Timestamp = sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(pool).await?;
    let consumer = "cg.test";
    for id in [Uuid::new_v4(), message_id(now, "test", Uuid::nil(), "")] {
        for _ in 0..2 {
            let claim = sqlx::query_scalar::<_, String>(release_before::CLAIM).bind(consumer).bind(id);
            assert_eq!(claim.fetch_one(pool).await?, "claimed");
        }
        let close = sqlx::query(release_before::CLOSE).bind(consumer).bind(id).bind("applied").execute(pool).await?;
        assert_eq!(close.rows_affected(), 1);
        let again = sqlx::query_scalar::<_, String>(release_before::CLAIM).bind(consumer).bind(id);
        assert_eq!(again.fetch_one(pool).await?, "done");
    }
    let token = Uuid::new_v4();
    let claim = sqlx::query_scalar(release_before::RELAY_CLAIM).bind(64_i64).bind(token).bind(30_000_i64);
    let rows: Vec<i64> = claim.fetch_all(pool).await?;
    assert!(!rows.is_empty());
    let tokens = vec![token; rows.len()];
    let marked = sqlx::query(release_before::RELAY_MARK).bind(&rows).bind(tokens).execute(pool).await?;
    assert_eq!(marked.rows_affected(), rows.len() as u64);
    let today = "SELECT count(*) FROM outbox_events WHERE published_at IS NOT NULL
                    AND tableoid::regclass::text = 'outbox_sent_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')";
    assert_eq!(database.count(today).await?, rows.len() as i64, "published rows are with those of the day");
    for statement in [release_before::PRUNE_OUTBOX, release_before::PRUNE_INBOX] {
        sqlx::query(statement).bind(-60_i64).bind(1_000_i64).execute(pool).await?;
    }
    assert_eq!(database.count("SELECT count(*) FROM inbox_dedup").await?, 0);
    assert_eq!(database.count("SELECT count(*) FROM outbox_events WHERE published_at IS NOT NULL").await?, 0);
    Ok(())
}

/// The database finds a day in an id where the code put it; of one day and cause it is one id, of another day another.
#[tokio::test]
async fn database_and_code_agree_on_the_day_of_an_id() -> Anyhow {
    let database = database().await?;
    let cause = Uuid::from_u128(7);
    for day in ["1970-01-01", "2026-02-28", "2026-12-31", "2100-03-01"] {
        let morning: Timestamp = format!("{day}T00:00:00Z").parse()?;
        let evening: Timestamp = format!("{day}T23:59:59.999999Z").parse()?;
        let id = message_id(morning, "message", cause, "");
        assert_eq!(id, message_id(evening, "message", cause, ""));
        assert_ne!(id, message_id(evening + chrono::TimeDelta::microseconds(1), "message", cause, ""));
        assert_ne!(id, message_id(morning, "message", cause, "other"));
        assert_eq!(id.get_version_num(), 8);
        let within =
            sqlx::query_scalar("SELECT $1 >= first_message_id($2::date) AND $1 < first_message_id($2::date + 1)");
        assert!(within.bind(id).bind(morning.date_naive()).fetch_one(database.pool()).await?, "{day}: {id}");
    }
    Ok(())
}

/// The day of a message is in its id: at every delivery its row is looked for in the same table, and other days' tables are
/// neither read nor locked. Whatever the clock says at delivery: midnight passes between two of them here.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_met_again_in_the_table_of_its_own_day() -> Anyhow {
    let database = database().await?;
    let (store, pool) = (database.store(), database.pool());
    let (_, task) = queued(store).await?;
    let sent = deliveries(store, task, SUBMIT).await?.remove(0);
    let now: Timestamp = sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(pool).await?;
    // Written the second before the next midnight, delivered before and after it.
    let midnight = now + chrono::TimeDelta::days(1);
    let late =
        midnight.date_naive().and_hms_opt(0, 0, 0).ok_or("no midnight")?.and_utc() - chrono::TimeDelta::seconds(1);
    let delivery = renamed(&sent, message_id(late, "test", task.0, ""))?;
    let today = format!("inbox_{}", now.format("%Y%m%d"));
    let others: Vec<String> =
        sqlx::query_scalar("SELECT name FROM message_partitions WHERE name <> $1 UNION ALL SELECT 'inbox_rest'")
            .bind(&today)
            .fetch_all(pool)
            .await?;
    let mut locked = database.owner().begin().await?;
    let lock = format!("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", others.join(", "));
    sqlx::query(sqlx::AssertSqlSafe(lock)).execute(&mut *locked).await?;
    let world = accepting();
    let outcomes = async {
        let first = store.consume(&SubmitTask, &world, &delivery).await?.outcome();
        let second = store.consume(&SubmitTask, &world, &delivery).await?.outcome();
        Anyhow::Ok((first, second))
    };
    let outcomes =
        tokio::time::timeout(Duration::from_secs(10), outcomes).await.map_err(|_| "it waited for a lock")??;
    assert_eq!(outcomes, (Outcome::Done, Outcome::Duplicate));
    locked.rollback().await?;
    assert_eq!(inbox_table(pool, id_of(&delivery)?).await?, today);
    assert_eq!(world.creates(), 1);
    Ok(())
}

/// K6: what a message comes to whose day has no table any more, or never had one, or is no day at all.
#[tokio::test]
async fn a_message_without_a_table_of_its_day_is_handled() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let (tenant, task) = queued(store).await?;
    let submit = deliveries(store, task, SUBMIT).await?.remove(0);
    let world = accepting();
    assert_eq!(store.consume(&SubmitTask, &world, &submit).await?.outcome(), Outcome::Done);
    let events = "SELECT count(*) FROM events WHERE category = 'task'";
    let before = database.count(events).await?;
    // The whole day is gone, as weeks later; then the same message comes again, and so do replays of it.
    let day: String = inbox_table(store.pool(), id_of(&submit)?).await?;
    database.sql(&format!("DROP TABLE {day}")).await?;
    let now: Timestamp = sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(store.pool()).await?;
    let odd = [
        submit.clone(),
        renamed(&submit, message_id(now - chrono::TimeDelta::days(400), "test", task.0, "old"))?,
        renamed(&submit, message_id(now + chrono::TimeDelta::days(400), "test", task.0, "ahead"))?,
        renamed(&submit, message_id(Timestamp::MIN_UTC, "test", task.0, "no day"))?,
        renamed(&submit, message_id(Timestamp::MAX_UTC, "test", task.0, "no day"))?,
        fresh(tenant, &Message::SubmitRequested(TaskRef { task_id: task, task_version: 1 }))?,
    ];
    for delivery in &odd {
        assert_eq!(store.consume(&SubmitTask, &world, delivery).await?.outcome(), Outcome::Declined);
        assert_eq!(store.consume(&SubmitTask, &world, delivery).await?.outcome(), Outcome::Duplicate);
        assert_eq!(inbox_table(store.pool(), id_of(delivery)?).await?, "inbox_rest");
    }
    assert_eq!((world.creates(), database.count(events).await?), (1, before), "no second submit, no second event");
    money_moves_once(store, &database, tenant).await?;
    invariants(store).await
}

/// K6, L9: the business key decides about a charge whose inbox row is gone with its day.
async fn money_moves_once(store: &Store, database: &TestDatabase, tenant: domain::id::TenantId) -> Anyhow {
    let task: TaskId = super::support::submitted(store, tenant, None).await?.task.ok_or("no task")?;
    store
        .execute(&request(tenant, None), CaseKey::task(task), None, |turn| cancel(turn, "user:test".to_owned()))
        .await?;
    assert_eq!(state_of(store, task).await?, "task.canceled");
    let settle = deliveries(store, task, "billing.settle.requested").await?.remove(0);
    let world = World::new(|call| panic!("nothing may be called: {call:?}"));
    assert_eq!(store.consume(&SettleHold, &world, &settle).await?.outcome(), Outcome::Done);
    database.sql("DELETE FROM inbox_dedup").await?;
    let old = message_id(Timestamp::UNIX_EPOCH, "test", task.0, "");
    for delivery in [settle.clone(), renamed(&settle, old)?] {
        drop(store.consume(&SettleHold, &world, &delivery).await?);
    }
    let released = "SELECT count(*) FROM events WHERE name = 'account.released'";
    assert_eq!(database.count(released).await?, 1, "one posting per task, ever");
    Ok(())
}

/// The outbox knows an id only until it is sent. Afterwards a repeated step may write the row again: it is sent again with the
/// same id, and the inbox knows that one.
#[tokio::test]
async fn a_message_that_is_written_again_after_it_was_sent_is_handled_once() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let (_, task) = queued(store).await?;
    let again = "INSERT INTO outbox_events (event_id, aggregate_type, aggregate_id, event_type, schema_version, topic, tag, payload,
                        tenant_id, trace_id, correlation_id, causation_id, occurred_at, available_at)
                 SELECT event_id, aggregate_type, aggregate_id, event_type, schema_version, topic, tag, payload, tenant_id,
                        trace_id, correlation_id, causation_id, occurred_at, available_at
                   FROM outbox_events WHERE event_type = 'generation.submit.requested'";
    assert!(database.sql(again).await.is_err(), "as long as it is unsent there is one");
    let publish = "UPDATE outbox_events SET published_at = clock_timestamp() WHERE published_at IS NULL";
    database.sql(publish).await?;
    database.sql(again).await?;
    database.sql(publish).await?;
    let world = accepting();
    let sent = deliveries(store, task, SUBMIT).await?;
    assert_eq!((sent.len(), id_of(&sent[0])?), (2, id_of(&sent[1])?));
    assert_eq!(store.consume(&SubmitTask, &world, &sent[0]).await?.outcome(), Outcome::Done);
    assert_eq!(store.consume(&SubmitTask, &world, &sent[1]).await?.outcome(), Outcome::Duplicate);
    assert_eq!(world.creates(), 1);
    Ok(())
}

/// A repair is one, also where the first scan's message was sent before the second scan wrote its own.
#[tokio::test]
async fn a_repair_is_made_once_also_after_its_message_was_sent() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let (_, task) = queued(store).await?;
    assert!(store.wake(task, 7).await?.is_some());
    database.sql("UPDATE outbox_events SET published_at = clock_timestamp() WHERE published_at IS NULL").await?;
    assert_eq!(store.wake(task, 7).await?, None);
    assert_eq!(database.count("SELECT count(*) FROM repairs").await?, 1);
    assert!(store.wake(task, 8).await?.is_some(), "the next round is another repair");
    Ok(())
}
