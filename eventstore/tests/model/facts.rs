//! Everything that commands and messages leave behind, in a form that can be compared.

use super::Anyhow;
use domain::process::{Change, StreamId};
use domain::stored::{Stored, StoredEvent, Unreadable};
use domain::testkit::invariants::Recorded;
use domain::time::Timestamp;
use domain::{aggregate::Category, attempt, id, ledger, task};
use serde_json::Value;
use sqlx::PgPool;
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// Who and why, as stored: tenant, correlation, causation, and the trace (messages) or the actor (events).
pub type Why = (Uuid, Uuid, Uuid, String);

/// An event as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub id: Uuid,
    pub stored: Stored,
    pub why: Why,
    pub at: Timestamp,
}

/// A message as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Announced {
    pub id: Uuid,
    pub task: Uuid,
    pub event_type: String,
    pub topic: String,
    pub tag: String,
    pub payload: Value,
    pub deliver_at: Option<Timestamp>,
    pub why: Why,
    pub at: Timestamp,
}

/// An inbox row.
#[derive(Clone, Debug, PartialEq)]
pub struct Inbox {
    pub phase: String,
    pub code: Option<String>,
    pub detail: Option<String>,
    pub deliveries: i32,
}

/// An idempotency key's content: the request's digest, and what it came to.
pub type Kept = (Vec<u8>, Value);

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// By stream, in the order of versions: the first is version 1.
    pub streams: BTreeMap<StreamId, Vec<Event>>,
    /// Stream and version of every event, in the order in which they were written.
    pub history: Vec<(StreamId, i64)>,
    /// By task, in the order in which they were written.
    pub outbox: BTreeMap<Uuid, Vec<Announced>>,
    /// By consumer and message.
    pub inbox: BTreeMap<(String, Uuid), Inbox>,
    /// By tenant, operation and key.
    pub keys: BTreeMap<(Uuid, String, String), Kept>,
    /// By consumer and hash of the body: class and number of deliveries.
    pub quarantine: BTreeMap<(String, Vec<u8>), (String, i32)>,
    /// Task, version, tenant, state.
    pub notices: BTreeSet<(Uuid, i64, Uuid, String)>,
    /// Tasks whose full request is stored, with tenant and text.
    pub requests: BTreeSet<(Uuid, Uuid, String)>,
}

type EventRow = (String, Uuid, i64, Uuid, String, i16, Value, Uuid, Uuid, Uuid, String, Timestamp);
type OutboxRow = (Uuid, Uuid, String, String, String, Value, Option<Timestamp>, Uuid, Uuid, Uuid, String, Timestamp);
type InboxRow = (String, Uuid, String, Option<String>, Option<String>, i32);

impl Facts {
    /// What the database holds. Versions with a hole or out of order are an error here already.
    pub async fn read(pool: &PgPool) -> Anyhow<Self> {
        let mut facts = Self::read_history(pool).await?;
        let rows: Vec<InboxRow> = sqlx::query_as(
            "SELECT consumer_name, event_id, phase, result_code, result_detail, deliveries FROM inbox_dedup",
        )
        .fetch_all(pool)
        .await?;
        facts.inbox = rows
            .into_iter()
            .map(|(consumer, id, phase, code, detail, deliveries)| {
                ((consumer, id), Inbox { phase, code, detail, deliveries })
            })
            .collect();
        let rows: Vec<(Uuid, String, String, Vec<u8>, Value)> =
            sqlx::query_as("SELECT tenant_id, operation, key, fingerprint, result FROM idempotency_keys")
                .fetch_all(pool)
                .await?;
        facts.keys = rows.into_iter().map(|(tenant, op, key, print, it)| ((tenant, op, key), (print, it))).collect();
        let rows: Vec<(String, Vec<u8>, String, i32)> =
            sqlx::query_as("SELECT consumer_name, payload_hash, error_class, delivery_count FROM message_quarantine")
                .fetch_all(pool)
                .await?;
        facts.quarantine = rows.into_iter().map(|(who, hash, class, count)| ((who, hash), (class, count))).collect();
        let rows = sqlx::query_as("SELECT task_id, task_version, tenant_id, state FROM notifications");
        facts.notices = rows.fetch_all(pool).await?.into_iter().collect();
        let rows = sqlx::query_as("SELECT task_id, tenant_id, prompt FROM generation_requests");
        facts.requests = rows.fetch_all(pool).await?.into_iter().collect();
        Ok(facts)
    }

    /// Events and messages alone.
    pub async fn read_history(pool: &PgPool) -> Anyhow<Self> {
        let mut facts = Self::default();
        facts.read_streams(pool).await?;
        facts.read_outbox(pool).await?;
        Ok(facts)
    }

