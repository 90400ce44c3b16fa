//! Probing and thumbnails with `ffprobe` and `ffmpeg`, which are given files nobody has looked at before.
//!
//! What keeps them in bounds: only the `file` protocol and only self-contained formats, so that a playlist dressed as a video
//! can not name another file or host; file names that can not be read as options or protocols; a deadline; one thread count;
//! a cap on the picture size. What a tool writes about a file stays out of every error, for it may quote the file.

use crate::child::{Finished, RunError, run};
use crate::config::MediaConfig;
use crate::probe::{Report, packets_millis};
use futures_util::future::BoxFuture;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;
use workers::ports::{ExportSpec, Media, MediaError, Probe};

/// Formats that hold their own data. Playlists (`hls`, `concat`, `dash`, image lists …) are not among them.
const FORMATS: &str = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,mpegts,mpegvideo";

/// The most pixels of one picture, 64 million: above 8K, below what would fill the memory.
pub(crate) const MAX_PIXELS: u64 = 1 << 26;

/// The longer side of a thumbnail, in pixels.
const THUMBNAIL_SIDE: u32 = 1280;

/// Where in the video a thumbnail is taken, at most, in milliseconds.
const THUMBNAIL_AT: u64 = 1000;

/// Implements [`Media`] by running the tools.
#[derive(Clone, Debug)]
pub struct Ffmpeg {
    pub(crate) config: MediaConfig,
}

/// What [`Ffmpeg::check`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Version of `ffmpeg`, such as `5.1.9-0+deb12u1`.
    pub ffmpeg: String,
    /// Version of `ffprobe`.
    pub ffprobe: String,
}

impl Ffmpeg {
    /// Uses the tools that the settings name. Starts nothing: see [`Ffmpeg::check`].
    #[must_use]
    pub fn new(config: MediaConfig) -> Self {
        Self { config }
    }

    /// Starts both tools and reads their versions.
    ///
    /// # Errors
    /// [`MediaError::Tool`] with what to install or to set.
    pub async fn check(&self) -> Result<Versions, MediaError> {
        let ffmpeg = self.version(&self.config.ffmpeg, "ffmpeg").await?;
        let ffprobe = self.version(&self.config.ffprobe, "ffprobe").await?;
        Ok(Versions { ffmpeg, ffprobe })
    }

    async fn version(&self, program: &Path, name: &str) -> Result<String, MediaError> {
        let missing = || {
            let hint = "install it (Debian and Ubuntu: apt-get install ffmpeg; macOS: brew install ffmpeg)";
            MediaError::Tool(format!("{name} does not run as {program:?}: {hint} or set media.{name} to its path"))
        };
        let finished = run(program, &["-version".into()], self.limit()).await.map_err(|_| missing())?;
        let answer = String::from_utf8_lossy(&finished.stdout).into_owned();
        let version = answer.strip_prefix(name).and_then(|rest| rest.strip_prefix(" version "));
        let version = version.and_then(|rest| rest.split_whitespace().next()).filter(|_| finished.status.success());
        version.map(str::to_owned).ok_or_else(missing)
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(self.config.timeout_seconds)
    }

    pub(crate) async fn probe_file(&self, file: &Path) -> Result<Probe, MediaError> {
        must_have_content(file).await?;
        let shown = ["-print_format", "json", "-show_error", "-show_format", "-show_streams"];
        let finished = self.ffprobe(&shown, file).await?;
        let report: Report =
            serde_json::from_slice(&finished.stdout).map_err(|_| MediaError::Tool(broke(&finished)))?;
        if let Some(error) = &report.error {
            return Err(if error.is_the_machines() {
                MediaError::Tool("ffprobe could not read the file".to_owned())
            } else {
                MediaError::Corrupt("not a video file of a known format".to_owned())
            });
        }
        if !finished.status.success() {
            return Err(MediaError::Tool(broke(&finished)));
        }
        let mut probe = report.facts()?;
        if u64::from(probe.width) * u64::from(probe.height) > MAX_PIXELS {
            return Err(MediaError::Corrupt("the picture is too large".to_owned()));
        }
        if probe.duration_millis.is_none() {
            probe.duration_millis = self.count_packets(file, probe.millihertz).await?;
        }
        Ok(probe)
    }

