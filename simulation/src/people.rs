//! Users, who submit (again, twice at once, with another body), cancel at any moment, order exports, try again and go away without
//! an answer; operators, who replay messages, resolve reviews, refund and adjust.

use crate::api::Ask;
use crate::clock::{HOUR, MILLI, MINUTE, Micros, SECOND, instant};
use crate::dice::{Fault, PROCESSES, Site, Subject};
use crate::provider::Kind;
use crate::store::{NewRow, Writes};
use crate::world::{Step, World};
use domain::id::{AttemptId, TaskId, TenantId, derived};
use domain::money::Credits;
use domain::process::{Folded, StreamId};
use domain::task::{State, Task};
use uuid::Uuid;

/// What a user wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Generate,
    Export { source: TaskId, source_key: String },
    Retry { old: TaskId },
}

/// What is planned for one task, and what became of it.
pub(crate) struct Life {
    pub(crate) tenant: TenantId,
    pub(crate) kind: Kind,
    pub(crate) key: String,
    pub(crate) wish: Wish,
    /// The task that the user was told of.
    pub(crate) task: Option<TaskId>,
    /// The answer was a no: there is no task.
    pub(crate) refused: bool,
    requests: u32,
    /// Every task that was created under the user's key.
    pub(crate) created: Vec<TaskId>,
    /// Messages that will come to the task by themselves, and handlings of them.
    pub(crate) carriers: i32,
    /// Some of them were lost by a fault: only the scan helps.
    pub(crate) tainted: bool,
    pub(crate) last_event: Micros,
    pub(crate) last_repair: Micros,
    pub(crate) winner: Option<AttemptId>,
    /// Faults that never end for this task.
    curses: Vec<Fault>,
}

/// What a person does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Submit { body: u64 },
    Check,
    Cancel,
    Foreign,
    Export,
    Retry,
    RetryNow,
    Replay { new: bool },
    Resolve { task: TaskId },
    Sweep { task: TaskId },
    Refund,
    Grant { tenant: u32 },
    Adjust { tenant: u32 },
}

const TENANTS: u64 = 3;
/// Task 7's export is task 1007, and another try of it is task 2007: so there are at most so many planned tasks in a world.
pub(crate) const FAMILY: u32 = 1_000;
/// Subjects of what is done for a tenant.
const TENANT_SUBJECTS: Subject = PROCESSES + 20;

/// Faults that never end for the task that has them.
const CURSES: [Fault; 6] = [
    Fault::NeverTaken,
    Fault::NeverReady,
    Fault::NeverProcessed,
    Fault::NeverThumbnail,
    Fault::NeverRendered,
    Fault::KillsWorker,
];

impl World {
    pub(crate) fn tenant(&self, number: u64) -> TenantId {
        TenantId(derived("simulated-tenant", Uuid::from_u128(u128::from(self.seed)), &number.to_string()))
    }

    /// The subjects of the tasks in the setup.
    pub(crate) fn subjects_planned(&self) -> Vec<Subject> {
        self.setup.tasks.iter().copied().filter(|number| *number < FAMILY).collect()
    }

    /// Plans everything that people do.
    pub(crate) fn plan_people(&mut self) {
        for tenant in 0..3 {
            let subject = TENANT_SUBJECTS + tenant;
            let times = 1 + u64::from(self.dice.strikes(subject, Fault::GrantTwice));
            for time in 0..times {
                self.queue.plan(MILLI * (1 + time), Step::Person { subject, act: Act::Grant { tenant } });
            }
            if self.dice.strikes(subject, Fault::Adjust) {
                let at = self.dice.between(subject, Site::Operator, MINUTE, HOUR);
                self.queue.plan(at, Step::Person { subject, act: Act::Adjust { tenant } });
                self.queue.plan(at + MINUTE, Step::Person { subject, act: Act::Adjust { tenant } });
            }
        }
        let span = (self.setup.hours * HOUR / 2).max(MINUTE);
        for subject in self.subjects_planned() {
            let at = SECOND + self.dice.between(subject, Site::Submit, 0, span);
            self.plan_life(subject, at);
        }
    }

