//! Read queries over the read models and the events, for the API and for people's tools.
//!
//! Every query takes a [`Viewer`]: the wall between tenants is drawn here, in the statement, not by whoever calls. What belongs
//! to somebody else is answered like what does not exist.

mod accounts;
mod assets;
mod attempts;
mod export;
mod freshness;
mod history;
mod page;
mod replay;
mod standing;
mod statement;
mod tasks;

pub use accounts::{AccountRow, EntryRow};
pub use assets::AssetRow;
pub use attempts::AttemptRow;
pub use export::{LedgerRow, LogFilter, LogPart};
pub use freshness::{Changes, Seen, Watch};
pub use history::HistoryRow;
pub use page::{Page, Window};
pub use replay::{Deviation, Replay};
pub use standing::{HoldRow, InLine, MAX_AHEAD, PlaceInLine};
pub use statement::{KindSum, StatementRow};
pub use tasks::{Cursor, MAX_COUNTED, TaskCount, TaskFilter, TaskOrder, TaskRow};

use crate::live::Hub;
use domain::id::TenantId;
use eventstore::Store;
use sqlx::PgPool;
use uuid::Uuid;

/// Whose rows may be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Viewer {
    /// The one tenant; `None` for auditors and operators, who see all.
    pub tenant: Option<TenantId>,
}

impl Viewer {
    /// One tenant's own rows.
    #[must_use]
    pub const fn of(tenant: TenantId) -> Self {
        Self { tenant: Some(tenant) }
    }

    /// Everybody's rows: for auditors and operators.
    #[must_use]
    pub const fn everything() -> Self {
        Self { tenant: None }
    }

    /// Whether rows of this tenant may be seen.
    #[must_use]
    pub fn sees(self, tenant: TenantId) -> bool {
        self.tenant.is_none_or(|own| own == tenant)
    }

    pub(crate) fn bind(self) -> Option<Uuid> {
        self.tenant.map(|tenant| tenant.0)
    }
}

/// A query that could not be answered. Its text names nothing of the database; the source is for the log.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The database could not be read.
    #[error("the read side could not be used")]
    Database(#[from] sqlx::Error),
    /// Nobody reads the log for those who watch: the process stops, or the database does not answer.
    #[error("changes are not being read")]
    NotLive,
}

impl ReadError {
    /// Whether the same may work a moment later: see [`eventstore::is_passing`].
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Database(error) => eventstore::is_passing(error),
            Self::NotLive => true,
        }
    }
}

/// Answers read queries. Cheap to clone: clones share the pool and the hub of changes.
#[derive(Clone)]
pub struct Reader {
    pub(crate) pool: PgPool,
    changes: Changes,
    live: Hub,
}

impl Reader {
    /// Reads from the store's database.
    #[must_use]
    pub fn new(store: &Store) -> Self {
        Self { pool: store.pool().clone(), changes: Changes::default(), live: Hub::default() }
    }

    /// The hub that tells which tasks have changed. It is fed by [`Reader::listen`].
    #[must_use]
    pub const fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The hub that tells what has changed. It is fed by [`Reader::listen`].
    #[must_use]
    pub const fn live(&self) -> &Hub {
        &self.live
    }

    /// Whether the database answers: for readiness.
    ///
    /// # Errors
    /// [`ReadError::Database`].
    pub async fn ping(&self) -> Result<(), ReadError> {
        sqlx::query("/* projections.ping */ SELECT 1").execute(&self.pool).await?;
        Ok(())
    }
}
