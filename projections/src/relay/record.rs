//! Writing down what became of claimed rows. Each statement asks for the token the row was claimed with, so that a relay whose
//! lease has ended changes nothing.

use super::RelayConfig;
use super::claim::Claimed;
use super::publisher::{FailureKind, PublishFailure};
use rand::RngExt;
use sqlx::PgPool;
use std::time::Duration;
use uuid::Uuid;

/// The most characters of a failure's text that are kept.
const ERROR_CHARS: usize = 500;

/// What became of a claimed row.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The broker has it.
    Published,
    /// The broker does not have it, as far as is known.
    Failed(PublishFailure),
    /// It is kept until the broker can carry it.
    FarAhead,
    /// The relay stops; nobody knows whether the broker has it.
    LetGo,
}

/// A claimed row with its outcome.
#[derive(Debug)]
pub(super) struct Finished {
    id: i64,
    token: Uuid,
    attempts: u32,
    outcome: Outcome,
}

impl Finished {
    pub(super) fn of(row: &Claimed, outcome: Outcome) -> Self {
        let attempts = u32::try_from(row.publish_attempts).unwrap_or(0);
        Self { id: row.id, token: row.lease_token, attempts, outcome }
    }
}

/// Half to all of `base * 2^(failures - 1)`, at most `cap`: those that failed together do not come back together.
pub(super) fn backoff(base: Duration, cap: Duration, failures: u32) -> Duration {
    let pause = base.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(cap);
    pause.mul_f64(rand::rng().random_range(0.5..=1.0))
}

/// Records all outcomes, one statement for each kind. May be repeated: a recorded row has no token any more.
pub(super) async fn record(pool: &PgPool, finished: &[Finished], config: &RelayConfig) -> Result<(), sqlx::Error> {
    let (mut published, mut far, mut let_go, mut failed) =
        (Rows::default(), Rows::default(), Rows::default(), Failures::default());
    for row in finished {
        match &row.outcome {
            Outcome::Published => published.push(row),
            Outcome::FarAhead => far.push(row),
            Outcome::LetGo => let_go.push(row),
            Outcome::Failed(failure) => failed.push(row, failure, config),
        }
    }
    let recorded = mark_published(pool, &published).await?;
    if recorded < published.ids.len() as u64 {
        let overtaken = published.ids.len() as u64 - recorded;
        tracing::warn!(overtaken, "a lease ended before its message was recorded: others send it again");
    }
    if recorded > 0 {
        tracing::debug!(recorded, "published");
    }
    postpone(pool, &far).await?;
    give_back(pool, &let_go).await?;
    mark_failed(pool, &failed, config).await
}

#[derive(Default)]
struct Rows {
    ids: Vec<i64>,
    tokens: Vec<Uuid>,
}

impl Rows {
    fn push(&mut self, row: &Finished) {
        self.ids.push(row.id);
        self.tokens.push(row.token);
    }
}

#[derive(Default)]
struct Failures {
    rows: Rows,
    permanent: Vec<bool>,
    codes: Vec<String>,
    texts: Vec<String>,
    pauses: Vec<i64>,
}

impl Failures {
    fn push(&mut self, row: &Finished, failure: &PublishFailure, config: &RelayConfig) {
        let pause = backoff(config.backoff_base, config.backoff_cap, row.attempts);
        self.rows.push(row);
        self.permanent.push(failure.kind == FailureKind::Permanent);
        self.codes.push(storable(&failure.code));
        self.texts.push(storable(&failure.detail));
        self.pauses.push(i64::try_from(pause.as_millis()).unwrap_or(i64::MAX));
    }
}

/// PostgreSQL's text can not hold U+0000.
fn storable(text: &str) -> String {
    text.chars().take(ERROR_CHARS).map(|it| if it == '\0' { '\u{fffd}' } else { it }).collect()
}

