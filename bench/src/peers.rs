//! Other event stores: a program of its own (bench/peers), called once for each measure.

use crate::database::Database;
use anyhow::{Context, ensure};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;

/// The stores, by the names that the program knows.
pub const PEERS: [&str; 3] = ["cqrs-es", "disintegrate", "es-entity"];

/// One store in a database of its own.
pub struct Peer {
    /// Its name.
    pub name: &'static str,
    program: PathBuf,
    database: Database,
}

/// What the program prints.
#[derive(Deserialize)]
struct Measured {
    done: u64,
    seconds: f64,
}

impl Peer {
    /// All of them, with their tables and the streams that are loaded; none without a program.
    ///
    /// # Errors
    /// The program fails.
    pub async fn prepare(program: Option<&Path>) -> anyhow::Result<Vec<Self>> {
        let Some(program) = program else {
            println!("  the other stores are left out: no program is given (BENCH_PEERS)");
            return Ok(vec![]);
        };
        let mut peers = vec![];
        for name in PEERS {
            let database = Database::create(&name.replace('-', "_")).await?;
            let peer = Self { name, program: program.to_owned(), database };
            peer.call(&["prepare"]).await?;
            peers.push(peer);
        }
        Ok(peers)
    }

    /// How often a second it does `what`; 0 where it fails, which is told and ends nothing: ours is to be measured all the same.
    pub async fn rate_or_none(&self, what: &str, tasks: usize, seconds: f64) -> f64 {
        let (tasks, seconds) = (tasks.to_string(), seconds.to_string());
        match self.call(&[what, "--writers", &tasks, "--seconds", &seconds]).await {
            Ok(measured) => measured.done as f64 / measured.seconds,
            Err(error) => {
                eprintln!("  {what} with {tasks} at once: {error:#}");
                0.0
            }
        }
    }

    /// Drops the database.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn end(&self) -> anyhow::Result<()> {
        self.database.drop_it().await
    }

    async fn call(&self, arguments: &[&str]) -> anyhow::Result<Measured> {
        let output = Command::new(&self.program)
            .arg(self.name)
            .args(arguments)
            .env("DATABASE_URL", self.database.url().as_str())
            .stdin(Stdio::null())
            .output()
            .await
            .with_context(|| format!("{} can not be started", self.program.display()))?;
        ensure!(output.status.success(), "{} failed: {}", self.name, String::from_utf8_lossy(&output.stderr));
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}
