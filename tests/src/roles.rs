//! Single role processes, each of its own, as in production: to be killed one by one.

use crate::stack::{Stack, repository};
use anyhow::Context;
use std::process::Stdio;
use tokio::process::{Child, Command};

/// A process with one role.
pub struct RoleProcess {
    /// Its arguments, for messages.
    pub name: String,
    arguments: Vec<String>,
    extra: Vec<(String, String)>,
    child: Child,
}

impl RoleProcess {
    /// Starts a role of the binary against a stack.
    ///
    /// # Errors
    /// The binary could not be started.
    pub fn start(stack: &Stack, name: &str, arguments: &[&str], extra: &[(&str, &str)]) -> anyhow::Result<Self> {
        let arguments: Vec<String> = arguments.iter().map(|it| (*it).to_owned()).collect();
        let extra: Vec<_> = extra.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let child = spawn(stack, name, &arguments, &extra)?;
        Ok(Self { name: name.to_owned(), arguments, extra, child })
    }

    /// SIGKILL, and waits for the end.
    ///
    /// # Errors
    /// It could not be killed.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.with_context(|| format!("{} could not be killed", self.name))
    }

    /// Asks it to end (SIGTERM), and waits for that.
    ///
    /// # Errors
    /// It did not end, or not well.
    pub async fn terminate(&mut self) -> anyhow::Result<()> {
        let id = self.child.id().with_context(|| format!("{} has ended already", self.name))?;
        let asked = Command::new("kill").arg("-TERM").arg(id.to_string()).status().await?;
        anyhow::ensure!(asked.success(), "{} could not be asked to end", self.name);
        let status = self.child.wait().await?;
        anyhow::ensure!(status.success(), "{} ended with {status}", self.name);
        Ok(())
    }

    /// Whether it runs.
    #[must_use]
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Starts it again after its end.
    ///
    /// # Errors
    /// The binary could not be started.
    pub fn restart(&mut self, stack: &Stack) -> anyhow::Result<()> {
        self.child = spawn(stack, &self.name, &self.arguments, &self.extra)?;
        Ok(())
    }
}

fn spawn(stack: &Stack, name: &str, arguments: &[String], extra: &[(String, String)]) -> anyhow::Result<Child> {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(stack.state().join("logs").join(format!("{name}.log")))?;
    Command::new(binary())
        .args(arguments)
        .envs(stack.environment())
        .envs(extra.iter().cloned())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("{name} could not be started"))
}

/// The binary that `./dev up` has built.
fn binary() -> std::path::PathBuf {
    if let Some(given) = std::env::var_os("AIVIDEO_BIN") {
        return given.into();
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(std::path::PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| std::path::Path::new(&home).join(".cache")));
    let target = std::env::var_os("CARGO_TARGET_DIR").map(std::path::PathBuf::from);
    let target = target.or_else(|| cache.map(|cache| cache.join("aivideo/target")));
    target.unwrap_or_else(|| repository().join("target")).join("debug/aivideo")
}
