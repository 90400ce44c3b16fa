//! One world: everything there is, on one thread, and what happens next.

use crate::Setup;
use crate::api::{Api, Request};
use crate::broker::Broker;
use crate::clock::{HOUR, MINUTE, Micros, Queue, SECOND};
use crate::coverage::Coverage;
use crate::dice::{Dice, Fault, PROCESSES, Site, Subject};
use crate::handling::{Handling, Phase};
use crate::mutants::Mutant;
use crate::people::{Act, Life, Wish};
use crate::process::{self, Befalls, Process};
use crate::projection::ReadModel;
use crate::provider::{Kind, Providers};
use crate::relay::{RelayStep, counts};
use crate::store::{InboxKey, Map, Refused, Store, TxId, Writes};
use crate::trace::Trace;
use crate::watch::{Violation, Watch};
use domain::id::{AttemptId, TaskId};
use domain::outcome::Call;
use domain::process::{CancelRule, Policy};
use std::collections::BTreeMap;
use uuid::Uuid;

/// What may happen next.
pub(crate) enum Step {
    Deliver { copy: usize },
    Expire { copy: usize, delivery: u32 },
    Redeliver { copy: usize, delivery: u32 },
    Handle { index: usize, process: u8, epoch: u32, phase: Phase },
    Arrive { index: usize, process: u8, epoch: u32, subject: Subject, kind: Kind, call: Box<Call> },
    Relay { process: u8, epoch: u32, what: RelayStep },
    Callback { job: usize, word: &'static str, tries: u32 },
    Person { subject: Subject, act: Act },
    Api { index: usize, process: u8, epoch: u32, phase: Api },
    Refund { subject: Subject, task: TaskId, amount: i64 },
    Scan { epoch: u32 },
    Project { epoch: u32 },
    Befalls { process: u8, what: Befalls },
    Outage,
    Wipe,
    Inspect,
    CalmDown,
    End,
}

/// Short names for ids, in the order in which they were met: stories are read by people.
#[derive(Default)]
pub(crate) struct Names;

impl Names {
    pub(crate) fn of(&self, id: Uuid) -> String {
        format!("#{}", &id.simple().to_string()[..6])
    }
}

/// The world.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) setup: Setup,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) now: Micros,
    pub(crate) queue: Queue<Step>,
    pub(crate) dice: Dice,
    pub(crate) trace: Trace,
    pub(crate) names: Names,
    pub(crate) policy: Policy,
    /// The same rules, whatever a mutant makes of them.
    pub(crate) honest_policy: Policy,
    pub(crate) store: Store,
    pub(crate) broker: Broker,
    pub(crate) providers: Providers,
    pub(crate) read: ReadModel,
    pub(crate) processes: Vec<Process>,
    pub(crate) handlings: Vec<Option<Handling>>,
    pub(crate) free_handlings: Vec<usize>,
    pub(crate) requests: Vec<Option<Request>>,
    pub(crate) looks: [Option<Micros>; process::COUNT as usize],
    pub(crate) lives: BTreeMap<Subject, Life>,
    pub(crate) subjects: Map<TaskId, Subject>,
    pub(crate) attempts: Map<AttemptId, Subject>,
    pub(crate) watch: Watch,
    pub(crate) coverage: Coverage,
    pub(crate) violation: Option<Violation>,
    pub(crate) is_calm: bool,
    pub(crate) is_quiet: bool,
    pub(crate) repairs: u64,
    pub(crate) steps: u64,
    down_until: Micros,
    ended: bool,
}

impl World {
    pub(crate) fn new(setup: &Setup, mutant: Option<Mutant>, recorded: bool) -> Self {
        let mut dice = Dice::new(setup.seed, setup.faults);
        let policy = policy(&mut dice);
        let mut world = Self {
            seed: setup.seed,
            setup: setup.clone(),
            mutant,
            now: 0,
            queue: Queue::new(),
            dice,
            trace: Trace::new(recorded),
            names: Names,
            honest_policy: policy.clone(),
            policy,
            store: Store::new(mutant == Some(Mutant::LastWins)),
            broker: Broker::default(),
            providers: Providers::default(),
            read: ReadModel::default(),
            processes: process::all(),
            handlings: Vec::new(),
            free_handlings: Vec::new(),
            requests: Vec::new(),
            looks: [None; process::COUNT as usize],
            lives: BTreeMap::new(),
            subjects: Map::default(),
            attempts: Map::default(),
            watch: Watch::default(),
            coverage: Coverage::default(),
            violation: None,
            is_calm: false,
            is_quiet: false,
            repairs: 0,
            steps: 0,
            down_until: 0,
            ended: false,
        };
        world.plan();
        world
    }

