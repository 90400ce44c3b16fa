//! The task aggregate: one video that a user asked for (a generation, or an export of one), from the request to a named end.

mod command;
mod decide;
mod event;
mod evolve;
mod order;
mod state;
mod transitions;

pub use command::Command;
pub use event::{Event, UPCASTERS};
pub use order::{Container, Export, ExportSpec, Live, Maker, Order, Place, Work};
pub use state::{State, Task, Tries, Video};
pub use transitions::{On, TRANSITIONS};

use serde::{Deserialize, Serialize};

/// Why a task failed: the class that statistics, refund rules and frontends go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// The content was refused, at submit or afterwards.
    Moderation,
    /// The provider said that a parameter is wrong.
    BadRequest,
    /// Our credentials or our money at the provider.
    ProviderAccount,
    /// The provider broke, or ended the job itself.
    Provider,
    /// A limit of time was reached.
    Timeout,
    /// The provider's output could not be had or was not a video.
    Output,
    /// A person ended it.
    Operator,
}

impl ErrorClass {
    /// Every class.
    pub const ALL: [Self; 7] = [
        Self::Moderation,
        Self::BadRequest,
        Self::ProviderAccount,
        Self::Provider,
        Self::Timeout,
        Self::Output,
        Self::Operator,
    ];

    /// The stored word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Moderation => "moderation",
            Self::BadRequest => "bad_request",
            Self::ProviderAccount => "provider_account",
            Self::Provider => "provider",
            Self::Timeout => "timeout",
            Self::Output => "output",
            Self::Operator => "operator",
        }
    }
}
