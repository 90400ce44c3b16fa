//! Handling a delivery, step by step, in the order of `eventstore::consume`: claim the inbox row, read, decide, append | commit |
//! call outside | conclude in another transaction | acknowledge. Between any two steps the process may die or sleep.

use crate::clock::{MILLI, Micros, SECOND, instant};
use crate::dice::{Fault, Site, Subject};
use crate::mutants::Mutant;
use crate::provider::Kind;
use crate::store::{InboxKey, Lock, Refused, TxId, Writes};
use crate::world::{Step, World};
use domain::message::{BadMessage, Envelope, Message};
use domain::outcome::{Answer, Call, Created, Found, Polled};
use domain::process::{Case, CaseKey, Entry, MANAGERS, Next, StreamId, Turn, Why, admit, read};
use std::time::Duration;

/// How often one step is tried when others win, how often the record of a call is, and the most steps of a message: as in
/// `eventstore::consume`.
const ROUNDS: u32 = 12;
const RECORD_TRIES: u32 = 12;
const STEPS: u32 = 16;
/// The longest an ask may take.
const ASK: Micros = 30 * SECOND;

/// What happens next to a handling.
#[derive(Debug)]
pub(crate) enum Phase {
    Begin,
    Commit,
    Leave,
    Heard(Box<Answer>),
    Acknowledge,
}

/// What a committed turn asks for.
#[derive(Clone, Debug)]
pub(crate) enum After {
    Finished(&'static str),
    Again,
    Call(Call),
}

enum Work {
    React,
    Conclude(Box<(Call, Answer)>),
}

/// A delivery that a worker has in hand.
pub(crate) struct Handling {
    copy: usize,
    group: u8,
    process: u8,
    epoch: u32,
    envelope: Envelope,
    message: Message,
    subject: Subject,
    work: Work,
    lost: u32,
    unreachable: u32,
    steps: u32,
    tx: Option<TxId>,
    prepared: Option<(Writes, After)>,
    /// What its last turn decided, where that ends the message.
    decided: Vec<(StreamId, i64)>,
    outcome: &'static str,
    /// When the turn that asked for a call was begun: its budget counts from there.
    begun: Micros,
    call: Option<(Call, Kind)>,
}

impl Handling {
    pub(crate) fn inbox_key(&self) -> InboxKey {
        (self.group, self.envelope.event_id)
    }
}

impl World {
    /// A worker takes a delivery.
    pub(crate) fn handle_delivery(&mut self, copy: usize, process: u8) {
        let it = &self.broker.copies[copy];
        let (group, subject) = (it.group, it.subject);
        match read(&it.body) {
            Ok((envelope, message)) => {
                let handling = Handling {
                    copy,
                    group,
                    process,
                    epoch: self.epoch(process),
                    envelope,
                    message,
                    subject,
                    work: Work::React,
                    lost: 0,
                    unreachable: 0,
                    steps: 0,
                    tx: None,
                    prepared: None,
                    decided: Vec::new(),
                    outcome: "",
                    begun: self.now,
                    call: None,
                };
                if self.broker.copies[copy].counts {
                    self.carrier_new(subject);
                }
                let index = self.new_handling(handling);
                let pause = self.think(subject);
                self.go_on(index, pause, Phase::Begin);
            }
            Err(bad) => self.quarantine(copy, group, process, &bad),
        }
    }

    fn new_handling(&mut self, handling: Handling) -> usize {
        if let Some(index) = self.free_handlings.pop() {
            self.handlings[index] = Some(handling);
            index
        } else {
            self.handlings.push(Some(handling));
            self.handlings.len() - 1
        }
    }

    fn think(&mut self, subject: Subject) -> Micros {
        self.dice.between(subject, Site::Think, 200, 8 * MILLI)
    }

    fn go_on(&mut self, index: usize, after: Micros, phase: Phase) {
        if let Some(it) = &self.handlings[index] {
            let (process, epoch) = (it.process, it.epoch);
            self.queue.plan(self.now + after, Step::Handle { index, process, epoch, phase });
        }
    }

