//! Sequences by chance: small numbers, which become actions on what exists when their turn comes.

use super::action::{Action, Ask, Command, Sent};
use super::facts::Announced;
use super::memory::Memory;
use chrono::TimeDelta;
use domain::id::{AccountId, AttemptId, CausationId, CorrelationId, TaskId, TenantId, derived};
use domain::message::kinds::{AttemptRef, CallbackRef};
use domain::message::{Envelope, Message, Topic};
use domain::money::Credits;
use domain::process::{CaseKey, Policy};
use domain::task::{Container, ExportSpec, Order, Task, Work};
use domain::testkit::strategies::{start, usual_order};
use eventstore::{Delivery, IdempotencyKey, Meta, Request};
use proptest::prelude::*;
use uuid::Uuid;

/// Rules under which few tries are many, so that every end is near.
pub fn policy() -> Policy {
    Policy {
        max_attempts: 2,
        max_fetch_delays: 1,
        max_render_delays: 1,
        max_processing_tries: 2,
        max_unclear_seconds: 60,
        ..Policy::default()
    }
}

/// What a person wants.
#[derive(Clone, Copy, Debug)]
pub enum Wish {
    Submit,
    Export,
    Retry,
    Cancel,
    RetryNow,
    ResolveFailed,
    ResolveCanceled,
    ResolveRetry,
    ResolveAdopt,
    ExpireHold,
    Grant,
    Refund,
    Adjust,
}

/// How a message comes.
#[derive(Clone, Copy, Debug)]
pub enum Manner {
    /// When it is due.
    InTime,
    /// Now, due or not.
    AtOnce,
    /// Once more, with an id of its own, as an operator's replay has.
    Replayed,
    /// Cut off.
    Torn,
    /// With the name of another tenant.
    Foreign,
    /// About a task that does not exist.
    Dangling,
}

/// One step of a sequence.
#[derive(Clone, Debug)]
pub enum Step {
    /// A person: what, who of two tenants, which task, which of two keys (or none), which of two contents, how much.
    Person(Wish, u8, u8, Option<u8>, u8, i64),
    /// A message: which, how, and the luck of the calls.
    Message(u8, Manner, u64),
    /// A provider calls back about a task's attempt, with a job's right or wrong name.
    CallBack(u8, bool, u64),
    /// Time passes.
    Pass(u8),
}

pub fn steps(most: usize) -> BoxedStrategy<Vec<Step>> {
    let wish = prop_oneof![
        6 => Just(Wish::Submit), 2 => Just(Wish::Export), 2 => Just(Wish::Retry), 3 => Just(Wish::Cancel),
        2 => Just(Wish::RetryNow), 1 => Just(Wish::ResolveFailed), 1 => Just(Wish::ResolveCanceled),
        2 => Just(Wish::ResolveRetry), 2 => Just(Wish::ResolveAdopt), 1 => Just(Wish::ExpireHold),
        2 => Just(Wish::Grant), 2 => Just(Wish::Refund), 2 => Just(Wish::Adjust),
    ];
    let amount = prop_oneof![5 => 1_i64..500, 1 => -200_i64..=0, 1 => Just(i64::MAX)];
    let person =
        (wish, any::<u8>(), any::<u8>(), prop::option::of(0_u8..2), prop_oneof![2 => Just(0_u8), 1 => Just(1)], amount)
            .prop_map(|(wish, who, task, key, content, amount)| Step::Person(wish, who, task, key, content, amount));
    let manner = prop_oneof![
        14 => Just(Manner::InTime), 3 => Just(Manner::AtOnce), 3 => Just(Manner::Replayed),
        1 => Just(Manner::Torn), 1 => Just(Manner::Foreign), 1 => Just(Manner::Dangling),
    ];
    let message = (any::<u8>(), manner, any::<u64>()).prop_map(|(which, how, luck)| Step::Message(which, how, luck));
    let call_back =
        (any::<u8>(), any::<bool>(), any::<u64>()).prop_map(|(it, right, luck)| Step::CallBack(it, right, luck));
    let step = prop_oneof![5 => person, 14 => message, 1 => call_back, 1 => (0_u8..12).prop_map(Step::Pass)];
    prop::collection::vec(step, most / 2..=most).boxed()
}

/// Who and what there is in a sequence.
pub struct Cast {
    world: Uuid,
    tasks: Vec<TaskId>,
    made: u32,
}

impl Cast {
    /// A world with ids of its own.
    pub const fn new(world: Uuid) -> Self {
        Self { world, tasks: Vec::new(), made: 0 }
    }

    /// Both tenants have some credits.
    pub fn opening(&mut self) -> Vec<Action> {
        (0..2).map(|who| self.ask(who, None, 0, CaseKey::account(self.account(who)), None, welcome())).collect()
    }

