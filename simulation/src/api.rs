//! The API: it carries a person's command out in one transaction, with the steps of `eventstore::execute`, and records callbacks.

use crate::clock::{MILLI, SECOND, instant};
use crate::dice::{Fault, PROCESSES, Site, Subject};
use crate::mutants::Mutant;
use crate::people::{Act, Wish};
use crate::process::APIS;
use crate::store::{KeyRow, Lock, NewRow, Refused, TxId, Writes};
use crate::world::{Step, World};
use domain::aggregate::Refusal;
use domain::id::{AccountId, AttemptId, TaskId, TenantId, derived, message_id};
use domain::message::Message;
use domain::message::kinds::CallbackRef;
use domain::money::Credits;
use domain::process::{self, Case, CaseKey, Folded, StreamId, Turn};
use domain::task::{Container, ExportSpec, Order, Work};
use domain::time::seconds;
use uuid::Uuid;

/// A command at the API.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Submit { task: TaskId, body: u64 },
    Cancel { task: TaskId, tenant: TenantId },
    RetryNow { task: TaskId, tenant: TenantId },
    Resolve { task: TaskId },
    Canceled { task: TaskId },
    Adopt { task: TaskId, job: String },
    Again { task: TaskId },
    Expire { task: TaskId },
    Refund { task: TaskId, amount: Credits },
    Grant { tenant: TenantId, key: String, amount: Credits },
    Adjust { tenant: TenantId, amount: Credits },
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

impl World {
    pub(crate) fn ask(&mut self, subject: Subject, ask: Ask) {
        let which = self.dice.below(subject, Site::Worker, u64::from(APIS.end - APIS.start));
        let process = APIS.start + u8::try_from(which).unwrap_or(0);
        if !self.processes[usize::from(process)].alive {
            return self.tell_person(subject, &ask, &Told::Fault);
        }
        self.requests.push(Some(Request { process, subject, ask, lost: 0, tx: None }));
        self.plan_api(self.requests.len() - 1, MILLI, Api::Begin);
    }

