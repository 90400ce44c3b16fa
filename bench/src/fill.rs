//! Filling a log fast: one history, written by the domain, is repeated by SQL under other ids, with all indexes in place.

use crate::history::{History, history};
use anyhow::Context;
use domain::aggregate::Category;
use domain::message::Topic;
use eventstore::Store;
use sqlx::{Connection, PgConnection, PgPool};
use std::time::Instant;
use uuid::Uuid;

/// What a log has in it.
#[derive(Clone, Copy, Debug)]
pub struct Filled {
    /// Tasks: each is one task's stream, one attempt's stream of 30 events, a hold and a settlement.
    pub tasks: i64,
    /// Accounts, each with one task in so many.
    pub accounts: i64,
}

/// Events of a task, those of the account included.
const EVENTS_OF_A_TASK: u64 = 39;
/// Tasks that one statement writes.
const CHUNK: i64 = 2_500;

impl Filled {
    /// As many tasks as make about so many events, a hundred for each account.
    pub fn of_events(events: u64) -> Self {
        let tasks = i64::try_from((events / EVENTS_OF_A_TASK).max(1)).unwrap_or(i64::MAX);
        Self { tasks, accounts: (tasks / 100).max(1) }
    }

    /// So many tasks of one account.
    pub const fn one_account(tasks: i64) -> Self {
        Self { tasks, accounts: 1 }
    }
}

/// The id of a filled task's attempt, and of an account. Tasks and accounts are counted from 0. The service derives an attempt's
/// id from its task in another way, which SQL can not do; nothing that is measured reads a task and its attempt together.
pub async fn attempts(pool: &PgPool, filled: Filled, at_most: i64) -> anyhow::Result<Vec<Uuid>> {
    Ok(sqlx::query_scalar(
        "/* bench.attempts */ SELECT md5('attempt' || g)::uuid
           FROM (SELECT DISTINCT floor(random() * $1)::bigint AS g FROM generate_series(1, $2)) AS chosen",
    )
    .bind(filled.tasks)
    .bind(at_most)
    .fetch_all(pool)
    .await?)
}

/// The id of the first account.
pub async fn first_account(pool: &PgPool) -> anyhow::Result<Uuid> {
    Ok(sqlx::query_scalar("/* bench.account */ SELECT md5('account0')::uuid").fetch_one(pool).await?)
}

/// Fills the log. With `sent`, the outbox too: what the tasks announced, polls left out, as published.
///
/// # Errors
/// The rules or the server refuse.
pub async fn fill(store: &Store, filled: Filled, sent: bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    let pool = store.pool();
    // A connection of its own, for it has settings of its own.
    let mut connection = pool.acquire().await?.detach();
    sqlx::raw_sql("SET synchronous_commit = off; SET statement_timeout = 0").execute(&mut connection).await?;
    let now = sqlx::query_scalar("/* bench.now */ SELECT clock_timestamp()").fetch_one(&mut connection).await?;
    let history = history(now)?;
    anyhow::ensure!(
        history.lines.len() as u64 == EVENTS_OF_A_TASK + 1,
        "a history has {} events, not {EVENTS_OF_A_TASK} and a grant: EVENTS_OF_A_TASK has to follow",
        history.lines.len()
    );
    create_template(&mut connection, &history).await?;
    grant(&mut connection, filled.accounts).await?;
    let mut told = Instant::now();
    for first in (0..filled.tasks).step_by(usize::try_from(CHUNK)?) {
        let next = (first + CHUNK).min(filled.tasks);
        write_tasks(&mut connection, filled.accounts, first, next, sent).await?;
        if told.elapsed().as_secs() >= 15 {
            told = Instant::now();
            println!("    filled {next} of {} tasks", filled.tasks);
        }
    }
    for table in ["VACUUM ANALYZE events", "VACUUM ANALYZE outbox_events"] {
        sqlx::query(table).execute(&mut connection).await?;
    }
    connection.close().await?;
    println!("  {} tasks filled in {:.0} s", filled.tasks, begun.elapsed().as_secs_f64());
    Ok(())
}

