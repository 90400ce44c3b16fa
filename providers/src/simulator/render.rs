//! Real videos: made once per length, then served to every job that asked for that length.

use super::world::World;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// Longest time that one video may take to make.
const LONGEST: Duration = Duration::from_secs(120);

/// The file with a video of so many seconds, made if it is not there yet. One is made at a time.
pub(super) async fn video(world: &World, seconds: u64) -> io::Result<PathBuf> {
    let folder = world.config.store_dir.join("renders");
    let file = folder.join(format!("{seconds}s.mp4"));
    let _one_at_a_time = world.rendering.lock().await;
    if tokio::fs::try_exists(&file).await? {
        return Ok(file);
    }
    tokio::fs::create_dir_all(&folder).await?;
    // Made under another name: a killed process leaves no half video behind under this one.
    let draft = folder.join(format!("{seconds}s.{}.part", std::process::id()));
    let mut ffmpeg = Command::new(&world.config.ffmpeg);
    ffmpeg.args(["-nostdin", "-v", "error", "-y"]);
    ffmpeg.args(["-f", "lavfi", "-i", "testsrc=size=320x240:rate=25", "-f", "lavfi", "-i", "sine=frequency=440"]);
    ffmpeg.args(["-t", &seconds.to_string(), "-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p"]);
    ffmpeg.args(["-c:a", "aac", "-b:a", "64k", "-movflags", "+faststart", "-f", "mp4"]);
    ffmpeg.arg(&draft).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let status = tokio::time::timeout(LONGEST, ffmpeg.status()).await??;
    if !status.success() {
        return Err(io::Error::other("ffmpeg failed"));
    }
    tokio::fs::rename(&draft, &file).await?;
    Ok(file)
}