    fn plan_api(&mut self, index: usize, after: u64, phase: Api) {
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
                let same = row.fingerprint == fingerprint;
                let told = if same { Told::Done(row.task) } else { Told::No("key_reused") };
                return self.tell_person(subject, &request.ask, &told);
            }
        }
        let case = self.store.load(Case::begin(self.case_key(&request)));
        if !self.is_owner(&case, &request.ask) {
            self.store.rollback(tx);
            return self.tell_person(subject, &request.ask, &Told::No("not_found"));
        }
        self.api_decide(index, request, tx, case);
    }

    fn api_decide(&mut self, index: usize, request: Request, tx: TxId, case: Case) {
        let (at, subject) = (instant(self.now), request.subject);
        let order = self.order(subject, &request.ask);
        let mut turn = Turn::new(case, at, &self.policy);
        if let Err(refusal) = command(&request.ask, order, &mut turn) {
            self.store.rollback(tx);
            return self.tell_person(subject, &request.ask, &Told::No(refusal.code));
        }
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
                let pause = (5 * MILLI) << request.lost.min(5);
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
        if let (Ask::Grant { .. }, Told::Fault) = (ask, told) {
            let tenant = subject - PROCESSES - 20;
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
            (Ask::Submit { body: 1, .. }, Told::Done(Some(task))) if life.task.is_some_and(|it| it == *task) => {
                self.violate("one-task-per-key", "another request under the same key was not refused".to_owned());
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
            Ask::Submit { body, .. } => self.lives.get(&request.subject).map(|it| (it.tenant, it.key.clone(), *body)),
            Ask::Grant { tenant, key, amount } => Some((*tenant, key.clone(), amount.0.cast_unsigned())),
            _ => None,
        }
    }

    fn tenant_of(&self, request: &Request) -> TenantId {
        match &request.ask {
            Ask::Grant { tenant, .. }
            | Ask::Adjust { tenant, .. }
            | Ask::Cancel { tenant, .. }
            | Ask::RetryNow { tenant, .. } => *tenant,
            _ => self.lives.get(&request.subject).map_or(TenantId(Uuid::nil()), |it| it.tenant),
        }
    }

    fn case_key(&self, request: &Request) -> CaseKey {
        let with_account = |task: &TaskId| {
            let account = Some(AccountId::of(self.tenant_of(request)));
            CaseKey { account, with_account: true, ..CaseKey::task(*task) }
        };
        match &request.ask {
            Ask::Submit { task, .. } => {
                let origin = match self.lives.get(&request.subject).map(|it| &it.wish) {
                    Some(Wish::Retry { old }) => Some(*old),
                    _ => None,
                };
                CaseKey { origin, ..with_account(task) }
            }
            Ask::Expire { task } | Ask::Refund { task, .. } => with_account(task),
            Ask::Cancel { task, .. }
            | Ask::RetryNow { task, .. }
            | Ask::Resolve { task }
            | Ask::Canceled { task }
            | Ask::Adopt { task, .. }
            | Ask::Again { task } => CaseKey::task(*task),
            Ask::Grant { tenant, .. } | Ask::Adjust { tenant, .. } => CaseKey::account(AccountId::of(*tenant)),
        }
    }

    fn is_owner(&self, case: &Case, ask: &Ask) -> bool {
        match (ask, case.task.state.order()) {
            (Ask::Cancel { tenant, .. } | Ask::RetryNow { tenant, .. }, Some(order)) => {
                order.tenant == *tenant || self.mutant == Some(Mutant::TenantCheckMissing)
            }
            (Ask::Cancel { .. } | Ask::RetryNow { .. }, None) => false,
            _ => true,
        }
    }

    fn order(&mut self, subject: Subject, ask: &Ask) -> Option<Order> {
        let Ask::Submit { task, .. } = ask else { return None };
        let (task, at) = (*task, instant(self.now));
        let draw = crate::dice::mix(self.seed ^ (u64::from(subject) << 20));
        let length = 4 + u32::try_from(draw % 6).unwrap_or(0);
        let price = Credits(10 + i64::try_from(draw % 40).unwrap_or(0));
        let hold = self.policy.hold(price, length)?;
        let give_up_at = at + seconds(self.policy.max_waiting_seconds);
        let life = self.lives.get(&subject)?;
        let (retry_of, work) = match &life.wish {
            Wish::Generate => (None, Work::Generate),
            Wish::Retry { old } => (Some(*old), Work::Generate),
            Wish::Export { source, source_key } => {
                let spec = ExportSpec { container: Container::Mp4, height_px: 480 };
                (None, Work::Export { source: *source, source_key: source_key.clone(), spec })
            }
        };
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
            retry_of,
            user: String::new(),
            priority: 0,
            work,
            seeded: false,
            alternatives: vec![],
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
        let Some(Folded::Attempt(known)) = self.store.folded(StreamId::attempt(attempt)) else { return true };
        let Some(task) = known.state.core().map(|it| it.task) else { return true };
        let Some(tenant) = self.lives.get(&subject).map(|it| it.tenant) else { return true };
        let id = message_id(instant(self.now), "callback", attempt.0, delivery);
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
    let by = || "operator".to_owned();
    match ask {
        Ask::Submit { .. } => match order {
            Some(order) if order.retry_of.is_some() => process::retry(turn, order),
            Some(order) if order.work != Work::Generate => process::export(turn, order),
            Some(order) => process::submit(turn, order),
            None => Ok(()),
        },
        Ask::Cancel { .. } => process::cancel(turn, "user".to_owned()),
        Ask::RetryNow { .. } => process::retry_now(turn, "user".to_owned()),
        Ask::Resolve { .. } => process::resolve_failed(turn, "operator"),
        Ask::Canceled { .. } => process::resolve_canceled(turn, "operator"),
        Ask::Adopt { job, .. } => process::resolve_adopt(turn, job.clone(), by()),
        Ask::Again { .. } => process::resolve_retry(turn, "operator"),
        Ask::Expire { .. } => process::expire_hold(turn),
        Ask::Refund { task, amount } => {
            process::refund(turn, *task, format!("refund-{task}"), *amount, "it stutters".to_owned())
        }
        Ask::Grant { key, amount, .. } => process::grant(turn, key.clone(), *amount),
        Ask::Adjust { amount, .. } => process::adjust(turn, "adjust-1".to_owned(), *amount, "a slip".to_owned(), by()),
    }
}
