//! The read models and their projector: it reads by position, never past one that may still appear, and the scan for stalled tasks
//! works on what it folded. A rebuild must come to the same rows.

use crate::clock::{MILLI, Micros, SECOND, instant, micros};
use crate::dice::{Fault, PROCESSES};
use crate::mutants::Mutant;
use crate::process::{PROJECTOR, SCAN};
use crate::store::{NewRow, Recorded, Writes};
use crate::world::{Step, World};
use domain::attempt;
use domain::id::{TaskId, message_id};
use domain::ledger;
use domain::process::{Case, CaseKey, Change, wake_up};
use domain::task::{self, State};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// How often the scan looks, how late a task may be, and how long a repaired one is left alone.
const SCAN_INTERVAL: Micros = 10 * SECOND;
const SLACK: Micros = 20 * SECOND;
const REPAIR_PAUSE: Micros = 30 * SECOND;

/// A task's row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadTask {
    version: i64,
    pub(crate) state: &'static str,
    pub(crate) wake_at: Option<Micros>,
    attempt_no: u32,
    charge: i64,
    error: &'static str,
    canceled: bool,
}

/// An attempt's row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ReadAttempt {
    version: i64,
    task: Option<TaskId>,
    number: u32,
    state: &'static str,
    round: u32,
    job: Option<String>,
    polls: u32,
    orphans: Vec<String>,
}

/// An account's row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ReadAccount {
    version: i64,
    available: i64,
    held: i64,
    charged: i64,
}

/// All read tables with their checkpoint.
#[derive(Default)]
pub(crate) struct ReadModel {
    pub(crate) checkpoint: u64,
    pub(crate) tasks: BTreeMap<TaskId, ReadTask>,
    attempts: BTreeMap<Uuid, ReadAttempt>,
    accounts: BTreeMap<Uuid, ReadAccount>,
    waking: BTreeSet<(Micros, TaskId)>,
}

impl ReadModel {
    /// Whether the rows are the same, whatever the checkpoints.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        if self.tasks != other.tasks {
            let which = self.tasks.iter().find(|(id, row)| other.tasks.get(id) != Some(row));
            return Some(format!("tasks differ: {which:?}"));
        }
        if self.attempts != other.attempts {
            return Some("attempts differ".to_owned());
        }
        (self.accounts != other.accounts).then(|| "accounts differ".to_owned())
    }

    /// Folds one event.
    pub(crate) fn fold(&mut self, it: &Recorded) -> Result<(), String> {
        let at = micros(it.at);
        match &it.change {
            Change::Task(id, event) => {
                let row = self.tasks.entry(*id).or_default();
                follows(&mut row.version, it)?;
                let before = row.wake_at;
                fold_task(row, event, at);
                self.wake(*id, before);
            }
            Change::Attempt(id, event) => {
                let row = self.attempts.entry(id.0).or_default();
                follows(&mut row.version, it)?;
                let wake_at = fold_attempt(row, event);
                if let (Some(task), Some(at)) = (row.task, wake_at)
                    && let number = row.number
                    && let Some(row) = self.tasks.get_mut(&task)
                    && row.attempt_no == number
                    && !State::parse(row.state).is_some_and(State::is_terminal)
                {
                    let before = row.wake_at;
                    row.wake_at = Some(at);
                    self.wake(task, before);
                }
            }
            Change::Account(id, event) => {
                let row = self.accounts.entry(id.0).or_default();
                follows(&mut row.version, it)?;
                let settled = fold_account(row, event);
                if let Some(task) = settled
                    && let Some(row) = self.tasks.get_mut(&task)
                    && State::parse(row.state).is_some_and(State::is_terminal)
                {
                    let before = row.wake_at.take();
                    self.wake(task, before);
                }
            }
        }
        Ok(())
    }

    fn wake(&mut self, task: TaskId, before: Option<Micros>) {
        let after = self.tasks.get(&task).and_then(|row| row.wake_at);
        if before != after {
            if let Some(at) = before {
                self.waking.remove(&(at, task));
            }
            if let Some(at) = after {
                self.waking.insert((at, task));
            }
        }
    }
}

fn follows(version: &mut i64, it: &Recorded) -> Result<(), String> {
    if *version + 1 != it.version {
        return Err(format!("version {} of {} follows version {version}", it.version, it.stream));
    }
    *version = it.version;
    Ok(())
}