async fn create_template(connection: &mut PgConnection, history: &History) -> anyhow::Result<()> {
    sqlx::raw_sql(
        "CREATE TEMP TABLE template (
             ord int, category text, version bigint, name text, schema_version smallint, body text,
             event_type text, message_version smallint, topic text, tag text, payload text);
         CREATE TEMP TABLE ids (task text, attempt text, account text, asset text)",
    )
    .execute(&mut *connection)
    .await?;
    let ids = history.ids;
    sqlx::query("/* bench.ids */ INSERT INTO ids VALUES ($1, $2, $3, $4)")
        .bind(ids.task.0.to_string())
        .bind(ids.attempt.0.to_string())
        .bind(ids.account.0.to_string())
        .bind(ids.asset.0.to_string())
        .execute(&mut *connection)
        .await?;
    for (number, line) in (0_i32..).zip(&history.lines) {
        // A poll's wake-up is sent and pruned long before anything else of its task: the outbox is not made of them.
        let message = line.message.as_ref().filter(|it| it.2 != Topic::GenerationPollDelay.name());
        sqlx::query("/* bench.template */ INSERT INTO template VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)")
            .bind(number)
            .bind(line.stream.category.name())
            .bind(line.version)
            .bind(&line.stored.name)
            .bind(line.stored.version)
            .bind(line.stored.body.to_string())
            .bind(message.map(|it| it.0))
            .bind(message.map(|it| it.1))
            .bind(message.map(|it| it.2))
            .bind(message.map(|it| it.3))
            .bind(message.map(|it| it.4.to_string()))
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// The accounts' first events.
async fn grant(connection: &mut PgConnection, accounts: i64) -> anyhow::Result<()> {
    sqlx::query(
        "/* bench.grant */
         INSERT INTO events (event_id, category, stream_id, version, name, schema_version, body, tenant_id, correlation_id,
                             causation_id, actor, recorded_at)
         SELECT md5('granted' || a)::uuid, t.category, md5('account' || a)::uuid, 1, t.name, t.schema_version,
                jsonb_set(t.body::jsonb, '{amount}', to_jsonb(1000000000000)), md5('account' || a)::uuid,
                md5('cause' || a)::uuid, md5('cause' || a)::uuid, 'worker:bench', clock_timestamp()
           FROM generate_series(0, $1 - 1) AS a, template t WHERE t.ord = 0 ORDER BY a",
    )
    .bind(accounts)
    .execute(connection)
    .await?;
    Ok(())
}

async fn write_tasks(
    connection: &mut PgConnection,
    accounts: i64,
    first: i64,
    next: i64,
    sent: bool,
) -> anyhow::Result<()> {
    sqlx::query(
        "/* bench.fill_events */
         INSERT INTO events (event_id, category, stream_id, version, name, schema_version, body, tenant_id, correlation_id,
                             causation_id, actor, recorded_at)
         SELECT md5('event' || s.g || '/' || t.ord)::uuid, t.category,
                CASE t.category WHEN $4 THEN s.task WHEN $5 THEN s.attempt ELSE s.account END,
                -- Of an account: its grant, and two events of each of its tasks before this one.
                CASE t.category WHEN $6 THEN t.version + 2 * (s.g / $1) ELSE t.version END,
                t.name, t.schema_version,
                replace(replace(replace(replace(t.body, i.task, s.task::text), i.attempt, s.attempt::text),
                                i.account, s.account::text), i.asset, s.asset::text)::jsonb,
                s.account, md5('request' || s.g)::uuid, md5('cause' || s.g || '/' || t.ord)::uuid, 'worker:bench',
                clock_timestamp()
           FROM ids i,
                (SELECT g, md5('task' || g)::uuid AS task, md5('attempt' || g)::uuid AS attempt,
                        md5('account' || g % $1)::uuid AS account, md5('asset' || g)::uuid AS asset
                   FROM generate_series($2, $3 - 1) AS g) s,
                template t
          WHERE t.ord > 0 ORDER BY s.g, t.ord",
    )
    .bind(accounts)
    .bind(first)
    .bind(next)
    .bind(Category::Task.name())
    .bind(Category::Attempt.name())
    .bind(Category::Account.name())
    .execute(&mut *connection)
    .await
    .context("events can not be written")?;
    if sent {
        sqlx::query(
            "/* bench.fill_outbox */
             INSERT INTO outbox_events (event_id, aggregate_type, aggregate_id, event_type, schema_version, topic, tag, payload,
                                        tenant_id, trace_id, correlation_id, causation_id, occurred_at, available_at,
                                        published_at, publish_attempts)
             SELECT md5('message' || s.g || '/' || t.ord)::uuid, 'task', s.task, t.event_type, t.message_version, t.topic,
                    t.tag, replace(replace(t.payload, i.task, s.task::text), i.attempt, s.attempt::text)::jsonb,
                    md5('account' || s.g % $1)::uuid, md5('trace' || s.g), md5('request' || s.g)::uuid,
                    md5('cause' || s.g || '/' || t.ord)::uuid, clock_timestamp(), clock_timestamp(), clock_timestamp(), 1
               FROM ids i,
                    (SELECT g, md5('task' || g)::uuid AS task, md5('attempt' || g)::uuid AS attempt
                       FROM generate_series($2, $3 - 1) AS g) s,
                    template t
              WHERE t.topic IS NOT NULL ORDER BY s.g, t.ord",
        )
        .bind(accounts)
        .bind(first)
        .bind(next)
        .execute(&mut *connection)
        .await
        .context("outbox rows can not be written")?;
    }
    Ok(())
}
