//! A PostgreSQL of a test's own, that may be killed: made by `./dev`, and started again by the command line that `./dev` gave it.
//! (`./dev kill` and `./dev start` do the same, but take seconds, and a test of fifty kills has not as many minutes.)

use super::TestkitError;
use sqlx::{Connection, PgConnection};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long it may take to end, and to recover from a crash, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// See the module. Stopped, and deleted with its data, when this value is dropped.
pub struct OwnServer {
    state: PathBuf,
    url: String,
    command: Vec<String>,
    /// The user and the group it runs as: it refuses to run as root.
    user: (u32, u32),
    leader: u32,
    /// The leader as a child of ours, from the second start on.
    child: Option<Child>,
}

impl OwnServer {
    /// Makes a server and starts it, with these options on its command line. `name` tells the servers of one process apart.
    ///
    /// # Errors
    /// [`TestkitError::Part`]: with what `./dev` said.
    pub fn start(name: &str, options: &str) -> Result<Self, TestkitError> {
        let state = std::env::temp_dir().join(format!("aivideo-server-{}-{name}", std::process::id()));
        let made = dev(&state, &["up", "--only", "postgres"], options).and_then(|()| Self::of(&state));
        if made.is_err() {
            dev(&state, &["reset", "--yes"], options).ok();
        }
        made.map_err(|said| TestkitError::Part { said })
    }

    /// The server that `./dev` has started in a state.
    fn of(state: &Path) -> Result<Self, String> {
        let read = |path: &Path| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
        let settings = read(&state.join("env"))?;
        let url = settings.lines().find_map(|line| line.strip_prefix("AIVIDEO_DATABASE__OWNER_URL="));
        let url = url.ok_or("the state names no database")?.trim_matches('\'').to_owned();
        let leader = read(&state.join("run/postgres.pid"))?;
        let leader: u32 = leader.split_whitespace().next().and_then(|pid| pid.parse().ok()).ok_or("no process id")?;
        let process = PathBuf::from(format!("/proc/{leader}"));
        let command = read(&process.join("cmdline"))?.split_terminator('\0').map(str::to_owned).collect();
        let status = read(&process.join("status"))?;
        let id = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let user = (id("Uid:").ok_or("no user")?, id("Gid:").ok_or("no group")?);
        Ok(Self { state: state.to_owned(), url, command, user, leader, child: None })
    }

    /// Where it is reached; its role may create databases.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// SIGKILL to the server and all its processes at once, as a power cut would end them. The disk keeps what was written.
    ///
    /// # Errors
    /// It could not be signalled, or did not end.
    pub async fn kill(&mut self) -> Result<(), TestkitError> {
        let family = self.strike()?;
        let end = Instant::now() + PATIENCE;
        while !self.is_gone(&family) {
            if Instant::now() > end {
                return Err(TestkitError::Part { said: "it does not end after SIGKILL".to_owned() });
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Starts it after a kill, and waits until it has recovered and answers.
    ///
    /// # Errors
    /// It does not start: with the end of its log.
    pub async fn start_again(&mut self) -> Result<(), TestkitError> {
        // Its number may belong to another program by now, and the server would take that one for itself.
        for lock in self.locks() {
            fs::remove_file(lock)
                .or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
        }
        let log = fs::OpenOptions::new().append(true).open(self.log())?;
        let (program, arguments) =
            self.command.split_first().ok_or(ErrorKind::InvalidInput).map_err(io::Error::from)?;
        let child = Command::new(program)
            .args(arguments)
            .uid(self.user.0)
            .gid(self.user.1)
            .env_clear()
            .envs([("PATH", "/usr/bin:/bin"), ("LC_ALL", "C.UTF-8")])
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.leader = child.id();
        self.child = Some(child);
        if let Some(started) = Process::of(self.leader).map(|it| it.started) {
            // So that `./dev` knows it again, also where this process dies.
            fs::write(self.state.join("run/postgres.pid"), format!("{} {started}\n", self.leader))?;
        }
        let end = Instant::now() + PATIENCE;
        while let Err(error) = PgConnection::connect(&self.url).await {
            let ended = self.child.as_mut().map(Child::try_wait).transpose()?.flatten().is_some();
            if ended || Instant::now() > end {
                let log = fs::read_to_string(self.log())?;
                let last = log.lines().skip(log.lines().count().saturating_sub(10)).collect::<Vec<_>>().join("\n");
                return Err(TestkitError::Part { said: format!("{error}; its log ends with\n{last}") });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    fn log(&self) -> PathBuf {
        self.state.join("logs/postgres.log")
    }

    /// What a killed server leaves behind: its process id beside its data, and its socket.
    fn locks(&self) -> Vec<PathBuf> {
        let after = |flag: &str| self.command.iter().skip_while(|it| *it != flag).nth(1).cloned().unwrap_or_default();
        let socket = |end: &str| PathBuf::from(after("-k")).join(format!(".s.PGSQL.{}{end}", after("-p")));
        vec![PathBuf::from(after("-D")).join("postmaster.pid"), socket(".lock"), socket("")]
    }

    /// Kills everything; the parent is stopped first, so that it can not start another meanwhile.
    fn strike(&self) -> io::Result<Vec<u32>> {
        signal("STOP", &[self.leader])?;
        let mut family = vec![self.leader];
        for entry in fs::read_dir("/proc")? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if Process::of(pid).is_some_and(|it| it.parent == self.leader) {
                family.push(pid);
            }
        }
        signal("KILL", &family)?;
        Ok(family)
    }

    fn is_gone(&mut self, family: &[u32]) -> bool {
        // Our own child stays in the table until it was waited for.
        if let Some(child) = &mut self.child {
            child.try_wait().ok();
        }
        family.iter().all(|pid| Process::of(*pid).is_none_or(|it| it.state == "Z"))
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        if let Err(said) = dev(&self.state, &["reset", "--yes"], "") {
            tracing::warn!(state = %self.state.display(), said, "a test's server was left behind");
        }
        if let Some(child) = &mut self.child {
            child.try_wait().ok();
        }
    }
}

/// What the kernel says about a process.
struct Process {
    /// One letter; `Z`: it has ended and waits to be reaped.
    state: String,
    parent: u32,
    /// In clock ticks since the machine started: with its number, its name for ever.
    started: u64,
}

impl Process {
    /// `None` when there is none of this number.
    fn of(pid: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name before it may hold anything, brackets too.
        let words: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let started = words.get(19)?.parse().ok()?;
        Some(Self { state: (*words.first()?).to_owned(), parent: words.get(1)?.parse().ok()?, started })
    }
}

/// The shell's own `kill`: the standard library can only send SIGKILL, and only to children.
fn signal(name: &str, pids: &[u32]) -> io::Result<()> {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let script = format!("kill -{name} {}", pids.join(" "));
    // A process that has ended by itself meanwhile is as good as one that was killed.
    Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).status().map(drop)
}

fn dev(state: &Path, arguments: &[&str], options: &str) -> Result<(), String> {
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../dev"))
        .args(arguments)
        .envs([("AIVIDEO_OWN_PARTS", "1"), ("DEV_POSTGRES_CREATEDB", "yes"), ("DEV_POSTGRES_OPTIONS", options)])
        .env("AIVIDEO_STATE", state)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("./dev could not be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(format!("./dev {} failed: {}", arguments.join(" "), String::from_utf8_lossy(&said)))
}
