//! What holds for any stream.

use super::{Recorded, Violation, Watch};
use crate::process::{Change, Folded, StreamId};
use crate::stored::{Stored, StoredEvent};
use std::collections::HashMap;

/// gapless-stream: versions are 1 to n, no hole, no repeat.
#[derive(Debug, Default)]
pub struct GaplessStream {
    versions: HashMap<StreamId, i64>,
}

impl Watch for GaplessStream {
    fn invariant(&self) -> &'static str {
        "gapless-stream"
    }

    fn observe(&mut self, recorded: &Recorded) -> Result<(), Violation> {
        let last = self.versions.entry(recorded.stream()).or_default();
        if recorded.version == *last + 1 {
            *last += 1;
            return Ok(());
        }
        let expected = *last + 1;
        Err(self.broken(recorded, format!("version {expected} was to follow")))
    }
}

/// replayable: an event that was stored and read again is the same event, and the history folds.
///
/// The states of all streams are kept, and are what a store's own fold is compared with: [`Replayable::state`].
#[derive(Debug, Default)]
pub struct Replayable {
    states: HashMap<StreamId, Folded>,
}

impl Replayable {
    /// What a stream has come to.
    #[must_use]
    pub fn state(&self, stream: StreamId) -> Option<&Folded> {
        self.states.get(&stream)
    }
}

impl Watch for Replayable {
    fn invariant(&self) -> &'static str {
        "replayable"
    }

    fn observe(&mut self, recorded: &Recorded) -> Result<(), Violation> {
        let stored = stored(&recorded.change).map_err(|cause| self.broken(recorded, cause))?;
        let stream = recorded.stream();
        let before = self.states.remove(&stream).unwrap_or_else(|| Folded::absent(stream.category));
        let after = before
            .fold(stream, [(recorded.version, stored)])
            .map_err(|corrupt| self.broken(recorded, corrupt.cause.to_string()))?;
        self.states.insert(stream, after);
        Ok(())
    }
}

/// The stored form of an event, once it is sure that the event comes back from it.
fn stored(change: &Change) -> Result<Stored, String> {
    match change {
        Change::Task(_, event) => round_trip(event),
        Change::Attempt(_, event) => round_trip(event),
        Change::Account(_, event) => round_trip(event),
    }
}

fn round_trip<E: StoredEvent + PartialEq>(event: &E) -> Result<Stored, String> {
    let name = event.name();
    let stored = event.encode().map_err(|cause| format!("{name} can not be stored: {cause}"))?;
    let read = E::decode(stored.clone()).map_err(|cause| format!("{name} can not be read again: {cause}"))?;
    if read == *event { Ok(stored) } else { Err(format!("{name} is another event when it is read again")) }
}
