//! Exports, rendered by the real tool.

use crate::ffmpeg::{Bench, H264, SOUND, turned};
use anyhow::{Context, Result};
use media::{Ffmpeg, MediaConfig};
use workers::ports::{Container, ExportSpec, Media, MediaError};

/// More than any render here needs.
const ROOM: u64 = 100 << 20;

const fn spec(height_px: u32) -> ExportSpec {
    ExportSpec { container: Container::Mp4, height_px }
}

#[tokio::test]
async fn an_export_has_the_size_that_was_asked_for() -> Result<()> {
    let bench = Bench::new()?;
    let arguments = format!("-f lavfi -i testsrc=size=640x360:rate=10:duration=2 {SOUND} {H264} -c:a aac -shortest");
    let source = bench.make(&arguments, "source.mp4")?;
    let probe = bench.media.probe(&source).await?;
    for (height, width) in [(180, 320), (144, 256), (720, 1280)] {
        let to = bench.path("rendered.mp4");
        bench.media.render(&source, &probe, spec(height), &to, ROOM).await?;
        let made = bench.media.probe(&to).await?;
        assert_eq!((made.width, made.height, made.video_codec.as_str()), (width, height, "h264"));
        assert_eq!(made.audio_codec.as_deref(), Some("aac"));
        let length = made.duration_millis.context("no length")?;
        assert!((1_900..=2_200).contains(&length), "{length} ms");
    }
    let left = std::fs::read_dir(source.parent().context("a folder")?)?.count();
    assert_eq!(left, 2, "nothing in the making is left behind");
    Ok(())
}

#[tokio::test]
async fn an_export_plays_while_it_loads_and_is_the_same_each_time() -> Result<()> {
    let bench = Bench::new()?;
    let source = bench.clip("320x180", "source.mp4")?;
    let probe = bench.media.probe(&source).await?;
    let (first, second) = (bench.path("first.mp4"), bench.path("second.mp4"));
    bench.media.render(&source, &probe, spec(144), &first, ROOM).await?;
    bench.media.render(&source, &probe, spec(144), &second, ROOM).await?;
    let bytes = std::fs::read(&first)?;
    assert_eq!(bytes, std::fs::read(&second)?, "a repeated render overwrites the same content");
    let at = |name: &[u8]| bytes.windows(4).position(|window| window == name);
    let (index, content) = (at(b"moov").context("no index")?, at(b"mdat").context("no content")?);
    assert!(index < content, "the index comes first");
    assert_eq!(bench.media.probe(&first).await?.audio_codec, None, "silent stays silent");
    Ok(())
}

#[tokio::test]
async fn a_turned_video_is_rendered_as_it_is_displayed() -> Result<()> {
    let bench = Bench::new()?;
    let plain = std::fs::read(bench.clip("320x180", "plain.mp4")?)?;
    let source = bench.path("turned.mp4");
    std::fs::write(&source, turned(&plain, 90)?)?;
    let probe = bench.media.probe(&source).await?;
    let to = bench.path("rendered.mp4");
    bench.media.render(&source, &probe, spec(160), &to, ROOM).await?;
    let made = bench.media.probe(&to).await?;
    assert_eq!((made.width, made.height), (90, 160));
    Ok(())
}

#[tokio::test]
async fn a_render_that_takes_too_long_is_killed_and_leaves_nothing() -> Result<()> {
    let bench = Bench::new()?;
    let source = bench.make(&format!("-f lavfi -i testsrc=size=1280x720:rate=30:duration=20 {H264}"), "long.mp4")?;
    let probe = bench.media.probe(&source).await?;
    let hasty = Ffmpeg::new(MediaConfig { render_timeout_seconds: 0, ..MediaConfig::default() });
    let to = bench.path("rendered.mp4");
    let outcome = hasty.render(&source, &probe, spec(1080), &to, ROOM).await;
    assert!(matches!(outcome, Err(MediaError::Tool(_))), "{outcome:?}");
    assert!(!to.exists());
    Ok(())
}

#[tokio::test]
async fn a_file_that_names_others_opens_nothing() -> Result<()> {
    let bench = Bench::new()?;
    let inside = bench.clip("320x180", "inside.mp4")?;
    let probe = bench.media.probe(&inside).await?;
    let list = bench.path("list.mp4");
    std::fs::write(&list, format!("#EXTM3U\n#EXTINF:2,\nfile://{}\n#EXT-X-ENDLIST\n", inside.display()))?;
    let to = bench.path("rendered.mp4");
    let outcome = bench.media.render(&list, &probe, spec(144), &to, ROOM).await;
    assert!(matches!(outcome, Err(MediaError::Tool(_))), "{outcome:?}");
    assert!(!to.exists());
    Ok(())
}

#[tokio::test]
async fn a_render_that_grows_too_large_is_stopped_and_leaves_nothing() -> Result<()> {
    let bench = Bench::new()?;
    // Noise does not compress: ten seconds of it render to far more than the limit and what goes beyond it.
    let noise = format!("-f lavfi -i nullsrc=size=320x180:rate=30:duration=10,geq=random(1)*255:128:128 {H264}");
    let source = bench.make(&noise, "noise.mp4")?;
    let probe = bench.media.probe(&source).await?;
    let to = bench.path("rendered.mp4");
    let limit = 100_000;
    let outcome = bench.media.render(&source, &probe, spec(720), &to, limit).await;
    assert_eq!(outcome, Err(MediaError::TooLarge(limit)));
    let left = std::fs::read_dir(source.parent().context("a folder")?)?.count();
    assert_eq!(left, 1, "nothing but the source is left");
    Ok(())
}
