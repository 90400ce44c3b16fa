//! Archiving: which streams are due, their parts, and the record of a file once it is stored.

use super::draft::Draft;
use super::part::Packer;
use super::{ArchiveFile, ArchivedStream, rows};
use crate::audit::{Place, StreamName};
use crate::logged::read_stream_sealed;
use sqlx::{Connection, PgConnection, PgPool};
use std::io::Write;
use uuid::Uuid;

/// The session lock of the one who archives. The top byte keeps it apart from other locks.
const ARCHIVING: i64 = (13 << 56) | 1;

/// Events read at a time.
const PAGE: i64 = 500;

/// Why nothing could be archived.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The database could not be used.
    #[error("the database could not be used")]
    Database(#[source] sqlx::Error),
    /// The file could not be written, before it was stored, or not be read.
    #[error("the file can not be written or read")]
    File(#[from] std::io::Error),
    /// The lock was lost, and somebody else has recorded what is to be recorded here.
    #[error("another process has archived meanwhile: run it again")]
    Overtaken,
}

impl From<sqlx::Error> for ArchiveError {
    fn from(error: sqlx::Error) -> Self {
        let overtaken = error.as_database_error().is_some_and(|it| it.is_unique_violation());
        if overtaken { Self::Overtaken } else { Self::Database(error) }
    }
}

/// A stream to be archived, up to a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueStream {
    /// Which.
    pub stream: StreamName,
    /// The version of its newest event.
    pub version: i64,
}

/// Which of some streams are to be archived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Those that can be.
    pub streams: Vec<DueStream>,
    /// How many have to wait: the log is sealed, but not yet as far as their newest event.
    pub waiting: u64,
}

/// What became of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is in the file.
    Whole,
    /// It was left out: this event of it is not as it was sealed, or there is none of the version before it.
    LeftOut(Place),
}

/// The right to archive, which one process has at a time, for as long as this lives.
pub struct Archiving {
    connection: PgConnection,
    sealed: bool,
}

impl Archiving {
    /// Begins; `None` where another process is at it.
    ///
    /// # Errors
    /// [`ArchiveError::Database`].
    pub async fn begin(pool: &PgPool) -> Result<Option<Self>, ArchiveError> {
        // Not of the pool any more: the lock ends with the connection, however this ends.
        let mut connection = pool.acquire().await?.detach();
        let alone = sqlx::query_scalar("/* archive.begin */ SELECT pg_try_advisory_lock($1)")
            .bind(ARCHIVING)
            .fetch_one(&mut connection)
            .await?;
        if alone {
            return Ok(Some(Self { connection, sealed: false }));
        }
        connection.close().await?;
        Ok(None)
    }

    /// Which of these streams have events that are not archived, and are in the log for good: sealed, or, where nothing is
    /// sealed, such that nothing can appear before them any more.
    ///
    /// # Errors
    /// [`ArchiveError::Database`].
    pub async fn due(&mut self, streams: &[StreamName]) -> Result<Due, ArchiveError> {
        // A statement of its own, before the one that reads the rows: what had ended by now is visible to that one.
        let (up_to, sealed): (i64, bool) = sqlx::query_as(
            "/* archive.up_to */
             SELECT coalesce(sealed, (SELECT up_to FROM readable_position())), sealed IS NOT NULL
               FROM (SELECT max(last_position) AS sealed FROM seals) AS it",
        )
        .fetch_one(&mut self.connection)
        .await?;
        self.sealed = sealed;
        let rows: Vec<(String, Uuid, i64, i64)> = sqlx::query_as(
            "/* archive.due */
             SELECT w.category, w.stream_id, e.version, e.position
               FROM unnest($1::text[], $2::uuid[]) WITH ORDINALITY AS w (category, stream_id, place)
              CROSS JOIN LATERAL (
                    SELECT version, position FROM events
                     WHERE category = w.category AND stream_id = w.stream_id ORDER BY version DESC LIMIT 1) AS e
              WHERE NOT EXISTS (
                    SELECT FROM archived_streams a
                     WHERE a.category = w.category AND a.stream_id = w.stream_id AND a.version >= e.version)
              ORDER BY w.place",
        )
        .bind(streams.iter().map(|it| it.category.as_str()).collect::<Vec<_>>())
        .bind(streams.iter().map(|it| it.id).collect::<Vec<_>>())
        .fetch_all(&mut self.connection)
        .await?;
        let mut due = Due::default();
        for (category, id, version, position) in rows {
            if position > up_to {
                due.waiting += 1;
            } else {
                due.streams.push(DueStream { stream: StreamName { category, id }, version });
            }
        }
        Ok(due)
    }

    /// Adds a stream to a file, from its first event on. The stream is in memory, packed.
    ///
    /// # Errors
    /// [`ArchiveError`]; the file is of no use then.
    pub async fn write<W: Write>(&mut self, draft: &mut Draft<W>, due: &DueStream) -> Result<Written, ArchiveError> {
        let mut packer = Packer::new();
        let mut positions = (i64::MAX, i64::MIN);
        let mut version = 0;
        while version < due.version {
            let limit = PAGE.min(due.version - version);
            let page = read_stream_sealed(&mut self.connection, &due.stream, version, limit).await?;
            for (event, sealed) in &page {
                version += 1;
                let hash = packer.add(event)?;
                // Without a hole, and with the hash that it was sealed with, where it was.
                if event.version != version || (self.sealed && *sealed != Some(hash)) {
                    return Ok(Written::LeftOut(Place::of(event)));
                }
                positions = (positions.0.min(event.position), positions.1.max(event.position));
            }
            if page.is_empty() {
                // They were there a moment ago: a restore is going on.
                return Err(ArchiveError::Overtaken);
            }
        }
        let end = packer.end;
        draft.add(&due.stream, version, end, positions, &packer.finish()?)?;
        Ok(Written::Whole)
    }

    /// Ends a file: `None` where nothing was written to it. Store it, and its manifest, then [`Self::record`] it.
    ///
    /// # Errors
    /// [`ArchiveError`].
    pub async fn finish<W: Write>(&mut self, draft: Draft<W>) -> Result<Option<Unrecorded>, ArchiveError> {
        let number: i64 = sqlx::query_scalar("/* archive.next */ SELECT coalesce(max(number), 0) + 1 FROM archives")
            .fetch_one(&mut self.connection)
            .await?;
        Ok(draft.finish(number)?.map(|(file, streams)| Unrecorded { file, streams }))
    }

    /// Records a file that is stored for good.
    ///
    /// # Errors
    /// [`ArchiveError`]: nothing is recorded.
    pub async fn record(&mut self, unrecorded: Unrecorded) -> Result<ArchiveFile, ArchiveError> {
        let mut tx = self.connection.begin().await?;
        rows::insert(&mut tx, &unrecorded.file, &unrecorded.streams).await?;
        tx.commit().await?;
        Ok(unrecorded.file)
    }

    /// Lets others archive.
    ///
    /// # Errors
    /// [`ArchiveError::Database`].
    pub async fn close(self) -> Result<(), ArchiveError> {
        Ok(self.connection.close().await?)
    }
}

/// A file that is written, and not recorded yet.
#[must_use = "what is stored has to be recorded"]
#[derive(Debug)]
pub struct Unrecorded {
    /// The file.
    pub file: ArchiveFile,
    streams: Vec<ArchivedStream>,
}
