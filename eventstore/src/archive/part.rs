//! A part of a file: one stream, from its first event on.

use super::ArchivedStream;
use crate::audit::{Hash, Place, chained};
use crate::logged::{LoggedEvent, canonical};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};

/// Why a part is not what was archived.
#[derive(Debug, thiserror::Error)]
pub enum PartFault {
    /// It can not be unpacked, or not be read.
    #[error("can not be unpacked: {0}")]
    Packed(#[from] std::io::Error),
    /// A line is something else.
    #[error("has no event in line {line}: {cause}")]
    NotAnEvent {
        /// The line of the part, from 1.
        line: u64,
        /// What it is not.
        cause: String,
    },
    /// An event has another hash than its line says.
    #[error("was changed: event {0} has another hash")]
    Changed(Place),
    /// An event does not follow the one before it.
    #[error("has an event that does not follow: {at} comes after version {after}")]
    OutOfSequence {
        /// The event.
        at: Place,
        /// The version before it.
        after: i64,
    },
    /// It ends with another event than was archived.
    #[error("ends with version {ends}, hash {hash}, and not with version {version} as it was archived")]
    OtherEnd {
        /// Where it ends.
        ends: i64,
        /// The hash there.
        hash: Hash,
        /// Where it should.
        version: i64,
    },
}

/// A stream that is being packed.
pub(super) struct Packer {
    to: GzEncoder<Vec<u8>>,
    pub(super) end: Hash,
}

impl Packer {
    pub(super) fn new() -> Self {
        // Neither a name nor a time in the header: the same events give the same bytes.
        Self { to: GzEncoder::new(Vec::new(), Compression::default()), end: Hash::ZERO }
    }

    /// Adds the next event; says what its hash is.
    pub(super) fn add(&mut self, event: &LoggedEvent) -> Result<Hash, std::io::Error> {
        let (mut value, hash) = chained(event, self.end)?;
        value["hash"] = Value::from(String::from(hash));
        self.to.write_all(&canonical(&value))?;
        self.to.write_all(b"\n")?;
        self.end = hash;
        Ok(hash)
    }

    pub(super) fn finish(self) -> Result<Vec<u8>, std::io::Error> {
        self.to.finish()
    }
}

impl ArchivedStream {
    /// Reads its events from its part of the file, and verifies that they are those that were archived, all of them.
    ///
    /// # Errors
    /// [`PartFault`].
    pub fn open(&self, part: impl Read) -> Result<Vec<LoggedEvent>, PartFault> {
        let mut events = Vec::new();
        let mut end = Hash::ZERO;
        for (index, line) in BufReader::new(GzDecoder::new(part)).split(b'\n').enumerate() {
            let not_an_event = |cause: String| PartFault::NotAnEvent { line: index as u64 + 1, cause };
            let line = Line::read(&line?).map_err(not_an_event)?;
            let place = Place::of(&line.event);
            if line.computed != line.hash {
                return Err(PartFault::Changed(place));
            }
            let after = events.len() as i64;
            if place.stream != self.stream || place.version != after + 1 || line.previous != end {
                return Err(PartFault::OutOfSequence { at: place, after });
            }
            end = line.hash;
            events.push(line.event);
        }
        let ends = events.len() as i64;
        if (ends, end) != (self.version, self.hash) {
            return Err(PartFault::OtherEnd { ends, hash: end, version: self.version });
        }
        Ok(events)
    }
}

/// One line of a part.
struct Line {
    event: LoggedEvent,
    previous: Hash,
    /// As the line says.
    hash: Hash,
    /// As it is.
    computed: Hash,
}

impl Line {
    fn read(text: &[u8]) -> Result<Self, String> {
        let mut value: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let hash = take_hash(&mut value, "hash")?;
        // Over everything else that is there, whether it belongs there or not.
        let computed = Hash::of_parts(&[&canonical(&value)]);
        let previous = take_hash(&mut value, "previous")?;
        let event = serde_json::from_value(value).map_err(|error| error.to_string())?;
        Ok(Self { event, previous, hash, computed })
    }
}

fn take_hash(from: &mut Value, name: &str) -> Result<Hash, String> {
    let taken = from.as_object_mut().and_then(|it| it.remove(name)).ok_or_else(|| format!("it has no `{name}`"))?;
    serde_json::from_value(taken).map_err(|error| error.to_string())
}
