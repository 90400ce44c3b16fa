//! `disintegrate` with `disintegrate-postgres`: the decision maker without snapshots, as its cart example sets it up.

use crate::facts::{FINDING, PROVIDER, job, soon};
use crate::measure::Peer;
use chrono::{DateTime, Utc};
use disintegrate::serde::json::Json;
use disintegrate::{Decision, Event, EventSourcedStateStore, LoadState, NoSnapshot, StateMutate, StateQuery};
use disintegrate_postgres::{PgDecisionMaker, PgEventStore};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use uuid::Uuid;

#[derive(Debug, Clone, PartialEq, Eq, Event, Serialize, Deserialize)]
#[stream(AttemptEvent, [Planned, SubmissionBegun, Accepted, Polled])]
enum DomainEvent {
    Planned {
        #[id]
        attempt_id: Uuid,
        task: Uuid,
        number: u32,
        provider: String,
    },
    SubmissionBegun {
        #[id]
        attempt_id: Uuid,
        round: u32,
        give_up_at: DateTime<Utc>,
    },
    Accepted {
        #[id]
        attempt_id: Uuid,
        job: String,
        how: String,
        next_poll_at: DateTime<Utc>,
        give_up_at: DateTime<Utc>,
    },
    Polled {
        #[id]
        attempt_id: Uuid,
        percent: Option<u8>,
        next_poll_at: DateTime<Utc>,
        finding: String,
    },
}

#[derive(Clone, Default, StateQuery, Serialize, Deserialize)]
#[state_query(AttemptEvent)]
struct Attempt {
    #[id]
    attempt_id: Uuid,
    provider: String,
    round: u32,
    job: Option<String>,
    next_poll_at: Option<DateTime<Utc>>,
    polls: usize,
}

impl Attempt {
    fn named(attempt_id: Uuid) -> Self {
        Self { attempt_id, ..Self::default() }
    }
}

impl StateMutate for Attempt {
    fn mutate(&mut self, event: Self::Event) {
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

#[derive(Debug, thiserror::Error)]
#[error("not in this state")]
struct AttemptError;

#[derive(Clone)]
enum Command {
    Begin(Uuid),
    NotePoll(Uuid),
}

impl Decision for Command {
    type Event = DomainEvent;
    type StateQuery = Attempt;
    type Error = AttemptError;

    fn state_query(&self) -> Attempt {
        let (Self::Begin(attempt_id) | Self::NotePoll(attempt_id)) = self;
        Attempt::named(*attempt_id)
    }

    fn process(&self, state: &Attempt) -> Result<Vec<DomainEvent>, AttemptError> {
        let (at, attempt_id) = (soon(), state.attempt_id);
        match (self, &state.job) {
            (Self::Begin(_), None) => Ok(vec![
                DomainEvent::Planned { attempt_id, task: Uuid::new_v4(), number: 1, provider: PROVIDER.to_owned() },
                DomainEvent::SubmissionBegun { attempt_id, round: 1, give_up_at: at },
                DomainEvent::Accepted {
                    attempt_id,
                    job: job(),
                    how: "answer".to_owned(),
                    next_poll_at: at,
                    give_up_at: at,
                },
            ]),
            (Self::NotePoll(_), Some(_)) => Ok(vec![DomainEvent::Polled {
                attempt_id,
                percent: Some(50),
                next_poll_at: at,
                finding: FINDING.to_owned(),
            }]),
            _ => Err(AttemptError),
        }
    }
}

/// `fn_event_store_begin_epoch.sql` of the crate, with 0xFFFFFFFF written as a decimal number; nothing else is changed.
const BEGIN_EPOCH: &str = "
    CREATE OR REPLACE FUNCTION event_store_begin_epoch() RETURNS void AS $$
    DECLARE
        id BIGINT;
        db_id INT;
    BEGIN
        SELECT last_value INTO id FROM seq_event_event_id;
        SELECT oid INTO db_id FROM pg_database WHERE datname = current_database();

        PERFORM pg_try_advisory_xact_lock_shared(db_id, 0);
        PERFORM pg_try_advisory_xact_lock_shared(1, (id & 4294967295)::bit(32)::integer);
        PERFORM pg_try_advisory_xact_lock_shared(2, (id >> 32)::bit(32)::integer);
    END;
    $$ LANGUAGE plpgsql";

type Store = PgEventStore<DomainEvent, Json<DomainEvent>>;

/// The peer.
pub struct Disintegrate {
    decisions: PgDecisionMaker<DomainEvent, Json<DomainEvent>, NoSnapshot>,
    states: EventSourcedStateStore<i64, DomainEvent, Store, NoSnapshot>,
    pool: PgPool,
}

/// Its transactions are SERIALIZABLE and may be refused though nobody wrote to the same stream; its documentation says to
/// make the decision again. And its readers stop at the oldest writer that has not ended: a stream that was just written may not be
/// read whole yet, and the decision is refused by the domain.
const TRIES: u32 = 200;

impl Disintegrate {
    async fn make(&self, command: Command) -> anyhow::Result<()> {
        let mut tries = 1;
        loop {
            match self.decisions.make(command.clone()).await {
                Ok(_) => return Ok(()),
                Err(error) if tries >= TRIES => return Err(anyhow::Error::msg(error.to_string())),
                Err(_) => tries += 1,
            }
        }
    }
}

impl Peer for Disintegrate {
    type Id = Uuid;

    async fn create_tables(pool: &PgPool) -> anyhow::Result<()> {
        // Its writers' function has a literal that PostgreSQL 15 can not read: not looked at here, and written anew below.
        let options = (*pool.connect_options()).clone().options([("check_function_bodies", "off")]);
        let unchecked = sqlx::postgres::PgPoolOptions::new().max_connections(1).connect_with(options).await?;
        Store::try_new(unchecked.clone(), Json::default()).await?;
        sqlx::raw_sql(BEGIN_EPOCH).execute(&unchecked).await?;
        unchecked.close().await;
        Ok(())
    }

    async fn open(pool: PgPool) -> anyhow::Result<Self> {
        let store = Store::new_uninitialized(pool.clone(), Json::default());
        let decisions = disintegrate_postgres::decision_maker(store.clone(), NoSnapshot);
        Ok(Self { decisions, states: EventSourcedStateStore::new(store, NoSnapshot), pool })
    }

    async fn begin(&self) -> anyhow::Result<Uuid> {
        let id = Uuid::new_v4();
        self.make(Command::Begin(id)).await?;
        Ok(id)
    }

    async fn append(&self, id: &Uuid) -> anyhow::Result<()> {
        self.make(Command::NotePoll(*id)).await
    }

    async fn load(&self, id: &Uuid) -> anyhow::Result<usize> {
        let loaded = self.states.load(Attempt::named(*id)).await.map_err(anyhow::Error::from_boxed)?;
        Ok(loaded.state().polls)
    }

    async fn streams(&self) -> anyhow::Result<Vec<Uuid>> {
        let query = "SELECT attempt_id FROM event GROUP BY 1 HAVING count(*) = 30 ORDER BY 1 LIMIT 100";
        Ok(sqlx::query_scalar(query).fetch_all(&self.pool).await?)
    }
}
