//! Checking a bundle, with nothing but the file and, better, a key that came another way.

use super::{Line, Part, Proof, Subject};
use crate::audit::chain::{Hash, Place, StreamName, event_hash};
use crate::audit::keys::{PublicKey, TrustedKeys};
use crate::audit::merkle::root_by_path;
use crate::audit::seal::{SignatureFault, SignedSeal};
use crate::logged::LoggedEvent;
use domain::time::Timestamp;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::BufRead;

/// Why a file can not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// It could not be read.
    #[error("the file can not be read")]
    Read(#[from] std::io::Error),
    /// It is something else.
    #[error("the file is not a bundle of this service: `aivideo audit export` makes them")]
    NotABundle,
}

/// What is wrong, and in which line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The line, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub what: String,
}

/// What a check came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// What the bundle is about.
    pub subject: Subject,
    /// The streams in it, with the number of events and the last version of each.
    pub streams: BTreeMap<StreamName, (u64, i64)>,
    /// Events.
    pub events: u64,
    /// Seals.
    pub seals: u64,
    /// The keys that came with it.
    pub keys: Vec<PublicKey>,
    /// When the last of its seals was made.
    pub sealed_at: Option<Timestamp>,
    /// What is wrong. Empty: every event in it was in the log, as it is here, when it was sealed.
    pub flaws: Vec<Flaw>,
}

/// Flaws that are kept.
const KEPT: usize = 100;

/// Checks a bundle. With `keys`, only seals that one of these signed count; without, those of the keys in the bundle do, which whoever
/// made the bundle has chosen.
///
/// # Errors
/// [`CheckError`]. Flaws are no errors: they are in the answer.
pub fn check(from: impl BufRead, keys: &[PublicKey]) -> Result<Checked, CheckError> {
    let mut lines = from.split(b'\n');
    let first = lines.next().transpose()?.unwrap_or_default();
    let Ok(Line::Bundle { subject, .. }) = serde_json::from_slice(&first) else {
        return Err(CheckError::NotABundle);
    };
    let mut run = Check::new(subject, keys);
    run.digest(&first);
    for (index, line) in lines.enumerate() {
        let line = line?;
        run.line = index as u64 + 2;
        match serde_json::from_slice(&line) {
            Ok(parsed) => run.take(parsed),
            Err(error) => run.flaw(format!("is not a line of a bundle: {error}")),
        }
        run.digest(&line);
    }
    if !run.ended {
        run.flaw("the bundle has no end: a part of it is missing".to_owned());
    }
    Ok(run.checked)
}

struct Check {
    checked: Checked,
    trusted: TrustedKeys,
    only: bool,
    seal: Option<SignedSeal>,
    /// Last position, and the end of each whole stream's chain.
    position: i64,
    chains: BTreeMap<StreamName, Hash>,
    hasher: Sha256,
    line: u64,
    ended: bool,
}

impl Check {
    fn new(subject: Subject, keys: &[PublicKey]) -> Self {
        let checked = Checked {
            subject,
            streams: BTreeMap::new(),
            events: 0,
            seals: 0,
            keys: vec![],
            sealed_at: None,
            flaws: vec![],
        };
        Self {
            checked,
            trusted: keys.iter().copied().collect(),
            only: !keys.is_empty(),
            seal: None,
            position: i64::MIN,
            chains: BTreeMap::new(),
            hasher: Sha256::new(),
            line: 1,
            ended: false,
        }
    }

    fn digest(&mut self, line: &[u8]) {
        self.hasher.update(line);
        self.hasher.update(b"\n");
    }

    fn flaw(&mut self, what: String) {
        if self.checked.flaws.len() < KEPT {
            self.checked.flaws.push(Flaw { line: self.line, what });
        }
    }

    fn take(&mut self, line: Line) {
        if self.ended {
            self.flaw("comes after the end".to_owned());
        }
        match line {
            Line::Bundle { .. } => self.flaw("begins another bundle".to_owned()),
            Line::Key { public } => {
                self.checked.keys.push(public);
                if !self.only {
                    self.trusted = self.checked.keys.iter().copied().collect();
                } else if self.trusted.get(&public.id()).is_none() {
                    self.flaw(format!("key {} is not the one to believe", public.id()));
                }
            }
            Line::Seal(signed) => self.take_seal(signed),
            Line::Event { event, previous, proof } => self.take_event(&event, previous, &proof),
            Line::End { events, seals, digest } => {
                if (events, seals) != (self.checked.events, self.checked.seals) {
                    self.flaw(format!("the bundle had {events} events and {seals} seals"));
                }
                if digest != Hash(self.hasher.clone().finalize().into()) {
                    self.flaw("the bundle was changed after it was made: its digest differs".to_owned());
                }
                self.ended = true;
            }
        }
    }

    fn take_seal(&mut self, signed: SignedSeal) {
        let seal = &signed.seal;
        let number = seal.number;
        match signed.check(&self.trusted) {
            Ok(()) => {}
            Err(SignatureFault::UnknownKey) => {
                let key = seal.key.clone();
                self.flaw(format!("seal {number} is signed with key {key}, which is not the one to believe"));
            }
            Err(SignatureFault::Forged) => self.flaw(format!("seal {number} is not what its key has signed")),
        }
        if let Some(before) = &self.seal {
            let adjacent = before.seal.number.checked_add(1) == Some(number);
            if number <= before.seal.number || seal.first_position <= before.seal.last_position {
                self.flaw(format!("seal {number} is not after seal {}", before.seal.number));
            } else if adjacent && before.seal.digest().ok() != Some(seal.previous) {
                self.flaw(format!("seal {number} does not follow seal {}", before.seal.number));
            }
        }
        self.checked.seals += 1;
        self.checked.sealed_at = Some(seal.sealed_at);
        self.seal = Some(signed);
    }

    fn take_event(&mut self, event: &LoggedEvent, previous: Hash, proof: &Proof) {
        let place = Place::of(event);
        self.checked.events += 1;
        if event.position <= self.position {
            self.flaw(format!("event {place} is not after the one before it"));
        }
        self.position = event.position;
        let Ok(hash) = event_hash(event, previous) else {
            return self.flaw(format!("event {place} can not be written as JSON"));
        };
        let seal =
            self.seal.as_ref().map(|it| &it.seal).filter(|it| {
                it.number == proof.seal && (it.first_position..=it.last_position).contains(&event.position)
            });
        let size = seal.and_then(|it| u64::try_from(it.events).ok());
        let root = size.and_then(|size| root_by_path(hash, proof.index, size, &proof.path));
        if root.is_none() || root != seal.map(|it| it.root) {
            self.flaw(format!("event {place} is not as it was sealed, or its proof is not"));
        }
        self.follow(event, place, previous, hash);
    }

    /// Whether an event belongs here, and follows the one before it in its stream.
    fn follow(&mut self, event: &LoggedEvent, place: Place, previous: Hash, hash: Hash) {
        let (count, last) = self.checked.streams.get(&place.stream).copied().unwrap_or_default();
        match self.checked.subject.part(event) {
            None => self.flaw(format!("event {place} is none of {}", self.checked.subject)),
            Some(Part::Some) => {}
            Some(Part::Whole) => {
                let end = self.chains.insert(place.stream.clone(), hash).unwrap_or(Hash::ZERO);
                if end != previous || place.version != last + 1 {
                    self.flaw(format!("event {place} does not follow version {last} of its stream"));
                }
            }
        }
        self.checked.streams.insert(place.stream, (count + 1, place.version));
    }
}
