//! A turn: commands given to the aggregates of one case, and what they came to.
//!
//! Every change goes through `decide`; every message that announces a change is derived here from the event itself, so that
//! publishing can not be forgotten.

use super::case::{Case, StreamId};
use super::policy::Policy;
use super::slots::Entry;
use crate::aggregate::{Aggregate, Decision, Refusal};
use crate::attempt::{self, Attempt};
use crate::id::{AttemptId, TaskId, TenantId};
use crate::ledger::{self, Account};
use crate::message::Message;
use crate::message::kinds::{AttemptRef, TaskRef};
use crate::mutant::{self, Mutant};
use crate::task::{self, State, Task, Work};
use crate::time::{Timestamp, seconds};
use chrono::TimeDelta;

/// The message was understood, and leads to nothing. Recorded, acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct Declined {
    /// A stable word: `stale`, `early`, or the code of a refusal.
    pub code: &'static str,
    /// A sentence.
    pub detail: String,
}

impl Declined {
    /// The facts have moved on.
    pub fn stale(detail: impl Into<String>) -> Self {
        Self { code: "stale", detail: detail.into() }
    }

    /// It is not time yet, and a later wake-up exists.
    pub fn early(detail: impl Into<String>) -> Self {
        Self { code: "early", detail: detail.into() }
    }
}

impl From<Refusal> for Declined {
    fn from(refusal: Refusal) -> Self {
        Self { code: refusal.code, detail: refusal.to_string() }
    }
}

/// An event to be appended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "a turn has a handful of them, for as long as it takes to write them")]
pub enum Change {
    /// To the task's stream.
    Task(TaskId, task::Event),
    /// To an attempt's stream.
    Attempt(AttemptId, attempt::Event),
    /// To an account's stream.
    Account(crate::id::AccountId, ledger::Event),
}

impl Change {
    /// The stream it belongs to.
    #[must_use]
    pub const fn stream(&self) -> StreamId {
        match self {
            Self::Task(id, _) => StreamId::task(*id),
            Self::Attempt(id, _) => StreamId::attempt(*id),
            Self::Account(id, _) => StreamId::account(*id),
        }
    }
}

/// What a message's id is derived from: so it is the same however often the step is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An event announces it.
    Event {
        /// Its stream.
        stream: StreamId,
        /// Its version.
        version: i64,
    },
    /// It sets a wake-up again that came too early; the id is derived from the message that did.
    Rearmed,
}

/// A message to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// What it is derived from.
    pub origin: Origin,
    /// The message.
    pub message: Message,
    /// Not before this time; `None`: at once.
    pub deliver_at: Option<Timestamp>,
}

/// News for a person, shown once per task version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whose news.
    pub tenant: TenantId,
    /// About which task.
    pub task: TaskId,
    /// The version of the task that it tells about.
    pub version: i64,
    /// The state the task is in.
    pub state: State,
}

/// Commands given to one case at one time, and what they came to.
#[derive(Debug)]
pub struct Turn<'a> {
    /// The facts, with this turn's own changes folded in.
    pub case: Case,
    /// The time of this turn.
    pub now: Timestamp,
    /// Product rules.
    pub policy: &'a Policy,
    /// What admission said, where it was asked: see [`super::ProcessManager::needs_slot`].
    pub entry: Option<Entry>,
    /// Events to be appended, in order.
    pub changes: Vec<Change>,
    /// Messages to be published.
    pub announcements: Vec<Announcement>,
    /// News to be recorded.
    pub notices: Vec<Notice>,
}

impl<'a> Turn<'a> {
    /// A turn on a whole case.
    #[must_use]
    pub const fn new(case: Case, now: Timestamp, policy: &'a Policy) -> Self {
        Self { case, now, policy, entry: None, changes: Vec::new(), announcements: Vec::new(), notices: Vec::new() }
    }

    /// The pause before poll number `n` (from 0) of the attempt's job, of which so much is done by the provider's word.
    #[must_use]
    pub fn poll_pause(&self, n: u32, percent: Option<u8>) -> TimeDelta {
        let pause = self.policy.poll_pause(self.provider(), n);
        let Attempt::Running { give_up_at, .. } = self.case.attempt.state else { return pause };
        let age = self.now - (give_up_at - seconds(self.policy.max_running_seconds));
        self.policy.expected_sooner(self.provider(), pause, age, percent)
    }

