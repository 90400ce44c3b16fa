//! Users, who submit (again, twice at once, with another body), cancel at any moment and go away without an answer; operators, who
//! replay messages and resolve reviews; and the API, which carries a command out in one transaction, as `eventstore::execute`.

use crate::clock::{HOUR, MILLI, MINUTE, Micros, SECOND, instant};
use crate::dice::{Fault, Site, Subject};
use crate::mutants::Mutant;
use crate::process::APIS;
use crate::provider::Kind;
use crate::store::{KeyRow, Lock, NewRow, Refused, TxId, Writes};
use crate::world::{Step, World};
use domain::aggregate::Refusal;
use domain::id::{AccountId, AttemptId, TaskId, TenantId, derived};
use domain::message::Message;
use domain::message::kinds::CallbackRef;
use domain::money::Credits;
use domain::process::{self, Case, CaseKey, StreamId, Turn};
use domain::task::Order;
use domain::time::seconds;
use uuid::Uuid;

/// What is planned for one task, and what became of it.
pub(crate) struct Life {
    pub(crate) tenant: TenantId,
    kind: Kind,
    key: String,
    /// The task that the user was told of.
    pub(crate) task: Option<TaskId>,
    /// The answer was a no: there is no task.
    pub(crate) refused: bool,
    requests: u32,
    /// Every task that was created under the user's key.
    pub(crate) created: Vec<TaskId>,
    /// Messages that will come to the task by themselves.
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
    Replay { new: bool },
    Resolve { task: TaskId },
    Grant { tenant: u32 },
}

/// A command at the API.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Submit { task: TaskId, body: u64 },
    Cancel { task: TaskId, tenant: TenantId },
    Resolve { task: TaskId },
    Grant { tenant: TenantId, key: String, amount: Credits },
}

/// A command that the API has in hand.
pub(crate) struct Request {
    process: u8,
    subject: Subject,
    ask: Ask,
    lost: u32,
    tx: Option<(TxId, Writes)>,
}

/// What a person is told.
#[derive(Debug)]
enum Told {
    Done(Option<TaskId>),
    No(&'static str),
    Fault,
}

/// The API's steps.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Api {
    Begin,
    Commit,
}

const ROUNDS: u32 = 20;
const TENANTS: u64 = 3;

impl World {
    // ------------------------------------------------------------------ plans

    pub(crate) fn tenant(&self, number: u64) -> TenantId {
        TenantId(derived("simulated-tenant", Uuid::from_u128(u128::from(self.seed)), &number.to_string()))
    }

    /// Plans everything that people do.
    pub(crate) fn plan_people(&mut self) {
        for number in 0..TENANTS {
            let subject = crate::dice::PROCESSES + 20 + u32::try_from(number).unwrap_or(0);
            let times = 1 + u64::from(self.dice.strikes(subject, Fault::GrantTwice));
            for time in 0..times {
                let act = Act::Grant { tenant: u32::try_from(number).unwrap_or(0) };
                self.queue.plan(MILLI * (1 + time), Step::Person { subject, act });
            }
        }
        let span = (self.setup.hours * HOUR / 2).max(MINUTE);
        for subject in self.setup.tasks.clone() {
            let at = SECOND + self.dice.between(subject, Site::Submit, 0, span);
            self.queue.plan(at, Step::Person { subject, act: Act::Submit { body: 0 } });
            self.plan_whims(subject, at);
        }
    }

    fn plan_whims(&mut self, subject: Subject, at: Micros) {
        let plan = |world: &mut Self, fault: Fault, low: Micros, high: Micros, act: Act| {
            let after = world.dice.between(subject, Site::CancelAt, low, high);
            if world.dice.strikes(subject, fault) {
                world.queue.plan(at + after, Step::Person { subject, act });
            }
        };
        plan(self, Fault::Concurrent, 0, 3 * MILLI, Act::Submit { body: 0 });
        plan(self, Fault::Resubmit, SECOND, 20 * MINUTE, Act::Submit { body: 0 });
        plan(self, Fault::OtherBody, 0, 10 * MINUTE, Act::Submit { body: 1 });
        let long = if self.dice.below(subject, Site::CancelAt, 3) == 0 { 20 * MINUTE } else { 90 * SECOND };
        plan(self, Fault::Cancel, 10 * MILLI, long, Act::Cancel);
        plan(self, Fault::CancelTwice, 10 * MILLI, 10 * MINUTE, Act::Cancel);
        plan(self, Fault::Foreign, SECOND, 5 * MINUTE, Act::Foreign);
        plan(self, Fault::ReplaySame, 10 * SECOND, 90 * MINUTE, Act::Replay { new: false });
        plan(self, Fault::ReplayNew, 10 * SECOND, 90 * MINUTE, Act::Replay { new: true });
    }

