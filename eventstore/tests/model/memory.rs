//! The model: facts in maps, whole histories folded from their first event each time, one transaction after the other.

use super::action::Ask;
use super::action::Said;
use super::facts::{Announced, Event, Facts, Inbox, Why};
use domain::id::{derived, message_id};
use domain::process::{Case, CaseKey, Change, Corrupt, Folded, Origin, Policy, StreamId, Turn};
use domain::stored::StoredEvent;
use domain::testkit::invariants::Recorded;
use domain::time::Timestamp;
use eventstore::{Executed, Meta};

/// The store in memory.
#[derive(Clone, Debug)]
pub struct Memory {
    pub facts: Facts,
    pub policy: Policy,
    pub now: Timestamp,
}

/// The row of the inbox that a transaction closes: consumer, message, code, detail.
pub type Closing<'a> = (&'a str, uuid::Uuid, &'static str, Option<String>);

impl Memory {
    pub fn load(&self, key: CaseKey) -> Result<Case, Corrupt> {
        let mut case = Case::begin(key);
        loop {
            let wanted = case.wants();
            if wanted.is_empty() {
                return Ok(case);
            }
            for stream in wanted {
                let events = self.facts.streams.get(&stream).into_iter().flatten();
                let events = (1..).zip(events.map(|event| event.stored.clone()));
                case.supply(stream, Folded::absent(stream.category).fold(stream, events)?);
            }
        }
    }

    /// Appends what a turn came to. A version other than the next one is a fault of the model: it never has two at a time.
    pub fn append(&mut self, turn: Turn<'_>, meta: &Meta) {
        for recorded in Recorded::of(&turn) {
            let stream = recorded.stream();
            let events = self.facts.streams.entry(stream).or_default();
            assert_eq!(usize::try_from(recorded.version).ok(), Some(events.len() + 1), "the version check, {stream}");
            self.facts.history.push((stream, recorded.version));
            let stored = match &recorded.change {
                Change::Task(_, event) => event.encode(),
                Change::Attempt(_, event) => event.encode(),
                Change::Account(_, event) => event.encode(),
            };
            let stored = stored.expect("bodies are plain data");
            let why = why(meta, &meta.actor);
            events.push(Event { id: event_id(stream, recorded.version), stored, why, at: self.now });
        }
        for it in turn.announcements {
            let event_type = it.message.event_type();
            let id = match it.origin {
                Origin::Event { stream, version } => {
                    message_id(self.now, "message", event_id(stream, version), event_type)
                }
                Origin::Rearmed => message_id(self.now, "rearmed", meta.causation.0, event_type),
            };
            let task = it.message.task_id().0;
            self.facts.outbox.entry(task).or_default().push(Announced {
                id,
                task,
                event_type: event_type.to_owned(),
                topic: it.message.topic().name().to_owned(),
                tag: it.message.tag().to_owned(),
                payload: it.message.payload().expect("ids and numbers"),
                deliver_at: it.deliver_at,
                why: why(meta, &meta.trace),
                at: self.now,
            });
        }
        for it in turn.notices {
            self.facts.notices.insert((it.task.0, it.version, it.tenant.0, it.state.name().to_owned()));
        }
    }

    /// The inbox row as it is once this delivery has taken it, or goes on with it; nothing is written yet.
    pub fn claimed(&self, consumer: &str, message: uuid::Uuid, delivered: bool) -> Inbox {
        match self.facts.inbox.get(&(consumer.to_owned(), message)) {
            Some(row) => Inbox { deliveries: row.deliveries + i32::from(delivered), ..row.clone() },
            None => Inbox { phase: "claimed".to_owned(), code: None, detail: None, deliveries: 1 },
        }
    }

    /// Commits the inbox row, closed where it was open and `closing` says so.
    pub fn keep(&mut self, mut row: Inbox, (consumer, message, code, detail): Closing<'_>, close: bool) {
        if close && row.phase == "claimed" {
            row = Inbox { phase: "done".to_owned(), code: Some(code.to_owned()), detail, ..row };
        }
        self.facts.inbox.insert((consumer.to_owned(), message), row);
    }

    /// A person's command, in one transaction.
    pub fn execute(&mut self, ask: &Ask) -> Said {
        let tenant = ask.request.meta.tenant;
        let place = ask.request.key.as_ref().map(|it| (tenant.0, it.operation.to_owned(), it.key.clone()));
        let print = ask.request.key.as_ref().map(|it| it.fingerprint.to_vec());
        if let Some((kept, result)) = place.as_ref().and_then(|place| self.facts.keys.get(place)) {
            if Some(kept) != print.as_ref() {
                return Said::KeyReused;
            }
            let before: Executed = serde_json::from_value(result.clone()).expect("written below");
            return Said::Executed(Executed { replayed: true, ..before });
        }
        let case = self.load(ask.key).expect("the model's own history folds");
        if ask.prompt.is_none() && ask.key.task.is_some() {
            let owner = case.task.state.order().map(|order| order.tenant);
            if owner.is_none() || (ask.request.tenant_wall && owner != Some(tenant)) {
                return Said::NotFound;
            }
        }
        let policy = self.policy.clone();
        let mut turn = Turn::new(case, self.now, &policy);
        if let Err(refusal) = ask.command.apply(&mut turn) {
            return Said::Refused(refusal);
        }
        let executed = reached(&turn.case);
        self.append(turn, &ask.request.meta);
        if let Some(submission) = ask.submission() {
            self.facts.requests.insert((submission.task.0, tenant.0, submission.prompt));
        }
        if let (Some(place), Some(print)) = (place, print) {
            self.facts.keys.insert(place, (print, serde_json::to_value(&executed).expect("plain data")));
        }
        Said::Executed(executed)
    }
}

fn reached(case: &Case) -> Executed {
    match case.task.state.order() {
        Some(order) => Executed {
            task: Some(order.task),
            version: case.task.version,
            state: case.task.state.state().name().to_owned(),
            replayed: false,
        },
        None => Executed { task: None, version: case.account.version, state: "ACTIVE".to_owned(), replayed: false },
    }
}

fn event_id(stream: StreamId, version: i64) -> uuid::Uuid {
    derived("event", stream.id, &format!("{}:{version}", stream.category.name()))
}

fn why(meta: &Meta, last: &str) -> Why {
    (meta.tenant.0, meta.correlation.0, meta.causation.0, last.to_owned())
}