    pub(crate) fn handle(&mut self, index: usize, phase: Phase) {
        match phase {
            Phase::Begin => self.begin_step(index),
            Phase::Commit => self.commit_step(index),
            Phase::Leave => self.leave(index),
            Phase::Heard(answer) => self.heard(index, *answer),
            Phase::Acknowledge => self.finish(index),
        }
    }

    fn hand(&mut self, index: usize) -> &mut Handling {
        self.handlings[index].as_mut().expect("a step is planned for a handling that goes on")
    }

    // ------------------------------------------------------------------ the transaction

    fn begin_step(&mut self, index: usize) {
        let subject = self.hand(index).subject;
        if self.database_is_down() || self.dice.strikes(subject, Fault::BeginFails) {
            return self.database_failed(index);
        }
        let key = self.hand(index).inbox_key();
        let tx = self.store.begin(self.now);
        let now = self.now;
        if !self.store.lock(tx, Lock::Inbox(key), now) {
            self.store.rollback(tx);
            let pause = self.dice.between(subject, Site::Retry, 50 * MILLI, 500 * MILLI);
            return self.go_on(index, pause, Phase::Begin);
        }
        let known = self.store.done(key).is_some() && self.mutant != Some(Mutant::InboxKeyMissing);
        if known && matches!(self.hand(index).work, Work::React) {
            self.store.rollback(tx);
            return self.finished(index, "duplicate");
        }
        if let Some(case) = self.read_case(index, tx) {
            self.decide(index, tx, key, case);
        }
    }

    /// Reads the facts that a message is about; `None`: it does not fit them, and is in quarantine.
    fn read_case(&mut self, index: usize, tx: TxId) -> Option<Case> {
        let hand = self.handlings[index].as_ref()?;
        let manager = MANAGERS[usize::from(hand.group)];
        let asked = if let Work::Conclude(asked) = &hand.work { Some(&asked.0) } else { None };
        let case_key = CaseKey::step(&hand.message, asked, manager.needs_account());
        let case = self.store.load(Case::begin(case_key));
        let admitted = admit(&hand.envelope, &hand.message, &case);
        let blind = matches!(admitted, Err(BadMessage::TenantMismatch { .. }))
            && self.mutant == Some(Mutant::MessageTenantUnchecked);
        if let Err(bad) = admitted
            && !blind
        {
            self.store.rollback(tx);
            let (copy, group, process) = (hand.copy, hand.group, hand.process);
            self.drop_handling(index);
            self.quarantine(copy, group, process, &bad);
            return None;
        }
        Some(case)
    }

    fn decide(&mut self, index: usize, tx: TxId, key: InboxKey, case: Case) {
        let at = instant(self.now);
        let hand = self.handlings[index].as_mut().expect("it goes on");
        let manager = MANAGERS[usize::from(hand.group)];
        let kind = case.task.state.order().map_or(Kind::Nothing, |it| Kind::of(&it.provider));
        let wanted = match &hand.work {
            Work::React => manager.needs_slot(&hand.message, &case, at),
            Work::Conclude(_) => None,
        };
        let full = wanted.is_some() && self.dice.strikes(hand.subject, Fault::NoSlot);
        let mut turn = Turn::new(case, at, &self.policy);
        if full {
            // The word that would come first when a slot is free is not simulated: what is waited for is the last resort.
            turn.entry = Some(Entry::Wait { after: Duration::from_secs(60), why: Why::Provider });
        }
        let next = match &hand.work {
            Work::React => manager.react(&hand.message, &mut turn),
            Work::Conclude(asked) => manager.conclude(&hand.message, &asked.0, asked.1.clone(), &mut turn),
        };
        let (mut writes, after) = match next {
            Err(declined) => {
                let writes = Writes { inbox: Some((key, Some("declined"))), at, ..Writes::default() };
                if self.trace.is_recorded() {
                    let text = format!("declines {}: {declined}", self.names.of(hand.envelope.event_id.0));
                    self.trace.tell(self.processes[usize::from(hand.process)].name, format_args!("{text}"));
                }
                (writes, After::Finished("declined"))
            }
            Ok(Next::Retry(cause)) => {
                self.store.rollback(tx);
                return self.give_up(index, 5 * SECOND, &cause);
            }
            Ok(next) => {
                let (tenant, cause) = (hand.envelope.tenant_id, hand.envelope.event_id.0);
                let mut writes = Writes::of(turn, tenant, cause, at);
                let (mark, after) = match next {
                    Next::Done | Next::Retry(_) => (Some("applied"), After::Finished("applied")),
                    Next::Again => (None, After::Again),
                    Next::Call(call) => (None, After::Call(call)),
                };
                writes.inbox = Some((key, mark));
                hand.call = None;
                if let After::Call(call) = &after {
                    hand.call = Some((call.clone(), kind));
                }
                (writes, after)
            }
        };
        hand.begun = self.now;
        self.prepare(index, tx, &mut writes, after);
    }

