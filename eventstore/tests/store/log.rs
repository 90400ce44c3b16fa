//! Histories put into the log by hand, and what is said in the log of the process.

use super::support::Anyhow;
use domain::aggregate::Category;
use domain::id::{AttemptId, TaskId};
use domain::process::{CaseKey, Folded, StreamId};
use domain::stored::{Stored, StoredEvent};
use domain::time::Timestamp;
use domain::{attempt, ledger, money::Credits};
use eventstore::Store;
use sqlx::PgPool;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, Once, PoisonError};
use uuid::Uuid;

/// Puts events behind those of a stream, a second apart from each other.
pub async fn record(pool: &PgPool, stream: StreamId, after: i64, events: &[Stored]) -> Anyhow {
    let numbers: Vec<i64> = (after + 1..).take(events.len()).collect();
    sqlx::query(
        "INSERT INTO events (event_id, category, stream_id, version, name, schema_version, body,
                             tenant_id, correlation_id, causation_id, actor, recorded_at)
         SELECT gen_random_uuid(), $1, $2, version, name, schema_version, body, $2, $2, $2, 'user:test',
                '2026-11-30T12:00:00Z'::timestamptz + version * interval '1 second'
           FROM unnest($3::bigint[], $4::text[], $5::smallint[], $6::jsonb[]) AS e (version, name, schema_version, body)",
    )
    .bind(stream.category.name())
    .bind(stream.id)
    .bind(numbers)
    .bind(events.iter().map(|it| it.name.as_str()).collect::<Vec<_>>())
    .bind(events.iter().map(|it| it.version).collect::<Vec<_>>())
    .bind(events.iter().map(|it| &it.body).collect::<Vec<_>>())
    .execute(pool)
    .await?;
    Ok(())
}

/// Lets a test change the log, which nobody else may.
pub const EDITABLE: &str = "ALTER TABLE events DISABLE TRIGGER USER";

pub fn stored<E: StoredEvent>(events: impl IntoIterator<Item = E>) -> Anyhow<Vec<Stored>> {
    Ok(events.into_iter().map(|it| it.encode()).collect::<Result<_, _>>()?)
}

/// A grant, an adjustment, and then `holds` tasks, of which the last few are still open; `seed` makes their ids.
pub fn busy_account(seed: u128, holds: u128) -> Vec<ledger::Event> {
    use ledger::Event as It;
    let task = |n| TaskId(Uuid::from_u128((seed << 64) + (n * 0x9e37_79b9_7f4a_7c15) % (1 << 64)));
    let adjusted = It::Adjusted {
        key: "correction-1".to_owned(),
        amount: Credits(-3),
        reason: "a mistake".to_owned(),
        by: "operator:1".to_owned(),
    };
    let mut events = vec![It::Granted { key: "voucher-1".to_owned(), amount: Credits(1_000_000_000) }, adjusted];
    for n in 0..holds {
        events.push(It::Held { task: task(n), amount: Credits(120), expires_at: None });
        match n {
            n if n + 3 > holds => {}
            n if n % 7 == 3 => events.push(It::Released { task: task(n), released: Credits(120) }),
            _ => events.push(It::Settled { task: task(n), charged: Credits(100), released: Credits(20) }),
        }
    }
    events
}

/// An attempt that is polled and polled.
pub fn polled_attempt(task: TaskId, polls: usize) -> Vec<attempt::Event> {
    use attempt::Event as It;
    let at = |seconds| Timestamp::UNIX_EPOCH + chrono::TimeDelta::seconds(seconds);
    let accepted = It::Accepted {
        job: "job-1".to_owned(),
        how: attempt::Heard::Answer,
        next_poll_at: at(2),
        give_up_at: at(9_000),
    };
    let polled = It::Polled { percent: Some(40), next_poll_at: at(4), finding: "running".to_owned() };
    let mut events = vec![
        It::Planned { task, number: 1, provider: "replicate".to_owned() },
        It::SubmissionBegun { round: 1, give_up_at: at(45) },
        accepted,
    ];
    events.resize(events.len() + polls, polled);
    events
}

/// The state after events, without any store.
pub fn fold(stream: StreamId, events: &[Stored]) -> Anyhow<Folded> {
    Ok(Folded::absent(stream.category).fold(stream, (1..).zip(events.iter().cloned()))?)
}

/// The stream as a store reads it that has read nothing before; what it has to say about snapshots is written by then.
pub async fn cold(pool: &PgPool, stream: StreamId) -> Anyhow<Folded> {
    let store = Store::on(pool.clone(), super::support::policy());
    let folded = warm(&store, stream).await;
    store.snapshots_written().await;
    folded
}

/// The stream as this store reads it.
pub async fn warm(store: &Store, stream: StreamId) -> Anyhow<Folded> {
    let nothing = CaseKey { task: None, attempt: None, account: None, with_account: false, origin: None };
    let key = match stream.category {
        Category::Account => CaseKey::account(stream.id.into()),
        Category::Attempt => CaseKey { attempt: Some(AttemptId(stream.id)), ..nothing },
        Category::Task => CaseKey { origin: Some(TaskId(stream.id)), ..nothing },
    };
    let case = store.load_case(key).await?;
    Ok(match stream.category {
        Category::Account => Folded::Account(case.account),
        Category::Attempt => Folded::Attempt(case.attempt),
        Category::Task => Folded::Task(case.origin),
    })
}

thread_local! {
    static LISTENER: RefCell<Option<Said>> = const { RefCell::new(None) };
}

/// What is logged on this thread.
#[derive(Clone, Default)]
pub struct Said(Arc<Mutex<Vec<u8>>>);

/// Listens until it is dropped.
pub struct Listening;

impl Drop for Listening {
    fn drop(&mut self) {
        LISTENER.set(None);
    }
}

impl Said {
    /// Listens until the guard is dropped. One subscriber serves the whole process and for good: one that came and went with its
    /// test would miss events whose place in the code another thread, where nobody listens, reaches first just then.
    #[must_use]
    pub fn listen(&self) -> Listening {
        static LOGGING: Once = Once::new();
        let log = || tracing_subscriber::fmt().with_ansi(false).with_writer(Self::of_this_thread).init();
        LOGGING.call_once(log);
        LISTENER.set(Some(self.clone()));
        Listening
    }

    /// Whoever listens on this thread; where nobody does, what is written is lost.
    fn of_this_thread() -> Self {
        LISTENER.with_borrow(Clone::clone).unwrap_or_default()
    }

    /// The lines that contain a text.
    pub fn lines(&self, text: &str) -> Vec<String> {
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&said).lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}

impl std::io::Write for Said {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
