//! Bundles: events with the proofs that they were sealed, in a file that can be checked without the database.
//!
//! One JSON object a line: first what the bundle is about, then keys, then each seal followed by its events, at last an end with the
//! number of both and the digest of all that is before it.

mod check;
mod export;

pub use check::{CheckError, Checked, Flaw, check};
pub use export::{ExportError, Exported, export};

use super::chain::{Hash, StreamName};
use super::keys::PublicKey;
use super::seal::SignedSeal;
use crate::logged::LoggedEvent;
use domain::id::{AccountId, AttemptId, TaskId};
use serde::{Deserialize, Serialize};
use std::fmt;
use uuid::Uuid;

/// What a bundle is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// One stream, whole: `CATEGORY/ID`.
    #[serde(with = "stream_name")]
    Stream(StreamName),
    /// A task: its stream and those of its attempts, whole, and the postings to the account that name it.
    Task(TaskId),
    /// An account's stream, whole.
    Account(AccountId),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(name) => write!(f, "stream {name}"),
            Self::Task(id) => write!(f, "task {id}"),
            Self::Account(id) => write!(f, "account {id}"),
        }
    }
}

/// How much of a stream is in a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// From version 1 on, without a hole.
    Whole,
    /// Some events of it.
    Some,
}

/// Most attempts of a task that are looked for.
const ATTEMPTS: u32 = 1000;

impl Subject {
    /// Whether an event belongs to it, and how much of its stream does.
    fn part(&self, event: &LoggedEvent) -> Option<Part> {
        let in_stream = |category: &str, id: Uuid| event.category == category && event.stream_id == id;
        let whole = match self {
            Self::Stream(name) => in_stream(&name.category, name.id),
            Self::Account(id) => in_stream("account", id.0),
            Self::Task(id) => {
                in_stream("task", id.0)
                    || event.category == "attempt"
                        && (1..=ATTEMPTS).any(|number| AttemptId::of(*id, number).0 == event.stream_id)
            }
        };
        let posting = match self {
            Self::Task(id) => event.category == "account" && event.body.get("task") == Some(&id.0.to_string().into()),
            _ => false,
        };
        if whole { Some(Part::Whole) } else { posting.then_some(Part::Some) }
    }
}

/// Which kind of file this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum BundleFormat {
    #[serde(rename = "aivideo-bundle-1")]
    V1,
}

/// The way from an event's hash to the root in its seal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Proof {
    /// The seal's number.
    seal: i64,
    /// The event's place among those of the seal, from 0.
    index: u64,
    /// The hashes beside the way up, the lowest first.
    path: Vec<Hash>,
}

/// One line of a bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case", tag = "line")]
enum Line {
    Bundle { format: BundleFormat, subject: Subject },
    Key { public: PublicKey },
    Seal(SignedSeal),
    Event { event: Box<LoggedEvent>, previous: Hash, proof: Proof },
    End { events: u64, seals: u64, digest: Hash },
}

mod stream_name {
    use super::StreamName;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(name: &StreamName, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(name)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<StreamName, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
