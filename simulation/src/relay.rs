//! The outbox and its relays: unsent rows, never "after a cursor"; each aggregate's in order; a claimed row is fenced by a token.

use crate::clock::{MILLI, Micros, SECOND, micros};
use crate::dice::{Fault, PROCESSES, Site};
use crate::mutants::Mutant;
use crate::store::{Map, NewRow};
use crate::world::{Step, World};
use domain::id::{CausationId, CorrelationId, EventId, TaskId, TenantId};
use domain::message::{Envelope, Message};
use domain::time::Timestamp;
use std::collections::BTreeSet;
use uuid::Uuid;

/// How long a claimed row belongs to its relay, and how long the broker may take: as in `RelayConfig`.
const LEASE: Micros = 30 * SECOND;
const SEND_TIMEOUT: Micros = 10 * SECOND;
/// Longest time between two looks while something is unsent.
const TICK: Micros = SECOND;
/// Most rows in one claim.
const BATCH: usize = 16;

/// A row, with what only the simulation knows of it.
pub(crate) struct Row {
    pub(crate) id: Uuid,
    original: Option<Uuid>,
    pub(crate) message: Message,
    pub(crate) deliver_at: Option<Timestamp>,
    pub(crate) tenant: TenantId,
    cause: Uuid,
    occurred_at: Timestamp,
    available_at: Micros,
    pub(crate) published: bool,
    lease: Option<(u64, Micros)>,
    attempts: u32,
    /// The broker has taken it at least once.
    pub(crate) on_broker: bool,
}

/// The outbox table.
#[derive(Default)]
pub(crate) struct Outbox {
    pub(crate) rows: Vec<Row>,
    unsent: BTreeSet<usize>,
    known: Map<Uuid, usize>,
    tokens: u64,
}

impl Outbox {
    pub(crate) fn knows(&self, id: Uuid) -> bool {
        self.known.contains_key(&id)
    }

    pub(crate) fn insert(&mut self, row: &NewRow, at: Timestamp) {
        self.known.insert(row.id, self.rows.len());
        self.unsent.insert(self.rows.len());
        self.rows.push(Row {
            id: row.id,
            original: row.original,
            message: row.message.clone(),
            deliver_at: row.deliver_at,
            tenant: row.tenant,
            cause: row.cause,
            occurred_at: at,
            available_at: micros(at),
            published: false,
            lease: None,
            attempts: 0,
            on_broker: false,
        });
    }

    /// The row that this message is from, under whichever id it was sent.
    pub(crate) fn row_of(&self, id: Uuid) -> Option<&Row> {
        self.known.get(&id).and_then(|row| self.rows.get(*row))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.unsent.is_empty()
    }

    pub(crate) fn unsent(&self) -> impl Iterator<Item = &Row> {
        self.unsent.iter().filter_map(|row| self.rows.get(*row))
    }

    /// Claims rows that are due, at most one of each task: the one whose turn it is.
    fn claim(&mut self, now: Micros) -> (u64, Vec<usize>) {
        let mut held: Vec<TaskId> = Vec::new();
        let mut claimed = Vec::new();
        for index in &self.unsent {
            let row = &self.rows[*index];
            let task = row.message.task_id();
            if held.contains(&task) {
                continue;
            }
            held.push(task);
            if row.available_at <= now && row.lease.is_none_or(|(_, until)| until <= now) {
                claimed.push(*index);
                if claimed.len() >= BATCH {
                    break;
                }
            }
        }
        self.tokens += 1;
        for index in &claimed {
            let row = &mut self.rows[*index];
            row.lease = Some((self.tokens, now + LEASE));
            row.attempts += 1;
        }
        (self.tokens, claimed)
    }
}

/// What a relay does next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RelayStep {
    Look,
    Send { row: usize, token: u64 },
    Record { row: usize, token: u64, sent: bool },
}

impl World {
    /// A NOTIFY rings: one of the relays looks soon.
    pub(crate) fn ring_relays(&mut self) {
        let subject = PROCESSES + 3;
        // Whatever becomes of the bell, each relay looks once in a while.
        for process in crate::process::RELAYS {
            self.plan_look(process, TICK);
        }
        if self.dice.strikes(subject, Fault::BellLost) {
            return;
        }
        let which = self.dice.below(subject, Site::Worker, 2);
        let process = crate::process::RELAYS.start + u8::try_from(which).unwrap_or(0);
        self.plan_look(process, 2 * MILLI);
    }

    pub(crate) fn plan_look(&mut self, process: u8, after: Micros) {
        let at = self.now + after;
        let planned = &mut self.looks[usize::from(process)];
        if planned.is_some_and(|planned| planned <= at && planned >= self.now) {
            return;
        }
        *planned = Some(at);
        let epoch = self.epoch(process);
        self.queue.plan(at, Step::Relay { process, epoch, what: RelayStep::Look });
    }

    pub(crate) fn relay(&mut self, process: u8, what: RelayStep) {
        match what {
            RelayStep::Look => self.relay_look(process),
            RelayStep::Send { row, token } => self.relay_send(process, row, token),
            RelayStep::Record { row, token, sent } => self.relay_record(process, row, token, sent),
        }
    }

