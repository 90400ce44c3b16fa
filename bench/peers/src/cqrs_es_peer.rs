//! `cqrs-es` with `postgres-es`: the framework over the event store without snapshots, as its user guide sets it up.

use crate::facts::{FINDING, PROVIDER, job, soon};
use crate::measure::Peer;
use chrono::{DateTime, Utc};
use cqrs_es::event_sink::EventSink;
use cqrs_es::persist::PersistedEventStore;
use cqrs_es::{Aggregate, AggregateContext, DomainEvent, EventStore};
use postgres_es::{PostgresCqrs, PostgresEventRepository, postgres_cqrs};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use uuid::Uuid;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum AttemptEvent {
    Planned { task: Uuid, number: u32, provider: String },
    SubmissionBegun { round: u32, give_up_at: DateTime<Utc> },
    Accepted { job: String, how: String, next_poll_at: DateTime<Utc>, give_up_at: DateTime<Utc> },
    Polled { percent: Option<u8>, next_poll_at: DateTime<Utc>, finding: String },
}

impl DomainEvent for AttemptEvent {
    fn event_type(&self) -> String {
        match self {
            Self::Planned { .. } => "attempt.planned",
            Self::SubmissionBegun { .. } => "attempt.submission_begun",
            Self::Accepted { .. } => "attempt.accepted",
            Self::Polled { .. } => "attempt.polled",
        }
        .to_owned()
    }

    fn event_version(&self) -> String {
        "1.0".to_owned()
    }
}

enum AttemptCommand {
    Begin,
    NotePoll,
}

#[derive(Debug, thiserror::Error)]
#[error("not in this state")]
struct AttemptError;

#[derive(Default, Serialize, Deserialize)]
struct Attempt {
    provider: String,
    round: u32,
    job: Option<String>,
    next_poll_at: Option<DateTime<Utc>>,
    polls: usize,
}

impl Aggregate for Attempt {
    const TYPE: &'static str = "attempt";
    type Command = AttemptCommand;
    type Event = AttemptEvent;
    type Error = AttemptError;
    type Services = ();

    async fn handle(&mut self, command: AttemptCommand, (): &(), sink: &EventSink<Self>) -> Result<(), AttemptError> {
        match (command, &self.job) {
            (AttemptCommand::Begin, None) => {
                let (at, how) = (soon(), "answer".to_owned());
                let planned = AttemptEvent::Planned { task: Uuid::new_v4(), number: 1, provider: PROVIDER.to_owned() };
                sink.write(planned, self).await;
                sink.write(AttemptEvent::SubmissionBegun { round: 1, give_up_at: at }, self).await;
                sink.write(AttemptEvent::Accepted { job: job(), how, next_poll_at: at, give_up_at: at }, self).await;
                Ok(())
            }
            (AttemptCommand::NotePoll, Some(_)) => {
                let polled =
                    AttemptEvent::Polled { percent: Some(50), next_poll_at: soon(), finding: FINDING.to_owned() };
                sink.write(polled, self).await;
                Ok(())
            }
            _ => Err(AttemptError),
        }
    }

    fn apply(&mut self, event: AttemptEvent) {
        match event {
            AttemptEvent::Planned { provider, .. } => self.provider = provider,
            AttemptEvent::SubmissionBegun { round, .. } => self.round = round,
            AttemptEvent::Accepted { job, next_poll_at, .. } => {
                self.job = Some(job);
                self.next_poll_at = Some(next_poll_at);
            }
            AttemptEvent::Polled { next_poll_at, .. } => {
                self.next_poll_at = Some(next_poll_at);
                self.polls += 1;
            }
        }
    }
}

/// The peer.
pub struct CqrsEs {
    cqrs: PostgresCqrs<Attempt>,
    store: PersistedEventStore<PostgresEventRepository, Attempt>,
    pool: PgPool,
}

/// The events table of `db/init.sql` in the crate.
const TABLES: &str = "
    CREATE TABLE events (
        aggregate_type text                         NOT NULL,
        aggregate_id   text                         NOT NULL,
        sequence       bigint CHECK (sequence >= 0) NOT NULL,
        event_type     text                         NOT NULL,
        event_version  text                         NOT NULL,
        payload        json                         NOT NULL,
        metadata       json                         NOT NULL,
        PRIMARY KEY (aggregate_type, aggregate_id, sequence)
    )";

impl Peer for CqrsEs {
    type Id = String;

    async fn create_tables(pool: &PgPool) -> anyhow::Result<()> {
        sqlx::raw_sql(TABLES).execute(pool).await?;
        Ok(())
    }

    async fn open(pool: PgPool) -> anyhow::Result<Self> {
        let store = PersistedEventStore::new_event_store(PostgresEventRepository::new(pool.clone()));
        Ok(Self { cqrs: postgres_cqrs(pool.clone(), vec![], ()), store, pool })
    }

    async fn begin(&self) -> anyhow::Result<String> {
        let id = Uuid::new_v4().to_string();
        self.cqrs.execute(&id, AttemptCommand::Begin).await?;
        Ok(id)
    }

    async fn append(&self, id: &String) -> anyhow::Result<()> {
        Ok(self.cqrs.execute(id, AttemptCommand::NotePoll).await?)
    }

    async fn load(&self, id: &String) -> anyhow::Result<usize> {
        Ok(self.store.load_aggregate(id).await?.aggregate().polls)
    }

    async fn streams(&self) -> anyhow::Result<Vec<String>> {
        let query = "SELECT aggregate_id FROM events GROUP BY 1 HAVING count(*) = 30 ORDER BY 1 LIMIT 100";
        Ok(sqlx::query_scalar(query).fetch_all(&self.pool).await?)
    }
}