    /// The pause before the next look at a job that is being cancelled, after `n` polls: nobody calls back about a cancel that
    /// did not come to anything.
    #[must_use]
    pub fn cancel_pause(&self, n: u32) -> TimeDelta {
        self.policy.cancel_pause(self.provider(), n)
    }

    fn provider(&self) -> &str {
        self.case.attempt.state.core().map(|core| core.provider.as_str()).unwrap_or_default()
    }

    /// Gives the task a command.
    ///
    /// # Errors
    /// The task's refusal.
    pub fn task(&mut self, command: task::Command) -> Result<(), Refusal> {
        let Some(id) = self.task_id_for(&command) else {
            return Err(nothing_there("task", command.on().name()));
        };
        if let Decision::Record(events) = self.case.task.state.decide(command, self.now)? {
            for event in events {
                self.apply_task(id, event)?;
            }
        }
        Ok(())
    }

    /// Gives the case's attempt a command.
    ///
    /// # Errors
    /// The attempt's refusal.
    pub fn attempt(&mut self, command: attempt::Command) -> Result<(), Refusal> {
        let on = command.on().name();
        let Some(id) = self.case.attempt_id() else {
            return Err(nothing_there("attempt", on));
        };
        if let Decision::Record(events) = self.case.attempt.state.decide(command, self.now)? {
            for event in events {
                self.apply_attempt(id, event)?;
            }
        }
        Ok(())
    }

    /// Gives the account a command.
    ///
    /// # Errors
    /// The account's refusal.
    pub fn account(&mut self, command: ledger::Command) -> Result<(), Refusal> {
        let on = command.on().name();
        let Some(id) = self.case.account_id() else {
            return Err(nothing_there("account", on));
        };
        if let Decision::Record(events) = self.case.account.state.decide(command, self.now)? {
            for event in events {
                let state = std::mem::replace(&mut self.case.account.state, Account::absent());
                self.case.account.state = state.evolve(&event).map_err(|it| broken("account", on, &it))?;
                self.case.account.version += 1;
                self.changes.push(Change::Account(id, event));
            }
        }
        Ok(())
    }

    /// Sets a wake-up again.
    pub fn rearm(&mut self, message: Message, at: Timestamp) {
        if mutant::on(Mutant::NoRearm) {
            return;
        }
        self.announcements.push(Announcement { origin: Origin::Rearmed, message, deliver_at: Some(at) });
    }

    /// Whether what is said about the case's attempt may move the task: only while the task's work is at that very attempt.
    /// News of an older one is recorded where it belongs, and nowhere else (one-winner).
    pub(super) fn speaks_for_task(&self) -> bool {
        let live = self.case.task.state.live().map(task::Live::attempt);
        live.is_some() && live == self.case.attempt_id()
    }

    fn task_id_for(&self, command: &task::Command) -> Option<TaskId> {
        match command {
            task::Command::Submit(order) => Some(order.task),
            _ => self.case.task_id(),
        }
    }

    fn apply_task(&mut self, id: TaskId, event: task::Event) -> Result<(), Refusal> {
        let state = std::mem::replace(&mut self.case.task.state, Task::Absent);
        let before = state.state();
        self.case.task.state = state.evolve(&event).map_err(|it| broken("task", "evolve", &it))?;
        self.case.task.version += 1;
        self.announce_task(id, &event, before);
        self.changes.push(Change::Task(id, event));
        Ok(())
    }

    fn apply_attempt(&mut self, id: AttemptId, event: attempt::Event) -> Result<(), Refusal> {
        let state = std::mem::replace(&mut self.case.attempt.state, Attempt::Absent);
        self.case.attempt.state = state.evolve(&event).map_err(|it| broken("attempt", "evolve", &it))?;
        self.case.attempt.version += 1;
        self.announce_attempt(id, &event);
        self.changes.push(Change::Attempt(id, event));
        Ok(())
    }

