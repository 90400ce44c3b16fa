//! The invariants, checked after every step on what the step touched, and at the end on everything.

use crate::clock::{MINUTE, Micros, micros};
use crate::coverage;
use crate::projection::ReadModel;
use crate::store::{InboxKey, Map, Writes, evolve};
use crate::world::{Step, World};
use crate::{clock::HOUR, dice::Site, people::Act};
use domain::attempt;
use domain::id::{AccountId, AttemptId, TaskId, TenantId};
use domain::ledger;
use domain::message::{BadMessage, Message};
use domain::process::{Change, Folded, StreamId};
use domain::task::{self, State};
use std::collections::BTreeMap;
use uuid::Uuid;

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Violation {
    /// The invariant's name, as in the design.
    pub invariant: &'static str,
    /// What happened.
    pub text: String,
}

/// How long a task may be silent beyond the time its facts name: many times what the scan needs, outages included.
const SILENCE: Micros = 25 * MINUTE;

/// A consumer and a message, under whichever id it came.
type Origin = (u8, Uuid);

/// What is remembered about the run, from outside of the system.
#[derive(Default)]
pub(crate) struct Watch {
    /// What a message's inbox row promises since it is done: it must be in the facts before anybody acknowledges.
    marked: Map<InboxKey, Vec<(StreamId, i64)>>,
    /// Messages that are done, by where they came from.
    done: Map<Origin, ()>,
    owners: Map<StreamId, TenantId>,
    accounts: BTreeMap<AccountId, Books>,
    jobs: Map<String, AttemptId>,
    orphans: Map<String, AttemptId>,
    states: BTreeMap<TaskId, (State, Micros)>,
}

/// An account's books, kept from the postings alone.
#[derive(Default)]
struct Books {
    available: i64,
    granted: i64,
    charged: i64,
    grants: Vec<String>,
    open: Map<TaskId, i64>,
    /// What each closed hold was charged, less refunds.
    closed: Map<TaskId, i64>,
}

impl World {
    pub(crate) fn violate(&mut self, invariant: &'static str, text: String) {
        if self.violation.is_none() {
            self.trace.tell("VIOLATION", format_args!("{invariant}: {text}"));
            self.trace.close();
            self.violation = Some(Violation { invariant, text });
        }
    }

    // ------------------------------------------------------------------ deliveries

    /// A message's inbox row says "done": what its turn decided has to be in the facts.
    pub(crate) fn watch_marked(&mut self, key: InboxKey, decided: Vec<(StreamId, i64)>) {
        if !decided.is_empty() {
            self.watch.marked.insert(key, decided);
        }
    }

    pub(crate) fn watch_acknowledged(&mut self, key: InboxKey, decided: &[(StreamId, i64)]) {
        let mut promised = decided.iter().chain(self.watch.marked.get(&key).into_iter().flatten());
        let lost = promised.find(|(stream, version)| self.store.version(*stream) < *version).copied();
        if let Some((stream, version)) = lost {
            let text = format!("a message is acknowledged, and its event {stream} v{version} is not in the facts");
            self.violate("ack-after-commit", text);
        }
    }

    pub(crate) fn watch_callback(&mut self, attempt: AttemptId, job: &str) {
        let known = [&self.watch.jobs, &self.watch.orphans].iter().any(|it| it.get(job) == Some(&attempt));
        if !known {
            let text = format!("a callback told of {job}, which is neither the attempt's job nor an orphan");
            self.violate("one-winner", text);
        }
    }

    pub(crate) fn watch_quarantined(&mut self, copy: usize, bad: &BadMessage) {
        if !self.broker.copies[copy].bad {
            self.violate("poison-once", format!("a sound message went into quarantine: {bad}"));
        }
    }

    // ------------------------------------------------------------------ what is appended