    fn plan_life(&mut self, subject: Subject, at: Micros) {
        self.queue.plan(at, Step::Person { subject, act: Act::Submit { body: 0 } });
        let plan = |world: &mut Self, fault: Fault, low: Micros, high: Micros, act: Act| {
            let after = world.dice.between(subject, Site::CancelAt, low, high);
            if world.dice.strikes(subject, fault) {
                world.queue.plan(at + after, Step::Person { subject, act });
            }
        };
        plan(self, Fault::Concurrent, 0, 3 * MILLI, Act::Submit { body: 0 });
        plan(self, Fault::Resubmit, SECOND, 20 * MINUTE, Act::Submit { body: 0 });
        plan(self, Fault::OtherBody, 0, 10 * MINUTE, Act::Submit { body: 1 });
        let long = [20 * MINUTE, 90 * SECOND, 2 * SECOND, HOUR][self.dice.below(subject, Site::CancelAt, 4) as usize];
        plan(self, Fault::Cancel, 10 * MILLI, long, Act::Cancel);
        plan(self, Fault::CancelTwice, 10 * MILLI, HOUR, Act::Cancel);
        plan(self, Fault::Foreign, SECOND, 5 * MINUTE, Act::Foreign);
        plan(self, Fault::RetryNow, SECOND, 5 * MINUTE, Act::RetryNow);
        plan(self, Fault::Refund, MINUTE, 90 * MINUTE, Act::Refund);
        plan(self, Fault::ReplaySame, 10 * SECOND, 90 * MINUTE, Act::Replay { new: false });
        plan(self, Fault::ReplayNew, 10 * SECOND, 90 * MINUTE, Act::Replay { new: true });
        if subject < FAMILY {
            plan(self, Fault::Export, MINUTE, HOUR, Act::Export);
            plan(self, Fault::Retry, MINUTE, HOUR, Act::Retry);
        }
    }

    pub(crate) fn new_life(&mut self, subject: Subject, wish: Wish) -> Life {
        let first = subject % FAMILY;
        let tenant = match self.lives.get(&first) {
            Some(life) => life.tenant,
            None => {
                let number = self.dice.below(subject, Site::Tenant, TENANTS);
                self.tenant(number)
            }
        };
        let kind = Kind::ALL[usize::try_from(self.dice.below(subject, Site::Provider, 4)).unwrap_or(0)];
        let curses = CURSES.into_iter().filter(|it| self.dice.strikes(subject, *it)).collect();
        Life {
            tenant,
            kind,
            key: format!("key-{subject}"),
            wish,
            task: None,
            refused: false,
            requests: 0,
            created: Vec::new(),
            carriers: 0,
            tainted: false,
            last_event: 0,
            last_repair: 0,
            winner: None,
            curses,
        }
    }

    pub(crate) fn has_curse(&self, subject: Subject, fault: Fault) -> bool {
        !self.is_calm && self.lives.get(&subject).is_some_and(|it| it.curses.contains(&fault))
    }

    pub(crate) fn act(&mut self, subject: Subject, act: Act) {
        match act {
            Act::Submit { body } => self.submit(subject, body),
            Act::Check => {
                if self.lives.get(&subject).is_some_and(|it| it.task.is_none() && !it.refused) {
                    self.submit(subject, 0);
                }
            }
            Act::Cancel => self.ask_about(subject, |task, tenant| Ask::Cancel { task, tenant }),
            Act::Foreign => self.ask_about(subject, |task, tenant| Ask::Cancel {
                task,
                tenant: TenantId(derived("stranger", tenant.0, "")),
            }),
            Act::RetryNow => self.ask_about(subject, |task, tenant| Ask::RetryNow { task, tenant }),
            Act::Export => self.follow(subject, 1),
            Act::Retry => self.follow(subject, 2),
            Act::Replay { new } => self.replay(subject, new),
            Act::Resolve { task } => self.resolve(subject, task),
            Act::Sweep { task } => self.ask(subject, Ask::Expire { task }),
            Act::Refund => self.refund(subject),
            Act::Grant { tenant } => {
                let poor = self.dice.strikes(subject, Fault::Poor);
                let tenant = self.tenant(u64::from(tenant));
                let amount = Credits(if poor { 2_000 } else { 1_000_000 });
                self.ask(subject, Ask::Grant { tenant, key: "voucher-1".to_owned(), amount });
            }
            Act::Adjust { tenant } => {
                let tenant = self.tenant(u64::from(tenant));
                self.ask(subject, Ask::Adjust { tenant, amount: Credits(-70) });
            }
        }
    }

    fn ask_about(&mut self, subject: Subject, ask: impl Fn(TaskId, TenantId) -> Ask) {
        if let Some(life) = self.lives.get(&subject)
            && let Some(task) = life.task
        {
            let ask = ask(task, life.tenant);
            self.ask(subject, ask);
        }
    }

