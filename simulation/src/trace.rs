//! The history of a run: a hash of everything that happened, and, when asked for, a line for each step.

use crate::clock::{HOUR, MINUTE, Micros, SECOND};
use std::fmt::Arguments;

/// The history so far.
pub(crate) struct Trace {
    hash: u64,
    lines: Option<Vec<String>>,
    now: Micros,
    closed: bool,
}

impl Trace {
    pub(crate) fn new(recorded: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, lines: recorded.then(Vec::new), now: 0, closed: false }
    }

    /// The story is over: what else the last step does is not part of it.
    pub(crate) const fn close(&mut self) {
        self.closed = true;
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

    /// The same for a value, by what it prints.
    pub(crate) fn mark_debug(&mut self, value: &impl std::fmt::Debug) {
        struct Marks<'a>(&'a mut Trace);
        impl std::fmt::Write for Marks<'_> {
            fn write_str(&mut self, text: &str) -> std::fmt::Result {
                self.0.mark(text.as_bytes());
                Ok(())
            }
        }
        let written = std::fmt::write(&mut Marks(self), format_args!("{value:?}"));
        debug_assert!(written.is_ok());
    }

    /// A line of the story: who did what. Costs nothing unless the story is wanted.
    pub(crate) fn tell(&mut self, who: &str, what: Arguments<'_>) {
        let now = self.now;
        if let Some(lines) = self.lines.as_mut().filter(|_| !self.closed) {
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
