//! How things go wrong: refusals are data, faults are errors that say nothing of the inside.

use super::context::call;
use crate::http::log_fault;
use async_graphql::{Context, Error, ErrorExtensions, SimpleObject};
use domain::aggregate;
use eventstore::{ExecuteError, StoreError};
use projections::query::ReadError;

/// An error with a code that clients can go by.
pub(crate) fn coded(code: &'static str, message: impl Into<String>) -> Error {
    Error::new(message).extend_with(|_, extensions| extensions.set("code", code))
}

/// A fault of ours: the cause goes to the log, its correlation id to the client, who is told whether it is one that passes.
pub(crate) fn fault(ctx: &Context<'_>, error: &(dyn std::error::Error + 'static)) -> Error {
    let (code, message) = if passes(error) {
        (
            "UNAVAILABLE",
            "not now; try again in a moment, a mutation with the same idempotency key: it may have been done",
        )
    } else {
        ("INTERNAL", "something went wrong on our side; give the correlation id to whoever looks into it")
    };
    let Ok(call) = call(ctx) else { return coded(code, message) };
    log_fault(error, call.correlation);
    let correlation = call.correlation.to_string();
    coded(code, message).extend_with(|_, extensions| extensions.set("correlationId", correlation))
}

/// Whether the same may work a moment later, as when the database restarts.
fn passes(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<StoreError>().is_some_and(StoreError::is_passing)
        || error.downcast_ref::<ReadError>().is_some_and(ReadError::is_passing)
}

/// A "no" to what was asked: an answer, not an error. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, SimpleObject)]
pub(crate) struct Refusal {
    /// What to go by. From the input: `INVALID_PROMPT`, `UNKNOWN_MODEL`, `INVALID_DURATION`, `INVALID_INPUT_ASSETS`,
    /// `INVALID_PRIORITY`, `BAD_ID`, `BAD_AMOUNT`, `BAD_BATCH`, `BAD_EXPORT`, `BAD_IDEMPOTENCY_KEY`, `IDEMPOTENCY_KEY_REUSED`. From
    /// the facts: `NOT_FOUND`, `INSUFFICIENT_CREDITS`, `NOT_FROM_THIS_STATE`, `NOT_RETRYABLE`, `NOT_EXPORTABLE`, and others as rules
    /// are added.
    pub(crate) code: String,
    /// A sentence for people.
    pub(crate) message: String,
    /// The argument or input field that it is about, where it is about one.
    pub(crate) field: Option<String>,
}

impl Refusal {
    pub(crate) fn new(code: &str, message: impl Into<String>, field: Option<&str>) -> Self {
        Self { code: code.to_owned(), message: message.into(), field: field.map(str::to_owned) }
    }
}

impl From<aggregate::Refusal> for Refusal {
    fn from(refusal: aggregate::Refusal) -> Self {
        let message = format!("{} (state {})", refusal.message, refusal.state);
        Self::new(&refusal.code.to_ascii_uppercase(), message, None)
    }
}

/// Sorts what came of a command into a refusal or an error.
pub(crate) fn refusal_of(ctx: &Context<'_>, error: ExecuteError) -> Result<Refusal, Error> {
    match error {
        ExecuteError::Refused(refusal) => Ok(refusal.into()),
        ExecuteError::KeyReused => {
            Ok(Refusal::new("IDEMPOTENCY_KEY_REUSED", ExecuteError::KeyReused.to_string(), Some("idempotencyKey")))
        }
        ExecuteError::NotFound { what } => Ok(Refusal::new("NOT_FOUND", format!("there is no such {what}"), None)),
        ExecuteError::Store(StoreError::Race) => {
            Err(coded("BUSY", "too many changes to this at once; try again with the same idempotency key"))
        }
        ExecuteError::Store(error) => Err(fault(ctx, &error)),
    }
}
