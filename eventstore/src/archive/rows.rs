//! The tables that say which files there are, and where each stream is.

use super::{ArchiveError, ArchiveFile, ArchiveFormat, ArchivedStream, RecordedFile};
use crate::audit::{Hash, StreamName};
use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgConnection, PgPool, Row};

impl FromRow<'_, PgRow> for RecordedFile {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        let count = |name| row.try_get::<i64, _>(name).map(i64::unsigned_abs);
        let file = ArchiveFile {
            format: ArchiveFormat::V1,
            number: row.try_get("number")?,
            key: row.try_get("file_key")?,
            sha256: Hash::stored(row.try_get("sha256")?),
            bytes: count("bytes")?,
            events: count("events")?,
            streams: count("streams")?,
            first_position: row.try_get("first_position")?,
            last_position: row.try_get("last_position")?,
        };
        Ok(Self { file, written_at: row.try_get("written_at")? })
    }
}

impl FromRow<'_, PgRow> for ArchivedStream {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        let count = |name| row.try_get::<i64, _>(name).map(i64::unsigned_abs);
        Ok(Self {
            stream: StreamName { category: row.try_get("category")?, id: row.try_get("stream_id")? },
            version: row.try_get("version")?,
            hash: Hash::stored(row.try_get("hash")?),
            offset: count("part_offset")?,
            bytes: count("part_bytes")?,
        })
    }
}

/// Records a file and its streams.
pub(super) async fn insert(
    connection: &mut PgConnection,
    file: &ArchiveFile,
    streams: &[ArchivedStream],
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "/* archive.insert_file */
         INSERT INTO archives (number, file_key, sha256, bytes, events, streams, first_position, last_position)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
    )
    .bind(file.number)
    .bind(&file.key)
    .bind(file.sha256.0.as_slice())
    .bind(file.bytes.cast_signed())
    .bind(file.events.cast_signed())
    .bind(file.streams.cast_signed())
    .bind(file.first_position)
    .bind(file.last_position)
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "/* archive.insert_streams */
         INSERT INTO archived_streams (category, stream_id, version, hash, archive, part_offset, part_bytes)
         SELECT category, stream_id, version, hash, $1, part_offset, part_bytes
           FROM unnest($2::text[], $3::uuid[], $4::bigint[], $5::bytea[], $6::bigint[], $7::bigint[])
                AS it (category, stream_id, version, hash, part_offset, part_bytes)",
    )
    .bind(file.number)
    .bind(streams.iter().map(|it| it.stream.category.as_str()).collect::<Vec<_>>())
    .bind(streams.iter().map(|it| it.stream.id).collect::<Vec<_>>())
    .bind(streams.iter().map(|it| it.version).collect::<Vec<_>>())
    .bind(streams.iter().map(|it| it.hash.0.as_slice()).collect::<Vec<_>>())
    .bind(streams.iter().map(|it| it.offset.cast_signed()).collect::<Vec<_>>())
    .bind(streams.iter().map(|it| it.bytes.cast_signed()).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}

/// Files after a number, in order, at most `limit`.
///
/// # Errors
/// [`ArchiveError::Database`].
pub async fn archives_after(pool: &PgPool, number: i64, limit: u32) -> Result<Vec<RecordedFile>, ArchiveError> {
    Ok(sqlx::query_as(
        "/* archive.files_after */
         SELECT number, file_key, sha256, bytes, events, streams, first_position, last_position, written_at
           FROM archives WHERE number > $1 ORDER BY number LIMIT $2",
    )
    .bind(number)
    .bind(i64::from(limit))
    .fetch_all(pool)
    .await?)
}

/// The newest files, the newest first.
///
/// # Errors
/// [`ArchiveError::Database`].
pub async fn latest_archives(pool: &PgPool, limit: u32) -> Result<Vec<RecordedFile>, ArchiveError> {
    Ok(sqlx::query_as(
        "/* archive.files_latest */
         SELECT number, file_key, sha256, bytes, events, streams, first_position, last_position, written_at
           FROM archives ORDER BY number DESC LIMIT $1",
    )
    .bind(i64::from(limit))
    .fetch_all(pool)
    .await?)
}

/// The file of a number.
///
/// # Errors
/// [`ArchiveError::Database`].
pub async fn find_archive(pool: &PgPool, number: i64) -> Result<Option<RecordedFile>, ArchiveError> {
    Ok(archives_after(pool, number.saturating_sub(1), 1).await?.pop().filter(|it| it.file.number == number))
}

/// Where a stream is, as far as it is archived: the file of its highest archived version, and its part there.
///
/// # Errors
/// [`ArchiveError::Database`].
pub async fn archived_stream(
    pool: &PgPool,
    stream: &StreamName,
) -> Result<Option<(ArchiveFile, ArchivedStream)>, ArchiveError> {
    let row = sqlx::query(
        "/* archive.stream */
         SELECT a.*, s.* FROM archived_streams s JOIN archives a ON a.number = s.archive
          WHERE s.category = $1 AND s.stream_id = $2 ORDER BY s.version DESC LIMIT 1",
    )
    .bind(&stream.category)
    .bind(stream.id)
    .fetch_optional(pool)
    .await?;
    row.map(|row| Ok((RecordedFile::from_row(&row)?.file, ArchivedStream::from_row(&row)?))).transpose()
}

/// The streams of a file after an offset, in their order there, at most `limit`. From -1 on: all.
pub(super) async fn streams_after(
    pool: &PgPool,
    number: i64,
    offset: i64,
    limit: i64,
) -> Result<Vec<ArchivedStream>, sqlx::Error> {
    sqlx::query_as(
        "/* archive.streams_after */
         SELECT category, stream_id, version, hash, part_offset, part_bytes FROM archived_streams
          WHERE archive = $1 AND part_offset > $2 ORDER BY part_offset LIMIT $3",
    )
    .bind(number)
    .bind(offset)
    .bind(limit)
    .fetch_all(pool)
    .await
}
