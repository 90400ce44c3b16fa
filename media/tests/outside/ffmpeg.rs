//! The real tools on real files: the field cases of media (F1 to F7), made with ffmpeg itself.

use anyhow::{Context, Result, ensure};
use media::{Ffmpeg, MediaConfig};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use workers::ports::{Media, MediaError, Probe};

pub(crate) const H264: &str = "-c:v libx264 -preset ultrafast -pix_fmt yuv420p";
pub(crate) const SOUND: &str = "-f lavfi -i sine=duration=2";

/// A folder of made files and the tools to look at them.
pub(crate) struct Bench {
    folder: tempfile::TempDir,
    pub(crate) media: Ffmpeg,
}

impl Bench {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { folder: tempfile::tempdir()?, media: Ffmpeg::new(MediaConfig::default()) })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs ffmpeg with arguments parted by blanks, and answers the file it made.
    pub(crate) fn make(&self, arguments: &str, name: &str) -> Result<PathBuf> {
        let path = self.path(name);
        let made = Command::new("ffmpeg")
            .args(["-nostdin", "-v", "error", "-y"])
            .args(arguments.split_whitespace())
            .arg(&path)
            .stdout(Stdio::null())
            .status()?;
        ensure!(made.success(), "ffmpeg could not make {name}");
        Ok(path)
    }

    /// Two seconds of a moving picture of this size.
    pub(crate) fn clip(&self, size: &str, name: &str) -> Result<PathBuf> {
        self.make(&format!("-f lavfi -i testsrc=size={size}:rate=25:duration=2 {H264}"), name)
    }

    async fn corrupt(&self, file: &Path) -> Result<()> {
        let outcome = self.media.probe(file).await;
        ensure!(matches!(outcome, Err(MediaError::Corrupt(_))), "{}: {outcome:?}", file.display());
        Ok(())
    }

    /// Probes, makes a thumbnail, and answers both with the thumbnail's size.
    async fn probe_and_picture(&self, file: &Path) -> Result<(Probe, (u32, u32))> {
        let probe = self.media.probe(file).await.with_context(|| file.display().to_string())?;
        let to = self.path("thumbnail.jpg");
        self.media.thumbnail(file, &probe, &to).await.with_context(|| file.display().to_string())?;
        Ok((probe, jpeg_size(&std::fs::read(to)?).context("not a whole JPEG")?))
    }
}

/// Width and height from the frame header of a JPEG.
fn jpeg_size(picture: &[u8]) -> Option<(u32, u32)> {
    let mut at = 2;
    while let [0xff, marker, high, low, ..] = *picture.get(at..)? {
        if (0xc0..=0xc3).contains(&marker) {
            let number = |at: usize| Some(u32::from(*picture.get(at)?) << 8 | u32::from(*picture.get(at + 1)?));
            return Some((number(at + 7)?, number(at + 5)?));
        }
        at += 2 + (usize::from(high) << 8 | usize::from(low));
    }
    None
}

#[tokio::test]
async fn the_tools_say_their_versions() -> Result<()> {
    let versions = Ffmpeg::new(MediaConfig::default()).check().await?;
    assert!(!versions.ffmpeg.is_empty() && !versions.ffprobe.is_empty());
    let config = MediaConfig { ffprobe: "/nowhere/ffprobe".into(), ..MediaConfig::default() };
    let error = Ffmpeg::new(config).check().await.err().context("it was found")?.to_string();
    assert!(error.contains("ffprobe does not run") && error.contains("apt-get install ffmpeg"), "{error}");
    let config = MediaConfig { ffmpeg: "true".into(), ..MediaConfig::default() };
    assert!(Ffmpeg::new(config).check().await.is_err(), "something else by that name");
    Ok(())
}

#[tokio::test]
async fn an_ordinary_video() -> Result<()> {
    let bench = Bench::new()?;
    let source = "-f lavfi -i testsrc=size=640x360:rate=30000/1001:duration=2";
    let file = bench.make(&format!("{source} {SOUND} {H264} -c:a aac -shortest"), "a.mp4")?;
    let (probe, picture) = bench.probe_and_picture(&file).await?;
    assert!(probe.duration_millis.is_some_and(|millis| (1900..2100).contains(&millis)), "{probe:?}");
    assert_eq!((probe.width, probe.height), (640, 360));
    assert_eq!((probe.video_codec.as_str(), probe.audio_codec.as_deref()), ("h264", Some("aac")));
    assert_eq!(probe.millihertz, Some(29_970));
    assert_eq!(picture, (640, 360));
    Ok(())
}

