//! Faults of the store. Business refusals are not among them.

use domain::aggregate::Refusal;
use domain::process::Corrupt;
use std::sync::Arc;

/// What went wrong in the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Somebody else appended to the same stream first, or PostgreSQL asked for another try (40001, 40P01).
    #[error("another writer was first")]
    Race,
    /// The database could not be used.
    #[error("the database could not be used")]
    Database(#[source] Arc<sqlx::Error>),
    /// A stored history can not be folded: for a person, not for a retry.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// A value could not be written as JSON.
    #[error("a value could not be encoded")]
    Encode(#[from] serde_json::Error),
}

impl StoreError {
    /// Whether the same may work a moment later: a lost race, a database that restarts, a connection that broke, a session or a
    /// statement that took too long. Whether it was done is not known then: ask again with the same key.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Race => true,
            Self::Database(error) => is_passing(error),
            Self::Corrupt(_) | Self::Encode(_) => false,
        }
    }

    /// Whether a statement of many callers may have failed because of one of them: the others are to be tried without it.
    pub(crate) fn may_be_of_one(&self) -> bool {
        match self {
            Self::Race => true,
            // The database refused it, and would again.
            Self::Database(error) => error.as_database_error().is_some() && !is_passing(error),
            Self::Corrupt(_) | Self::Encode(_) => false,
        }
    }

    /// For each of the callers whose statement failed.
    pub(crate) fn shared(&self) -> Self {
        match self {
            Self::Database(error) => Self::Database(Arc::clone(error)),
            Self::Race | Self::Corrupt(_) | Self::Encode(_) => Self::Race,
        }
    }

    /// The runtime that carried a statement was shut down on the way: nobody knows what became of it.
    pub(crate) fn cut_off() -> Self {
        Self::Database(Arc::new(sqlx::Error::PoolClosed))
    }
}

/// Whether a fault of the database is one that passes: see [`StoreError::is_passing`]. For readers, who have no other faults.
#[must_use]
pub fn is_passing(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => true,
        sqlx::Error::Database(fault) => {
            let code = fault.code().unwrap_or_default();
            // Connection faults; another try asked for; too few resources; ended or still starting; read-only for now; too long.
            ["08", "40", "53", "57"].iter().any(|class| code.starts_with(class))
                || matches!(&*code, "25006" | "25P03" | "55P03")
        }
        _ => false,
    }
}

/// The constraint that decides who wins a version.
const VERSION_CONSTRAINT: &str = "events_stream_version";

/// Whether a row that was there already means that somebody else was first.
fn is_first_come(constraint: Option<&str>, table: Option<&str>) -> bool {
    let race = match constraint {
        Some(VERSION_CONSTRAINT) => true,
        // An event's id is derived from its stream and version, so this is the same lost race met at another index.
        Some("events_event_id_key" | "outbox_events_event_id_key") => true,
        // The same request: it is written beside its task's first event.
        Some("idempotency_keys_pkey" | "generation_requests_pkey") => true,
        _ => false,
    };
    // The message's own row: the inbox has a table for each day.
    race || table.is_some_and(|name| name.starts_with("inbox_"))
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let Some(fault) = error.as_database_error() else {
            return Self::Database(Arc::new(error));
        };
        let code = fault.code();
        let taken = code.as_deref() == Some("23505") && is_first_come(fault.constraint(), fault.table());
        if taken || matches!(code.as_deref(), Some("40001" | "40P01")) {
            Self::Race
        } else {
            Self::Database(Arc::new(error))
        }
    }
}

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// A business answer: data for the caller.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The idempotency key was used before for another request.
    #[error("the idempotency key was used before with another request")]
    KeyReused,
    /// What it names does not exist, or belongs to somebody else: the same answer for both.
    #[error("there is no such {what}")]
    NotFound {
        /// What was looked for.
        what: &'static str,
    },
    /// A fault.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ExecuteError {
    /// Whether it says what the facts are, and not that they could not be reached: an earlier request with the same key may have
    /// met others.
    pub(crate) const fn is_of_the_case(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::NotFound { .. } | Self::Store(StoreError::Corrupt(_)))
    }
}
