//! `read_assets`: the stored video of a task and its thumbnail.

use super::rows::Rows;
use super::tables::AssetRow;
use super::{At, bigint, integer};
use crate::error::FoldCause;
use domain::id::{AssetId, AttemptId, TaskId};
use domain::outcome::{Probe, StoredObject};
use domain::task::Event;
use uuid::Uuid;

const VIDEO: &str = "video";
const THUMBNAIL: &str = "thumbnail";

pub(super) fn fold(rows: &mut Rows, at: At, event: &Event) -> Result<(), FoldCause> {
    match event {
        Event::VideoStored { video, .. } => insert(rows, at, video.asset.0, VIDEO, &video.object),
        Event::VideoReady { probe, .. } | Event::Succeeded { probe, thumbnail: None, .. } => measure(rows, at, probe),
        Event::Succeeded { probe, thumbnail: Some(thumbnail), .. } => {
            measure(rows, at, probe)?;
            let asset = thumbnail_id(rows, TaskId(at.stream))?;
            insert(rows, at, asset.0, THUMBNAIL, thumbnail)
        }
        _ => Ok(()),
    }
}

/// The attempt that made the video names its thumbnail; an export has none, and its task does.
fn thumbnail_id(rows: &Rows, task: TaskId) -> Result<AssetId, FoldCause> {
    let number = rows.tasks.get(&task.0).and_then(|row| u32::try_from(row.attempt_no).ok());
    Ok(match number.ok_or(FoldCause::Dangling("task"))? {
        0 => AssetId::of_export(task, THUMBNAIL),
        number => AssetId::of(AttemptId::of(task, number), THUMBNAIL),
    })
}

/// The asset belongs to whom its task belongs to.
fn insert(rows: &mut Rows, at: At, asset: Uuid, kind: &str, object: &StoredObject) -> Result<(), FoldCause> {
    let task = rows.tasks.get(&at.stream).ok_or(FoldCause::Dangling("task"))?;
    if !rows.asset_ids.insert(asset) {
        return Err(FoldCause::Repeated("read_assets_pkey".to_owned()));
    }
    let row = AssetRow {
        asset_id: asset,
        task_id: task.task_id,
        tenant_id: task.tenant_id,
        kind: kind.to_owned(),
        object_key: object.key.clone(),
        bytes: bigint(object.bytes),
        sha256: object.sha256.clone(),
        content_type: object.content_type.clone(),
        duration_millis: None,
        width: None,
        height: None,
        video_codec: None,
        audio_codec: None,
        created_at: at.recorded_at,
        position: at.position,
    };
    rows.assets.add((row.task_id, asset), row);
    Ok(())
}

/// What the probe said about the video.
fn measure(rows: &mut Rows, at: At, probe: &Probe) -> Result<(), FoldCause> {
    let of_task = (at.stream, Uuid::nil())..=(at.stream, Uuid::max());
    let mut videos = rows.assets.range(of_task).filter(|(_, row)| row.kind == VIDEO).map(|(key, _)| *key);
    let (Some(key), None) = (videos.next(), videos.next()) else { return Err(FoldCause::Dangling(VIDEO)) };
    drop(videos);
    let row = rows.assets.change(&key).ok_or(FoldCause::Dangling(VIDEO))?;
    row.duration_millis = probe.duration_millis.map(bigint);
    row.width = Some(integer(probe.width));
    row.height = Some(integer(probe.height));
    row.video_codec = Some(probe.video_codec.clone());
    row.audio_codec.clone_from(&probe.audio_codec);
    row.position = at.position;
    Ok(())
}