// F1
#[tokio::test]
async fn a_duration_that_is_not_where_it_should_be() -> Result<()> {
    let bench = Bench::new()?;
    let source = "-f lavfi -i testsrc=size=320x180:rate=25:duration=2";
    // Written to a pipe, WebM can not go back and fill its duration in.
    let live =
        bench.make(&format!("{source} -c:v libvpx -deadline realtime -cpu-used 8 -f webm -live 1"), "live.webm")?;
    let raw = bench.make(&format!("{source} -c:v mpeg2video -f mpeg2video"), "raw.m2v")?;
    let tagged = bench.make(&format!("{source} {H264}"), "tagged.mkv")?;
    let stream = bench.make(&format!("{source} {H264}"), "a.ts")?;
    let fragmented = bench.make(&format!("{source} {H264} -movflags frag_keyframe+empty_moov"), "fragmented.mp4")?;
    for file in [live, raw, tagged, stream, fragmented] {
        let (probe, picture) = bench.probe_and_picture(&file).await?;
        let close = probe.duration_millis.is_some_and(|millis| (1850..2150).contains(&millis));
        assert!(close, "{}: {probe:?}", file.display());
        assert_eq!(picture, (320, 180));
    }
    Ok(())
}

// F2
#[tokio::test]
async fn very_short_videos_have_a_thumbnail() -> Result<()> {
    let bench = Bench::new()?;
    let short = bench.make(&format!("-f lavfi -i testsrc=size=320x180:rate=25:duration=0.4 {H264}"), "short.mp4")?;
    let single = bench.make(&format!("-f lavfi -i testsrc=size=320x180:rate=25 -frames:v 1 {H264}"), "single.mp4")?;
    for file in [&short, &single] {
        assert_eq!(bench.probe_and_picture(file).await?.1, (320, 180));
    }
    // Whatever the probe said: beyond the end there is the first picture instead.
    let mut probe = bench.media.probe(&short).await?;
    for duration in [None, Some(10_000), Some(0), Some(1), Some(u64::MAX)] {
        probe.duration_millis = duration;
        let to = bench.path("beyond.jpg");
        bench.media.thumbnail(&short, &probe, &to).await?;
        assert_eq!(jpeg_size(&std::fs::read(&to)?), Some((320, 180)));
        std::fs::remove_file(to)?;
    }
    Ok(())
}

// F2, F6
#[tokio::test]
async fn what_is_not_a_video_is_corrupt() -> Result<()> {
    let bench = Bench::new()?;
    let write = |name: &str, content: &[u8]| -> Result<PathBuf> {
        std::fs::write(bench.path(name), content)?;
        Ok(bench.path(name))
    };
    bench.corrupt(&write("empty.mp4", b"")?).await?;
    bench.corrupt(&write("page.mp4", b"<html>Not found</html>")?).await?;
    bench.corrupt(&write("noise.mp4", &[0xa5; 5000])?).await?;
    bench.corrupt(&bench.make(&format!("{SOUND} -c:a aac"), "sound.mp4")?).await?;

    // The index is last, and missing.
    let whole = std::fs::read(bench.clip("320x180", "whole.mp4")?)?;
    bench.corrupt(&write("truncated.mp4", &whole[..whole.len() - 500])?).await?;

    // With its index first but without its pictures, it opens; then no picture can be made, and no empty one is left.
    let front =
        bench.make(&format!("-i {} -c copy -movflags +faststart", bench.path("whole.mp4").display()), "front.mp4")?;
    let probe = bench.media.probe(&front).await?;
    let content = std::fs::read(&front)?;
    let data = content.windows(4).position(|window| window == b"mdat").context("no mdat")?;
    let hollow = write("hollow.mp4", &[&content[..data + 4], vec![0; content.len() - data - 4].as_slice()].concat())?;
    let to = bench.path("hollow.jpg");
    let outcome = bench.media.thumbnail(&hollow, &probe, &to).await;
    assert!(matches!(outcome, Err(MediaError::Corrupt(_))), "{outcome:?}");
    assert!(!to.exists());

    // Not there at all is not the file's fault.
    assert!(matches!(bench.media.probe(&bench.path("none.mp4")).await, Err(MediaError::Tool(_))));
    Ok(())
}

// F3
#[tokio::test]
async fn odd_sizes() -> Result<()> {
    let bench = Bench::new()?;
    for (width, height, picture) in
        [(853, 481, (853, 481)), (1079, 1919, (719, 1280)), (1, 1, (1, 1)), (4096, 2, (1280, 1))]
    {
        let source = format!("-f lavfi -i color=red:size={width}x{height}:rate=5:duration=1,format=yuv444p");
        let file = bench.make(&format!("{source} -c:v libx264 -preset ultrafast"), "odd.mp4")?;
        let (probe, made) = bench.probe_and_picture(&file).await?;
        assert_eq!((probe.width, probe.height), (width, height));
        assert_eq!(made, picture);
    }
    Ok(())
}

// F4
#[tokio::test]
async fn rotation_is_applied_to_size_and_thumbnail() -> Result<()> {
    let bench = Bench::new()?;
    // Red to the left, blue to the right.
    let halves =
        "color=red:size=160x180:rate=5:duration=1[a];color=blue:size=160x180:rate=5:duration=1[b];[a][b]hstack";
    let plain = std::fs::read(bench.make(&format!("-f lavfi -i {halves} {H264}"), "plain.mp4")?)?;
    for (degrees, size, red) in
        [(0, (320, 180), "left"), (90, (180, 320), "top"), (180, (320, 180), "right"), (270, (180, 320), "bottom")]
    {
        let file = bench.path("turned.mp4");
        std::fs::write(&file, turned(&plain, degrees)?)?;
        let (probe, picture) = bench.probe_and_picture(&file).await?;
        assert_eq!((probe.width, probe.height), size, "{degrees}");
        assert_eq!(picture, size, "{degrees}");
        assert_eq!(red_side(&bench)?, red, "{degrees}");
    }
    Ok(())
}