fn fold_task(row: &mut ReadTask, event: &task::Event, at: Micros) {
    use task::Event as It;
    let after = |count: u64| Some(at + count * SECOND);
    let keep = row.wake_at;
    let now = State::parse(row.state).unwrap_or(State::Absent);
    let (state, wake_at) = match event {
        It::Submitted { order } => (State::Queued, after(if order.export().is_some() { 600 } else { 30 })),
        It::SubmissionBegun { attempt_no } => {
            row.attempt_no = *attempt_no;
            (State::Submitting, after(60))
        }
        It::Accepted {} if row.canceled => (State::CancelReconciling, keep),
        It::Accepted {} => (State::ProviderRunning, keep),
        It::Deferred { retry_at, .. } | It::AttemptReplaced { retry_at, .. } | It::RetryRequested { retry_at, .. } => {
            (State::WaitingRetry, Some(micros(*retry_at)))
        }
        It::RenderBegun { .. } => (State::Rendering, after(600)),
        It::ProcessingBegun { busy_until, .. } => (now, Some(micros(*busy_until))),
        It::RenderDelayed { retry_at, .. } | It::ProcessingDelayed { retry_at, .. } => (now, Some(micros(*retry_at))),
        It::VideoReady { charge, retry_at, .. } => {
            row.charge = charge.0;
            (State::PartiallyReady, Some(micros(*retry_at)))
        }
        It::CancelRequested { .. } if now == State::ManualReview => {
            row.canceled = true;
            (now, keep)
        }
        It::TrackLost {} => (State::Reconciling, keep),
        It::FetchBegun { .. } => (State::Fetching, after(300)),
        It::FetchDelayed { retry_at, .. } => (State::Fetching, Some(micros(*retry_at) + 300 * SECOND)),
        It::VideoStored { .. } => (State::MediaProcessing, after(600)),
        It::Succeeded { charge, .. } => {
            row.charge = charge.0;
            (State::Succeeded, after(30))
        }
        It::Failed { class, .. } => {
            row.error = class.name();
            (State::Failed, after(30))
        }
        It::CancelRequested { .. } => {
            row.canceled = true;
            (State::CancelReconciling, after(10))
        }
        It::Canceled { .. } => (State::Canceled, after(30)),
        It::CanceledWithOutput {} => (State::CanceledWithOutput, after(30)),
        It::ReviewRequested { .. } => (State::ManualReview, None),
    };
    row.state = state.name();
    row.wake_at = wake_at;
}

fn fold_attempt(row: &mut ReadAttempt, event: &attempt::Event) -> Option<Micros> {
    use attempt::Event as It;
    use attempt::State as To;
    let (state, wake_at) = match event {
        It::Planned { task, number, .. } => {
            row.task = Some(*task);
            row.number = *number;
            (To::Planned, None)
        }
        It::SubmissionBegun { round, give_up_at } => {
            row.round = *round;
            (To::Submitting, Some(*give_up_at))
        }
        It::Accepted { job, next_poll_at, .. } => {
            row.job = Some(job.clone());
            (To::Running, Some(*next_poll_at))
        }
        It::Deferred { .. } => (To::Planned, None),
        It::AnswerLost { next_lookup_at, .. } | It::LookedUp { next_lookup_at, .. } => {
            (To::Unclear, Some(*next_lookup_at))
        }
        It::Polled { next_poll_at, .. } => {
            row.polls += 1;
            (To::Running, Some(*next_poll_at))
        }
        It::Succeeded { .. } => (To::Succeeded, None),
        It::Failed { .. } => (To::Failed, None),
        It::Canceled {} => (To::Canceled, None),
        It::GivenUp { .. } => (To::GivenUp, None),
        It::OrphanRecorded { job } => {
            row.orphans.push(job.clone());
            return None;
        }
    };
    row.state = state.name();
    wake_at.map(micros)
}

