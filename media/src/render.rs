//! Renders a video in another size: MP4 with its index in front, so that it plays while it loads.

use crate::ffmpeg::{Ffmpeg, MAX_PIXELS, beside, broke, file_url, input, must_have_content, must_have_had_room, words};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;
use workers::ports::{Container, ExportSpec, MediaError, Probe};

/// How far beyond the limit a render may get before the tool stops it: what it has written by then is surely too large.
const BEYOND_LIMIT: u64 = 1 << 20;

impl Ffmpeg {
    pub(crate) async fn render_file(
        &self,
        file: &Path,
        probe: &Probe,
        spec: ExportSpec,
        to: &Path,
        max_bytes: u64,
    ) -> Result<(), MediaError> {
        must_have_content(file).await?;
        let (width, height) = size(probe, spec)?;
        // Takes its name only when it is a whole video; removed otherwise.
        let part = beside(to)?;
        let arguments = self.render_arguments(file, (width, height), spec, &part, max_bytes);
        let limit = Duration::from_secs(self.config.render_timeout_seconds);
        let finished = self.run_for(limit, "ffmpeg", &self.config.ffmpeg, &arguments).await?;
        must_have_had_room(&finished)?;
        if !finished.status.success() {
            return Err(MediaError::Tool(broke(&finished)));
        }
        // Stopped at the limit, the tool ends well, and what it leaves is a video that is cut short.
        let made = tokio::fs::metadata(&part)
            .await
            .map_err(|error| MediaError::Tool(format!("no render: {}", error.kind())))?;
        if made.len() > max_bytes {
            return Err(MediaError::TooLarge(max_bytes));
        }
        self.must_be_rendered(&part, (width, height)).await?;
        part.persist(to).map_err(|error| MediaError::Tool(format!("the render got lost: {}", error.error.kind())))
    }

    fn render_arguments(
        &self,
        file: &Path,
        (width, height): (u32, u32),
        spec: ExportSpec,
        part: &Path,
        max_bytes: u64,
    ) -> Vec<OsString> {
        let mut arguments = words(&["-nostdin", "-hide_banner", "-loglevel", "error", "-y"]);
        let threads = self.config.threads.to_string();
        arguments.extend(words(&["-threads", &threads, "-max_pixels", &MAX_PIXELS.to_string()]));
        arguments.extend(input(file));
        // Rotation comes before the filters, so the size is the one of the picture as displayed.
        let filter = format!("scale={width}:{height},setsar=1,format=yuv420p");
        // The first sound, where there is one; nothing else that a file may carry.
        arguments.extend(words(&[
            "-map",
            "0:V:0",
            "-map",
            "0:a:0?",
            "-sn",
            "-dn",
            "-map_metadata",
            "-1",
            "-vf",
            &filter,
        ]));
        arguments.extend(words(&["-threads", &threads, "-c:v", "libx264", "-preset", "veryfast", "-crf", "20"]));
        arguments.extend(words(&["-c:a", "aac", "-b:a", "160k"]));
        // Without traces of the build or the hour: the same source renders to the same bytes, however often it is tried.
        arguments.extend(words(&["-fflags", "+bitexact", "-flags:v", "+bitexact", "-flags:a", "+bitexact"]));
        arguments.extend(words(match spec.container {
            Container::Mp4 => &["-movflags", "+faststart", "-f", "mp4"],
        }));
        // A small source can render to any size: the disk is everybody's.
        arguments.extend(words(&["-fs", &max_bytes.saturating_add(BEYOND_LIMIT).to_string()]));
        arguments.push(file_url(part));
        arguments
    }

    /// The exit status says little: what counts is a video of the size that was asked for.
    async fn must_be_rendered(&self, part: &Path, wanted: (u32, u32)) -> Result<(), MediaError> {
        match self.probe_file(part).await {
            Ok(made) if (made.width, made.height) == wanted => Ok(()),
            Ok(_) => Err(MediaError::Tool("the render has another size".to_owned())),
            // The source was looked at before: what came out of it is not its fault.
            Err(other) => Err(MediaError::Tool(format!("the render is not whole: {other}"))),
        }
    }
}

/// Width and height of an export: both even, as the codec wants them.
fn size(probe: &Probe, spec: ExportSpec) -> Result<(u32, u32), MediaError> {
    let too_large = || MediaError::Corrupt("the picture would be too large".to_owned());
    let width = u64::from(probe.width) * u64::from(spec.height_px) / u64::from(probe.height.max(1));
    let width = u32::try_from(width).map_err(|_| too_large())? & !1;
    let width = width.max(2);
    if u64::from(width) * u64::from(spec.height_px) > MAX_PIXELS {
        return Err(too_large());
    }
    Ok((width, spec.height_px))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized(width: u32, height: u32, height_px: u32) -> Result<(u32, u32), MediaError> {
        let video_codec = "h264".to_owned();
        let probe = Probe { duration_millis: None, width, height, video_codec, audio_codec: None, millihertz: None };
        size(&probe, ExportSpec { container: Container::Mp4, height_px })
    }

    #[test]
    fn the_width_follows_and_is_even() {
        assert_eq!(sized(1920, 1080, 720), Ok((1280, 720)));
        assert_eq!(sized(1080, 1920, 720), Ok((404, 720)));
        assert_eq!(sized(1, 2000, 144), Ok((2, 144)));
        assert!(sized(60_000, 100, 2160).is_err(), "a strip is not blown up");
    }
}