    /// Looks at what is about to become durable, on the facts before it.
    pub(crate) fn watch_commit(&mut self, writes: &Writes, source: Option<(InboxKey, bool)>) {
        if let Some(((group, id), reacts)) = source {
            let origin = (group, self.store.outbox.row_of(id.0).map_or(id.0, |row| row.id));
            let changes = !writes.events.is_empty();
            if reacts && changes && self.watch.done.contains_key(&origin) {
                let text = format!("message {} has a second effect", self.name(origin.1));
                self.violate("effect-once", text);
            }
            if matches!(writes.inbox, Some((_, Some("applied")))) {
                self.watch.done.insert(origin, ());
            }
        }
        let mut folded: Vec<(StreamId, Folded)> = Vec::with_capacity(3);
        let mut canceled = Vec::new();
        for (stream, version, change) in &writes.events {
            let at = match folded.iter().position(|it| it.0 == *stream) {
                Some(at) => at,
                None => {
                    let now = self.store.folded(*stream).cloned().unwrap_or_else(|| Folded::absent(stream.category));
                    folded.push((*stream, now));
                    folded.len() - 1
                }
            };
            let before = folded[at].1.clone();
            if before.version() + 1 != *version {
                let text = format!("version {version} was appended to {stream}, which is at {}", before.version());
                self.violate("gapless-stream", text);
            }
            let Some(after) = evolve(before.clone(), *version, change) else {
                let text = format!("version {version} of {stream} does not follow from what is before it: {change:?}");
                return self.violate("gapless-stream", text);
            };
            self.coverage.count(coverage::step(&before, &after, change));
            self.watch_event(&before, &after, change, writes);
            folded[at].1 = after;
            canceled
                .extend(matches!(change, Change::Task(_, task::Event::Canceled { .. })).then_some((before, change)));
        }
        for (before, change) in canceled {
            self.watch_canceled(&folded, &before, change);
        }
    }

    fn watch_event(&mut self, before: &Folded, after: &Folded, change: &Change, writes: &Writes) {
        match (before, after, change) {
            (Folded::Task(before), Folded::Task(after), Change::Task(id, event)) => {
                let (from, to) = (before.state.state(), after.state.state());
                self.watch_task(*id, after.version, from, to, event, writes);
            }
            (Folded::Attempt(before), Folded::Attempt(after), Change::Attempt(id, event)) => {
                let task = after.state.core().map(|it| it.task);
                self.watch_claim(*id, before.state.state(), event);
                self.watch_attempt(*id, task, event, writes);
            }
            (_, Folded::Account(after), Change::Account(id, event)) => {
                let told = after.state.available.0;
                self.watch_account(*id, event, told, writes);
            }
            _ => {}
        }
        let (now, hash) = (self.now, change.stream().id);
        let subject = match change {
            Change::Task(id, _) => self.subjects.get(id).copied(),
            Change::Attempt(..) | Change::Account(..) => self.attempts.get(&AttemptId(hash)).copied(),
        };
        if let Some(life) = subject.and_then(|it| self.lives.get_mut(&it)) {
            life.last_event = now;
        }
    }

    fn watch_task(&mut self, id: TaskId, version: i64, from: State, to: State, event: &task::Event, writes: &Writes) {
        let subject = self.subject_of(id);
        if self.trace.is_recorded() {
            self.trace.tell("facts", format_args!("task {subject}: {} -> {} v{version}", from.name(), to.name()));
        }
        if from.is_terminal() {
            self.violate("terminal-is-terminal", format!("task {subject} left {} by {event:?}", from.name()));
        }
        let told = writes
            .outbox
            .iter()
            .any(|it| matches!(it.message, Message::StateChanged(about) if about.task_version == version));
        if to != from && to.is_news() && !told {
            self.violate("no-lost-message", format!("{event:?} was recorded without the message that announces it"));
        }
        self.watch.states.insert(id, (to, micros(writes.at)));
        match event {
            task::Event::Submitted { order } => self.watch_submitted(subject, id, order),
            task::Event::FetchBegun { .. } => {
                let attempt = writes.events.iter().find_map(|(_, _, it)| match it {
                    Change::Attempt(id, attempt::Event::Succeeded { .. }) => Some(*id),
                    _ => None,
                });
                let before = self.lives.get_mut(&subject).and_then(|it| std::mem::replace(&mut it.winner, attempt));
                if before.is_some() {
                    self.violate("one-winner", format!("two attempts deliver task {subject}"));
                }
            }
            task::Event::ReviewRequested { .. } => {
                let at = self.now + self.dice.between(subject, Site::Operator, HOUR, 4 * HOUR);
                self.queue.plan(at, Step::Person { subject, act: Act::Resolve { task: id } });
            }
            _ => {}
        }
        self.watch_owner(StreamId::task(id), writes);
    }

