//! Appending as the service does it: a command is given to a case; it reads, decides, and writes one event and one outbox row.

use crate::work::Work;
use domain::attempt::{Command, Heard};
use domain::id::{AttemptId, CausationId, CorrelationId, TaskId, TenantId};
use domain::process::{CaseKey, Turn};
use domain::time::seconds;
use eventstore::{Meta, Request, Store};
use uuid::Uuid;

/// Events of a stream after which the next one is begun.
pub const EVENTS_OF_A_STREAM: usize = 30;
/// Events that begin a stream, in one transaction: planned, submission begun, accepted.
pub const BEGINNING: usize = 3;
/// The provider of all attempts.
pub const PROVIDER: &str = "simulated";
/// What a poll finds.
pub const FINDING: &str = "running";

/// An attempt on its own.
pub const fn attempt_alone(attempt: AttemptId) -> CaseKey {
    CaseKey { task: None, attempt: Some(attempt), account: None, with_account: false, origin: None }
}

/// A request without a key.
pub fn request() -> Request {
    let correlation = Uuid::new_v4();
    let meta = Meta {
        tenant: TenantId(Uuid::new_v4()),
        correlation: CorrelationId(correlation),
        causation: CausationId(Uuid::new_v4()),
        actor: "worker:poll".to_owned(),
        trace: correlation.simple().to_string(),
    };
    Request { meta, key: None, tenant_wall: true }
}

/// One writer: it notes polls of an attempt, one event and one outbox row each, and turns to a new attempt when its stream has
/// [`EVENTS_OF_A_STREAM`] events.
pub struct Writer {
    store: Store,
    task: TaskId,
    events: usize,
}

impl Writer {
    /// A writer to streams that are its own.
    pub fn new(store: &Store) -> Self {
        Self { store: store.clone(), task: TaskId(Uuid::new_v4()), events: 0 }
    }

    /// Writes one whole stream, and names it.
    ///
    /// # Errors
    /// The store's.
    pub async fn whole_stream(&mut self) -> anyhow::Result<AttemptId> {
        loop {
            self.once().await?;
            if self.events >= EVENTS_OF_A_STREAM {
                return Ok(AttemptId::of(self.task, 1));
            }
        }
    }

    async fn begin(&mut self) -> anyhow::Result<()> {
        self.task = TaskId(Uuid::new_v4());
        let task = self.task;
        let job = Uuid::new_v4().simple().to_string();
        let key = attempt_alone(AttemptId::of(task, 1));
        let begin = |turn: &mut Turn<'_>| {
            let (next_poll_at, give_up_at) = (turn.now + seconds(10), turn.now + seconds(1_800));
            turn.attempt(Command::Plan { task, number: 1, provider: PROVIDER.to_owned() })?;
            turn.attempt(Command::BeginSubmission { give_up_at })?;
            turn.attempt(Command::Accept { job: job.clone(), how: Heard::Answer, next_poll_at, give_up_at })
        };
        self.store.execute(&request(), key, None, begin).await?;
        self.events = BEGINNING;
        Ok(())
    }
}

impl Work for Writer {
    async fn once(&mut self) -> anyhow::Result<()> {
        if self.events == 0 || self.events >= EVENTS_OF_A_STREAM {
            return self.begin().await;
        }
        let key = attempt_alone(AttemptId::of(self.task, 1));
        let note_poll = |turn: &mut Turn<'_>| {
            let next_poll_at = turn.now + seconds(10);
            turn.attempt(Command::NotePoll { percent: Some(50), next_poll_at, finding: FINDING.to_owned() })
        };
        self.store.execute(&request(), key, None, note_poll).await?;
        self.events += 1;
        Ok(())
    }
}
