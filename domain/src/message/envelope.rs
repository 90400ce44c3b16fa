//! The envelope around every message (chapter 7.6.1).

use crate::id::{CausationId, CorrelationId, EventId, TenantId};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The most bytes a message body may have. Far below the broker's own limit (4 MiB), because a message that grows past this
/// carries something that belongs in the object store.
pub const MAX_BODY_BYTES: usize = 64 * 1024;

/// The envelope of chapter 7.6.1. The field names are the wire format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Envelope {
    /// Idempotency key of the message: the same on every resend.
    pub event_id: EventId,
    /// For a manual replay: the id of the message it repeats. Business keys are checked against the original.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original_event_id: Option<EventId>,
    /// Stable business meaning, such as `generation.submit.requested`.
    pub event_type: String,
    /// Version of the payload's shape.
    pub schema_version: u16,
    /// The program that wrote it.
    pub producer: String,
    /// When the fact behind it was recorded.
    pub occurred_at: Timestamp,
    /// Kind of the thing it is about, such as `task`.
    pub aggregate_type: String,
    /// Id of the thing it is about.
    pub aggregate_id: Uuid,
    /// For routing and tracing only: authority is always read from the database.
    pub tenant_id: TenantId,
    /// Trace of the request that started it all (32 hex digits).
    pub trace_id: String,
    /// The request that started it all.
    pub correlation_id: CorrelationId,
    /// The command or message that directly caused it.
    pub causation_id: CausationId,
    /// Minimal data: ids, versions, keys.
    pub payload: serde_json::Value,
}

/// A message that can never be handled, however often it is delivered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// The body is larger than [`MAX_BODY_BYTES`].
    #[error("the body has {bytes} bytes, at most {MAX_BODY_BYTES} are read")]
    TooLarge {
        /// The body's size.
        bytes: usize,
    },
    /// Not JSON, or a field is missing or has another type.
    #[error("the body is not a message: {0}")]
    Malformed(String),
    /// An event type that this consumer does not know.
    #[error("event type {0:?} is not known here")]
    UnknownType(String),
    /// A schema version that this build does not read.
    #[error("schema version {version} of {event_type} is not supported")]
    UnsupportedVersion {
        /// The event type.
        event_type: String,
        /// The version met.
        version: u16,
    },
    /// The message's tenant is not the owner of what it names.
    #[error("the message's tenant does not own {what}")]
    TenantMismatch {
        /// What is owned by somebody else.
        what: String,
    },
    /// The stored history that it is about can not be folded.
    #[error("{what} can not be folded")]
    Corrupt {
        /// The stream.
        what: String,
    },
    /// It names something that does not exist.
    #[error("{what} does not exist")]
    Dangling {
        /// What is missing.
        what: String,
    },
}

impl BadMessage {
    /// A stable word for the quarantine table and for metrics.
    #[must_use]
    pub const fn class(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "too_large",
            Self::Malformed(_) => "malformed",
            Self::UnknownType(_) => "unknown_type",
            Self::UnsupportedVersion { .. } => "unsupported_version",
            Self::TenantMismatch { .. } => "tenant_mismatch",
            Self::Corrupt { .. } => "corrupt",
            Self::Dangling { .. } => "dangling",
        }
    }
}

impl Envelope {
    /// Reads an envelope from a message body.
    ///
    /// # Errors
    /// [`BadMessage::TooLarge`] or [`BadMessage::Malformed`]; the text names the place in the body, never its content.
    pub fn parse(body: &[u8]) -> Result<Self, BadMessage> {
        if body.len() > MAX_BODY_BYTES {
            return Err(BadMessage::TooLarge { bytes: body.len() });
        }
        serde_json::from_slice(body).map_err(|error| {
            BadMessage::Malformed(format!("{:?} at line {} column {}", error.classify(), error.line(), error.column()))
        })
    }

    /// The message body.
    ///
    /// # Errors
    /// [`BadMessage::TooLarge`] when it would be larger than a message may be.
    pub fn to_body(&self) -> Result<Vec<u8>, BadMessage> {
        let body = serde_json::to_vec(self).map_err(|error| BadMessage::Malformed(error.to_string()))?;
        if body.len() > MAX_BODY_BYTES {
            return Err(BadMessage::TooLarge { bytes: body.len() });
        }
        Ok(body)
    }
}
