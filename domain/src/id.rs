//! Names of things: one newtype per kind of id, so that a task id can not be passed where an attempt id is meant.
//!
//! Ids are made outside the domain (at the edge that receives a command) and come in with the command; nothing here draws
//! a random number or reads a clock. Where an id must be the same however often a step is repeated, it is *derived*
//! from the id of what caused it.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use uuid::Uuid;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
        impl From<Uuid> for $name {
            fn from(value: Uuid) -> Self {
                Self(value)
            }
        }
        impl std::str::FromStr for $name {
            type Err = uuid::Error;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    };
}

id! {
    /// Who owns a task, an account and everything that hangs on them. The wall between tenants is drawn by this id.
    TenantId
}
id! {
    /// One generation that a user asked for, whatever it takes to carry it out.
    TaskId
}
id! {
    /// One try to have a provider carry out a task. It is also the client reference that the provider is given.
    AttemptId
}
id! {
    /// A credit account. Each tenant has one, with the tenant's own id.
    AccountId
}
id! {
    /// A stored object that a person can see: an uploaded image, a video, a thumbnail.
    AssetId
}
id! {
    /// A recorded event or a message. It stays the same however often the message is sent.
    EventId
}
id! {
    /// What a chain of commands and events started from, for people who follow it: one per API request.
    CorrelationId
}
id! {
    /// What directly caused an event: the id of the command or message that was being handled.
    CausationId
}

/// Namespace of every derived id of this project. Changing it would change all of them: never do.
const DERIVED: Uuid = Uuid::from_u128(0x6e1d_7a0c_52b4_5c1e_9a6f_3b8e_41d2_70a5);

/// Derives an id that is the same for the same words: repeated steps then name the same thing.
#[must_use]
pub fn derived(kind: &str, from: Uuid, detail: &str) -> Uuid {
    let mut name = Vec::with_capacity(kind.len() + detail.len() + 18);
    name.extend_from_slice(kind.as_bytes());
    name.push(0);
    name.extend_from_slice(from.as_bytes());
    name.push(0);
    name.extend_from_slice(detail.as_bytes());
    Uuid::new_v5(&DERIVED, &name)
}

/// Derives the id of a message that is published at this time. It begins with the day (UTC), as a UUID version 8: the
/// milliseconds of its midnight since 1970 in the first 48 bits. So whoever meets the message, however often and whenever,
/// knows which day's table it belongs to. Of one cause and day it is the same id each time.
#[must_use]
pub fn message_id(at: Timestamp, kind: &str, from: Uuid, detail: &str) -> Uuid {
    const DAY: i64 = 86_400_000;
    let midnight = (at.timestamp_millis().div_euclid(DAY) * DAY).clamp(0, (1 << 48) - 1);
    let mut bytes = derived(kind, from, detail).into_bytes();
    bytes[..6].copy_from_slice(&midnight.to_be_bytes()[2..]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

impl AttemptId {
    /// The id of a task's attempt number `number` (from 1).
    #[must_use]
    pub fn of(task: TaskId, number: u32) -> Self {
        Self(derived("attempt", task.0, &number.to_string()))
    }
}

impl AssetId {
    /// The id of a task's asset of one kind made by one attempt: fetching it twice names the same asset.
    #[must_use]
    pub fn of(attempt: AttemptId, kind: &str) -> Self {
        Self(derived("asset", attempt.0, kind))
    }
}

impl AccountId {
    /// The account of a tenant.
    #[must_use]
    pub const fn of(tenant: TenantId) -> Self {
        Self(tenant.0)
    }
}
