//! The broker: at least once. It may deliver twice, late, early, out of order, or again while the first delivery is still being
//! handled; it loses acknowledgements, and delayed messages; what was delivered too often is dead-lettered.

use crate::clock::{MILLI, MINUTE, Micros, SECOND};
use crate::dice::{Fault, Site, Subject};
use crate::mutants::Mutant;
use crate::relay::counts;
use crate::world::{Step, World};
use domain::id::TenantId;
use domain::message::{Envelope, Message};
use domain::process::manager_index;
use std::rc::Rc;
use uuid::Uuid;

/// One message on its way to one consumer group.
pub(crate) struct Copy {
    pub(crate) id: Uuid,
    pub(crate) group: u8,
    pub(crate) body: Rc<[u8]>,
    pub(crate) subject: Subject,
    /// Whether the task goes on by it.
    pub(crate) counts: bool,
    pub(crate) bad: bool,
    pub(crate) deliveries: u32,
    most: u32,
    pub(crate) gone: bool,
}

/// Everything the broker has.
#[derive(Default)]
pub(crate) struct Broker {
    pub(crate) copies: Vec<Copy>,
    /// For each task what was sent about it, for operators who replay.
    pub(crate) sent: Vec<Vec<(Uuid, Message)>>,
    pub(crate) down_until: Micros,
}

/// How long after a delivery without an answer a message is delivered again.
const PATIENCE: Micros = 3 * MINUTE;

impl World {
    /// A message is on the broker: it will be delivered at least once, faults aside.
    pub(crate) fn accept_message(&mut self, id: Uuid, message: Message, deliver_at: Option<Micros>, body: Rc<[u8]>) {
        let task = message.task_id();
        let subject = self.subject_of(task);
        let group = u8::try_from(manager_index(message.topic())).unwrap_or(u8::MAX);
        self.remember_sent(subject, id, &message);
        let delayed = deliver_at.is_some_and(|at| at > self.now);
        let mut at = deliver_at.unwrap_or(0).max(self.now) + self.travel(subject);
        if delayed && self.dice.strikes(subject, Fault::Early) {
            at = self.now + (at - self.now) / 2;
        }
        let kept = self.put(id, group, Rc::clone(&body), subject, counts(&message));
        if delayed && self.dice.strikes(subject, Fault::Lost) {
            self.trace.tell("broker", format_args!("loses {} {}", message.event_type(), self.names.of(id)));
            self.lose(kept, "lost");
        } else {
            self.queue.plan(at, Step::Deliver { copy: kept });
        }
        if self.dice.strikes(subject, Fault::Duplicate) {
            let twin = self.put(id, group, Rc::clone(&body), subject, counts(&message));
            let at = at + self.dice.between(subject, Site::DeliverAfter, MILLI, 40 * SECOND);
            self.queue.plan(at, Step::Deliver { copy: twin });
        }
        if self.dice.strikes(subject, Fault::Poison) {
            self.put_bad(subject, group, b"{\"event_id\": 7, \"event_type\"".to_vec());
        }
        if self.dice.strikes(subject, Fault::Forged) {
            self.forge(subject, group, &body);
        }
    }

    fn remember_sent(&mut self, subject: Subject, id: Uuid, message: &Message) {
        let sent = &mut self.broker.sent;
        if sent.len() <= subject as usize {
            sent.resize(subject as usize + 1, Vec::new());
        }
        sent[subject as usize].push((id, message.clone()));
    }

    fn travel(&mut self, subject: Subject) -> Micros {
        if self.dice.strikes(subject, Fault::Slow) {
            self.dice.between(subject, Site::DeliverAfter, SECOND, 90 * SECOND)
        } else {
            self.dice.between(subject, Site::Network, 2 * MILLI, 900 * MILLI)
        }
    }

    fn put(&mut self, id: Uuid, group: u8, body: Rc<[u8]>, subject: Subject, counts: bool) -> usize {
        let most = if self.dice.strikes(subject, Fault::FewTries) { 4 } else { 16 };
        if counts {
            self.carrier_new(subject);
        }
        let copy = Copy { id, group, body, subject, counts, bad: false, deliveries: 0, most, gone: false };
        self.broker.copies.push(copy);
        self.broker.copies.len() - 1
    }

    /// Something on the topic that is not a message, or not a true one.
    fn put_bad(&mut self, subject: Subject, group: u8, body: Vec<u8>) {
        let copy = self.put(Uuid::nil(), group, body.into(), subject, false);
        self.broker.copies[copy].bad = true;
        self.broker.copies[copy].most = 16;
        let at = self.now + self.dice.between(subject, Site::DeliverAfter, MILLI, 10 * SECOND);
        self.queue.plan(at, Step::Deliver { copy });
    }