    fn prepare(&mut self, index: usize, tx: TxId, writes: &mut Writes, after: After) {
        let key = self.hand(index).inbox_key();
        let ends = matches!(after, After::Finished(_));
        self.hand(index).decided =
            if ends { writes.events.iter().map(|it| (it.0, it.1)).collect() } else { Vec::new() };
        if self.mutant == Some(Mutant::InboxInAnotherTransaction)
            && let Some((_, mark @ Some(_))) = writes.inbox
        {
            let alone = Writes { inbox: Some((key, mark)), at: writes.at, ..Writes::default() };
            let other = self.store.begin(self.now);
            let done = self.commit(other, &alone, None);
            debug_assert!(done.is_ok());
            let decided = self.hand(index).decided.clone();
            self.watch_marked(key, decided);
            writes.inbox = None;
        }
        self.store.append(tx, writes);
        if self.mutant == Some(Mutant::AckBeforeCommit) && matches!(after, After::Finished(_)) {
            let (copy, decided) = (self.hand(index).copy, self.hand(index).decided.clone());
            self.watch_acknowledged(key, &decided);
            self.acknowledge(copy);
        }
        let writes = std::mem::take(writes);
        let hand = self.hand(index);
        hand.tx = Some(tx);
        hand.prepared = Some((writes, after));
        let subject = hand.subject;
        let pause = self.think(subject);
        self.go_on(index, pause, Phase::Commit);
    }

    fn commit_step(&mut self, index: usize) {
        let hand = self.hand(index);
        let (Some(tx), Some((writes, after))) = (hand.tx.take(), hand.prepared.take()) else { return };
        let subject = hand.subject;
        let source = Some((hand.inbox_key(), matches!(hand.work, Work::React)));
        if self.dice.strikes(subject, Fault::Serialization) {
            self.store.rollback(tx);
            return self.lost_race(index);
        }
        if self.database_is_down() || self.dice.strikes(subject, Fault::CommitLostUndone) {
            self.store.rollback(tx);
            return self.database_failed(index);
        }
        match self.commit(tx, &writes, source) {
            Err(Refused::Race) => self.lost_race(index),
            Err(Refused::Gone) => self.database_failed(index),
            Ok(()) if self.dice.strikes(subject, Fault::CommitLostDone) => {
                self.trace.tell("database", format_args!("commits, and the answer is lost"));
                self.taint(subject);
                self.database_failed(index);
            }
            Ok(()) => {
                let (key, decided) = (self.hand(index).inbox_key(), self.hand(index).decided.clone());
                if writes.inbox.is_some_and(|it| it.1.is_some()) {
                    self.watch_marked(key, decided);
                }
                self.turned(index, after);
            }
        }
    }

    fn turned(&mut self, index: usize, after: After) {
        let hand = self.hand(index);
        hand.lost = 0;
        hand.unreachable = 0;
        hand.steps += 1;
        if hand.steps > STEPS {
            return self.give_up(index, 5 * SECOND, "it goes in circles");
        }
        match after {
            After::Finished(outcome) => self.finished(index, outcome),
            After::Again => {
                hand.work = Work::React;
                let subject = hand.subject;
                let pause = self.think(subject);
                self.go_on(index, pause, Phase::Begin);
            }
            After::Call(_) => {
                let (subject, process) = (hand.subject, hand.process);
                if self.dice.strikes(subject, Fault::Nap) {
                    self.nap(process);
                }
                let pause = self.think(subject);
                self.go_on(index, pause, Phase::Leave);
            }
        }
    }