    fn plan(&mut self) {
        for subject in self.subjects_planned() {
            let life = self.new_life(subject, Wish::Generate);
            self.lives.insert(subject, life);
        }
        self.plan_people();
        self.plan_fates();
        for process in 0..process::COUNT {
            self.start(process);
        }
        let (outage, wipe) = (self.weather(), self.weather());
        self.queue.plan(outage, Step::Outage);
        self.queue.plan(wipe, Step::Wipe);
        self.queue.plan(5 * MINUTE, Step::Inspect);
        self.queue.plan(self.setup.hours.max(1) * HOUR, Step::CalmDown);
    }

    fn weather(&mut self) -> Micros {
        self.now + self.dice.between(PROCESSES + 19, Site::Lives, 10 * MINUTE, 90 * MINUTE)
    }

    /// Lets everything happen.
    pub(crate) fn run(&mut self) {
        while let Some((at, step)) = self.queue.next() {
            self.now = at;
            if let Some(step) = self.postponed(step) {
                self.steps += 1;
                self.trace.at(at);
                self.take(step);
            }
            if self.violation.is_some() || self.ended {
                return;
            }
        }
    }

    /// Steps of a process that sleeps wait until it wakes; those of one that died never happen.
    fn postponed(&mut self, step: Step) -> Option<Step> {
        let (process, epoch) = match &step {
            Step::Handle { process, epoch, .. }
            | Step::Relay { process, epoch, .. }
            | Step::Api { process, epoch, .. } => (*process, *epoch),
            Step::Scan { epoch } => (process::SCAN, *epoch),
            Step::Project { epoch } => (process::PROJECTOR, *epoch),
            _ => return Some(step),
        };
        let it = &self.processes[usize::from(process)];
        if it.epoch != epoch || !it.alive {
            return None;
        }
        if it.paused_until > self.now {
            let at = it.paused_until;
            self.queue.plan(at, step);
            return None;
        }
        Some(step)
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Deliver { copy } => self.deliver(copy),
            Step::Expire { copy, delivery } => self.expire(copy, delivery),
            Step::Redeliver { copy, delivery } => self.redeliver(copy, delivery),
            Step::Handle { index, phase, .. } => {
                if self.handlings[index].is_some() {
                    self.handle(index, phase);
                }
            }
            Step::Arrive { index, process, epoch, subject, kind, call } => {
                self.arrive(index, process, epoch, subject, kind, &call);
            }
            Step::Relay { process, what, .. } => self.relay(process, what),
            Step::Callback { job, word, tries } => self.callback(job, word, tries),
            Step::Person { subject, act } => self.act(subject, act),
            Step::Api { index, phase, .. } => self.api(index, phase),
            Step::Refund { subject, task, amount } => self.ask_refund(subject, task, amount),
            Step::Scan { .. } => self.scan(),
            Step::Project { .. } => self.project(),
            Step::Befalls { process, what } => self.befall(process, what),
            Step::Outage => self.outage(),
            Step::Wipe => self.maybe_wipe(),
            Step::Inspect => self.look_around(),
            Step::CalmDown => self.calm_down(),
            Step::End => self.end(),
        }
    }

    fn outage(&mut self) {
        if self.dice.strikes(PROCESSES + 19, Fault::Outage) {
            self.down_until = self.now + self.dice.between(PROCESSES + 19, Site::Sleep, SECOND, 100 * SECOND);
            self.trace.tell("database", format_args!("is down"));
        }
        if !self.is_calm {
            let at = self.weather();
            self.queue.plan(at, Step::Outage);
        }
    }

    fn maybe_wipe(&mut self) {
        if self.dice.strikes(PROCESSES + 19, Fault::Wipe) {
            self.wipe();
        }
        if !self.is_calm {
            let at = self.weather();
            self.queue.plan(at, Step::Wipe);
        }
    }

    /// From now on nothing goes wrong any more: what is under way has to come to its end.
    fn calm_down(&mut self) {
        if !self.is_calm {
            self.trace.tell("world", format_args!("no more faults"));
            self.is_calm = true;
            self.dice.calm_down();
            self.queue.plan(self.now + 12 * HOUR, Step::End);
        }
    }

    fn look_around(&mut self) {
        self.inspect();
        if self.is_quiet && self.violation.is_none() {
            if self.is_calm && self.store.outbox.is_empty() && self.is_projected() {
                self.end();
            } else {
                self.calm_down();
            }
        }
    }

    fn is_projected(&mut self) -> bool {
        self.read.checkpoint >= self.store.last_position()
    }

    fn end(&mut self) {
        if self.violation.is_none() {
            self.watch_end();
        }
        self.ended = true;
    }

    /// Commits a transaction: looks at it with the facts before it, makes it durable, and rings the bells.
    pub(crate) fn commit(
        &mut self,
        tx: TxId,
        writes: &Writes,
        source: Option<(InboxKey, bool)>,
    ) -> Result<(), Refused> {
        self.store.may_commit(tx, writes, self.now)?;
        self.watch_commit(writes, source);
        for (stream, version, change) in &writes.events {
            self.trace.mark(stream.id.as_bytes());
            self.trace.mark(&version.to_le_bytes());
            self.trace.mark_debug(change);
        }
        self.store.apply(writes);
        for row in writes.outbox.iter().filter(|row| counts(&row.message)) {
            let subject = self.subject_of(row.message.task_id());
            self.carrier_new(subject);
        }
        if !writes.outbox.is_empty() {
            self.ring_relays();
        }
        if !writes.events.is_empty() {
            self.plan_projection(5_000);
        }
        Ok(())
    }

    pub(crate) fn subject_of(&self, task: TaskId) -> Subject {
        self.subjects.get(&task).copied().unwrap_or(0)
    }

    pub(crate) fn name(&self, id: Uuid) -> String {
        self.names.of(id)
    }

    pub(crate) const fn database_is_down(&self) -> bool {
        self.now < self.down_until
    }
}