    /// The same message under a new id, in another tenant's name.
    fn forge(&mut self, subject: Subject, group: u8, body: &[u8]) {
        let Ok(envelope) = Envelope::parse(body) else { return };
        let id = domain::id::derived("forged", envelope.event_id.0, "");
        let other = TenantId(domain::id::derived("stranger", envelope.tenant_id.0, ""));
        let forged = Envelope { event_id: id.into(), tenant_id: other, ..envelope };
        if let Ok(body) = forged.to_body() {
            self.put_bad(subject, group, body);
        }
    }

    /// The broker gives up on a message, or loses it: only the scan can set its task going again.
    pub(crate) fn lose(&mut self, copy: usize, how: &str) {
        let it = &mut self.broker.copies[copy];
        if it.gone {
            return;
        }
        it.gone = true;
        let (subject, counted, bad) = (it.subject, it.counts, it.bad);
        if counted {
            self.taint(subject);
            self.carrier_gone_of(subject);
        }
        if bad && how == "dead" {
            self.violate("poison-once", "a message that can not be handled was never put into quarantine".to_owned());
        }
    }

    pub(crate) fn deliver(&mut self, copy: usize) {
        let it = &mut self.broker.copies[copy];
        if it.gone {
            return;
        }
        it.deliveries += 1;
        let (subject, deliveries, most) = (it.subject, it.deliveries, it.most);
        if deliveries > most {
            self.trace.tell("broker", format_args!("dead-letters {}", self.names.of(self.broker.copies[copy].id)));
            return self.lose(copy, "dead");
        }
        let impatient = self.dice.strikes(subject, Fault::Impatient);
        let patience =
            if impatient { self.dice.between(subject, Site::Redeliver, SECOND, 20 * SECOND) } else { PATIENCE };
        self.queue.plan(self.now + patience, Step::Expire { copy, delivery: deliveries });
        let workers = u64::from(crate::process::WORKERS.end);
        let process = u8::try_from(self.dice.below(subject, Site::Worker, workers)).unwrap_or(0);
        if self.processes[usize::from(process)].alive {
            self.handle_delivery(copy, process);
        }
    }

    /// No answer came: it is delivered again, whatever the first handler is at.
    pub(crate) fn expire(&mut self, copy: usize, delivery: u32) {
        let it = &self.broker.copies[copy];
        if !it.gone && it.deliveries == delivery {
            self.queue.plan(self.now, Step::Deliver { copy });
        }
    }

    /// A worker acknowledges.
    pub(crate) fn acknowledge(&mut self, copy: usize) {
        let it = &mut self.broker.copies[copy];
        if it.gone {
            return;
        }
        let (subject, counted) = (it.subject, it.counts);
        if self.dice.strikes(subject, Fault::AckLost) {
            self.trace.tell("broker", format_args!("loses the acknowledgement"));
            return;
        }
        self.broker.copies[copy].gone = true;
        if counted {
            self.carrier_gone_of(subject);
        }
    }

    /// A worker wants it again, later.
    pub(crate) fn again(&mut self, copy: usize, after: Micros) {
        let it = &self.broker.copies[copy];
        if it.gone {
            return;
        }
        let (subject, deliveries) = (it.subject, it.deliveries);
        let pause = after.max(SECOND << deliveries.min(7));
        let at = self.now + pause + self.dice.between(subject, Site::Redeliver, 0, SECOND);
        self.queue.plan(at, Step::Redeliver { copy, delivery: deliveries });
    }

    pub(crate) fn redeliver(&mut self, copy: usize, delivery: u32) {
        if self.broker.copies[copy].deliveries == delivery {
            self.deliver(copy);
        }
    }

    /// Everything the broker had is gone, and for a while it takes nothing.
    pub(crate) fn wipe(&mut self) {
        self.trace.tell("broker", format_args!("loses everything, and is down"));
        for copy in 0..self.broker.copies.len() {
            self.lose(copy, "wiped");
        }
        self.broker.down_until = self.now + 45 * SECOND;
    }

    pub(crate) const fn broker_is_down(&self) -> bool {
        self.now < self.broker.down_until
    }

    pub(crate) fn is_retried_poison(&self) -> bool {
        self.mutant == Some(Mutant::PoisonRetried)
    }
}