    /// The length from the packets, for files that do not say it. `None` when these do not tell either.
    async fn count_packets(&self, file: &Path, millihertz: Option<u64>) -> Result<Option<u64>, MediaError> {
        let shown =
            ["-select_streams", "v:0", "-show_entries", "packet=pts_time,duration_time", "-print_format", "csv=p=0"];
        let finished = self.ffprobe(&shown, file).await?;
        if !finished.complete || !finished.status.success() {
            return Ok(None);
        }
        Ok(packets_millis(&String::from_utf8_lossy(&finished.stdout), millihertz))
    }

    async fn ffprobe(&self, shown: &[&str], file: &Path) -> Result<Finished, MediaError> {
        let mut arguments = words(&["-v", "error"]);
        arguments.extend(words(shown));
        arguments.extend(input(file));
        self.run("ffprobe", &self.config.ffprobe, &arguments).await
    }

    async fn run(&self, name: &str, program: &Path, arguments: &[OsString]) -> Result<Finished, MediaError> {
        self.run_for(self.limit(), name, program, arguments).await
    }

    pub(crate) async fn run_for(
        &self,
        limit: Duration,
        name: &str,
        program: &Path,
        arguments: &[OsString],
    ) -> Result<Finished, MediaError> {
        let finished = run(program, arguments, limit).await.map_err(|error| {
            MediaError::Tool(match error {
                RunError::NotStarted(kind) => format!("{name} did not start: {kind}"),
                RunError::OutOfTime => format!("{name} was killed after {} s", limit.as_secs()),
                RunError::Broken(kind) => format!("{name} could not be followed: {kind}"),
            })
        })?;
        if !finished.status.success() {
            tracing::debug!(tool = name, status = %finished.status, stderr = finished.stderr, "a media tool complained");
        }
        // 126 and 127 are how shells and loaders say that the program itself is broken. That is not the file's fault.
        match finished.status.code() {
            Some(code) if code != 126 && code != 127 => Ok(finished),
            _ => Err(MediaError::Tool(broke(&finished))),
        }
    }

    async fn make_thumbnail(&self, file: &Path, probe: &Probe, to: &Path) -> Result<(), MediaError> {
        must_have_content(file).await?;
        // Takes its name only when it is a whole picture; removed otherwise.
        let part = beside(to)?;
        let at = probe.duration_millis.map_or(THUMBNAIL_AT, |duration| THUMBNAIL_AT.min(duration / 2));
        // Beyond the last picture the tool ends well and writes nothing: then the first one is taken.
        let made =
            self.picture_at(Some(at), file, probe, &part).await? || self.picture_at(None, file, probe, &part).await?;
        if !made {
            return Err(MediaError::Corrupt("no picture can be decoded".to_owned()));
        }
        part.persist(to).map_err(|error| MediaError::Tool(format!("the thumbnail got lost: {}", error.error.kind())))
    }

    /// Writes the picture at a time, or the first one, and says whether there was one.
    async fn picture_at(&self, at: Option<u64>, file: &Path, probe: &Probe, to: &Path) -> Result<bool, MediaError> {
        let threads = self.config.threads.to_string();
        let max_pixels = MAX_PIXELS.to_string();
        let mut arguments = words(&["-nostdin", "-hide_banner", "-loglevel", "error", "-y"]);
        if let Some(at) = at {
            arguments.extend(words(&["-ss", &format!("{}.{:03}", at / 1000, at % 1000)]));
        }
        arguments.extend(words(&["-threads", &threads, "-max_pixels", &max_pixels]));
        arguments.extend(input(file));
        let (width, height) = thumbnail_size(probe);
        // Rotation comes before the filters, so the size is the one of the picture as displayed.
        let filter = format!("scale={width}:{height},format=yuvj420p");
        arguments.extend(words(&["-map", "0:V:0", "-frames:v", "1", "-an", "-sn", "-dn", "-vf", &filter]));
        // Not the image2 muxer: that one reads patterns in the file name.
        arguments.extend(words(&["-threads", &threads, "-c:v", "mjpeg", "-q:v", "4", "-f", "mjpeg"]));
        arguments.push(file_url(to));
        let finished = self.run("ffmpeg", &self.config.ffmpeg, &arguments).await?;
        must_have_had_room(&finished)?;
        let picture =
            tokio::fs::read(to).await.map_err(|error| MediaError::Tool(format!("no thumbnail: {}", error.kind())))?;
        // The exit status says little: what counts is a picture from its first marker to its last.
        Ok(picture.starts_with(&[0xff, 0xd8]) && picture.ends_with(&[0xff, 0xd9]))
    }
}