    fn lost_race(&mut self, index: usize) {
        let hand = self.hand(index);
        hand.lost += 1;
        let (lost, subject) = (hand.lost, hand.subject);
        if lost >= ROUNDS {
            return self.give_up(index, SECOND, "others were first too often");
        }
        let pause = (5 * MILLI) << lost.min(6);
        let pause = self.dice.between(subject, Site::Retry, pause / 2, pause);
        self.go_on(index, pause, Phase::Begin);
    }

    fn database_failed(&mut self, index: usize) {
        let hand = self.hand(index);
        hand.unreachable += 1;
        let (tries, subject) = (hand.unreachable, hand.subject);
        if matches!(hand.work, Work::React) || tries >= RECORD_TRIES {
            return self.give_up(index, 5 * SECOND, "the database could not be used");
        }
        let pause = (50 * MILLI) << tries.min(6);
        let pause = self.dice.between(subject, Site::Retry, pause / 2, pause);
        self.go_on(index, pause, Phase::Begin);
    }

    // ------------------------------------------------------------------ the call

    /// The request leaves, if its time is not over.
    fn leave(&mut self, index: usize) {
        let hand = self.hand(index);
        let Some((call, kind)) = hand.call.clone() else { return };
        let (subject, since, name) = (hand.subject, self.now - self.hand(index).begun, self.worker_of(index));
        self.trace.tell(name, format_args!("calls {call:?}"));
        let not_sent = |cause: &str| Answer::Created(Created::NotSent { cause: cause.to_owned() });
        if let Call::Create { timeout, .. } = &call {
            let budget = u64::try_from(timeout.as_micros()).unwrap_or(Micros::MAX);
            // Past it others may take the answer for lost: nothing may leave any more.
            if since >= budget && self.mutant != Some(Mutant::LateRequestLeaves) {
                return self.go_on(index, MILLI, Phase::Heard(Box::new(not_sent("preparing took too long"))));
            }
            if self.dice.strikes(subject, Fault::NotSent) {
                return self.go_on(index, MILLI, Phase::Heard(Box::new(not_sent("connection refused"))));
            }
        }
        let travel = self.dice.between(subject, Site::Network, MILLI, 400 * MILLI);
        let (process, epoch) = (self.hand(index).process, self.hand(index).epoch);
        self.queue.plan(self.now + travel, Step::Arrive { index, process, epoch, subject, kind, call: Box::new(call) });
    }

    fn worker_of(&self, index: usize) -> &'static str {
        self.handlings[index].as_ref().map_or("?", |it| self.processes[usize::from(it.process)].name)
    }

    /// A request is at the provider, whatever became of who sent it.
    pub(crate) fn arrive(&mut self, index: usize, process: u8, epoch: u32, subject: Subject, kind: Kind, call: &Call) {
        if matches!(call, Call::Process { .. }) && self.has_curse(subject, Fault::KillsWorker) {
            return self.kill_again(process, epoch);
        }
        let (answer, pause) = self.answer(subject, kind, call);
        let (answer, pause) = match call {
            Call::Create { timeout, .. } => {
                let budget = u64::try_from(timeout.as_micros()).unwrap_or(Micros::MAX);
                if pause < budget { (answer, pause) } else { (no_answer(call), budget) }
            }
            _ if pause == Micros::MAX => (no_answer(call), ASK),
            _ => (answer, pause),
        };
        self.queue
            .plan(self.now + pause, Step::Handle { index, process, epoch, phase: Phase::Heard(Box::new(answer)) });
    }

    fn heard(&mut self, index: usize, answer: Answer) {
        let name = self.worker_of(index);
        self.trace.tell(name, format_args!("hears {answer:?}"));
        let (subject, process) = (self.hand(index).subject, self.hand(index).process);
        let no = matches!(
            answer,
            Answer::Created(
                Created::Rejected(_)
                    | Created::Throttled { .. }
                    | Created::Unavailable { .. }
                    | Created::NotSent { .. }
            )
        );
        let nap = self.dice.strikes(subject, Fault::NapWithAnswer);
        if nap || (no && self.dice.strikes(subject, Fault::NapWithNo)) {
            self.nap(process);
            return self.go_on(index, MILLI, Phase::Heard(Box::new(answer)));
        }
        let hand = self.hand(index);
        let Some((call, _)) = hand.call.clone() else { return };
        hand.work = Work::Conclude(Box::new((call, answer)));
        self.begin_step(index);
    }

