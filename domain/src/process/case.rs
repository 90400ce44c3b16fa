//! The read set: a task, one of its attempts, and the account that pays. Loaded step by step, because which attempt and which
//! account are needed is written in the task's own history; still without any I/O here.

use crate::aggregate::{Aggregate, Category, Misfit};
use crate::attempt::Attempt;
use crate::id::{AccountId, AttemptId, TaskId};
use crate::ledger::Account;
use crate::message::Message;
use crate::outcome::Call;
use crate::stored::{Stored, StoredEvent, Unreadable};
use crate::task::Task;
use uuid::Uuid;

/// Names a stream of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    /// Kind of aggregate.
    pub category: Category,
    /// Which one.
    pub id: Uuid,
}

impl StreamId {
    /// A task's stream.
    #[must_use]
    pub const fn task(id: TaskId) -> Self {
        Self { category: Category::Task, id: id.0 }
    }

    /// An attempt's stream.
    #[must_use]
    pub const fn attempt(id: AttemptId) -> Self {
        Self { category: Category::Attempt, id: id.0 }
    }

    /// An account's stream.
    #[must_use]
    pub const fn account(id: AccountId) -> Self {
        Self { category: Category::Account, id: id.0 }
    }
}

impl std::fmt::Display for StreamId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.category.name(), self.id)
    }
}

/// A stored history that can not be folded. It names stream, version and event: it parks and alarms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stream {stream} is corrupt at version {version}: {cause}")]
pub struct Corrupt {
    /// The stream.
    pub stream: StreamId,
    /// The version of the event that does not fit.
    pub version: i64,
    /// Why.
    #[source]
    pub cause: CorruptCause,
}

/// Why a history can not be folded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CorruptCause {
    /// The event does not decode.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The event does not fit the state before it.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// A version is missing or repeated.
    #[error("version {expected} was expected")]
    Gap {
        /// The version that should have come.
        expected: i64,
    },
}

/// An aggregate with the version of its stream: the number of events folded.
#[derive(Clone, Debug, PartialEq)]
pub struct Versioned<A> {
    /// The folded state.
    pub state: A,
    /// Version of the last event, 0 where there is none.
    pub version: i64,
}

impl<A: Aggregate> Versioned<A> {
    /// Before anything happened.
    #[must_use]
    pub fn absent() -> Self {
        Self { state: A::absent(), version: 0 }
    }

    /// Folds stored events that follow this version.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn fold(mut self, stream: StreamId, events: impl IntoIterator<Item = (i64, Stored)>) -> Result<Self, Corrupt>
    where
        A::Event: StoredEvent,
    {
        for (version, stored) in events {
            let corrupt = |cause| Corrupt { stream, version, cause };
            if version != self.version + 1 {
                return Err(corrupt(CorruptCause::Gap { expected: self.version + 1 }));
            }
            let event = A::Event::decode(stored).map_err(|cause| corrupt(cause.into()))?;
            self.state = self.state.evolve(&event).map_err(|cause| corrupt(cause.into()))?;
            self.version = version;
        }
        Ok(self)
    }
}

/// Any aggregate, folded: what a store keeps in memory and hands to a read set.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "most of what is kept are tasks; a box would cost an allocation each time"
)]
pub enum Folded {
    /// An account.
    Account(Versioned<Account>),
    /// An attempt.
    Attempt(Versioned<Attempt>),
    /// A task.
    Task(Versioned<Task>),
}

impl Folded {
    /// The state before anything happened.
    #[must_use]
    pub fn absent(category: Category) -> Self {
        match category {
            Category::Account => Self::Account(Versioned::absent()),
            Category::Attempt => Self::Attempt(Versioned::absent()),
            Category::Task => Self::Task(Versioned::absent()),
        }
    }

    /// The stream's version.
    #[must_use]
    pub const fn version(&self) -> i64 {
        match self {
            Self::Account(it) => it.version,
            Self::Attempt(it) => it.version,
            Self::Task(it) => it.version,
        }
    }

    /// Folds stored events that follow this version.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn fold(self, stream: StreamId, events: impl IntoIterator<Item = (i64, Stored)>) -> Result<Self, Corrupt> {
        Ok(match self {
            Self::Account(it) => Self::Account(it.fold(stream, events)?),
            Self::Attempt(it) => Self::Attempt(it.fold(stream, events)?),
            Self::Task(it) => Self::Task(it.fold(stream, events)?),
        })
    }
}