impl Media for Ffmpeg {
    fn probe<'a>(&'a self, file: &'a Path) -> BoxFuture<'a, Result<Probe, MediaError>> {
        Box::pin(self.probe_file(file))
    }

    fn thumbnail<'a>(
        &'a self,
        file: &'a Path,
        probe: &'a Probe,
        to: &'a Path,
    ) -> BoxFuture<'a, Result<(), MediaError>> {
        Box::pin(self.make_thumbnail(file, probe, to))
    }

    fn render<'a>(
        &'a self,
        file: &'a Path,
        probe: &'a Probe,
        spec: ExportSpec,
        to: &'a Path,
        max_bytes: u64,
    ) -> BoxFuture<'a, Result<(), MediaError>> {
        Box::pin(self.render_file(file, probe, spec, to, max_bytes))
    }
}

/// The options of an untrusted input file, and the file.
pub(crate) fn input(file: &Path) -> Vec<OsString> {
    let mut arguments = words(&["-protocol_whitelist", "file", "-format_whitelist", FORMATS, "-i"]);
    arguments.push(file_url(file));
    arguments
}

/// A file name as the tools read it: with the protocol said, no part of the name can be another, nor an option.
pub(crate) fn file_url(file: &Path) -> OsString {
    let mut url = OsString::from("file:");
    url.push(file);
    url
}

/// A file in the making, in the folder of the one it will be; removed unless it takes that name.
pub(crate) fn beside(to: &Path) -> Result<tempfile::TempPath, MediaError> {
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let part = tempfile::NamedTempFile::new_in(folder)
        .map_err(|error| MediaError::Tool(format!("no place for the result: {}", error.kind())))?;
    Ok(part.into_temp_path())
}

/// A full disk is the machine's fault, not the file's.
pub(crate) fn must_have_had_room(finished: &Finished) -> Result<(), MediaError> {
    if ["No space left", "Cannot allocate memory"].iter().any(|words| finished.stderr.contains(words)) {
        return Err(MediaError::Tool("ffmpeg ran out of room".to_owned()));
    }
    Ok(())
}

pub(crate) fn words(texts: &[&str]) -> Vec<OsString> {
    texts.iter().map(OsString::from).collect()
}

pub(crate) fn broke(finished: &Finished) -> String {
    format!("the tool ended early ({})", finished.status)
}

/// The size of a thumbnail: within the square of [`THUMBNAIL_SIDE`], never larger than the video, never nothing.
fn thumbnail_size(probe: &Probe) -> (u32, u32) {
    let longer = probe.width.max(probe.height).max(1);
    let target = u64::from(longer.min(THUMBNAIL_SIDE));
    let scaled = |side: u32| u32::try_from(u64::from(side) * target / u64::from(longer)).unwrap_or(1).max(1);
    (scaled(probe.width), scaled(probe.height))
}

pub(crate) async fn must_have_content(file: &Path) -> Result<(), MediaError> {
    match tokio::fs::metadata(file).await {
        Ok(meta) if meta.is_file() && meta.len() == 0 => Err(MediaError::Corrupt("the file is empty".to_owned())),
        Ok(meta) if meta.is_file() => Ok(()),
        Ok(_) => Err(MediaError::Tool("the input is not a file".to_owned())),
        Err(error) => Err(MediaError::Tool(format!("the input can not be read: {}", error.kind()))),
    }
}
