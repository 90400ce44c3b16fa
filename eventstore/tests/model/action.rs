//! What is done to a store: a person's command, or a delivery. The same value goes to the model and to PostgreSQL.

use super::script::Script;
use domain::aggregate::Refusal;
use domain::message::Topic;
use domain::money::Credits;
use domain::outcome::Call;
use domain::process::{self, CaseKey, Turn, manager_of};
use domain::task::Order;
use eventstore::{Again, Delivery, ExecuteError, Executed, Outcome, Request, Store, Submission};

/// What people ask for.
#[derive(Clone, Debug)]
pub enum Command {
    Submit(Order),
    Export(Order),
    Retry(Order),
    Cancel,
    RetryNow,
    ResolveFailed,
    ResolveCanceled,
    ResolveRetry,
    ResolveAdopt(String),
    ExpireHold,
    Grant(String, Credits),
    Refund(domain::id::TaskId, String, Credits),
    Adjust(String, Credits),
}

impl Command {
    pub fn apply(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let by = || "user:1".to_owned();
        match self.clone() {
            Self::Submit(order) => process::submit(turn, order),
            Self::Export(order) => process::export(turn, order),
            Self::Retry(order) => process::retry(turn, order),
            Self::Cancel => process::cancel(turn, by()),
            Self::RetryNow => process::retry_now(turn, by()),
            Self::ResolveFailed => process::resolve_failed(turn, "operator:1"),
            Self::ResolveCanceled => process::resolve_canceled(turn, "operator:1"),
            Self::ResolveRetry => process::resolve_retry(turn, "operator:1"),
            Self::ResolveAdopt(job) => process::resolve_adopt(turn, job, by()),
            Self::ExpireHold => process::expire_hold(turn),
            Self::Grant(key, amount) => process::grant(turn, key, amount),
            Self::Refund(task, key, amount) => process::refund(turn, task, key, amount, "late".to_owned()),
            Self::Adjust(key, amount) => process::adjust(turn, key, amount, "counted".to_owned(), by()),
        }
    }
}

/// A command with all that goes with it.
#[derive(Clone, Debug)]
pub struct Ask {
    pub request: Request,
    pub key: CaseKey,
    /// The text that is stored with a new task.
    pub prompt: Option<String>,
    pub command: Command,
}

impl Ask {
    pub fn submission(&self) -> Option<Submission> {
        Some(Submission { task: self.key.task?, prompt: self.prompt.clone()? })
    }

    pub async fn execute(&self, store: &Store) -> Result<Executed, ExecuteError> {
        let command = |turn: &mut Turn<'_>| self.command.apply(turn);
        store.execute(&self.request, self.key, self.submission().as_ref(), command).await
    }
}

/// A delivery to the group that takes it.
#[derive(Clone, Debug)]
pub struct Sent {
    pub topic: Topic,
    pub delivery: Delivery,
    /// What the outside answers depends on.
    pub luck: u64,
}

/// One thing that is done.
#[derive(Clone, Debug)]
pub enum Action {
    Ask(Box<Ask>),
    Deliver(Sent),
}

/// What it came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    Executed(Executed),
    Refused(Refusal),
    KeyReused,
    NotFound,
    /// How the delivery was acknowledged, and the calls that were made.
    Acknowledged(Outcome, Vec<Call>),
    /// Not acknowledged.
    Unfinished(String, Vec<Call>),
}

impl Action {
    /// Does it on PostgreSQL. Only what the store could not do is an error.
    pub async fn run(&self, store: &Store) -> Result<Said, ExecuteError> {
        match self {
            Self::Ask(ask) => match ask.execute(store).await {
                Ok(executed) => Ok(Said::Executed(executed)),
                Err(ExecuteError::Refused(refusal)) => Ok(Said::Refused(refusal)),
                Err(ExecuteError::KeyReused) => Ok(Said::KeyReused),
                Err(ExecuteError::NotFound { .. }) => Ok(Said::NotFound),
                Err(fault @ ExecuteError::Store(_)) => Err(fault),
            },
            Self::Deliver(sent) => {
                let script = Script::new(sent.luck);
                let handled = store.consume(manager_of(sent.topic), &script, &sent.delivery).await;
                Ok(match handled {
                    Ok(ack) => Said::Acknowledged(ack.outcome(), script.calls()),
                    Err(Again::Unfinished(cause)) => Said::Unfinished(cause, script.calls()),
                    // The model knows neither: whatever comes of it, the comparison fails and shows it.
                    Err(fault) => Said::Unfinished(format!("fault: {fault:?}"), script.calls()),
                })
            }
        }
    }
}