/// Which case to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaseKey {
    /// The task; `None` for an account on its own.
    pub task: Option<TaskId>,
    /// An attempt, where a message names one; otherwise the task's current one is read.
    pub attempt: Option<AttemptId>,
    /// The account, where it is known before the task is read (a new task, a grant).
    pub account: Option<AccountId>,
    /// Whether the account of the task's order is needed.
    pub with_account: bool,
    /// Another task that this one is to be made after: the one that is tried again.
    pub origin: Option<TaskId>,
}

impl CaseKey {
    /// A task and its current attempt.
    #[must_use]
    pub const fn task(task: TaskId) -> Self {
        Self { task: Some(task), attempt: None, account: None, with_account: false, origin: None }
    }

    /// What a step of handling a message reads. The answer to a call is read beside the attempt that the call was made for: by
    /// the time it comes, the task may be at another one.
    #[must_use]
    pub fn step(message: &Message, asked: Option<&Call>, with_account: bool) -> Self {
        let attempt = message.attempt_id().or_else(|| asked.and_then(Call::attempt_id));
        Self { attempt, with_account, ..Self::task(message.task_id()) }
    }

    /// An account on its own.
    #[must_use]
    pub const fn account(account: AccountId) -> Self {
        Self { task: None, attempt: None, account: Some(account), with_account: true, origin: None }
    }
}

/// A task, one of its attempts, and the account that pays.
#[derive(Clone, Debug)]
pub struct Case {
    key: CaseKey,
    /// The task.
    pub task: Versioned<Task>,
    /// The attempt that the key names, or the task's current one.
    pub attempt: Versioned<Attempt>,
    /// The account; empty unless the key asked for it.
    pub account: Versioned<Account>,
    /// The task that this one is made after; empty unless the key asked for it.
    pub origin: Versioned<Task>,
    supplied: Vec<StreamId>,
}

impl Case {
    /// Nothing is read yet.
    #[must_use]
    pub fn begin(key: CaseKey) -> Self {
        Self {
            key,
            task: Versioned::absent(),
            attempt: Versioned::absent(),
            account: Versioned::absent(),
            origin: Versioned::absent(),
            supplied: Vec::new(),
        }
    }

    /// The streams that are still needed, as far as is known now. Empty: the case is whole.
    #[must_use]
    pub fn wants(&self) -> Vec<StreamId> {
        let mut wanted: Vec<StreamId> = self.key.task.map(StreamId::task).into_iter().collect();
        wanted.extend(self.attempt_id().map(StreamId::attempt));
        wanted.extend(self.account_id().map(StreamId::account));
        wanted.extend(self.key.origin.map(StreamId::task));
        wanted.retain(|stream| !self.supplied.contains(stream));
        wanted
    }

    /// The attempt of this case: the one asked for, the task's current one, or the one that was read before the task ended.
    #[must_use]
    pub fn attempt_id(&self) -> Option<AttemptId> {
        let current = || self.task.state.live().map(crate::task::Live::attempt);
        let read = || self.attempt.state.core().map(crate::attempt::Core::id);
        self.key.attempt.or_else(current).or_else(read)
    }

    /// The account of this case, where it is read.
    #[must_use]
    pub fn account_id(&self) -> Option<AccountId> {
        self.key
            .account
            .or_else(|| self.key.with_account.then(|| self.task.state.order().map(|order| order.account)).flatten())
    }

    /// The task of this case.
    #[must_use]
    pub const fn task_id(&self) -> Option<TaskId> {
        self.key.task
    }

    /// Turns to the task's next attempt, which nobody can have written to: only the task's own history begins one, and the
    /// version check finds out if somebody did.
    pub(super) fn turn_to_new_attempt(&mut self) {
        self.attempt = Versioned::absent();
    }

    /// Takes a stream that was wanted.
    pub fn supply(&mut self, stream: StreamId, folded: Folded) {
        match folded {
            Folded::Task(it) if self.key.origin.map(StreamId::task) == Some(stream) => self.origin = it,
            Folded::Task(it) => self.task = it,
            Folded::Attempt(it) => self.attempt = it,
            Folded::Account(it) => self.account = it,
        }
        self.supplied.push(stream);
    }
}