/// The task whose hold is closed by it.
fn fold_account(row: &mut ReadAccount, event: &ledger::Event) -> Option<TaskId> {
    use ledger::Event as It;
    match event {
        It::Granted { amount, .. } => row.available += amount.0,
        It::Held { amount, .. } => {
            row.available -= amount.0;
            row.held += amount.0;
        }
        It::Settled { task, charged, released } => {
            row.held -= charged.0 + released.0;
            row.available += released.0;
            row.charged += charged.0;
            return Some(*task);
        }
        It::Released { task, released } => {
            row.held -= released.0;
            row.available += released.0;
            return Some(*task);
        }
        It::HoldExpired { task, released, .. } => {
            row.held -= released.0;
            row.available += released.0;
            return Some(*task);
        }
        It::Refunded { amount, .. } => {
            row.charged -= amount.0;
            row.available += amount.0;
        }
        It::Adjusted { amount, .. } => row.available += amount.0,
    }
    None
}

impl World {
    pub(crate) fn plan_projection(&mut self, after: Micros) {
        let at = self.now + after;
        let planned = &mut self.looks[usize::from(PROJECTOR)];
        if planned.is_some_and(|planned| planned <= at && planned >= self.now) {
            return;
        }
        *planned = Some(at);
        let epoch = self.epoch(PROJECTOR);
        self.queue.plan(at, Step::Project { epoch });
    }

    pub(crate) fn drop_projection(&mut self, process: u8) {
        if process == PROJECTOR {
            self.looks[usize::from(PROJECTOR)] = None;
        }
    }

    /// One look at the events: everything readable is folded, in one transaction with the checkpoint.
    pub(crate) fn project(&mut self) {
        self.looks[usize::from(PROJECTOR)] = None;
        if self.database_is_down() || self.dice.strikes(PROCESSES + u32::from(PROJECTOR), Fault::BeginFails) {
            return self.plan_projection(SECOND);
        }
        let skips = self.mutant == Some(Mutant::CursorSkips);
        let readable = self.store.readable(self.now);
        let after = self.read.checkpoint;
        let up_to =
            if skips { self.store.events(after, u64::MAX - 1).last().map_or(after, |it| it.0) } else { readable };
        let mut fault = None;
        for (position, event) in self.store.events(after, up_to) {
            if let Err(text) = self.read.fold(event) {
                fault = Some(format!("the projector met position {position} out of order: {text}"));
                break;
            }
        }
        self.read.checkpoint = self.read.checkpoint.max(up_to);
        if let Some(text) = fault {
            return self.violate("replayable", text);
        }
        if self.read.checkpoint < self.store.last_position() && !skips {
            // A writer that has not ended holds the reader back.
            self.plan_projection(100 * MILLI);
        }
    }

    /// The scan for stalled tasks.
    pub(crate) fn scan(&mut self) {
        let epoch = self.epoch(SCAN);
        self.queue.plan(self.now + SCAN_INTERVAL, Step::Scan { epoch });
        if self.mutant == Some(Mutant::NoScan) || self.database_is_down() {
            return;
        }
        let late: Vec<TaskId> = self
            .read
            .waking
            .iter()
            .take_while(|(at, _)| at + SLACK < self.now)
            .map(|(_, task)| *task)
            .take(200)
            .collect();
        for task in late {
            let subject = self.subject_of(task);
            if self.lives.get(&subject).is_some_and(|it| it.last_repair > 0 && it.last_repair + REPAIR_PAUSE > self.now)
            {
                continue;
            }
            self.wake_task(task);
        }
    }

    fn wake_task(&mut self, task: TaskId) {
        let subject = self.subject_of(task);
        let at = instant(self.now);
        let case = self.store.load(Case::begin(CaseKey { with_account: true, ..CaseKey::task(task) }));
        let (Some(message), Some(order)) = (wake_up(&case, at), case.task.state.order()) else { return };
        let round = self.now / REPAIR_PAUSE;
        let detail = format!("{}:{}:{}:{round}", message.event_type(), case.task.version, case.attempt.version);
        let id = message_id(at, "repair", task.0, &detail);
        let deliver_at = message.topic().is_delayed().then_some(at);
        let text = message.event_type();
        let row = NewRow { id, original: None, message, deliver_at, tenant: order.tenant, cause: id };
        let writes = Writes { outbox: vec![row], at, ..Writes::default() };
        let tx = self.store.begin(self.now);
        if self.commit(tx, &writes, None).is_ok() {
            self.repairs += 1;
            self.trace.tell("scan", format_args!("sets task {subject} going again with {text}"));
            let now = self.now;
            if let Some(life) = self.lives.get_mut(&subject) {
                life.last_repair = now;
                life.tainted = false;
            }
        }
    }
}
