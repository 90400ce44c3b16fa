//! `es-entity`: find, change, update, as its book's quickstart does; the outbox row goes into the same operation.

use crate::facts::{FINDING, PROVIDER, TOPIC, job, soon};
use crate::measure::Peer;
use chrono::{DateTime, Utc};
use es_entity::*;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

es_entity::entity_id! { AttemptId }

/// What may have happened to an attempt.
#[derive(EsEvent, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[es_event(id = "AttemptId")]
pub enum AttemptEvent {
    Planned { task: uuid::Uuid, number: u32, provider: String },
    SubmissionBegun { round: u32, give_up_at: DateTime<Utc> },
    Accepted { job: String, how: String, next_poll_at: DateTime<Utc>, give_up_at: DateTime<Utc> },
    Polled { percent: Option<u8>, next_poll_at: DateTime<Utc>, finding: String },
}

/// An attempt.
#[derive(EsEntity)]
pub struct Attempt {
    /// Its id.
    pub id: AttemptId,
    provider: String,
    round: u32,
    job: Option<String>,
    next_poll_at: Option<DateTime<Utc>>,
    polls: usize,
    events: EntityEvents<AttemptEvent>,
}

impl Attempt {
    fn note_poll(&mut self) -> anyhow::Result<DateTime<Utc>> {
        anyhow::ensure!(self.job.is_some() && self.round > 0 && self.provider == PROVIDER, "not in this state");
        let at = soon();
        self.next_poll_at = Some(at);
        self.polls += 1;
        self.events.push(AttemptEvent::Polled { percent: Some(50), next_poll_at: at, finding: FINDING.to_owned() });
        Ok(at)
    }
}

impl TryFromEvents<AttemptEvent> for Attempt {
    fn try_from_events(events: EntityEvents<AttemptEvent>) -> Result<Self, EntityHydrationError> {
        let (mut provider, mut round, mut polls) = (String::new(), 0, 0);
        let (mut job, mut next_poll_at) = (None, None);
        for event in events.iter_all() {
            match event {
                AttemptEvent::Planned { provider: by, .. } => provider = by.clone(),
                AttemptEvent::SubmissionBegun { round: it, .. } => round = *it,
                AttemptEvent::Accepted { job: it, next_poll_at: at, .. } => {
                    job = Some(it.clone());
                    next_poll_at = Some(*at);
                }
                AttemptEvent::Polled { next_poll_at: at, .. } => {
                    next_poll_at = Some(*at);
                    polls += 1;
                }
            }
        }
        Ok(Self { id: *events.id(), provider, round, job, next_poll_at, polls, events })
    }
}

/// An attempt that is to be made.
pub struct NewAttempt {
    at: DateTime<Utc>,
}

impl IntoEvents<AttemptEvent> for NewAttempt {
    type IdSource = FromRepo;

    fn into_events(self, builder: EntityEventsBuilder<AttemptEvent, FromRepo>) -> EntityEvents<AttemptEvent> {
        let (at, how) = (self.at, "answer".to_owned());
        builder.initial_events([
            AttemptEvent::Planned { task: uuid::Uuid::new_v4(), number: 1, provider: PROVIDER.to_owned() },
            AttemptEvent::SubmissionBegun { round: 1, give_up_at: at },
            AttemptEvent::Accepted { job: job(), how, next_poll_at: at, give_up_at: at },
        ])
    }
}

/// The repository.
#[derive(EsRepo)]
#[es_repo(entity = "Attempt")]
pub struct Attempts {
    pool: PgPool,
}

/// The peer.
pub struct Entities {
    attempts: Attempts,
}

async fn announce(op: &mut DbOp<'_>, id: AttemptId, at: DateTime<Utc>) -> anyhow::Result<()> {
    let payload = serde_json::json!({ "attempt_id": id, "version": 1 });
    sqlx::query("INSERT INTO outbox (attempt_id, topic, payload, deliver_at) VALUES ($1, $2, $3, $4)")
        .bind(id)
        .bind(TOPIC)
        .bind(payload)
        .bind(at)
        .execute(op.as_executor())
        .await?;
    Ok(())
}

impl Peer for Entities {
    type Id = AttemptId;

    async fn create_tables(pool: &PgPool) -> anyhow::Result<()> {
        sqlx::raw_sql(include_str!("../migrations/0001_attempts.sql")).execute(pool).await?;
        Ok(())
    }

    async fn open(pool: PgPool) -> anyhow::Result<Self> {
        Ok(Self { attempts: Attempts { pool } })
    }

    async fn begin(&self) -> anyhow::Result<AttemptId> {
        let at = soon();
        let mut op = self.attempts.begin_op().await?;
        let attempt = self.attempts.create_in_op(&mut op, NewAttempt { at }).await?;
        announce(&mut op, attempt.id, at).await?;
        op.commit().await?;
        Ok(attempt.id)
    }

    async fn append(&self, id: &AttemptId) -> anyhow::Result<()> {
        let mut attempt = self.attempts.find_by_id(*id).await?;
        let at = attempt.note_poll()?;
        let mut op = self.attempts.begin_op().await?;
        self.attempts.update_in_op(&mut op, &mut attempt).await?;
        announce(&mut op, *id, at).await?;
        op.commit().await?;
        Ok(())
    }

    async fn load(&self, id: &AttemptId) -> anyhow::Result<usize> {
        Ok(self.attempts.find_by_id(*id).await?.polls)
    }

    async fn streams(&self) -> anyhow::Result<Vec<AttemptId>> {
        let query = "SELECT id FROM attempt_events GROUP BY 1 HAVING count(*) = 30 ORDER BY 1 LIMIT 100";
        Ok(sqlx::query_scalar(query).fetch_all(&self.attempts.pool).await?)
    }
}
