//! `read_assets`: the stored video of a task and its thumbnail.

use super::{At, Fault, bigint, integer, one};
use crate::error::FoldCause;
use domain::id::{AssetId, AttemptId, TaskId};
use domain::outcome::{Probe, StoredObject};
use domain::task::Event;
use sqlx::PgConnection;
use uuid::Uuid;

pub(super) async fn fold(connection: &mut PgConnection, at: At, event: &Event) -> Result<(), Fault> {
    match event {
        Event::VideoStored { video, .. } => insert(connection, at, video.asset.0, "video", &video.object).await,
        Event::VideoReady { probe, .. } | Event::Succeeded { probe, thumbnail: None, .. } => {
            measure(connection, at, probe).await
        }
        Event::Succeeded { probe, thumbnail: Some(thumbnail), .. } => {
            measure(connection, at, probe).await?;
            let asset = thumbnail_id(connection, TaskId(at.stream)).await?;
            insert(connection, at, asset.0, "thumbnail", thumbnail).await
        }
        _ => Ok(()),
    }
}

/// The attempt that made the video names its thumbnail; an export has none, and its task does.
async fn thumbnail_id(connection: &mut PgConnection, task: TaskId) -> Result<AssetId, Fault> {
    let number: Option<i32> =
        sqlx::query_scalar("/* fold.current_attempt */ SELECT attempt_no FROM read_tasks WHERE task_id = $1")
            .bind(task.0)
            .fetch_optional(connection)
            .await?;
    Ok(match number.and_then(|it| u32::try_from(it).ok()).ok_or(FoldCause::Dangling("task"))? {
        0 => AssetId::of_export(task, "thumbnail"),
        number => AssetId::of(AttemptId::of(task, number), "thumbnail"),
    })
}

/// The asset belongs to whom its task belongs to.
async fn insert(
    connection: &mut PgConnection,
    at: At,
    asset: Uuid,
    kind: &str,
    object: &StoredObject,
) -> Result<(), Fault> {
    let inserted = sqlx::query(
        "/* fold.asset_stored */
         INSERT INTO read_assets (asset_id, task_id, tenant_id, kind, object_key, bytes, sha256, content_type, created_at,
                                  position)
         SELECT $1, task_id, tenant_id, $3, $4, $5, $6, $7, $8, $9 FROM read_tasks WHERE task_id = $2",
    )
    .bind(asset)
    .bind(at.stream)
    .bind(kind)
    .bind(&object.key)
    .bind(bigint(object.bytes))
    .bind(&object.sha256)
    .bind(&object.content_type)
    .bind(at.recorded_at)
    .bind(at.position)
    .execute(connection)
    .await?;
    one(inserted.rows_affected(), FoldCause::Dangling("task"))
}

/// What the probe said about the video.
async fn measure(connection: &mut PgConnection, at: At, probe: &Probe) -> Result<(), Fault> {
    let updated = sqlx::query(
        "/* fold.video_measured */
         UPDATE read_assets
            SET duration_millis = $2, width = $3, height = $4, video_codec = $5, audio_codec = $6, position = $7
          WHERE task_id = $1 AND kind = 'video'",
    )
    .bind(at.stream)
    .bind(probe.duration_millis.map(bigint))
    .bind(integer(probe.width))
    .bind(integer(probe.height))
    .bind(&probe.video_codec)
    .bind(&probe.audio_codec)
    .bind(at.position)
    .execute(connection)
    .await?;
    one(updated.rows_affected(), FoldCause::Dangling("video"))
}