/// Product rules of this world: near the defaults, with both rules for outputs that come too late.
fn policy(dice: &mut Dice) -> Policy {
    let mut draw = |low, high| dice.between(PROCESSES + 18, Site::Rules, low, high);
    Policy {
        submit_timeout_ms: draw(10_000, 30_000),
        lease_margin_ms: draw(5_000, 15_000),
        settle_delay_ms: 5_000,
        absences_needed: 2,
        max_unclear_seconds: draw(300, 1_800),
        poll_first_ms: draw(2_000, 5_000),
        poll_cap_ms: draw(20_000, 60_000),
        poll_at_least_ms: std::collections::BTreeMap::new(),
        max_running_seconds: draw(300, 1_800),
        max_waiting_seconds: draw(120, 1_800),
        max_processing_seconds: draw(300, 1_800),
        max_partial_seconds: draw(60, 1_200),
        max_processing_tries: u32::try_from(draw(2, 5)).unwrap_or(3),
        max_render_delays: u32::try_from(draw(1, 5)).unwrap_or(3),
        max_fetch_delays: u32::try_from(draw(2, 8)).unwrap_or(4),
        max_attempts: u32::try_from(draw(1, 3)).unwrap_or(1),
        backoff_base_ms: 5_000,
        backoff_cap_ms: draw(60_000, 600_000),
        cancel_rule: if draw(0, 1) == 0 { CancelRule::Deliver } else { CancelRule::Discard },
        hold_percent: 120,
        // Far above the half minute that media work takes here, naps aside.
        processing_lease_seconds: draw(60, 900),
        // One provider for each task here, asked in the rhythm that finds most.
        calling_back: std::collections::BTreeSet::new(),
        poll_calling_back_first_ms: 60_000,
        poll_calling_back_cap_ms: 240_000,
        elsewhere_after: 3,
    }
}
