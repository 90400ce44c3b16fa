//! An account in a snapshot. A busy one has thousands of closed holds, and each of them must be known for ever: so each map is
//! one string, entries end to end in the order of their keys, which the database hands over and this reads in one go.
//!
//! A task is 32 hex digits; a key is its length in bytes, a colon, and the key; an amount is a decimal number; each entry ends
//! with a semicolon. A hold begins with a letter: `o` open (then the amount, and `@seconds.nanoseconds` where it may expire),
//! `s` settled (then the charge, and `-refunded` where something was given back), `r` released, `x` expired.

use super::keyed::Keyed;
use super::{Account, Charge, Hold, Refund, Reserve};
use crate::id::TaskId;
use crate::money::Credits;
use crate::snapshot::Snapshot;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Dense {
    available: Credits,
    held: Credits,
    charged: Credits,
    refunded: Credits,
    granted: Credits,
    adjusted: Credits,
    grants: String,
    adjustments: String,
    refunds: String,
    holds: String,
}

impl Snapshot for Account {
    const SHAPE: i16 = 1;

    fn to_snapshot(&self) -> Result<Value, serde_json::Error> {
        serde_json::to_value(Dense {
            available: self.available,
            held: self.held,
            charged: self.charged,
            refunded: self.refunded,
            granted: self.granted,
            adjusted: self.adjusted,
            grants: pack(&self.grants),
            adjustments: pack(&self.adjustments),
            refunds: pack(&self.refunds),
            holds: pack(&self.holds),
        })
    }

    fn from_snapshot(state: Value) -> Option<Self> {
        let dense: Dense = serde_json::from_value(state).ok()?;
        Some(Self {
            available: dense.available,
            held: dense.held,
            charged: dense.charged,
            refunded: dense.refunded,
            granted: dense.granted,
            adjusted: dense.adjusted,
            grants: unpack(&dense.grants)?,
            adjustments: unpack(&dense.adjustments)?,
            refunds: unpack(&dense.refunds)?,
            holds: unpack(&dense.holds)?,
        })
    }
}

fn pack<K: Packed + Ord, V: Packed>(map: &Keyed<K, V>) -> String {
    let entries = map.sorted();
    let mut text = String::with_capacity(entries.len() * 48);
    for (key, value) in entries {
        key.pack(&mut text);
        value.pack(&mut text);
        text.push(';');
    }
    text
}

fn unpack<K: Packed + Ord, V: Packed>(text: &str) -> Option<Keyed<K, V>> {
    let mut rest = text;
    let mut entries = Vec::with_capacity(text.len() / 40);
    while !rest.is_empty() {
        entries.push((K::unpack(&mut rest)?, V::unpack(&mut rest)?));
        rest = rest.strip_prefix(';')?;
    }
    Keyed::from_sorted(entries)
}

/// Written so that it is known where it ends.
trait Packed: Sized {
    fn pack(&self, into: &mut String);
    /// Takes one off the front.
    fn unpack(from: &mut &str) -> Option<Self>;
}

impl Packed for i64 {
    fn pack(&self, into: &mut String) {
        into.push_str(&self.to_string());
    }

    fn unpack(from: &mut &str) -> Option<Self> {
        let sign = usize::from(from.starts_with('-'));
        let digits = from.bytes().skip(sign).take_while(u8::is_ascii_digit).count();
        take(from, sign + digits)?.parse().ok()
    }
}

impl Packed for Credits {
    fn pack(&self, into: &mut String) {
        self.0.pack(into);
    }

    fn unpack(from: &mut &str) -> Option<Self> {
        i64::unpack(from).map(Self)
    }
}

impl Packed for TaskId {
    fn pack(&self, into: &mut String) {
        into.push_str(self.0.simple().encode_lower(&mut Uuid::encode_buffer()));
    }

    fn unpack(from: &mut &str) -> Option<Self> {
        Uuid::try_parse_ascii(take(from, 32)?.as_bytes()).ok().map(Self)
    }
}

impl Packed for String {
    fn pack(&self, into: &mut String) {
        into.push_str(&format!("{}:{self}", self.len()));
    }

    fn unpack(from: &mut &str) -> Option<Self> {
        let length = usize::try_from(i64::unpack(from)?).ok()?;
        *from = from.strip_prefix(':')?;
        take(from, length).map(str::to_owned)
    }
}

impl Packed for Timestamp {
    fn pack(&self, into: &mut String) {
        into.push_str(&format!("{}.{}", self.timestamp(), self.timestamp_subsec_nanos()));
    }

    fn unpack(from: &mut &str) -> Option<Self> {
        let seconds = i64::unpack(from)?;
        *from = from.strip_prefix('.')?;
        Self::from_timestamp(seconds, u32::try_from(i64::unpack(from)?).ok()?)
    }
}

impl Packed for Refund {
    fn pack(&self, into: &mut String) {
        self.task.pack(into);
        self.amount.pack(into);
    }

    fn unpack(from: &mut &str) -> Option<Self> {
        Some(Self { task: TaskId::unpack(from)?, amount: Credits::unpack(from)? })
    }
}

impl Packed for Hold {
    fn pack(&self, into: &mut String) {
        match self {
            Self::Open(Reserve { amount, expires_at }) => {
                into.push('o');
                amount.pack(into);
                if let Some(at) = expires_at {
                    into.push('@');
                    at.pack(into);
                }
            }
            Self::Settled(Charge { charged, refunded }) => {
                into.push('s');
                charged.pack(into);
                if *refunded != Credits::ZERO {
                    into.push('-');
                    refunded.pack(into);
                }
            }
            Self::Released => into.push('r'),
            Self::Expired => into.push('x'),
        }
    }

    fn unpack(from: &mut &str) -> Option<Self> {
        Some(match take(from, 1)? {
            "o" => Self::Open(Reserve { amount: Credits::unpack(from)?, expires_at: optional(from, '@')? }),
            "s" => Self::Settled(Charge {
                charged: Credits::unpack(from)?,
                refunded: optional(from, '-')?.unwrap_or(Credits::ZERO),
            }),
            "r" => Self::Released,
            "x" => Self::Expired,
            _ => return None,
        })
    }
}

/// What follows a mark, where the mark is there. The outer `None`: the mark is, and what should follow is not.
fn optional<T: Packed>(from: &mut &str, mark: char) -> Option<Option<T>> {
    match from.strip_prefix(mark) {
        None => Some(None),
        Some(rest) => {
            *from = rest;
            T::unpack(from).map(Some)
        }
    }
}

fn take<'a>(from: &mut &'a str, length: usize) -> Option<&'a str> {
    let (taken, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(taken)
}
