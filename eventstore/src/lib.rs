#![doc = include_str!("../README.md")]

mod access;
mod append;
pub mod archive;
pub mod audit;
mod batches;
mod callback;
mod committed;
mod connect;
mod consume;
pub mod delivery;
mod error;
mod execute;
mod history;
mod load;
mod logged;
mod outage;
mod quarantine;
mod request;
pub mod roles;
mod snapshot;
mod stall;
#[cfg(feature = "testkit")]
pub mod testkit;
mod transaction;
mod wakeup;

pub use access::{Access, RecordedAccess};
pub use append::Meta;
pub use callback::{CallbackFact, CallbackKept};
pub use committed::Committed;
pub use connect::{DatabaseConfig, MIGRATOR, OpenError, Store};
pub use consume::{CallContext, Caller};
pub use delivery::{Ack, Again, Delivery, Outcome};
pub use error::{ExecuteError, StoreError, is_passing};
pub use execute::{Executed, IdempotencyKey, Request, Submission};
pub use history::{ArchivedHistory, Difference, History, HistoryError, Moment, Past};
pub use logged::LoggedEvent;
pub use outage::NotedOutage;
pub use request::{StoredRequest, Upload};
pub use stall::{CalledUp, Repair};