    fn submit(&mut self, subject: Subject, body: u64) {
        let seed = self.seed;
        let Some(life) = self.lives.get_mut(&subject) else { return };
        life.requests += 1;
        let task = derived("simulated", Uuid::from_u128(u128::from(seed)), &format!("{subject}:{}", life.requests));
        self.subjects.insert(TaskId(task), subject);
        self.ask(subject, Ask::Submit { task: TaskId(task), body });
        // Without an answer the user asks again, with the same key.
        let at = self.now + self.dice.between(subject, Site::Retry, 12 * SECOND, 40 * SECOND);
        self.queue.plan(at, Step::Person { subject, act: Act::Check });
    }

    pub(crate) fn task(&self, task: TaskId) -> Option<&Task> {
        match self.store.folded(StreamId::task(task)) {
            Some(Folded::Task(it)) => Some(&it.state),
            _ => None,
        }
    }

    /// An export of a video that is ready, or another try of a task that has ended without one.
    fn follow(&mut self, subject: Subject, place: u32) {
        let Some(old) = self.lives.get(&subject).and_then(|it| it.task) else { return };
        let wish = match (self.task(old), place) {
            (Some(Task::Succeeded { maker, .. }), 1) => {
                Wish::Export { source: old, source_key: maker.object_key("video.mp4") }
            }
            (Some(state), 2) if state.state().is_terminal() => Wish::Retry { old },
            _ => return,
        };
        let follower = subject + place * FAMILY;
        if self.lives.contains_key(&follower) {
            return;
        }
        let life = self.new_life(follower, wish);
        self.lives.insert(follower, life);
        self.plan_life(follower, self.now + MILLI);
    }

    /// An operator looks at the provider's own pages, and decides.
    fn resolve(&mut self, subject: Subject, task: TaskId) {
        let Some(Task::ManualReview { live, canceling }) = self.task(task) else { return };
        let (attempt, canceling) = (live.attempt(), *canceling);
        let job = self.providers.jobs_of(attempt).next().map(|it| it.id.clone());
        let draw = self.dice.below(subject, Site::Operator, 3);
        let ask = match (job, draw) {
            (Some(job), 0 | 1) => Ask::Adopt { task, job },
            (None, 0) if !canceling => Ask::Again { task },
            (_, 0 | 1) => Ask::Canceled { task },
            _ => Ask::Resolve { task },
        };
        self.ask(subject, ask);
        // Should it be refused (the attempt may be over), the next look decides otherwise.
        self.queue.plan(self.now + 20 * MINUTE, Step::Person { subject, act: Act::Resolve { task } });
        if self.dice.strikes(subject, Fault::Sweep) {
            let at = self.now + self.dice.between(subject, Site::Operator, 5 * MILLI, SECOND);
            self.queue.plan(at, Step::Person { subject, act: Act::Sweep { task } });
        }
    }

    fn refund(&mut self, subject: Subject) {
        let Some(task) = self.lives.get(&subject).and_then(|it| it.task) else { return };
        if let Some(it) = self.task(task)
            && it.state() == State::Succeeded
        {
            let amount = Credits(1 + i64::try_from(self.dice.below(subject, Site::Operator, 120)).unwrap_or(0));
            for after in [0, 2 * MILLI, MINUTE] {
                let at = self.now + after;
                self.queue.plan(at, Step::Refund { subject, task, amount: amount.0 });
            }
        }
    }

    pub(crate) fn ask_refund(&mut self, subject: Subject, task: TaskId, amount: i64) {
        self.ask(subject, Ask::Refund { task, amount: Credits(amount) });
    }

    fn replay(&mut self, subject: Subject, new: bool) {
        let sent = self.broker.sent.get(subject as usize).map_or(0, Vec::len);
        if sent == 0 {
            return;
        }
        let which = self.dice.below(subject, Site::Operator, sent as u64);
        let (id, message) = self.broker.sent[subject as usize][usize::try_from(which).unwrap_or(0)].clone();
        self.trace.tell("operator", format_args!("replays {} {}", message.event_type(), self.names.of(id)));
        let Some(row) = self.store.outbox.row_of(id) else { return };
        let tenant = row.tenant;
        if !new {
            return self.send_again(id);
        }
        let row = NewRow {
            id: derived("replay", id, &self.now.to_string()),
            original: Some(id),
            message,
            deliver_at: None,
            tenant,
            cause: id,
        };
        let writes = Writes { outbox: vec![row], at: instant(self.now), ..Writes::default() };
        let tx = self.store.begin(self.now);
        let _ = self.commit(tx, &writes, None);
    }
}
