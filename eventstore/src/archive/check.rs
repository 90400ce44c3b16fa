//! Checking a file: against what was recorded of it, in itself, and against the log.

use super::part::PartFault;
use super::rows::streams_after;
use super::{ArchiveError, ArchiveFile, ArchivedStream};
use crate::audit::{Hash, Place, StreamName};
use crate::logged::{LoggedEvent, read_stream_sealed};
use sha2::{Digest, Sha256};
use sqlx::PgPool;
use std::io::{Read, Seek, SeekFrom};

/// Streams whose places are in memory at a time.
const PAGE: i64 = 500;
/// Flaws that are kept.
const KEPT: usize = 100;

/// Something that is not as it was archived.
#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    /// The file has other bytes.
    #[error("the file has {bytes} bytes with SHA-256 {sha256}: it is not the one that was written")]
    OtherFile {
        /// Its length.
        bytes: u64,
        /// Its hash.
        sha256: Hash,
    },
    /// The recorded parts do not lie side by side.
    #[error("the parts on record do not cover the file: the next one after byte {ends} begins at byte {begins}")]
    NotCovered {
        /// Where one part ends.
        ends: u64,
        /// Where the next one begins, or the file ends.
        begins: u64,
    },
    /// The counts of the recorded streams are others than the file's.
    #[error("on record are {events} events of {streams} streams: the file was written with others")]
    OtherCounts {
        /// Events of all recorded streams.
        events: u64,
        /// Recorded streams.
        streams: u64,
    },
    /// A stream's part is not what was archived.
    #[error("{stream} {fault}")]
    Part {
        /// The stream.
        stream: StreamName,
        /// What is wrong.
        fault: PartFault,
    },
    /// The log has something else.
    #[error("event {at} is not the same in the log: it has another {}", .columns.join(", "))]
    OtherInLog {
        /// The event, as it is in the archive.
        at: Place,
        /// What is not the same.
        columns: Vec<String>,
    },
    /// The log has it no more.
    #[error("event {0} is not in the log any more")]
    NotInLog(Place),
}

/// What a check came to.
#[derive(Debug, Default)]
pub struct Checked {
    /// Streams that were looked at.
    pub streams: u64,
    /// Events that were compared with the log.
    pub events: u64,
    /// What is wrong. Empty: the file is as it was written, and says what the log says.
    pub flaws: Vec<Flaw>,
    /// Flaws beyond those that are kept.
    pub left_out: u64,
}

impl Checked {
    fn flaw(&mut self, flaw: Flaw) {
        if self.flaws.len() < KEPT {
            self.flaws.push(flaw);
        } else {
            self.left_out += 1;
        }
    }

    /// How many flaws there are.
    #[must_use]
    pub const fn found(&self) -> u64 {
        self.flaws.len() as u64 + self.left_out
    }
}

/// Checks the bytes of a file. One of its streams is in memory at a time.
///
/// # Errors
/// The database or the bytes can not be read. Flaws are no errors: they are in the answer.
pub async fn check(
    pool: &PgPool,
    file: &ArchiveFile,
    mut bytes: impl Read + Seek + Send,
) -> Result<Checked, ArchiveError> {
    let mut checked = Checked::default();
    let (length, sha256) = digest(&mut bytes)?;
    if (length, sha256) != (file.bytes, file.sha256) {
        checked.flaw(Flaw::OtherFile { bytes: length, sha256 });
    }
    let (mut ends, mut on_record) = (0, 0);
    loop {
        let after = i64::try_from(ends).unwrap_or(i64::MAX) - 1;
        let page = streams_after(pool, file.number, after, PAGE).await?;
        if page.is_empty() {
            break;
        }
        for archived in page {
            if archived.offset != ends {
                checked.flaw(Flaw::NotCovered { ends, begins: archived.offset });
            }
            ends = archived.offset + archived.bytes;
            on_record += archived.version.unsigned_abs();
            checked.streams += 1;
            check_stream(pool, &archived, &mut bytes, &mut checked).await?;
        }
    }
    if ends != file.bytes {
        checked.flaw(Flaw::NotCovered { ends, begins: file.bytes });
    }
    if (on_record, checked.streams) != (file.events, file.streams) {
        checked.flaw(Flaw::OtherCounts { events: on_record, streams: checked.streams });
    }
    Ok(checked)
}

fn digest(bytes: &mut impl Read) -> std::io::Result<(u64, Hash)> {
    let (mut hasher, mut length, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        match bytes.read(&mut buffer)? {
            0 => return Ok((length, Hash(hasher.finalize().into()))),
            count => {
                hasher.update(&buffer[..count]);
                length += count as u64;
            }
        }
    }
}

async fn check_stream(
    pool: &PgPool,
    archived: &ArchivedStream,
    bytes: &mut (impl Read + Seek + Send),
    checked: &mut Checked,
) -> Result<(), ArchiveError> {
    bytes.seek(SeekFrom::Start(archived.offset))?;
    match archived.open(bytes.take(archived.bytes)) {
        Ok(events) => compare(pool, archived, &events, checked).await,
        Err(fault) => {
            checked.flaw(Flaw::Part { stream: archived.stream.clone(), fault });
            Ok(())
        }
    }
}

/// Compares with the log, column by column.
async fn compare(
    pool: &PgPool,
    archived: &ArchivedStream,
    events: &[LoggedEvent],
    checked: &mut Checked,
) -> Result<(), ArchiveError> {
    let mut connection = pool.acquire().await?;
    for ours in events.chunks(PAGE as usize) {
        let Some(first) = ours.first() else { continue };
        let logged =
            read_stream_sealed(&mut connection, &archived.stream, first.version - 1, ours.len() as i64).await?;
        for event in ours {
            checked.events += 1;
            let there = logged.binary_search_by_key(&event.version, |(it, _)| it.version);
            match there.map(|index| &logged[index].0) {
                Err(_) => checked.flaw(Flaw::NotInLog(Place::of(event))),
                Ok(it) if it == event => {}
                Ok(it) => checked.flaw(Flaw::OtherInLog { at: Place::of(event), columns: other_columns(event, it)? }),
            }
        }
    }
    Ok(())
}

fn other_columns(one: &LoggedEvent, other: &LoggedEvent) -> Result<Vec<String>, std::io::Error> {
    let (one, other) = (serde_json::to_value(one)?, serde_json::to_value(other)?);
    let columns = one.as_object().into_iter().flatten().filter(|(name, value)| other.get(name) != Some(value));
    Ok(columns.map(|(name, _)| name.clone()).collect())
}
