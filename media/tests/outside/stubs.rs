//! Tools that misbehave (field case F8), as shell scripts in the place of ffmpeg and ffprobe.

use anyhow::{Context, Result};
use media::{Ffmpeg, MediaConfig};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use workers::ports::{Media, MediaError, Probe};

const ONE_SECOND: &str =
    r#"{"streams":[{"codec_type":"video","codec_name":"h264","width":2,"height":2,"duration":"1.0"}]}"#;

struct Stub {
    folder: tempfile::TempDir,
    media: Ffmpeg,
}

impl Stub {
    /// A script in the place of both tools, with a deadline of one second.
    fn new(script: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let tool = folder.path().join("tool");
        // Written under another name first: a file that is open for writing anywhere can not be started.
        fs::write(folder.path().join("tool.part"), format!("#!/bin/sh\n{script}\n"))?;
        fs::set_permissions(folder.path().join("tool.part"), fs::Permissions::from_mode(0o755))?;
        fs::copy(folder.path().join("tool.part"), &tool)?;
        fs::write(folder.path().join("video.mp4"), b"content")?;
        let config = MediaConfig {
            ffmpeg: tool.clone(),
            ffprobe: tool,
            timeout_seconds: 1,
            render_timeout_seconds: 1,
            threads: 1,
        };
        Ok(Self { folder, media: Ffmpeg::new(config) })
    }

    fn video(&self) -> PathBuf {
        self.folder.path().join("video.mp4")
    }

    async fn probe(&self) -> Result<Probe, MediaError> {
        self.media.probe(&self.video()).await
    }

    /// The process that wrote its number down, once it has.
    async fn process(&self) -> Result<String> {
        for _ in 0..100 {
            if let Ok(id) = fs::read_to_string(self.folder.path().join("pid"))
                && id.ends_with('\n')
            {
                return Ok(id.trim().to_owned());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        anyhow::bail!("the stub did not start")
    }
}

/// Whether a process is there, be it as a zombie.
fn exists(process: &str) -> bool {
    Path::new("/proc").join(process).exists()
}

async fn gone(process: &str) -> bool {
    for _ in 0..100 {
        if !exists(process) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    false
}

#[tokio::test]
async fn a_tool_that_never_ends_is_killed_and_reaped() -> Result<()> {
    let write_pid = r#"echo $$ > "$(dirname "$0")/pid""#;
    for body in
        ["trap '' TERM INT HUP; while :; do sleep 1; done", "exec sleep 1000", "exec yes >&2", "exec cat /dev/zero"]
    {
        let stub = Stub::new(&format!("{write_pid}\n{body}"))?;
        let started = Instant::now();
        let outcome = stub.probe().await;
        assert_eq!(outcome, Err(MediaError::Tool("ffprobe was killed after 1 s".into())), "{body}");
        assert!(started.elapsed() < Duration::from_secs(4), "{body}: {:?}", started.elapsed());
        // Killed and waited for by the time the answer is there: not even a zombie.
        assert!(!exists(&stub.process().await?), "{body}");
    }
    Ok(())
}

#[tokio::test]
async fn a_grandchild_that_keeps_the_pipes_open_does_not_hold_us() -> Result<()> {
    let stub = Stub::new("sleep 5 &\nexit 0")?;
    let started = Instant::now();
    assert!(matches!(stub.probe().await, Err(MediaError::Tool(_))));
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_caller_that_goes_away_takes_the_tool_along() -> Result<()> {
    let stub = Stub::new("echo $$ > \"$(dirname \"$0\")/pid\"\nexec sleep 1000")?;
    let waiting = tokio::time::timeout(Duration::from_millis(500), stub.probe());
    assert!(waiting.await.is_err());
    assert!(gone(&stub.process().await?).await, "the tool runs on");
    Ok(())
}

#[tokio::test]
async fn much_talk_on_the_error_pipe_blocks_nothing() -> Result<()> {
    let stub = Stub::new(&format!("head -c 10000000 /dev/zero >&2\necho '{ONE_SECOND}'"))?;
    assert_eq!(stub.probe().await?.duration_millis, Some(1000));
    Ok(())
}

#[tokio::test]
async fn a_question_on_stdin_is_answered_with_an_end() -> Result<()> {
    let stub = Stub::new(&format!("read answer && exit 3\necho '{ONE_SECOND}'"))?;
    assert_eq!(stub.probe().await?.duration_millis, Some(1000));
    Ok(())
}

// A paid video must not be thrown away because the machine is broken.
#[tokio::test]
async fn a_broken_tool_is_not_the_files_fault() -> Result<()> {
    let of_the_system = r#"echo '{"error":{"code":-12,"string":"Cannot allocate memory"}}'; exit 1"#;
    let scripts = ["exit 127", "exit 126", "kill -9 $$", "kill -11 $$", "exit 1", "echo nonsense", of_the_system];
    for script in scripts {
        let outcome = Stub::new(script)?.probe().await;
        assert!(matches!(outcome, Err(MediaError::Tool(_))), "{script}: {outcome:?}");
    }
    let missing = MediaConfig { ffprobe: "/nowhere/ffprobe".into(), ..MediaConfig::default() };
    let stub = Stub::new("exit 0")?;
    assert!(matches!(Ffmpeg::new(missing).probe(&stub.video()).await, Err(MediaError::Tool(_))));
    Ok(())
}

#[tokio::test]
async fn what_a_tool_says_about_a_file_stays_out_of_errors() -> Result<()> {
    let stub = Stub::new("echo 'root:x:0:0:confidential' >&2\nexit 1")?;
    let probe = Probe {
        duration_millis: None,
        width: 2,
        height: 2,
        video_codec: "h264".into(),
        audio_codec: None,
        millihertz: None,
    };
    let to = stub.folder.path().join("thumbnail.jpg");
    for error in [stub.probe().await.err(), stub.media.thumbnail(&stub.video(), &probe, &to).await.err()] {
        let error = error.context("it worked")?.to_string();
        assert!(!error.contains("confidential") && !error.contains("video.mp4"), "{error}");
    }
    assert!(!to.exists());
    Ok(())
}