    pub(crate) fn new_life(&mut self, subject: Subject) -> Life {
        let tenant = self.dice.below(subject, Site::Tenant, TENANTS);
        let kind = Kind::ALL[usize::try_from(self.dice.below(subject, Site::Provider, 4)).unwrap_or(0)];
        let curses =
            [Fault::NeverReady, Fault::NeverProcessed].into_iter().filter(|it| self.dice.strikes(subject, *it)).collect();
        Life {
            tenant: self.tenant(tenant),
            kind,
            key: format!("key-{subject}"),
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

    // ------------------------------------------------------------------ people

    pub(crate) fn act(&mut self, subject: Subject, act: Act) {
        match act {
            Act::Submit { body } => self.submit(subject, body),
            Act::Check => {
                if self.lives.get(&subject).is_some_and(|it| it.task.is_none() && !it.refused) {
                    self.submit(subject, 0);
                }
            }
            Act::Cancel => {
                if let Some((task, tenant)) = self.told(subject) {
                    self.ask(subject, Ask::Cancel { task, tenant });
                }
            }
            Act::Foreign => {
                if let Some((task, tenant)) = self.told(subject) {
                    let tenant = TenantId(derived("stranger", tenant.0, ""));
                    self.ask(subject, Ask::Cancel { task, tenant });
                }
            }
            Act::Replay { new } => self.replay(subject, new),
            Act::Resolve { task } => self.ask(subject, Ask::Resolve { task }),
            Act::Grant { tenant } => {
                let poor = self.dice.strikes(subject, Fault::Poor);
                let tenant = self.tenant(u64::from(tenant));
                let amount = Credits(if poor { 2_000 } else { 1_000_000 });
                self.ask(subject, Ask::Grant { tenant, key: "voucher-1".to_owned(), amount });
            }
        }
    }

    fn told(&self, subject: Subject) -> Option<(TaskId, TenantId)> {
        self.lives.get(&subject).and_then(|it| it.task.map(|task| (task, it.tenant)))
    }

    fn submit(&mut self, subject: Subject, body: u64) {
        let seed = self.seed;
        let Some(life) = self.lives.get_mut(&subject) else { return };
        life.requests += 1;
        let task = TaskId(derived("simulated", Uuid::from_u128(u128::from(seed)), &format!("{subject}:{}", life.requests)));
        self.subjects.insert(task, subject);
        self.ask(subject, Ask::Submit { task, body });
        // Without an answer the user asks again, with the same key.
        let at = self.now + self.dice.between(subject, Site::Retry, 12 * SECOND, 40 * SECOND);
        self.queue.plan(at, Step::Person { subject, act: Act::Check });
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
        if new {
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
        } else {
            self.send_again(id);
        }
    }

    // ------------------------------------------------------------------ the API

    fn ask(&mut self, subject: Subject, ask: Ask) {
        let which = self.dice.below(subject, Site::Worker, u64::from(APIS.end - APIS.start));
        let process = APIS.start + u8::try_from(which).unwrap_or(0);
        if !self.processes[usize::from(process)].alive {
            return self.tell_person(subject, &ask, &Told::Fault);
        }
        self.requests.push(Some(Request { process, subject, ask, lost: 0, tx: None }));
        self.plan_api(self.requests.len() - 1, MILLI, Api::Begin);
    }

    fn plan_api(&mut self, index: usize, after: Micros, phase: Api) {
        if let Some(it) = &self.requests[index] {
            let (process, epoch) = (it.process, self.epoch(it.process));
            self.queue.plan(self.now + after, Step::Api { index, process, epoch, phase });
        }
    }

    pub(crate) fn api(&mut self, index: usize, phase: Api) {
        let Some(request) = self.requests[index].take() else { return };
        match phase {
            Api::Begin => self.api_begin(index, request),
            Api::Commit => self.api_commit(index, request),
        }
    }

    fn api_begin(&mut self, index: usize, request: Request) {
        let subject = request.subject;
        if self.database_is_down() || self.dice.strikes(subject, Fault::BeginFails) {
            return self.tell_person(subject, &request.ask, &Told::Fault);
        }
        let tx = self.store.begin(self.now);
        if let Some((tenant, key, fingerprint)) = self.key_of(&request) {
            if !self.store.lock(tx, Lock::Key(tenant, key.clone()), self.now) {
                self.store.rollback(tx);
                self.requests[index] = Some(request);
                return self.plan_api(index, 5 * MILLI, Api::Begin);
            }
            let known = self.store.key(tenant, &key).cloned();
            if let Some(row) = known.filter(|_| self.mutant != Some(Mutant::KeyNotKept)) {
                self.store.rollback(tx);
                let told =
                    if row.fingerprint == fingerprint { Told::Done(row.task) } else { Told::No("key_reused") };
                return self.tell_person(subject, &request.ask, &told);
            }
        }
        let at = instant(self.now);
        let case = self.store.load(Case::begin(self.case_key(&request)));
        if !self.is_owner(&case, &request.ask) {
            self.store.rollback(tx);
            return self.tell_person(subject, &request.ask, &Told::No("not_found"));
        }
        let order = self.order(subject, &request.ask);
        let mut turn = Turn::new(case, at, &self.policy);
        match command(&request.ask, order, &mut turn) {
            Err(refusal) => {
                self.store.rollback(tx);
                self.tell_person(subject, &request.ask, &Told::No(refusal.code));
            }
            Ok(()) => {
                let tenant = self.tenant_of(&request);
                let cause = derived("request", Uuid::from_u128(index as u128), "");
                let mut writes = Writes::of(turn, tenant, cause, at);
                if let Some((tenant, key, fingerprint)) = self.key_of(&request) {
                    let task = if let Ask::Submit { task, .. } = &request.ask { Some(*task) } else { None };
                    writes.key = Some((tenant, key, KeyRow { fingerprint, task }));
                }
                self.store.append(tx, &mut writes);
                self.requests[index] = Some(Request { tx: Some((tx, writes)), ..request });
                let pause = self.dice.between(subject, Site::Think, 500, 6 * MILLI);
                self.plan_api(index, pause, Api::Commit);
            }
        }
    }

    fn api_commit(&mut self, index: usize, mut request: Request) {
        let Some((tx, writes)) = request.tx.take() else { return };
        let subject = request.subject;
        if self.database_is_down() || self.dice.strikes(subject, Fault::CommitLostUndone) {
            self.store.rollback(tx);
            return self.tell_person(subject, &request.ask, &Told::Fault);
        }
        let raced = self.dice.strikes(subject, Fault::Serialization);
        if raced {
            self.store.rollback(tx);
        }
        let committed = if raced { Err(Refused::Race) } else { self.commit(tx, &writes, None) };
        match committed {
            Err(Refused::Race) if request.lost < ROUNDS => {
                request.lost += 1;
                let pause = 5 * MILLI << request.lost.min(5);
                self.requests[index] = Some(request);
                self.plan_api(index, pause, Api::Begin);
            }
            Err(_) => self.tell_person(subject, &request.ask, &Told::Fault),
            Ok(()) if self.dice.strikes(subject, Fault::CommitLostDone) => {
                self.tell_person(subject, &request.ask, &Told::Fault);
            }
            Ok(()) => {
                let task = if let Ask::Submit { task, .. } = &request.ask { Some(*task) } else { None };
                self.tell_person(subject, &request.ask, &Told::Done(task));
            }
        }
    }

    fn tell_person(&mut self, subject: Subject, ask: &Ask, told: &Told) {
        let lost = self.dice.strikes(subject, Fault::AnswerLost);
        self.trace.tell("api", format_args!("{ask:?}: {told:?}{}", if lost { ", and the answer is lost" } else { "" }));
        if let (Ask::Resolve { task }, Told::Fault) = (ask, told) {
            let step = Step::Person { subject, act: Act::Resolve { task: *task } };
            return self.queue.plan(self.now + MINUTE, step);
        }
        if let (Ask::Grant { .. }, Told::Fault) = (ask, told) {
            self.requests.push(None);
            let tenant = subject - crate::dice::PROCESSES - 20;
            let step = Step::Person { subject, act: Act::Grant { tenant } };
            return self.queue.plan(self.now + 2 * SECOND, step);
        }
        let Some(life) = self.lives.get_mut(&subject).filter(|_| !lost) else { return };
        match (ask, told) {
            (Ask::Submit { body: 0, .. }, Told::Done(task)) => {
                if let (Some(before), Some(after)) = (life.task, task)
                    && before != *after
                {
                    let text = format!("one key was answered with task {before} and with task {after}");
                    return self.violate("one-task-per-key", text);
                }
                life.task = life.task.or(*task);
            }
            (Ask::Submit { body: 0, .. }, Told::No("key_reused")) => life.refused = true,
            (Ask::Submit { body: 0, .. }, Told::No(_)) if life.created.is_empty() => life.refused = true,
            (Ask::Cancel { tenant, .. }, Told::Done(_)) if *tenant != life.tenant => {
                self.violate("tenant-wall", "a stranger's cancel was carried out".to_owned());
            }
            _ => {}
        }
    }

    fn key_of(&self, request: &Request) -> Option<(TenantId, String, u64)> {
        match &request.ask {
            Ask::Submit { body, .. } => {
                self.lives.get(&request.subject).map(|it| (it.tenant, it.key.clone(), *body))
            }
            Ask::Grant { tenant, key, amount } => Some((*tenant, key.clone(), amount.0.cast_unsigned())),
            Ask::Cancel { .. } | Ask::Resolve { .. } => None,
        }
    }

    fn tenant_of(&self, request: &Request) -> TenantId {
        match &request.ask {
            Ask::Grant { tenant, .. } | Ask::Cancel { tenant, .. } => *tenant,
            Ask::Submit { .. } | Ask::Resolve { .. } => {
                self.lives.get(&request.subject).map_or(TenantId(Uuid::nil()), |it| it.tenant)
            }
        }
    }

    fn case_key(&self, request: &Request) -> CaseKey {
        match &request.ask {
            Ask::Submit { task, .. } => {
                let account = Some(AccountId::of(self.tenant_of(request)));
                CaseKey { account, with_account: true, ..CaseKey::task(*task) }
            }
            Ask::Cancel { task, .. } | Ask::Resolve { task } => CaseKey::task(*task),
            Ask::Grant { tenant, .. } => CaseKey::account(AccountId::of(*tenant)),
        }
    }

    fn is_owner(&self, case: &Case, ask: &Ask) -> bool {
        match (ask, case.task.state.order()) {
            (Ask::Cancel { tenant, .. }, Some(order)) => {
                order.tenant == *tenant || self.mutant == Some(Mutant::TenantCheckMissing)
            }
            (Ask::Cancel { .. }, None) => false,
            _ => true,
        }
    }

    fn order(&mut self, subject: Subject, ask: &Ask) -> Option<Order> {
        let Ask::Submit { task, .. } = ask else { return None };
        let (task, at) = (*task, instant(self.now));
        let length = 4 + u32::try_from(mix_of(self.seed, subject) % 6).unwrap_or(0);
        let price = Credits(10 + i64::try_from(mix_of(self.seed, subject) % 40).unwrap_or(0));
        let hold = self.policy.hold(price, length)?;
        let give_up_at = at + seconds(self.policy.max_waiting_seconds);
        let life = self.lives.get(&subject)?;
        Some(Order {
            task,
            tenant: life.tenant,
            account: AccountId::of(life.tenant),
            provider: life.kind.name().to_owned(),
            model: "paper-boat".to_owned(),
            duration_seconds: length,
            input_assets: Vec::new(),
            request_ref: format!("generation_request/{task}"),
            hold,
            price_per_second: price,
            submitted_at: at,
            give_up_at,
        })
    }

    pub(crate) fn drop_requests(&mut self, process: u8) {
        for index in 0..self.requests.len() {
            if self.requests[index].as_ref().is_some_and(|it| it.process == process)
                && let Some(request) = self.requests[index].take()
            {
                if let Some((tx, _)) = request.tx {
                    self.store.rollback(tx);
                }
                self.tell_person(request.subject, &request.ask, &Told::Fault);
            }
        }
    }

    /// Records a callback as a fact, with the message that applies it. `false`: the provider is not told that it was taken.
    pub(crate) fn take_callback(&mut self, subject: Subject, attempt: AttemptId, delivery: &str, job: String) -> bool {
        let which = self.dice.below(subject, Site::Worker, 2);
        let process = &self.processes[usize::from(APIS.start) + usize::try_from(which).unwrap_or(0)];
        let awake = process.alive && process.paused_until <= self.now;
        if !awake || self.database_is_down() || self.dice.strikes(subject, Fault::BeginFails) {
            return false;
        }
        if self.store.has_callback(delivery) {
            return true;
        }
        let Some(domain::process::Folded::Attempt(known)) = self.store.folded(StreamId::attempt(attempt)) else {
            return true;
        };
        let Some(task) = known.state.core().map(|it| it.task) else { return true };
        let Some(tenant) = self.lives.get(&subject).map(|it| it.tenant) else { return true };
        let id = derived("callback", attempt.0, delivery);
        let message = Message::CallbackReceived(CallbackRef { task_id: task, attempt_id: attempt, job });
        let row = NewRow { id, original: None, message, deliver_at: None, tenant, cause: id };
        let writes = Writes {
            outbox: vec![row],
            callback: Some(delivery.to_owned()),
            at: instant(self.now),
            ..Writes::default()
        };
        let tx = self.store.begin(self.now);
        self.commit(tx, &writes, None).is_ok() && !self.dice.strikes(subject, Fault::CommitLostDone)
    }
}

fn command(ask: &Ask, order: Option<Order>, turn: &mut Turn<'_>) -> Result<(), Refusal> {
    match ask {
        Ask::Submit { .. } => match order {
            Some(order) => process::submit(turn, order),
            None => Ok(()),
        },
        Ask::Cancel { .. } => process::cancel(turn, "user".to_owned()),
        Ask::Resolve { .. } => process::resolve_failed(turn, "operator"),
        Ask::Grant { key, amount, .. } => process::grant(turn, key.clone(), *amount),
    }
}

fn mix_of(seed: u64, subject: Subject) -> u64 {
    crate::dice::mix(seed ^ (u64::from(subject) << 20))
}