    /// The action that a step is, as things stand in the model, whose clock may move. `None`: there is nothing to do it to.
    pub fn resolve(&mut self, step: &Step, memory: &mut Memory) -> Option<Action> {
        self.made += 1;
        match step {
            Step::Person(wish, who, task, key, content, amount) => {
                self.person(*wish, *who % 2, *task, (*key, *content), Credits(*amount), memory)
            }
            Step::Message(which, manner, luck) => self.message(*which, *manner, *luck, memory),
            Step::CallBack(task, right, luck) => {
                let task_id = self.pick(*task)?;
                let attempt_id = AttemptId::of(task_id, 1);
                let job = if *right { format!("job-{attempt_id}") } else { "job-x".to_owned() };
                let message = Message::CallbackReceived(CallbackRef { task_id, attempt_id, job });
                let owner = memory.load(CaseKey::task(task_id)).ok()?.task.state.order()?.tenant;
                Some(sent(&self.fresh(owner, &message), message.topic(), *luck))
            }
            Step::Pass(doublings) => {
                memory.now += TimeDelta::seconds(1 << doublings);
                None
            }
        }
    }

    fn id(&self, what: &str) -> Uuid {
        derived(what, self.world, &self.made.to_string())
    }

    fn tenant(&self, who: u8) -> TenantId {
        TenantId(derived("tenant", self.world, &who.to_string()))
    }

    fn account(&self, who: u8) -> AccountId {
        AccountId::of(self.tenant(who))
    }

    fn pick(&self, which: u8) -> Option<TaskId> {
        // The newest ones more often: there is more to be done to them.
        let back = usize::from(which) * usize::from(which) * self.tasks.len() / 65_536;
        self.tasks.iter().rev().nth(back).copied()
    }