    async fn read_streams(&mut self, pool: &PgPool) -> Anyhow {
        let rows: Vec<EventRow> = sqlx::query_as(
            "SELECT category, stream_id, version, event_id, name, schema_version, body, tenant_id, correlation_id,
                    causation_id, actor, recorded_at FROM events ORDER BY position",
        )
        .fetch_all(pool)
        .await?;
        for (category, id, version, event_id, name, schema, body, tenant, correlation, causation, actor, at) in rows {
            let category = Category::parse(&category).ok_or("an unknown category")?;
            self.history.push((StreamId { category, id }, version));
            let stream = self.streams.entry(StreamId { category, id }).or_default();
            let stored = Stored { name, version: schema, body };
            stream.push(Event { id: event_id, stored, why: (tenant, correlation, causation, actor), at });
            if i64::try_from(stream.len())? != version {
                return Err(format!("stream {} {id} has a hole before version {version}", category.name()).into());
            }
        }
        Ok(())
    }

    async fn read_outbox(&mut self, pool: &PgPool) -> Anyhow {
        let rows: Vec<OutboxRow> = sqlx::query_as(
            "SELECT event_id, aggregate_id, event_type, topic, tag, payload, deliver_at, tenant_id, correlation_id,
                    causation_id, trace_id, occurred_at FROM outbox_events ORDER BY id",
        )
        .fetch_all(pool)
        .await?;
        for (id, task, event_type, topic, tag, payload, deliver_at, tenant, correlation, causation, trace, at) in rows {
            let why = (tenant, correlation, causation, trace);
            let row = Announced { id, task, event_type, topic, tag, payload, deliver_at, why, at };
            self.outbox.entry(task).or_default().push(row);
        }
        Ok(())
    }

    /// The same without the order of events and messages across streams: two transactions at once may write in either order.
    pub fn unordered(mut self) -> Self {
        self.history.sort_unstable();
        for rows in self.outbox.values_mut() {
            rows.sort_by_key(|row| row.id);
        }
        self
    }

    /// Where this differs from what was expected, for whoever reads a failure.
    pub fn difference(&self, expected: &Self) -> String {
        fn maps<K: Ord + std::fmt::Debug, V: PartialEq + std::fmt::Debug>(
            what: &str,
            ours: &BTreeMap<K, V>,
            theirs: &BTreeMap<K, V>,
        ) -> String {
            let keys: BTreeSet<&K> = ours.keys().chain(theirs.keys()).collect();
            keys.into_iter()
                .filter(|key| ours.get(key) != theirs.get(key))
                .map(|key| {
                    format!("{what} {key:?}\n  found    {:?}\n  expected {:?}\n", ours.get(key), theirs.get(key))
                })
                .collect()
        }
        let mut text = String::new();
        if let Some(place) = (0..).zip(self.history.iter().zip(&expected.history)).find(|(_, (one, two))| one != two) {
            text += &format!("the order of events differs at (place, (found, expected)) {place:?}\n");
        }
        text += &maps("stream", &self.streams, &expected.streams);
        text += &maps("outbox of", &self.outbox, &expected.outbox);
        text += &maps("inbox", &self.inbox, &expected.inbox);
        text += &maps("key", &self.keys, &expected.keys);
        text += &maps("quarantine", &self.quarantine, &expected.quarantine);
        if (&self.notices, &self.requests) != (&expected.notices, &expected.requests) {
            text += &format!("notices or requests\n  found    {:?}\n  expected {:?}\n", self.notices, expected.notices);
        }
        text
    }

    /// The history as the invariants read it.
    pub fn recorded(&self) -> Anyhow<Vec<Recorded>> {
        let event = |(stream, version): &(StreamId, i64)| {
            let index = usize::try_from(version - 1)?;
            let event =
                self.streams.get(stream).and_then(|events| events.get(index)).ok_or("a version without event")?;
            let change = change(*stream, event.stored.clone())?;
            Ok(Recorded { version: *version, at: event.at, change })
        };
        self.history.iter().map(event).collect()
    }
}

fn change(stream: StreamId, stored: Stored) -> Result<Change, Unreadable> {
    Ok(match stream.category {
        Category::Account => Change::Account(id::AccountId(stream.id), ledger::Event::decode(stored)?),
        Category::Attempt => Change::Attempt(id::AttemptId(stream.id), attempt::Event::decode(stored)?),
        Category::Task => Change::Task(id::TaskId(stream.id), task::Event::decode(stored)?),
    })
}
