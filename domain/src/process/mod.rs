//! Process managers: what a message leads to. Synchronous and pure, so nothing can be awaited inside a transaction.
//!
//! A manager reads a [`Case`] (the task, its attempt, the account), and works on a [`Turn`]: it gives commands to the
//! aggregates, whose events and announcements are appended in one transaction, and says what comes [`Next`]. An outside call
//! is made after that transaction has committed; its answer comes back to `conclude`, on facts that were read afresh.
//!
//! A message may be delivered any number of times, early, late and out of order, also while it is being handled: what a
//! manager does depends on the facts alone.

mod callback;
mod case;
mod credits;
mod elsewhere;
mod fetch;
mod groups;
mod notify;
mod policy;
mod poll;
mod postprocess;
mod reconcile;
mod render;
mod request;
mod settle;
mod slots;
mod submit;
mod turn;
mod wake;

pub use callback::ApplyCallback;
pub use case::{Case, CaseKey, Corrupt, CorruptCause, Folded, StreamId, Versioned};
pub use credits::{adjust, expire_hold, hold_expires_at, refund};
pub use fetch::FetchOutput;
pub use groups::{MANAGERS, manager_index, manager_of};
pub use notify::Notify;
pub use policy::{CancelRule, Policy, charge};
pub use poll::PollProvider;
pub use postprocess::ProcessMedia;
pub use reconcile::Reconcile;
pub use render::RenderExport;
pub use request::{
    cancel, export, grant, resolve_adopt, resolve_canceled, resolve_failed, resolve_retry, retry, retry_now, submit,
};
pub use settle::SettleHold;
pub use slots::{Entry, Slot, SlotNote, Why, slot_note};
pub use submit::SubmitTask;
pub use turn::{Announcement, Change, Declined, Notice, Origin, Turn};
pub use wake::wake_up;

use crate::message::{BadMessage, Envelope, Message};
use crate::outcome::{Answer, Call};
use crate::time::Timestamp;

/// What comes after a turn has committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The message is handled.
    Done,
    /// Look at the facts again: they now say that the next step is allowed.
    Again,
    /// Make this call, then `conclude`.
    Call(Call),
    /// The work could not be done this time and changed nothing: let the message come again.
    Retry(String),
}

/// Handles the messages of one consumer group.
pub trait ProcessManager: Send + Sync + 'static {
    /// Half of the inbox key, stored for ever; equal to the consumer group's logical name.
    fn name(&self) -> &'static str;

    /// Whether the account has to be read.
    fn needs_account(&self) -> bool {
        false
    }

    /// The slot that a message needs before [`Self::react`], as of facts at a time; `None`: none. Admission's answer comes back as
    /// [`Turn::entry`].
    fn needs_slot(&self, message: &Message, case: &Case, now: Timestamp) -> Option<Slot> {
        let _ = (message, case, now);
        None
    }

    /// What a message leads to.
    ///
    /// # Errors
    /// [`Declined`]: stale, early, or not allowed in the state met. That is an answer, not a fault.
    fn react(&self, message: &Message, turn: &mut Turn<'_>) -> Result<Next, Declined>;

    /// What the answer to a call leads to.
    ///
    /// # Errors
    /// [`Declined`]: the facts have moved on meanwhile.
    fn conclude(&self, message: &Message, call: &Call, answer: Answer, turn: &mut Turn<'_>) -> Result<Next, Declined> {
        let _ = (message, answer, turn);
        Err(Declined::stale(format!("{} makes no calls, yet was answered one: {call:?}", self.name())))
    }
}

/// Reads the message in an envelope, for a consumer that takes all kinds.
///
/// # Errors
/// [`BadMessage`].
pub fn read(body: &[u8]) -> Result<(Envelope, Message), BadMessage> {
    let envelope = Envelope::parse(body)?;
    let message = Message::read(&envelope)?;
    Ok((envelope, message))
}

/// Checks a message against the facts: what it names must exist and belong to the tenant it claims.
///
/// # Errors
/// [`BadMessage::Dangling`] and [`BadMessage::TenantMismatch`]: both go to quarantine, never to a retry.
pub fn admit(envelope: &Envelope, message: &Message, case: &Case) -> Result<(), BadMessage> {
    let task = message.task_id();
    let Some(order) = case.task.state.order() else {
        return Err(BadMessage::Dangling { what: format!("task {task}") });
    };
    if order.tenant != envelope.tenant_id {
        return Err(BadMessage::TenantMismatch { what: format!("task {task}") });
    }
    if let Some(attempt) = message.attempt_id() {
        let Some(core) = case.attempt.state.core() else {
            return Err(BadMessage::Dangling { what: format!("attempt {attempt}") });
        };
        if core.task != task {
            return Err(BadMessage::TenantMismatch { what: format!("attempt {attempt}") });
        }
    }
    Ok(())
}
