//! Assets: the stored videos and thumbnails of tasks.

use super::{ReadError, Reader, Viewer};
use domain::id::{AssetId, TaskId, TenantId};
use domain::time::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row};

/// An asset as its read model shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct AssetRow {
    /// The asset.
    pub asset: AssetId,
    /// The task that made it.
    pub task: TaskId,
    /// Its owner.
    pub tenant: TenantId,
    /// `video` or `thumbnail`.
    pub kind: String,
    /// Key in the object store. Never shown: people get a signed link.
    pub object_key: String,
    /// Size in bytes.
    pub bytes: i64,
    /// SHA-256 of the content, lower-case hex.
    pub sha256: String,
    /// Media type.
    pub content_type: String,
    /// Length in milliseconds, of a video.
    pub duration_millis: Option<i64>,
    /// Width in pixels, as displayed.
    pub width: Option<i32>,
    /// Height in pixels, as displayed.
    pub height: Option<i32>,
    /// Video codec.
    pub video_codec: Option<String>,
    /// Audio codec.
    pub audio_codec: Option<String>,
    /// When it was recorded.
    pub created_at: Timestamp,
}

impl FromRow<'_, PgRow> for AssetRow {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            asset: AssetId(row.try_get("asset_id")?),
            task: TaskId(row.try_get("task_id")?),
            tenant: TenantId(row.try_get("tenant_id")?),
            kind: row.try_get("kind")?,
            object_key: row.try_get("object_key")?,
            bytes: row.try_get("bytes")?,
            sha256: row.try_get("sha256")?,
            content_type: row.try_get("content_type")?,
            duration_millis: row.try_get("duration_millis")?,
            width: row.try_get("width")?,
            height: row.try_get("height")?,
            video_codec: row.try_get("video_codec")?,
            audio_codec: row.try_get("audio_codec")?,
            created_at: row.try_get("created_at")?,
        })
    }
}

impl Reader {
    /// The assets of these tasks, of those that this viewer may see, by task and kind.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn assets(&self, viewer: Viewer, tasks: &[TaskId]) -> Result<Vec<AssetRow>, ReadError> {
        Ok(sqlx::query_as(
            "/* projections.assets */
             SELECT asset_id, task_id, tenant_id, kind, object_key, bytes, sha256, content_type, duration_millis, width, height,
                    video_codec, audio_codec, created_at
               FROM read_assets
              WHERE task_id = ANY ($1) AND ($2::uuid IS NULL OR tenant_id = $2)
              ORDER BY task_id, kind DESC",
        )
        .bind(tasks.iter().map(|task| task.0).collect::<Vec<_>>())
        .bind(viewer.bind())
        .fetch_all(&self.pool)
        .await?)
    }

    /// An asset, if this viewer may see it.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn asset(&self, viewer: Viewer, asset: AssetId) -> Result<Option<AssetRow>, ReadError> {
        Ok(sqlx::query_as(
            "/* projections.asset */
             SELECT asset_id, task_id, tenant_id, kind, object_key, bytes, sha256, content_type, duration_millis, width, height,
                    video_codec, audio_codec, created_at
               FROM read_assets
              WHERE asset_id = $1 AND ($2::uuid IS NULL OR tenant_id = $2)",
        )
        .bind(asset.0)
        .bind(viewer.bind())
        .fetch_optional(&self.pool)
        .await?)
    }
}
