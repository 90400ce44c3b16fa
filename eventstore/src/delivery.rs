//! One delivery of a message, and the only two answers a listener may give the broker.

use std::time::Duration;

/// A message as the broker delivered it, not yet believed in any way.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The consumer group it was delivered to: half of the inbox key.
    pub group: &'static str,
    /// The physical topic it came from.
    pub topic: String,
    /// The broker's key of the message, if any (for the quarantine row of a message that can not be read).
    pub key: Option<String>,
    /// How often the broker has delivered it before (0 the first time).
    pub redeliveries: u32,
    /// The body.
    pub body: Vec<u8>,
}

/// Leave to acknowledge a message. Only this crate makes one, after the facts are durable.
///
/// ```compile_fail
/// let ack = eventstore::Ack { outcome: eventstore::Outcome::Done };
/// ```
#[must_use = "an Ack that is not handed to the listener leaves the message unacknowledged"]
#[derive(Debug)]
pub struct Ack {
    outcome: Outcome,
}

impl Ack {
    pub(crate) const fn new(outcome: Outcome) -> Self {
        Self { outcome }
    }

    /// What the handling came to.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }
}

/// What the handling of a delivery came to. Each of them is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It changed something.
    Done,
    /// It had been handled before.
    Duplicate,
    /// It was stale, early or not allowed in the state met: recorded as such.
    Declined,
    /// It can never be handled: it is in quarantine.
    Parked,
}

/// The message must come again: it is *not* acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum Again {
    /// Others kept winning the race for the same streams.
    #[error("lost the race for the same streams {rounds} times")]
    Busy {
        /// Rounds tried.
        rounds: u32,
    },
    /// The database could not be used.
    #[error("the database could not be used")]
    Database(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The work behind the message could not be finished now.
    #[error("not finished: {0}")]
    Unfinished(String),
}

impl Again {
    /// How long the broker should wait before it delivers the message again.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        match self {
            Self::Busy { .. } => Duration::from_secs(1),
            Self::Database(_) | Self::Unfinished(_) => Duration::from_secs(5),
        }
    }
}
