//! The append-only file that outlives the process: without it, a killed simulator would forget what it had accepted, and
//! "never submitted twice" could not be checked across a restart.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// A line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Line {
    /// A create call came in, whatever became of it.
    Asked { client_ref: String },
    /// A job was accepted.
    Accepted(Accepted),
    /// A job ended.
    Ended { id: String, status: String, error: Option<String>, at_ms: i64 },
}

/// The facts of an accepted job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Accepted {
    pub(super) id: String,
    pub(super) client_ref: String,
    pub(super) model: String,
    /// What the video should show; the wishes stand in it.
    pub(super) prompt: String,
    /// Length of the video in whole seconds.
    pub(super) seconds: u64,
    /// The request's own body, as far as the provider shows it again.
    pub(super) input: Value,
    pub(super) webhook: Option<String>,
    pub(super) events: Value,
    /// Unix time in milliseconds.
    pub(super) created_ms: i64,
}

pub(super) struct Journal(File);

impl Journal {
    /// Opens the journal in `folder` and reads what it holds. A line that was cut by a kill is passed over.
    pub(super) fn open(folder: &Path) -> io::Result<(Self, Vec<Line>)> {
        let path = folder.join("simulator.jsonl");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n")?;
        }
        let mut lines = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            match serde_json::from_str(line) {
                Ok(line) => lines.push(line),
                Err(_) => tracing::warn!("the simulator's journal has a line that was cut"),
            }
        }
        Ok((Self(file), lines))
    }

    /// Appends a line in one write, so that it is there after the process was killed.
    pub(super) fn append(&mut self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.0.write_all(&text)
    }
}