    /// A task is cancelled for good only when nothing runs and nothing will come.
    fn watch_canceled(&mut self, folded: &[(StreamId, Folded)], before: &Folded, change: &Change) {
        let (Folded::Task(task), Change::Task(id, task::Event::Canceled { .. })) = (before, change) else { return };
        let Some(attempt) = task.state.live().map(task::Live::attempt) else { return };
        let stream = StreamId::attempt(attempt);
        let now = folded.iter().find(|it| it.0 == stream).map(|it| &it.1).or_else(|| self.store.folded(stream));
        let Some(Folded::Attempt(it)) = now else { return };
        if matches!(it.state.state(), attempt::State::Submitting | attempt::State::Unclear | attempt::State::Running) {
            let text = format!(
                "task {} is cancelled for good while its attempt is {}",
                self.subject_of(*id),
                it.state.state().name()
            );
            self.violate("one-winner", text);
        }
    }

    fn watch_submitted(&mut self, subject: u32, id: TaskId, order: &task::Order) {
        self.watch.owners.insert(StreamId::task(id), order.tenant);
        let Some(life) = self.lives.get_mut(&subject) else { return };
        life.created.push(id);
        if life.created.len() > 1 {
            let text = format!("the key of task {subject} led to {} tasks", life.created.len());
            self.violate("one-task-per-key", text);
        }
    }

    fn watch_owner(&mut self, stream: StreamId, writes: &Writes) {
        if let (Some(owner), Some(tenant)) = (self.watch.owners.get(&stream), writes.tenant)
            && *owner != tenant
        {
            self.violate("tenant-wall", format!("{stream} was changed in the name of another tenant"));
        }
    }

    /// Where the facts say that nothing was created, the provider must have created nothing.
    fn watch_claim(&mut self, id: AttemptId, from: attempt::State, event: &attempt::Event) {
        let was_asked = matches!(from, attempt::State::Submitting | attempt::State::Unclear);
        let denies = matches!(event, attempt::Event::Deferred { .. } | attempt::Event::Failed { .. });
        if was_asked && denies && self.providers.has_job_in_time(id) {
            let text = format!("{event:?} says that nothing was created, and the provider has a job");
            self.violate("no-blind-resubmit", text);
        }
    }

    fn watch_attempt(&mut self, id: AttemptId, task: Option<TaskId>, event: &attempt::Event, writes: &Writes) {
        use attempt::Event as It;
        if let It::Planned { task, number, .. } = event {
            let subject = self.subject_of(*task);
            self.watch_next_attempt(*task, *number);
            self.attempts.insert(id, subject);
            if let Some(owner) = self.watch.owners.get(&StreamId::task(*task)).copied() {
                self.watch.owners.insert(StreamId::attempt(id), owner);
            }
        }
        if self.trace.is_recorded() {
            let subject = task.map_or(0, |it| self.subject_of(it));
            self.trace.tell("facts", format_args!("attempt of task {subject}: {event:?}"));
        }
        match event {
            It::Accepted { job, .. } => {
                self.watch.jobs.insert(job.clone(), id);
            }
            It::OrphanRecorded { job } => {
                if self.watch.jobs.get(job) == Some(&id) {
                    self.violate("one-winner", format!("{job} is the attempt's own job, and recorded as an orphan"));
                }
                self.watch.orphans.insert(job.clone(), id);
            }
            _ => {}
        }
        self.watch_owner(StreamId::attempt(id), writes);
    }

