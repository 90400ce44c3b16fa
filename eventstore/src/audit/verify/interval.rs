//! Comparing the events of one interval with their hashes, and both with the seal over them.
//!
//! Two Merkle roots are computed: over the hashes as they are stored, and over those that the events have. The one that is the
//! sealed one tells what was tampered with: the hashes, the events, or both.

use super::finding::Finding;
use crate::audit::chain::{Hash, HashRow, Link, NO_LINK, Place, StreamName, event_hash};
use crate::audit::merkle::RootBuilder;
use crate::audit::seal::Seal;
use crate::logged::LoggedEvent;
use std::collections::HashMap;

/// Something that does not fit, before it is known whom to believe.
#[derive(Debug)]
enum Misfit {
    /// An event without a hash.
    NoHash(Place, Hash),
    /// A hash without an event.
    NoEvent(HashRow),
    /// The event has another hash than its row says.
    Unequal(HashRow, Place, Hash),
    /// The hash is right, but its row names another event.
    Misnamed(Place),
    /// A version that does not follow.
    OutOfSequence(Place, i64),
}

/// Most misfits that are kept of one interval.
const KEPT: usize = 1000;

/// What is known of an interval while it is read.
#[derive(Debug, Default)]
pub(super) struct Interval {
    stored: HashMap<StreamName, Link>,
    computed: HashMap<StreamName, Link>,
    stored_root: RootBuilder,
    computed_root: RootBuilder,
    misfits: Vec<Misfit>,
    /// Misfits beyond those that are kept.
    left_out: u64,
}

/// What an interval came to.
pub(super) struct Judged {
    pub(super) findings: Vec<Finding>,
    /// Sealed events that are not in their place: whether they stand elsewhere is to be looked up.
    pub(super) missing: Vec<(HashRow, Option<Place>)>,
    /// Ends of chains that the tables do not tell as they were sealed.
    pub(super) corrections: Vec<(StreamName, Link)>,
    pub(super) events: u64,
    pub(super) left_out: u64,
}

impl Interval {
    pub(super) fn knows(&self, stream: &StreamName) -> bool {
        self.stored.contains_key(stream)
    }

    /// Where a stream's chain stood before this interval.
    pub(super) fn begin(&mut self, stream: StreamName, link: Link) {
        self.stored.insert(stream.clone(), link);
        self.computed.insert(stream, link);
    }

    /// Takes what is at one position: an event, a hash, or both.
    pub(super) fn take(&mut self, event: Option<&LoggedEvent>, row: Option<HashRow>) -> Result<(), serde_json::Error> {
        if let Some(row) = &row {
            self.stored_root.push(row.hash);
        }
        match (event, row) {
            (Some(event), Some(row)) => self.compare(event, row)?,
            (Some(event), None) => {
                let place = Place::of(event);
                let hash = event_hash(event, self.computed_end(&place.stream).hash)?;
                self.computed_root.push(hash);
                self.computed.insert(place.stream.clone(), link(&place, hash));
                self.keep(Misfit::NoHash(place, hash));
            }
            (None, Some(row)) => {
                self.stored.insert(row.place.stream.clone(), link(&row.place, row.hash));
                self.keep(Misfit::NoEvent(row));
            }
            (None, None) => {}
        }
        Ok(())
    }

    fn compare(&mut self, event: &LoggedEvent, row: HashRow) -> Result<(), serde_json::Error> {
        let place = Place::of(event);
        let (computed, stored) = (self.computed_end(&place.stream), self.stored_end(&place.stream));
        let hash = event_hash(event, computed.hash)?;
        self.computed_root.push(hash);
        // After a tampered event the next one has to be judged by the hash that was stored of it.
        let (fits, before) = if hash == row.hash {
            (true, computed)
        } else {
            (computed.hash != stored.hash && event_hash(event, stored.hash)? == row.hash, stored)
        };
        if !fits {
            self.stored.insert(row.place.stream.clone(), link(&row.place, row.hash));
            self.computed.insert(place.stream.clone(), link(&place, hash));
            self.keep(Misfit::Unequal(row, place, hash));
            return Ok(());
        }
        let end = link(&place, row.hash);
        self.stored.insert(place.stream.clone(), end);
        self.computed.insert(place.stream.clone(), end);
        if row.place != place {
            self.keep(Misfit::Misnamed(place));
        } else if place.version != before.version + 1 {
            self.keep(Misfit::OutOfSequence(place, before.version));
        }
        Ok(())
    }

    fn keep(&mut self, misfit: Misfit) {
        if self.misfits.len() < KEPT {
            self.misfits.push(misfit);
        } else {
            self.left_out += 1;
        }
    }

    fn stored_end(&self, stream: &StreamName) -> Link {
        self.stored.get(stream).copied().unwrap_or(NO_LINK)
    }

    fn computed_end(&self, stream: &StreamName) -> Link {
        self.computed.get(stream).copied().unwrap_or(NO_LINK)
    }

    /// Says what is wrong, by the seal over the interval; without one that can be believed, by the hashes.
    pub(super) fn judge(self, seal: Option<&Seal>) -> Judged {
        let is = |root: &RootBuilder, seal: &Seal| {
            root.root() == seal.root && i64::try_from(root.size()).is_ok_and(|size| size == seal.events)
        };
        let events_are_sealed = seal.is_some_and(|seal| is(&self.computed_root, seal));
        let hashes_are_sealed = seal.is_none_or(|seal| is(&self.stored_root, seal));
        let mut judged = Judged {
            findings: vec![],
            missing: vec![],
            corrections: vec![],
            events: self.computed_root.size(),
            left_out: self.left_out,
        };
        for misfit in self.misfits {
            judged.add(misfit, events_are_sealed);
        }
        if let Some(seal) = seal.filter(|_| !events_are_sealed && !hashes_are_sealed) {
            judged.findings.push(Finding::IntervalChanged {
                number: seal.number,
                first: seal.first_position,
                last: seal.last_position,
                sealed: seal.events,
                now: i64::try_from(judged.events).unwrap_or(i64::MAX),
            });
        }
        judged
    }
}

impl Judged {
    fn add(&mut self, misfit: Misfit, events_are_sealed: bool) {
        match misfit {
            Misfit::NoHash(place, hash) if events_are_sealed => {
                self.corrections.push((place.stream.clone(), link(&place, hash)));
                self.findings.push(Finding::HashDeleted(place));
            }
            Misfit::NoHash(place, _) => self.findings.push(Finding::Inserted(place)),
            Misfit::NoEvent(row) if events_are_sealed => self.findings.push(Finding::HashInserted(row.place)),
            Misfit::NoEvent(row) => {
                self.corrections.push((row.place.stream.clone(), link(&row.place, row.hash)));
                self.missing.push((row, None));
            }
            Misfit::Unequal(_, place, hash) if events_are_sealed => {
                self.corrections.push((place.stream.clone(), link(&place, hash)));
                self.findings.push(Finding::HashChanged(place));
            }
            Misfit::Unequal(row, place, _) if row.place == place => {
                self.findings.push(Finding::Changed { sealed: place, now: None });
            }
            Misfit::Unequal(row, place, _) => {
                self.corrections.push((row.place.stream.clone(), link(&row.place, row.hash)));
                self.missing.push((row, Some(place)));
            }
            Misfit::Misnamed(place) => self.findings.push(Finding::HashChanged(place)),
            Misfit::OutOfSequence(at, after) => self.findings.push(Finding::OutOfSequence { at, after }),
        }
    }
}

const fn link(place: &Place, hash: Hash) -> Link {
    Link { position: place.position, version: place.version, hash }
}