    fn ask(
        &self,
        who: u8,
        key: Option<(&'static str, u8)>,
        content: u8,
        case: CaseKey,
        prompt: Option<&str>,
        command: Command,
    ) -> Action {
        let correlation = CorrelationId(self.id(&format!("request-{who}")));
        let meta = Meta {
            tenant: self.tenant(who),
            correlation,
            causation: CausationId(correlation.0),
            actor: format!("user:{who}"),
            trace: correlation.0.simple().to_string(),
        };
        let key = key.map(|(operation, key)| IdempotencyKey {
            operation,
            key: format!("key-{key}"),
            fingerprint: [content; 32],
        });
        // Operators go through the wall.
        let tenant_wall = !matches!(
            command,
            Command::ResolveFailed
                | Command::ResolveCanceled
                | Command::ResolveRetry
                | Command::ResolveAdopt(_)
                | Command::ExpireHold
        );
        let request = Request { meta, key, tenant_wall };
        Action::Ask(Box::new(Ask { request, key: case, prompt: prompt.map(str::to_owned), command }))
    }

    fn person(
        &mut self,
        wish: Wish,
        who: u8,
        task: u8,
        (key, content): (Option<u8>, u8),
        amount: Credits,
        memory: &Memory,
    ) -> Option<Action> {
        if matches!(wish, Wish::Submit | Wish::Export | Wish::Retry) {
            return self.order(wish, who, task, (key, content), memory);
        }
        let account = CaseKey::account(self.account(who));
        let posting = format!("posting-{}", key.unwrap_or(9));
        let (case, command) = match wish {
            Wish::Grant => (account, Command::Grant(posting, amount)),
            Wish::Adjust => (account, Command::Adjust(posting, amount)),
            Wish::Refund => (account, Command::Refund(self.pick(task)?, posting, amount)),
            Wish::ExpireHold => {
                (CaseKey { with_account: true, ..CaseKey::task(self.pick(task)?) }, Command::ExpireHold)
            }
            other => (CaseKey::task(self.pick(task)?), on_task(other, self.pick(task)?)),
        };
        let key = (case.task.is_some()).then_some(key).flatten().map(|key| ("act", key));
        Some(self.ask(who, key, content, case, None, command))
    }

    fn order(
        &mut self,
        wish: Wish,
        who: u8,
        old: u8,
        (key, content): (Option<u8>, u8),
        memory: &Memory,
    ) -> Option<Action> {
        let task = TaskId(self.id("task"));
        let origin = if matches!(wish, Wish::Submit) { None } else { Some(self.pick(old)?) };
        let work = match (wish, origin) {
            (Wish::Export, Some(source)) => {
                let case = memory.load(CaseKey::task(source)).ok()?;
                if !matches!(case.task.state, Task::Succeeded { .. }) {
                    return None;
                }
                let spec = ExportSpec { container: Container::Mp4, height_px: 480 + u32::from(content) };
                Work::Export { source, source_key: format!("{source}/video.mp4"), spec }
            }
            _ => Work::Generate,
        };
        let order = Order {
            tenant: self.tenant(who),
            account: self.account(who),
            input_assets: vec![],
            hold: Credits(100),
            price_per_second: Credits(20),
            submitted_at: memory.now,
            give_up_at: memory.now + TimeDelta::minutes(30),
            retry_of: if matches!(wish, Wish::Retry) { origin } else { None },
            work,
            ..usual_order(task)
        };
        let case =
            CaseKey { account: Some(order.account), with_account: true, origin: order.retry_of, ..CaseKey::task(task) };
        self.tasks.push(task);
        let (operation, command) = match wish {
            Wish::Export => ("export", Command::Export(order)),
            Wish::Retry => ("retry", Command::Retry(order)),
            _ => ("submit", Command::Submit(order)),
        };
        Some(self.ask(who, key.map(|key| (operation, key)), content, case, Some("a boat"), command))
    }

    fn message(&self, which: u8, manner: Manner, luck: u64, memory: &mut Memory) -> Option<Action> {
        let done = |row: &Announced| memory.facts.inbox.iter().any(|((_, id), it)| *id == row.id && it.phase == "done");
        let all: Vec<&Announced> = memory.facts.outbox.values().flatten().collect();
        let new: Vec<&Announced> = all.iter().filter(|row| !done(row)).copied().collect();
        let from = if which < 200 && !new.is_empty() { new } else { all };
        let row = (*from.get(usize::from(which) % from.len().max(1))?).clone();
        let topic = Topic::parse(&row.topic)?;
        let mut envelope = envelope(&row);
        match manner {
            Manner::InTime => memory.now = memory.now.max(row.deliver_at.unwrap_or(memory.now)),
            Manner::AtOnce | Manner::Torn => {}
            Manner::Replayed => {
                envelope.original_event_id = Some(envelope.event_id);
                envelope.event_id = self.id("replay").into();
            }
            Manner::Foreign => {
                envelope.event_id = self.id("foreign").into();
                envelope.tenant_id = TenantId(self.id("stranger"));
            }
            Manner::Dangling => {
                let task_id = TaskId(self.id("nothing"));
                let about = AttemptRef { task_id, attempt_id: AttemptId::of(task_id, 1), version: 1 };
                return Some(sent(
                    &self.fresh(self.tenant(0), &Message::PollDue(about)),
                    Topic::GenerationPollDelay,
                    luck,
                ));
            }
        }
        let action = sent(&envelope, topic, luck);
        Some(match (manner, action) {
            (Manner::Torn, Action::Deliver(mut sent)) => {
                sent.delivery.body.truncate(40);
                Action::Deliver(sent)
            }
            (_, action) => action,
        })
    }

    fn fresh(&self, tenant: TenantId, message: &Message) -> Envelope {
        Envelope {
            event_id: self.id("message").into(),
            original_event_id: None,
            event_type: message.event_type().to_owned(),
            schema_version: message.schema_version(),
            producer: "test".to_owned(),
            occurred_at: start(),
            aggregate_type: "task".to_owned(),
            aggregate_id: message.task_id().0,
            tenant_id: tenant,
            trace_id: "0".repeat(32),
            correlation_id: CorrelationId(self.world),
            causation_id: CausationId(self.world),
            payload: message.payload().expect("ids and numbers"),
        }
    }
}

fn welcome() -> Command {
    Command::Grant("welcome".to_owned(), Credits(150))
}

fn on_task(wish: Wish, task: TaskId) -> Command {
    match wish {
        Wish::RetryNow => Command::RetryNow,
        Wish::ResolveFailed => Command::ResolveFailed,
        Wish::ResolveCanceled => Command::ResolveCanceled,
        Wish::ResolveRetry => Command::ResolveRetry,
        Wish::ResolveAdopt => Command::ResolveAdopt(format!("job-{}", AttemptId::of(task, 1))),
        _ => Command::Cancel,
    }
}

/// The message of an outbox row, as a relay sends it.
pub fn envelope(row: &Announced) -> Envelope {
    let (tenant, correlation, causation, trace) = row.why.clone();
    Envelope {
        event_id: row.id.into(),
        original_event_id: None,
        event_type: row.event_type.clone(),
        schema_version: 1,
        producer: "test".to_owned(),
        occurred_at: row.at,
        aggregate_type: "task".to_owned(),
        aggregate_id: row.task,
        tenant_id: tenant.into(),
        trace_id: trace,
        correlation_id: correlation.into(),
        causation_id: causation.into(),
        payload: row.payload.clone(),
    }
}

pub fn delivery(envelope: &Envelope) -> Delivery {
    Delivery {
        group: "cg_test",
        topic: "test".to_owned(),
        key: Some(envelope.event_id.to_string()),
        redeliveries: 0,
        body: envelope.to_body().expect("small"),
    }
}

fn sent(envelope: &Envelope, topic: Topic, luck: u64) -> Action {
    Action::Deliver(Sent { topic, delivery: delivery(envelope), luck })
}