    /// What a task's event announces: the one place that says so.
    fn announce_task(&mut self, id: TaskId, event: &task::Event, before: State) {
        use task::Event as It;
        let version = self.case.task.version;
        let about = TaskRef { task_id: id, task_version: version };
        let attempt = self.case.attempt_id().map(|attempt_id| AttemptRef { task_id: id, attempt_id, version });
        let (message, deliver_at) = match event {
            It::Submitted { order } => match order.work {
                Work::Generate => (Some(Message::SubmitRequested(about)), None),
                Work::Export { .. } => (Some(Message::RenderRequested(about)), None),
            },
            It::Deferred { retry_at, .. }
            | It::AttemptReplaced { retry_at, .. }
            | It::RetryRequested { retry_at, .. } => (Some(Message::SubmitDue(about)), Some(*retry_at)),
            It::FetchBegun { .. } if mutant::on(Mutant::AnnouncementForgotten) => (None, None),
            It::FetchBegun { .. } => (attempt.map(Message::FetchRequested), None),
            It::FetchDelayed { retry_at, .. } => (attempt.map(Message::FetchDue), Some(*retry_at)),
            It::VideoStored { .. } => match attempt {
                Some(attempt) => (Some(Message::PostprocessRequested(attempt)), None),
                None => (Some(Message::PostprocessDue(about)), Some(self.now)),
            },
            It::RenderDelayed { retry_at, .. } => (Some(Message::RenderDue(about)), Some(*retry_at)),
            It::ProcessingDelayed { retry_at, .. } | It::VideoReady { retry_at, .. } => {
                (Some(Message::PostprocessDue(about)), Some(*retry_at))
            }
            // In a review nothing but the person acts.
            It::CancelRequested { .. } if matches!(self.case.task.state, Task::ManualReview { .. }) => (None, None),
            It::CancelRequested { .. } => (attempt.map(Message::ReconcileDue), Some(self.now)),
            It::Succeeded { .. } | It::Failed { .. } | It::Canceled { .. } | It::CanceledWithOutput {} => {
                (Some(Message::SettleRequested(about)), None)
            }
            It::SubmissionBegun { .. }
            | It::Accepted {}
            | It::TrackLost {}
            | It::RenderBegun { .. }
            | It::ProcessingBegun { .. }
            | It::ReviewRequested { .. } => (None, None),
        };
        let origin = Origin::Event { stream: StreamId::task(id), version };
        self.announcements.extend(message.map(|message| Announcement { origin, message, deliver_at }));
        let state = self.case.task.state.state();
        if state != before && state.is_news() {
            self.announcements.push(Announcement { origin, message: Message::StateChanged(about), deliver_at: None });
        }
    }

    /// What an attempt's event announces: the one place that says so.
    fn announce_attempt(&mut self, id: AttemptId, event: &attempt::Event) {
        use attempt::Event as It;
        let version = self.case.attempt.version;
        let Some(task_id) = self.case.attempt.state.core().map(|core| core.task) else { return };
        let about = AttemptRef { task_id, attempt_id: id, version };
        let (message, at) = match event {
            It::Accepted { next_poll_at, .. } | It::Polled { next_poll_at, .. } => {
                (Message::PollDue(about), *next_poll_at)
            }
            It::AnswerLost { next_lookup_at, .. } | It::LookedUp { next_lookup_at, .. } => {
                (Message::ReconcileDue(about), *next_lookup_at)
            }
            It::Planned { .. }
            | It::SubmissionBegun { .. }
            | It::Deferred { .. }
            | It::Succeeded { .. }
            | It::Failed { .. }
            | It::Canceled {}
            | It::GivenUp { .. } => return,
            // It raises the version, and with it overtakes the wake-up that the running job waits for.
            It::OrphanRecorded { .. } => match &self.case.attempt.state {
                Attempt::Running { next_poll_at, .. } => (Message::PollDue(about), *next_poll_at),
                _ => return,
            },
        };
        let origin = Origin::Event { stream: StreamId::attempt(id), version };
        self.announcements.push(Announcement { origin, message, deliver_at: Some(at) });
    }
}

/// A wake-up that came before its time. The newest one is set again: it is the only one for that time, and without another
/// nobody would come back. Older ones have been overtaken.
pub(super) fn too_early(
    message: &Message,
    newest: bool,
    due: Timestamp,
    turn: &mut Turn<'_>,
) -> Result<super::Next, Declined> {
    if !newest {
        return Err(Declined::early("its own wake-up will come"));
    }
    turn.rearm(message.clone(), due);
    Ok(super::Next::Done)
}

fn nothing_there(aggregate: &'static str, command: &'static str) -> Refusal {
    Refusal { aggregate, state: "ABSENT", command, code: "nothing_there", message: "the case has none".to_owned() }
}

/// `decide` recorded an event that `evolve` does not accept: the table tests make this impossible, and if it happens
/// nothing is appended.
fn broken(aggregate: &'static str, command: &'static str, misfit: &crate::aggregate::Misfit) -> Refusal {
    Refusal { aggregate, state: misfit.state, command, code: "misfit", message: misfit.to_string() }
}
