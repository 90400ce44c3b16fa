//! A file in the making.

use super::{ArchiveFile, ArchiveFormat, ArchivedStream, SUFFIX};
use crate::audit::{Hash, StreamName};
use sha2::{Digest, Sha256};
use std::io::Write;

/// A file in the making: parts are added, then it is finished. What is in memory is what its streams are called.
pub struct Draft<W> {
    to: W,
    hasher: Sha256,
    bytes: u64,
    events: u64,
    positions: Option<(i64, i64)>,
    streams: Vec<ArchivedStream>,
}

impl<W: Write> Draft<W> {
    /// An empty one that is written to `to`.
    #[must_use]
    pub fn new(to: W) -> Self {
        Self { to, hasher: Sha256::new(), bytes: 0, events: 0, positions: None, streams: Vec::new() }
    }

    /// Its length so far, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a stream's part: up to a version, its last event's hash, its lowest and highest position.
    pub(super) fn add(
        &mut self,
        stream: &StreamName,
        version: i64,
        hash: Hash,
        positions: (i64, i64),
        part: &[u8],
    ) -> std::io::Result<()> {
        self.to.write_all(part)?;
        self.hasher.update(part);
        let (stream, bytes) = (stream.clone(), part.len() as u64);
        self.streams.push(ArchivedStream { stream, version, hash, offset: self.bytes, bytes });
        self.bytes += bytes;
        self.events += version.unsigned_abs();
        let (first, last) = self.positions.unwrap_or(positions);
        self.positions = Some((first.min(positions.0), last.max(positions.1)));
        Ok(())
    }

    /// Ends the file. `None`: nothing was written to it. It is not stored anywhere yet, and not recorded.
    pub(super) fn finish(mut self, number: i64) -> std::io::Result<Option<(ArchiveFile, Vec<ArchivedStream>)>> {
        self.to.flush()?;
        let Some((first_position, last_position)) = self.positions else { return Ok(None) };
        let sha256 = Hash(self.hasher.finalize().into());
        // By the content too: whoever was taken for dead and stores another file of this number does not replace this one.
        let short = &sha256.to_string()[..16];
        let file = ArchiveFile {
            format: ArchiveFormat::V1,
            number,
            key: format!("archives/{number:08}-{short}{SUFFIX}"),
            sha256,
            bytes: self.bytes,
            events: self.events,
            streams: self.streams.len() as u64,
            first_position,
            last_position,
        };
        Ok(Some((file, self.streams)))
    }
}
