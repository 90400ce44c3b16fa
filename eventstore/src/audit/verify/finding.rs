//! What a verification can find, in words.

use crate::audit::chain::{Place, StreamName};
use crate::audit::keys::KeyId;
use std::fmt;

/// Something that is not as it was sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// An event is not the one that was sealed in its place.
    Changed {
        /// Which one was sealed.
        sealed: Place,
        /// What stands there now, where it calls itself something else.
        now: Option<Place>,
    },
    /// An event is gone.
    Deleted(Place),
    /// An event stands where none was sealed.
    Inserted(Place),
    /// An event stands at another position than the one it was sealed at.
    Reordered {
        /// Where it was sealed.
        sealed: Place,
        /// Where it stands.
        now: i64,
    },
    /// The versions of a stream have a hole, or go back: it was so when it was sealed.
    OutOfSequence {
        /// The event after the hole.
        at: Place,
        /// The version before it.
        after: i64,
    },
    /// The row that holds an event's hash was changed; the event is as it was sealed.
    HashChanged(Place),
    /// The row that holds an event's hash is gone; the event is as it was sealed.
    HashDeleted(Place),
    /// A row holds the hash of an event that was never sealed.
    HashInserted(Place),
    /// Hash rows after the last seal: no sealer leaves any.
    HashesUnsealed {
        /// How many.
        count: i64,
        /// The first one's position.
        first: i64,
    },
    /// An event is beyond the last position that was ever given out.
    BeyondTheEnd(Place),
    /// What is in an interval is not what was sealed, and the hash rows were made to fit it.
    IntervalChanged {
        /// The seal.
        number: i64,
        /// The interval's first position.
        first: i64,
        /// Its last position.
        last: i64,
        /// How many events were sealed.
        sealed: i64,
        /// How many there are.
        now: i64,
    },
    /// A seal is gone.
    SealDeleted(i64),
    /// A seal is not what its key has signed.
    SealChanged(i64),
    /// A seal is signed, but does not follow the one before it.
    SealOutOfSequence(i64),
    /// Seals are signed with a key that is not among the verification keys.
    UnknownKey {
        /// The first such seal.
        number: i64,
        /// The key.
        key: KeyId,
    },
    /// A seal that was exported is not in the database: the log was cut off before it.
    CutOff(i64),
    /// The database has another seal than the exported one of this number: what was sealed up to it was replaced.
    Replaced(i64),
    /// An exported seal has no valid signature: nothing can be said by it.
    ExportedForged(i64),
}

impl Finding {
    /// One word for it.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Changed { .. } | Self::HashChanged(_) | Self::IntervalChanged { .. } | Self::SealChanged(_) => {
                "changed"
            }
            Self::Deleted(_) | Self::HashDeleted(_) | Self::SealDeleted(_) | Self::CutOff(_) => "deleted",
            Self::Inserted(_) | Self::HashInserted(_) | Self::HashesUnsealed { .. } | Self::BeyondTheEnd(_) => {
                "inserted"
            }
            Self::Reordered { .. } => "reordered",
            Self::OutOfSequence { .. } | Self::SealOutOfSequence(_) => "sequence",
            Self::UnknownKey { .. } | Self::ExportedForged(_) => "key",
            Self::Replaced(_) => "replaced",
        }
    }

    /// The stream it is about, where it is about one.
    #[must_use]
    pub const fn stream(&self) -> Option<&StreamName> {
        match self {
            Self::Changed { sealed: it, .. }
            | Self::Reordered { sealed: it, .. }
            | Self::OutOfSequence { at: it, .. }
            | Self::Deleted(it)
            | Self::Inserted(it)
            | Self::HashChanged(it)
            | Self::HashDeleted(it)
            | Self::HashInserted(it)
            | Self::BeyondTheEnd(it) => Some(&it.stream),
            _ => None,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed { sealed, now: None } => write!(f, "event {sealed} is not as it was sealed"),
            Self::Changed { sealed, now: Some(now) } => {
                write!(f, "event {sealed} is not as it was sealed: there is {} version {} now", now.stream, now.version)
            }
            Self::Deleted(it) => write!(f, "event {it} was sealed and is gone"),
            Self::Inserted(it) => write!(f, "event {it} was not there when its neighbours were sealed"),
            Self::Reordered { sealed, now } => write!(f, "event {sealed} stands at position {now} now"),
            Self::OutOfSequence { at, after } => {
                write!(f, "event {at} follows version {after} of its stream: it was so before it was sealed")
            }
            Self::HashChanged(it) => write!(f, "the hash of event {it} was changed; the event is as it was sealed"),
            Self::HashDeleted(it) => write!(f, "the hash of event {it} is gone; the event is as it was sealed"),
            Self::HashInserted(it) => write!(f, "there is a hash of event {it}, which was never sealed"),
            Self::HashesUnsealed { count, first } => {
                write!(f, "{count} hashes from position {first} on are after the last seal: no sealer leaves any")
            }
            Self::BeyondTheEnd(it) => write!(f, "event {it} is beyond the last position that was given out"),
            Self::IntervalChanged { number, first, last, sealed, now } => write!(
                f,
                "positions {first} to {last} are not what seal {number} was made over ({sealed} events, now {now}), and the hashes \
                 were made to fit"
            ),
            Self::SealDeleted(number) => write!(f, "seal {number} is gone"),
            Self::SealChanged(number) => write!(f, "seal {number} is not what its key has signed"),
            Self::SealOutOfSequence(number) => {
                write!(f, "seal {number} is signed, but does not follow the seal before it")
            }
            Self::UnknownKey { number, key } => {
                write!(f, "seal {number} is signed with key {key}, which is not among the verification keys")
            }
            Self::CutOff(number) => {
                write!(f, "seal {number} was exported and is not there: the log was cut off before it")
            }
            Self::Replaced(number) => {
                write!(
                    f,
                    "seal {number} is another one than the exported: what it and those before it seal was replaced"
                )
            }
            Self::ExportedForged(number) => write!(f, "the exported seal {number} has no valid signature"),
        }
    }
}
