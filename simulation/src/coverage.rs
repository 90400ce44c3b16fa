//! Which rows of the transition tables were reached.

use domain::attempt;
use domain::diagram::{NamedRow, account_rows, attempt_rows, task_rows};
use domain::ledger::{self, Account};
use domain::process::Change;
use domain::process::Folded;
use domain::task::{self, Task};
use std::collections::BTreeMap;

/// Aggregate, state before, command, state after.
type Key = (&'static str, &'static str, &'static str, &'static str);

/// How often each row was taken.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    taken: BTreeMap<Key, u64>,
}

/// One row of a table with its count.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Reached {
    /// Kind of aggregate.
    pub aggregate: &'static str,
    /// State before.
    pub from: &'static str,
    /// Command.
    pub on: &'static str,
    /// State after.
    pub to: &'static str,
    /// How often.
    pub count: u64,
}

impl Coverage {
    pub(crate) fn count(&mut self, key: Key) {
        *self.taken.entry(key).or_default() += 1;
    }

    /// Adds another run's counts.
    pub fn add(&mut self, other: &Self) {
        for (key, count) in &other.taken {
            *self.taken.entry(*key).or_default() += count;
        }
    }

    /// Every row of the three tables with its count, in the tables' order.
    #[must_use]
    pub fn rows(&self) -> Vec<Reached> {
        let tables: [(&'static str, Vec<NamedRow>); 3] =
            [("task", task_rows()), ("attempt", attempt_rows()), ("account", account_rows())];
        let mut rows = Vec::new();
        for (aggregate, table) in tables {
            for (from, on, to, _) in table {
                let count = self.taken.get(&(aggregate, from, on, to)).copied().unwrap_or(0);
                rows.push(Reached { aggregate, from, on, to, count });
            }
        }
        rows
    }

    /// Steps that no table has: there must be none.
    #[must_use]
    pub fn strays(&self) -> Vec<String> {
        let rows = self.rows();
        let known = |key: &Key| rows.iter().any(|it| (it.aggregate, it.from, it.on, it.to) == *key);
        self.taken.keys().filter(|key| !known(key)).map(|key| format!("{key:?}")).collect()
    }
}

/// A step that was recorded, by the names of its table.
pub(crate) fn step(before: &Folded, after: &Folded, change: &Change) -> Key {
    match (before, after, change) {
        (Folded::Task(before), Folded::Task(after), Change::Task(_, event)) => {
            let from = before.state.state();
            ("task", from.name(), task_command(event, &before.state).name(), after.state.state().name())
        }
        (Folded::Attempt(before), Folded::Attempt(after), Change::Attempt(_, event)) => {
            ("attempt", before.state.state().name(), attempt_command(event).name(), after.state.state().name())
        }
        (Folded::Account(before), Folded::Account(after), Change::Account(_, event)) => {
            let command = account_command(event);
            let state = |it: &Account| it.state_for(&command).name();
            ("account", state(&before.state), command.on().name(), state(&after.state))
        }
        _ => ("none", "", "", ""),
    }
}

const fn task_command(event: &task::Event, before: &Task) -> task::On {
    use task::Event as It;
    use task::On;
    match event {
        It::Submitted { .. } => On::Submit,
        It::SubmissionBegun { .. } => On::BeginSubmission,
        It::Accepted {} => On::Accept,
        It::Deferred { .. } if matches!(before, Task::Queued(_) | Task::WaitingRetry { .. }) => On::Wait,
        It::Deferred { .. } => On::Defer,
        It::TrackLost {} => On::LoseTrack,
        It::FetchBegun { .. } => On::BeginFetch,
        It::FetchDelayed { .. } => On::DelayFetch,
        It::VideoStored { .. } => On::StoreVideo,
        It::Succeeded { thumbnail: Some(_), .. } => On::Finish,
        It::Succeeded { thumbnail: None, .. } => On::ForgoExtras,
        It::AttemptReplaced { .. } => On::Replace,
        It::RetryRequested { .. } => On::Retry,
        It::RenderBegun { .. } => On::BeginRender,
        It::RenderDelayed { .. } => On::DelayRender,
        It::ProcessingBegun { .. } => On::BeginProcessing,
        It::ProcessingDelayed { .. } => On::DelayProcessing,
        It::VideoReady { .. } => On::FinishVideo,
        It::Failed { .. } => On::Fail,
        It::Canceled { .. } if matches!(before, Task::CancelReconciling(_) | Task::ManualReview { .. }) => {
            On::ConfirmCancel
        }
        It::CancelRequested { .. } | It::Canceled { .. } => On::Cancel,
        It::CanceledWithOutput {} => On::DiscardOutput,
        It::ReviewRequested { .. } => On::AskPerson,
    }
}

const fn attempt_command(event: &attempt::Event) -> attempt::On {
    use attempt::Event as It;
    use attempt::On;
    match event {
        It::Planned { .. } => On::Plan,
        It::SubmissionBegun { .. } => On::BeginSubmission,
        It::Accepted { .. } => On::Accept,
        It::Deferred { .. } => On::Defer,
        It::AnswerLost { .. } => On::LoseAnswer,
        It::LookedUp { .. } => On::NoteLookup,
        It::Polled { .. } => On::NotePoll,
        It::Succeeded { .. } => On::Succeed,
        It::Failed { .. } => On::Fail,
        It::Canceled {} => On::ConfirmCancel,
        It::GivenUp { .. } => On::GiveUp,
        It::OrphanRecorded { .. } => On::RecordOrphan,
    }
}

fn account_command(event: &ledger::Event) -> ledger::Command {
    use ledger::Command as On;
    use ledger::Event as It;
    match event {
        It::Granted { key, amount } => On::Grant { key: key.clone(), amount: *amount },
        It::Held { task, amount, expires_at } => On::Hold { task: *task, amount: *amount, expires_at: *expires_at },
        It::Settled { task, charged, .. } => On::Settle { task: *task, charge: *charged },
        It::Released { task, .. } => On::Release { task: *task },
        It::HoldExpired { task, .. } => On::Expire { task: *task },
        It::Refunded { task, key, amount, reason } => {
            On::Refund { task: *task, key: key.clone(), amount: *amount, reason: reason.clone() }
        }
        It::Adjusted { key, amount, reason, by } => {
            On::Adjust { key: key.clone(), amount: *amount, reason: reason.clone(), by: by.clone() }
        }
    }
}