    // ------------------------------------------------------------------ the end

    fn finished(&mut self, index: usize, outcome: &'static str) {
        let hand = self.hand(index);
        hand.outcome = outcome;
        if outcome != "applied" {
            hand.decided.clear();
        }
        let subject = hand.subject;
        let pause = self.think(subject);
        self.go_on(index, pause, Phase::Acknowledge);
    }

    fn finish(&mut self, index: usize) {
        let hand = self.hand(index);
        let (copy, key, outcome) = (hand.copy, hand.inbox_key(), hand.outcome);
        let callback = match &hand.message {
            Message::CallbackReceived(it) if outcome == "applied" || outcome == "declined" => {
                Some((it.attempt_id, it.job.clone()))
            }
            _ => None,
        };
        let decided = std::mem::take(&mut hand.decided);
        self.drop_handling(index);
        self.watch_acknowledged(key, &decided);
        if let Some((attempt, job)) = callback {
            self.watch_callback(attempt, &job);
        }
        self.acknowledge(copy);
    }

    fn give_up(&mut self, index: usize, after: Micros, cause: &str) {
        let hand = self.hand(index);
        let (copy, subject) = (hand.copy, hand.subject);
        let name = self.worker_of(index);
        self.trace.tell(name, format_args!("gives back the message: {cause}"));
        self.taint(subject);
        self.drop_handling(index);
        self.again(copy, after);
    }

    fn drop_handling(&mut self, index: usize) {
        let Some(hand) = self.handlings[index].take() else { return };
        if let Some(tx) = hand.tx {
            self.store.rollback(tx);
        }
        self.free_handlings.push(index);
        if self.broker.copies[hand.copy].counts {
            self.carrier_gone_of(hand.subject);
        }
    }

    /// The process died: what it had in hand is gone, and the server rolls back.
    pub(crate) fn drop_handlings(&mut self, process: u8) {
        for index in 0..self.handlings.len() {
            if self.handlings[index].as_ref().is_some_and(|it| it.process == process) {
                let subject = self.handlings[index].as_ref().map_or(0, |it| it.subject);
                self.taint(subject);
                self.drop_handling(index);
            }
        }
    }

    /// A message that can never be handled: one row, acknowledged.
    fn quarantine(&mut self, copy: usize, group: u8, process: u8, bad: &BadMessage) {
        let name = self.processes[usize::from(process)].name;
        let subject = self.broker.copies[copy].subject;
        if self.is_retried_poison() || self.database_is_down() || self.dice.strikes(subject, Fault::BeginFails) {
            return self.again(copy, 5 * SECOND);
        }
        self.trace.tell(name, format_args!("puts a message into quarantine: {bad}"));
        let mut hash = crate::trace::Trace::new(false);
        hash.mark(&self.broker.copies[copy].body);
        self.watch_quarantined(copy, bad);
        let tx = self.store.begin(self.now);
        let writes = Writes { quarantine: Some((group, hash.hash())), at: instant(self.now), ..Writes::default() };
        if self.commit(tx, &writes, None).is_ok() {
            self.acknowledge(copy);
        }
    }
}

/// What the caller makes of silence.
fn no_answer(call: &Call) -> Answer {
    let cause = "no answer in time".to_owned();
    match call {
        Call::Create { .. } => Answer::Created(Created::Unknown { cause }),
        Call::Find { .. } => Answer::Found(Found::Inconclusive { cause }),
        Call::Poll { .. } => Answer::Polled(Polled::Unavailable { cause, retry_after: None }),
        Call::Cancel { .. } => Answer::CancelAsked(domain::outcome::CancelAsked::Unknown),
        Call::Fetch { .. } => Answer::Fetched(domain::outcome::Fetched::NotNow { cause }),
        Call::Process { .. } => Answer::Processed(domain::outcome::Processed::NotNow { cause }),
        Call::Render { .. } => Answer::Rendered(domain::outcome::Rendered::NotNow { cause }),
    }
}
