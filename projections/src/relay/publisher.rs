//! The port to the broker, as the relay needs it.

use domain::id::EventId;
use domain::message::Topic;
use domain::time::Timestamp;
use futures_util::future::BoxFuture;
use uuid::Uuid;

/// A message on its way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboundMessage {
    /// Logical topic.
    pub topic: Topic,
    /// Tag, for filters.
    pub tag: String,
    /// Idempotency key: the same each time the message is sent.
    pub key: EventId,
    /// Messages with the same key are handed over in order: the id of the aggregate.
    pub order_key: Uuid,
    /// When the broker is to deliver it; `None`: at once. May be in the past.
    pub deliver_at: Option<Timestamp>,
    /// The envelope as JSON.
    pub body: Vec<u8>,
}

/// Whether trying again is of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The broker could not be used, or did not answer: the message may or may not be there.
    Unavailable,
    /// The broker never takes this message as it is: no such topic, too large, not allowed.
    Permanent,
}

/// A message was not handed over, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not published ({code}): {detail}")]
pub struct PublishFailure {
    /// Whether trying again is of use.
    pub kind: FailureKind,
    /// A stable word.
    pub code: String,
    /// A sentence for operators, without addresses or secrets.
    pub detail: String,
}

impl PublishFailure {
    /// Try again later.
    pub fn unavailable(code: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { kind: FailureKind::Unavailable, code: code.into(), detail: detail.into() }
    }

    /// It will never work.
    pub fn permanent(code: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { kind: FailureKind::Permanent, code: code.into(), detail: detail.into() }
    }
}

/// Hands messages to a broker. `Ok` means that the broker has it, durably as far as the broker is configured to.
pub trait Publisher: Send + Sync + 'static {
    /// Hands one message over and waits for the broker's answer.
    ///
    /// # Errors
    /// [`PublishFailure`]; a failure after which the message may still have arrived is [`FailureKind::Unavailable`].
    fn publish<'a>(&'a self, message: &'a OutboundMessage) -> BoxFuture<'a, Result<(), PublishFailure>>;
}
