//! Runs a tool to its end or to its deadline, whichever comes first, and leaves nothing behind.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::time::timeout;

/// The most of a tool's answer that is kept. Ten hours of packets at 30 a second take about this much.
const STDOUT_CAP: usize = 16 << 20;

/// The most of a tool's complaints that is kept: the beginning, where the cause stands.
const STDERR_CAP: usize = 16 << 10;

/// How long a killed process may take to disappear before this is given up (it can hang in the kernel).
pub(crate) const REAP: Duration = Duration::from_secs(5);

/// What a finished tool left.
pub(crate) struct Finished {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    /// Whether `stdout` is all of it.
    pub complete: bool,
    pub stderr: String,
}

/// Why a tool did not come to an end of its own.
#[derive(Debug)]
pub(crate) enum RunError {
    /// It could not be started.
    NotStarted(io::ErrorKind),
    /// It was killed at the deadline.
    OutOfTime,
    /// The operating system failed us.
    Broken(io::ErrorKind),
}

/// Runs `program` for at most `limit`. When the caller stops waiting, the process is killed too.
pub(crate) async fn run(program: &Path, arguments: &[OsString], limit: Duration) -> Result<Finished, RunError> {
    let mut child = Command::new(program)
        .args(arguments)
        // A tool that asks a question gets an end of file, not the service's own input.
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| RunError::NotStarted(error.kind()))?;
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(RunError::Broken(io::ErrorKind::BrokenPipe));
    };
    // Both pipes are emptied while the process runs: a full one would stop it for ever. The deadline covers the reading as
    // well, for a grandchild can hold a pipe open after the child is gone.
    let finished = timeout(limit, async {
        let ((stdout, complete), (stderr, _), status) =
            tokio::try_join!(drain(stdout, STDOUT_CAP), drain(stderr, STDERR_CAP), child.wait())?;
        Ok::<_, io::Error>(Finished { status, stdout, complete, stderr: String::from_utf8_lossy(&stderr).into_owned() })
    })
    .await;
    match finished {
        Ok(Ok(finished)) => Ok(finished),
        Ok(Err(error)) => Err(RunError::Broken(error.kind())),
        Err(_) => {
            // SIGKILL, which can not be ignored, and the wait that leaves no zombie.
            if timeout(REAP, child.kill()).await.is_err() {
                tracing::error!("a killed media tool does not go away");
            }
            Err(RunError::OutOfTime)
        }
    }
}

/// Reads to the end, keeping the first `cap` bytes; says whether these are all.
async fn drain(mut pipe: impl AsyncRead + Unpin, cap: usize) -> io::Result<(Vec<u8>, bool)> {
    let mut kept = Vec::new();
    let mut complete = true;
    let mut buffer = vec![0; 32 << 10];
    loop {
        let count = pipe.read(&mut buffer).await?;
        if count == 0 {
            return Ok((kept, complete));
        }
        let room = cap - kept.len();
        complete &= count <= room;
        kept.extend_from_slice(&buffer[..count.min(room)]);
    }
}