/// How many rows were still ours. What a crash of the database forgets of this is sent again, with the same id. `ANY` keeps to
/// the primary key whatever the planner thinks of the table's size.
async fn mark_published(pool: &PgPool, rows: &Rows) -> Result<u64, sqlx::Error> {
    if rows.ids.is_empty() {
        return Ok(0);
    }
    let result = sqlx::query(
        "/* relay.mark_published */
         UPDATE outbox_events o SET published_at = clock_timestamp(), lease_token = NULL, lease_until = NULL, refusals = 0
           FROM unnest($1::bigint[], $2::uuid[]) AS r (id, token), set_config('synchronous_commit', 'off', true)
          WHERE o.id = ANY ($1) AND o.id = r.id AND o.lease_token = r.token AND o.published_at IS NULL",
    )
    .bind(&rows.ids)
    .bind(&rows.tokens)
    .execute(pool)
    .await?;
    Ok(result.rows_affected())
}

async fn mark_failed(pool: &PgPool, failed: &Failures, config: &RelayConfig) -> Result<(), sqlx::Error> {
    if failed.rows.ids.is_empty() {
        return Ok(());
    }
    let parked: Vec<(i64, String)> = sqlx::query_as(
        "/* relay.mark_failed */
         WITH changed AS (
             UPDATE outbox_events o
                SET available_at = clock_timestamp() + r.pause * interval '1 millisecond',
                    refusals = CASE WHEN r.permanent THEN o.refusals + 1 ELSE 0 END,
                    parked_at = CASE WHEN r.permanent AND o.refusals + 1 >= $7 THEN clock_timestamp() END,
                    last_error_code = r.code, last_error = r.text, lease_token = NULL, lease_until = NULL
               FROM unnest($1::bigint[], $2::uuid[], $3::boolean[], $4::text[], $5::text[], $6::bigint[])
                    AS r (id, token, permanent, code, text, pause)
              WHERE o.id = ANY ($1) AND o.id = r.id AND o.lease_token = r.token AND o.published_at IS NULL
             RETURNING o.id, o.parked_at, o.last_error_code)
         SELECT id, last_error_code FROM changed WHERE parked_at IS NOT NULL",
    )
    .bind(&failed.rows.ids)
    .bind(&failed.rows.tokens)
    .bind(&failed.permanent)
    .bind(&failed.codes)
    .bind(&failed.texts)
    .bind(&failed.pauses)
    .bind(i32::try_from(config.refusals_before_parking).unwrap_or(i32::MAX))
    .fetch_all(pool)
    .await?;
    for (row, code) in parked {
        tracing::error!(row, code, "a message can not be published and is parked");
    }
    Ok(())
}

async fn postpone(pool: &PgPool, rows: &Rows) -> Result<(), sqlx::Error> {
    if rows.ids.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "/* relay.postpone */
         UPDATE outbox_events o
            SET available_at = o.deliver_at - interval '2 days', publish_attempts = o.publish_attempts - 1,
                lease_token = NULL, lease_until = NULL
           FROM unnest($1::bigint[], $2::uuid[]) AS r (id, token)
          WHERE o.id = ANY ($1) AND o.id = r.id AND o.lease_token = r.token AND o.published_at IS NULL",
    )
    .bind(&rows.ids)
    .bind(&rows.tokens)
    .execute(pool)
    .await?;
    Ok(())
}

async fn give_back(pool: &PgPool, rows: &Rows) -> Result<(), sqlx::Error> {
    if rows.ids.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "/* relay.give_back */
         UPDATE outbox_events o SET lease_token = NULL, lease_until = NULL
           FROM unnest($1::bigint[], $2::uuid[]) AS r (id, token)
          WHERE o.id = ANY ($1) AND o.id = r.id AND o.lease_token = r.token AND o.published_at IS NULL",
    )
    .bind(&rows.ids)
    .bind(&rows.tokens)
    .execute(pool)
    .await?;
    Ok(())
}