    /// A new attempt is made only when the one before it is over.
    fn watch_next_attempt(&mut self, task: TaskId, number: u32) {
        let before = AttemptId::of(task, number.saturating_sub(1));
        let Some(Folded::Attempt(it)) = self.store.folded(StreamId::attempt(before)) else { return };
        let state = it.state.state();
        if !matches!(state, attempt::State::Failed | attempt::State::Canceled | attempt::State::GivenUp) {
            let text = format!(
                "attempt {number} of task {} begins while the one before is {}",
                self.subject_of(task),
                state.name()
            );
            self.violate("one-winner", text);
        }
    }

    fn watch_account(&mut self, id: AccountId, event: &ledger::Event, told: i64, writes: &Writes) {
        use ledger::Event as It;
        if self.trace.is_recorded() {
            self.trace.tell("facts", format_args!("account: {event:?}"));
        }
        let books = self.watch.accounts.entry(id).or_default();
        let fault = match event {
            It::Granted { key, amount } => {
                let twice = books.grants.contains(key);
                books.grants.push(key.clone());
                books.available += amount.0;
                books.granted += amount.0;
                twice.then(|| format!("grant {key} is posted twice"))
            }
            It::Held { task, amount, .. } => {
                let twice = books.open.insert(*task, amount.0).is_some() || books.closed.contains_key(task);
                books.available -= amount.0;
                twice.then(|| format!("credits are held twice for task {task}"))
            }
            It::Settled { task, charged, released } => books.close(*task, charged.0, released.0),
            It::Released { task, released } | It::HoldExpired { task, released, .. } => {
                books.close(*task, 0, released.0)
            }
            It::Refunded { task, key, amount, .. } => books.refund(*task, key, amount.0),
            It::Adjusted { key, amount, .. } => {
                let twice = books.grants.contains(key);
                books.grants.push(key.clone());
                books.available += amount.0;
                books.granted += amount.0;
                twice.then(|| format!("adjustment {key} is posted twice"))
            }
        };
        let (available, owner) = (books.available, TenantId(id.0));
        if let Some(text) = fault {
            return self.violate("conserved-credits", text);
        }
        if available < 0 || available != told {
            let text = format!("the postings leave {available} credits, the account says {told}");
            return self.violate("conserved-credits", text);
        }
        if writes.tenant.is_some_and(|it| it != owner) {
            self.violate("tenant-wall", "an account was changed in the name of another tenant".to_owned());
        }
    }

    // ------------------------------------------------------------------ silence

    pub(crate) fn taint(&mut self, subject: u32) {
        if let Some(life) = self.lives.get_mut(&subject) {
            life.tainted = true;
        }
    }

    pub(crate) fn carrier_new(&mut self, subject: u32) {
        if let Some(life) = self.lives.get_mut(&subject) {
            life.carriers += 1;
        }
    }

    pub(crate) fn carrier_gone(&mut self, task: TaskId) {
        let subject = self.subject_of(task);
        self.carrier_gone_of(subject);
    }

    /// One message less that will come to the task. If it was the last, and none was lost, the task must be at rest.
    pub(crate) fn carrier_gone_of(&mut self, subject: u32) {
        let Some(life) = self.lives.get_mut(&subject) else { return };
        life.carriers -= 1;
        if life.carriers > 0 || life.tainted {
            return;
        }
        let Some(task) = life.created.first().copied() else { return };
        if let Some(waits) = self.waits_for(task) {
            let text = format!("task {subject} waits for {waits}, no message of it was lost, and none is on its way");
            self.violate("no-silent-stall", text);
        }
    }