    fn relay_look(&mut self, process: u8) {
        self.looks[usize::from(process)] = None;
        if self.database_is_down() {
            return self.plan_look(process, TICK);
        }
        let (token, rows) = self.store.outbox.claim(self.now);
        let epoch = self.epoch(process);
        for row in rows {
            let pause = self.dice.between(PROCESSES + u32::from(process), Site::Network, MILLI / 2, 5 * MILLI);
            self.queue.plan(self.now + pause, Step::Relay { process, epoch, what: RelayStep::Send { row, token } });
        }
        if !self.store.outbox.is_empty() {
            self.plan_look(process, TICK);
        }
    }

    fn relay_send(&mut self, process: u8, index: usize, token: u64) {
        let subject = self.subject_of(self.store.outbox.rows[index].message.task_id());
        let refused = self.dice.strikes(subject, Fault::SendFails) || self.broker_is_down();
        let mut sent = !refused;
        let mut pause = self.dice.between(subject, Site::Network, MILLI, 5 * MILLI);
        if sent {
            self.hand_over(index);
            if self.dice.strikes(subject, Fault::SendUnanswered) {
                (sent, pause) = (false, SEND_TIMEOUT);
            }
        }
        if self.trace.is_recorded() {
            let row = &self.store.outbox.rows[index];
            let what = if refused {
                "refused by the broker"
            } else if sent {
                "sent"
            } else {
                "sent, no answer"
            };
            let who = self.processes[usize::from(process)].name;
            self.trace.tell(who, format_args!("{} {} {what}", row.message.event_type(), self.name(row.id)));
        }
        if self.mutant == Some(Mutant::MarkedSentThoughFailed) {
            sent = true;
        }
        let epoch = self.epoch(process);
        self.queue.plan(
            self.now + pause,
            Step::Relay { process, epoch, what: RelayStep::Record { row: index, token, sent } },
        );
    }

    /// The broker takes a row's message.
    fn hand_over(&mut self, index: usize) {
        let row = &mut self.store.outbox.rows[index];
        let again = row.on_broker;
        row.on_broker = true;
        let mut id = row.id;
        if again && self.mutant == Some(Mutant::NewIdOnResend) {
            id = domain::id::derived("resent", row.id, &row.attempts.to_string());
            self.store.outbox.known.insert(id, index);
        }
        let row = &self.store.outbox.rows[index];
        let body = body_of(row, id);
        let (message, deliver_at) = (row.message.clone(), row.deliver_at.map(micros));
        self.accept_message(id, message, deliver_at, body);
    }

    /// An operator sends a message again as it was, under its own id.
    pub(crate) fn send_again(&mut self, id: Uuid) {
        if let Some(row) = self.store.outbox.row_of(id) {
            let (message, body) = (row.message.clone(), body_of(row, id));
            self.accept_message(id, message, None, body);
        }
    }

    fn relay_record(&mut self, process: u8, index: usize, token: u64, sent: bool) {
        let subject = PROCESSES + u32::from(process);
        if self.database_is_down() || self.dice.strikes(subject, Fault::BeginFails) {
            // It is tried again as long as the relay lives; the lease may end meanwhile.
            let what = RelayStep::Record { row: index, token, sent };
            let epoch = self.epoch(process);
            return self.queue.plan(self.now + TICK, Step::Relay { process, epoch, what });
        }
        let row = &mut self.store.outbox.rows[index];
        let ours = row.lease.is_some_and(|(held, _)| held == token);
        if !ours && self.mutant != Some(Mutant::LeaseUnfenced) {
            return self.plan_look(process, MILLI);
        }
        let (id, on_broker) = (row.id, row.on_broker);
        if !ours && (row.published || row.lease.is_some()) {
            let text = format!("a relay finished message {} though another one holds its lease", self.name(id));
            return self.violate("no-lost-message", text);
        }
        row.lease = None;
        if sent {
            row.published = true;
            self.store.outbox.unsent.remove(&index);
            if !on_broker {
                let text = format!("message {} is recorded as sent, and the broker never had it", self.name(id));
                return self.violate("no-lost-message", text);
            }
            let (task, counts) = (row.message.task_id(), counts(&row.message));
            if counts {
                self.carrier_gone(task);
            }
        } else {
            let failures = row.attempts.min(7);
            row.available_at = self.now + ((500 * MILLI) << failures).min(60 * SECOND);
        }
        // The row after it, of the same task, may go now.
        self.plan_look(process, MILLI);
    }
}

/// Whether a message keeps a task going: news for people does not.
pub(crate) const fn counts(message: &Message) -> bool {
    !matches!(message, Message::StateChanged(_))
}

fn body_of(row: &Row, id: Uuid) -> std::rc::Rc<[u8]> {
    let task = row.message.task_id();
    let envelope = Envelope {
        event_id: EventId(id),
        original_event_id: row.original.map(EventId),
        event_type: row.message.event_type().to_owned(),
        schema_version: row.message.schema_version(),
        producer: "aivideo".to_owned(),
        occurred_at: row.occurred_at,
        aggregate_type: "task".to_owned(),
        aggregate_id: task.0,
        tenant_id: row.tenant,
        trace_id: task.0.simple().to_string(),
        correlation_id: CorrelationId(task.0),
        causation_id: CausationId(row.cause),
        payload: row.message.payload().expect("ids and numbers encode"),
    };
    envelope.to_body().expect("a message of ids is small").into()
}
