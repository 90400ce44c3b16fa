//! The archive: copies of finished streams in files that other tools read. The format is described in docs/event-store.md,
//! "Archive".
//!
//! A file is made of parts, one for each stream: its events from the first on, one canonical JSON object a line, each with its hash
//! and that of the event before it, packed with gzip. A part can be read by itself; all parts one after the other are a gzip
//! file. This module makes and reads parts, and keeps the tables that say where they are. It stores no file: whoever does so
//! records it afterwards.

mod check;
mod draft;
mod part;
mod rows;
mod run;

pub use check::{Checked, Flaw, check};
pub use draft::Draft;
pub use part::PartFault;
pub use rows::{archived_stream, archives_after, find_archive, latest_archives};
pub use run::{ArchiveError, Archiving, Due, DueStream, Unrecorded, Written};

use crate::audit::{Hash, StreamName};
use domain::time::Timestamp;
use serde::Serialize;

/// Which kind of file this is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
enum ArchiveFormat {
    #[default]
    #[serde(rename = "aivideo-archive-1")]
    V1,
}

/// A file of the archive. As JSON it is the file's manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ArchiveFile {
    format: ArchiveFormat,
    /// From 1, in the order in which they were written.
    pub number: i64,
    /// Its key in the object store. Of its number and content: another content never has the same key.
    #[serde(rename = "file")]
    pub key: String,
    /// SHA-256 of its bytes.
    pub sha256: Hash,
    /// Its length in bytes, packed.
    pub bytes: u64,
    /// Events in it.
    pub events: u64,
    /// Streams in it.
    pub streams: u64,
    /// The lowest position of its events.
    pub first_position: i64,
    /// The highest position of its events.
    pub last_position: i64,
}

impl ArchiveFile {
    /// The key of the object that says what the file is, for whoever has no database.
    #[must_use]
    pub fn manifest_key(&self) -> String {
        format!("{}.json", self.key.trim_end_matches(SUFFIX))
    }

    /// What that object holds: the same bytes each time.
    ///
    /// # Errors
    /// It can not be written as JSON.
    pub fn manifest(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(text)
    }
}

/// How the names of the files end.
const SUFFIX: &str = ".ndjson.gz";

/// A file that is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedFile {
    /// The file.
    pub file: ArchiveFile,
    /// When it was recorded, by the database's clock.
    pub written_at: Timestamp,
}

/// A stream in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchivedStream {
    /// Which.
    pub stream: StreamName,
    /// Its versions from 1 to this one are there.
    pub version: i64,
    /// The hash of its last event.
    pub hash: Hash,
    /// Where its part begins in the file, in bytes.
    pub offset: u64,
    /// How long its part is, in bytes.
    pub bytes: u64,
}