    /// What a task waits for that only the machine can bring.
    fn waits_for(&self, task: TaskId) -> Option<&'static str> {
        let Some(Folded::Task(it)) = self.store.folded(StreamId::task(task)) else { return None };
        let state = it.state.state();
        if state == State::ManualReview {
            return None;
        }
        if !state.is_terminal() {
            return Some(state.name());
        }
        let order = it.state.order()?;
        match self.store.folded(StreamId::account(order.account)) {
            Some(Folded::Account(books)) if matches!(books.state.hold(task), Some(ledger::Hold::Open(_))) => {
                Some("its settlement")
            }
            _ => None,
        }
    }

    /// Looks at tasks that have not been heard of for long.
    pub(crate) fn inspect(&mut self) {
        let now = self.now;
        let mut active = false;
        for subject in self.lives.keys().copied().collect::<Vec<_>>() {
            let Some(life) = self.lives.get(&subject) else { continue };
            let Some(task) = life.created.first().copied() else {
                active |= !life.refused;
                continue;
            };
            let (event, repair) = (life.last_event, life.last_repair);
            let Some(waits) = self.waits_for(task) else {
                active |= !self.is_at_end(task);
                continue;
            };
            active = true;
            let due = self.read.tasks.get(&task).and_then(|row| row.wake_at).unwrap_or(0);
            if now > event.max(repair).max(due) + SILENCE {
                let text = format!("task {subject} waits for {waits} since long, and nobody has looked at it");
                return self.violate("no-silent-stall", text);
            }
        }
        self.is_quiet = !active;
        self.queue.plan(now + 5 * MINUTE, Step::Inspect);
    }

    fn is_at_end(&self, task: TaskId) -> bool {
        self.watch.states.get(&task).is_some_and(|(state, _)| state.is_terminal())
    }

    // ------------------------------------------------------------------ the end

    /// Everything has come to rest: what must be true then.
    pub(crate) fn watch_end(&mut self) {
        for subject in self.lives.keys().copied().collect::<Vec<_>>() {
            let Some(life) = self.lives.get(&subject) else { continue };
            match life.created.first().copied() {
                Some(task) if !self.is_at_end(task) || self.waits_for(task).is_some() => {
                    let state = self.watch.states.get(&task).map_or("nothing", |it| it.0.name());
                    self.violate(
                        "no-silent-stall",
                        format!("task {subject} ends in {state}, with its hold open or no end"),
                    );
                }
                None if !life.refused => {
                    self.violate("no-silent-stall", format!("the user of task {subject} was never answered"));
                }
                _ => {}
            }
        }
        let unsent = self.store.outbox.unsent().next().map(|row| row.id);
        if let Some(id) = unsent {
            let text = format!("message {} was never sent", self.name(id));
            self.violate("no-lost-message", text);
        }
        self.watch_books();
        self.watch_replay();
    }

    fn watch_books(&mut self) {
        let broken = self.watch.accounts.values().find_map(|it| {
            let open: i64 = it.granted - it.charged - it.available;
            (open != 0).then_some(open)
        });
        if let Some(open) = broken {
            self.violate("conserved-credits", format!("{open} credits are still held when everything has ended"));
        }
    }

    fn watch_replay(&mut self) {
        let mut rebuilt = ReadModel::default();
        let last = self.store.last_position();
        let mut fault = None;
        for (_, event) in self.store.events(0, last) {
            fault = rebuilt.fold(event).err();
            if fault.is_some() {
                break;
            }
        }
        if let Some(text) = fault.or_else(|| self.read.difference(&rebuilt)) {
            return self.violate("replayable", text);
        }
        let wrong = rebuilt.tasks.iter().find_map(|(id, row)| {
            let state = self.watch.states.get(id).map(|it| it.0.name());
            (state != Some(row.state))
                .then(|| format!("the read model says {} where the facts say {state:?}", row.state))
        });
        if let Some(text) = wrong {
            self.violate("replayable", text);
        }
    }
}

impl Books {
    fn refund(&mut self, task: TaskId, key: &str, amount: i64) -> Option<String> {
        self.available += amount;
        self.charged -= amount;
        if self.grants.iter().any(|it| it == key) {
            return Some(format!("refund {key} is posted twice"));
        }
        self.grants.push(key.to_owned());
        let left = self.closed.entry(task).or_default();
        *left -= amount;
        (*left < 0).then(|| format!("more is refunded to task {task} than it was charged"))
    }

    fn close(&mut self, task: TaskId, charged: i64, released: i64) -> Option<String> {
        self.charged += charged;
        self.available += released;
        let open = self.open.remove(&task);
        let twice = self.closed.insert(task, charged).is_some();
        if twice {
            return Some(format!("the hold of task {task} is closed twice"));
        }
        (open != Some(charged + released))
            .then(|| format!("{charged} charged and {released} freed of {open:?} held for task {task}"))
    }
}
