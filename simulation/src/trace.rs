//! The history of a run: a hash of everything that happened, and, when asked for, a line for each step.

use crate::clock::{HOUR, MINUTE, Micros, SECOND};
use std::fmt::Arguments;

/// The history so far.
pub(crate) struct Trace {
    hash: u64,
    lines: Option<Vec<String>>,
    now: Micros,
}

impl Trace {
    pub(crate) fn new(recorded: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, lines: recorded.then(Vec::new), now: 0 }
    }

    /// A step begins.
    pub(crate) fn at(&mut self, now: Micros) {
        self.now = now;
        self.mark(&now.to_le_bytes());
    }

    /// Something that every run with the same seed must have in common.
    pub(crate) fn mark(&mut self, bytes: &[u8]) {
        let mut hash = self.hash;
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let word = chunk.iter().rev().fold(0_u64, |word, byte| (word << 8) | u64::from(*byte));
            hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
        }
        for byte in chunks.remainder() {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.hash = hash ^ bytes.len() as u64;
    }

    /// A line of the story: who did what. Costs nothing unless the story is wanted.
    pub(crate) fn tell(&mut self, who: &str, what: Arguments<'_>) {
        let now = self.now;
        if let Some(lines) = &mut self.lines {
            lines.push(line(now, who, what));
        }
    }

    pub(crate) const fn is_recorded(&self) -> bool {
        self.lines.is_some()
    }

    pub(crate) const fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}

fn line(at: Micros, who: &str, what: Arguments<'_>) -> String {
    let (hours, minutes, seconds, rest) = (at / HOUR, at / MINUTE % 60, at / SECOND % 60, at % SECOND / 1_000);
    format!("{hours:02}:{minutes:02}:{seconds:02}.{rest:03}  {who:<12} {what}")
}
