//! What holds for any stream.

use super::{Recorded, Violation, Watch};
use crate::aggregate::Aggregate;
use crate::process::{Change, Folded, StreamId, Versioned};
use crate::stored::StoredEvent;
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
        let stream = recorded.stream();
        let before = self.states.remove(&stream).unwrap_or_else(|| Folded::absent(stream.category));
        let version = recorded.version;
        let after = match (before, &recorded.change) {
            (Folded::Task(it), Change::Task(_, event)) => follow(it, version, event).map(Folded::Task),
            (Folded::Attempt(it), Change::Attempt(_, event)) => follow(it, version, event).map(Folded::Attempt),
            (Folded::Account(it), Change::Account(_, event)) => follow(it, version, event).map(Folded::Account),
            _ => Err("the event is of another kind than its stream".to_owned()),
        };
        self.states.insert(stream, after.map_err(|sentence| self.broken(recorded, sentence))?);
        Ok(())
    }
}

/// The state after an event as it comes back from its stored form.
fn follow<A>(before: Versioned<A>, version: i64, event: &A::Event) -> Result<Versioned<A>, String>
where
    A: Aggregate<Event: StoredEvent + PartialEq>,
{
    let name = event.name();
    if version != before.version + 1 {
        return Err(format!("version {} was to follow", before.version + 1));
    }
    let stored = event.encode().map_err(|cause| format!("{name} can not be stored: {cause}"))?;
    let read = A::Event::decode(stored).map_err(|cause| format!("{name} can not be read again: {cause}"))?;
    if read != *event {
        return Err(format!("{name} is another event when it is read again"));
    }
    let state = before.state.evolve(&read).map_err(|misfit| misfit.to_string())?;
    Ok(Versioned { state, version })
}