/// An MP4 with its display matrix set to so many degrees clockwise, as a phone held sideways writes it.
pub(crate) fn turned(video: &[u8], degrees: u32) -> Result<Vec<u8>> {
    let (cosine, sine): (i32, i32) = match degrees {
        0 => (1, 0),
        90 => (0, 1),
        180 => (-1, 0),
        _ => (0, -1),
    };
    let matrix = [cosine, sine, 0, -sine, cosine, 0, 0, 0, 0x4000].map(|number| (number << 16).to_be_bytes()).concat();
    // In version 0 of the track header the matrix follows 40 bytes of other fields.
    let header = video.windows(4).position(|window| window == b"tkhd").context("no track header")?;
    let mut turned = video.to_vec();
    turned[header + 44..header + 80].copy_from_slice(&matrix);
    Ok(turned)
}

/// On which side of the thumbnail the red is: the middles of the four quarters of the picture shrunk to 16 by 16 pixels.
fn red_side(bench: &Bench) -> Result<&'static str> {
    let thumbnail = bench.path("thumbnail.jpg");
    let shrunk =
        bench.make(&format!("-i {} -vf scale=16:16 -pix_fmt rgb24 -f rawvideo", thumbnail.display()), "pixels")?;
    let pixels = std::fs::read(shrunk)?;
    let red = |x: usize, y: usize| {
        let at = 3 * (16 * y + x);
        pixels[at] > pixels[at + 2]
    };
    Ok(match [red(4, 4), red(12, 4), red(4, 12), red(12, 12)] {
        [true, true, false, false] => "top",
        [false, false, true, true] => "bottom",
        [true, false, true, false] => "left",
        [false, true, false, true] => "right",
        _ => "nowhere",
    })
}

// F5
#[tokio::test]
async fn a_video_without_sound_is_a_video() -> Result<()> {
    let bench = Bench::new()?;
    let (probe, _) = bench.probe_and_picture(&bench.clip("320x180", "silent.mp4")?).await?;
    assert_eq!(probe.audio_codec, None);
    Ok(())
}

// F7
#[tokio::test]
async fn file_names_are_only_names() -> Result<()> {
    let bench = Bench::new()?;
    let clip = bench.clip("320x180", "clip.mp4")?;
    for name in ["-i", "a b;c", "concat:etc", "line\nbreak.mp4", "%03d.mp4", "pipe:0", "'quoted'\"", "-version"] {
        let file = bench.path(name);
        std::fs::copy(&clip, &file)?;
        let probe = bench.media.probe(&file).await.with_context(|| name.to_owned())?;
        let to = bench.path(&format!("{name}.%d.jpg"));
        bench.media.thumbnail(&file, &probe, &to).await.with_context(|| name.to_owned())?;
        assert!(to.is_file(), "{name}");
    }
    Ok(())
}

// F7
#[tokio::test]
async fn a_playlist_dressed_as_a_video_opens_nothing() -> Result<()> {
    let bench = Bench::new()?;
    let canary = crate::support::server::Server::serving(b"secret").await?;
    let inside = bench.clip("320x180", "inside.mp4")?;
    let clip = inside.display();
    let url = canary.url();
    let lists = [
        format!("#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nfile://{clip}\n#EXT-X-ENDLIST\n"),
        format!("#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n{url}\n#EXT-X-ENDLIST\n"),
        format!("ffconcat version 1.0\nfile '{clip}'\n"),
        format!("ffconcat version 1.0\nfile '{url}'\n"),
        format!("<?xml version=\"1.0\"?><MPD><Period><BaseURL>{url}</BaseURL></Period></MPD>"),
        format!("v=0\no=- 0 0 IN IP4 127.0.0.1\nc=IN IP4 127.0.0.1\nm=video {} RTP/AVP 96\n", canary.port()),
    ];
    for (number, list) in lists.iter().enumerate() {
        for ending in ["mp4", "m3u8", "ffconcat"] {
            let file = bench.path(&format!("list{number}.{ending}"));
            std::fs::write(&file, list)?;
            bench.corrupt(&file).await?;
            // The thumbnail defends itself, even when somebody forgot to probe.
            let probe = bench.media.probe(&inside).await?;
            let to = bench.path("list.jpg");
            let outcome = bench.media.thumbnail(&file, &probe, &to).await;
            assert!(matches!(outcome, Err(MediaError::Corrupt(_))), "{outcome:?}");
            assert!(!to.exists());
        }
    }
    assert_eq!(canary.hits(), 0);
    Ok(())
}
