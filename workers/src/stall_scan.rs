//! Finds tasks that should have gone on by themselves and did not, and publishes the message they wait for (chapter 7.10.5).
//!
//! Delayed messages are wake-up signals, not the only way back: losing all of them costs time, never a task.

use domain::id::TaskId;
use eventstore::Store;
use futures_util::future::BoxFuture;
use serde::Deserialize;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A task whose time to go on has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StalledTask {
    /// The task.
    pub task: TaskId,
    /// Grows with time, so that a repair whose message is lost too is made again.
    pub round: i64,
}

/// Where stalled tasks are found: the read side knows when each task is to go on.
pub trait Stalled: Send + Sync {
    /// Tasks that are late by more than `slack`, the longest first, at most `limit`.
    fn stalled(&self, slack: Duration, limit: i64) -> BoxFuture<'_, Result<Vec<StalledTask>, String>>;
}

/// How the scan works.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScanConfig {
    /// Milliseconds between scans.
    pub interval_ms: u64,
    /// How late a task may be before it counts as stalled, in milliseconds. Delayed messages may be late by a second or two.
    pub slack_ms: u64,
    /// Most tasks set going again in one scan.
    pub batch: i64,
}

impl Default for ScanConfig {
    fn default() -> Self {
        Self { interval_ms: 5_000, slack_ms: 20_000, batch: 200 }
    }
}

/// The scan.
pub struct StallScan<S> {
    store: Store,
    stalled: S,
    config: ScanConfig,
}

impl<S: Stalled> StallScan<S> {
    /// A scan.
    pub const fn new(store: Store, stalled: S, config: ScanConfig) -> Self {
        Self { store, stalled, config }
    }

    /// Scans until it is told to stop. A scan that fails is tried again at the next interval.
    pub async fn run(&self, stop: CancellationToken) {
        let interval = Duration::from_millis(self.config.interval_ms.max(100));
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(interval) => {}
            }
            if let Err(error) = self.scan().await {
                tracing::warn!(error, "the scan for stalled tasks failed; it is tried again");
            }
        }
    }

    /// One scan: the number of repairs made.
    ///
    /// # Errors
    /// A sentence; what was repaired until then stays repaired.
    pub async fn scan(&self) -> Result<usize, String> {
        let slack = Duration::from_millis(self.config.slack_ms);
        match self.store.match_callbacks(self.config.batch).await {
            Ok(0) => {}
            Ok(matched) => tracing::info!(matched, "callbacks of attempts that had not been known are applied"),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "kept callbacks can not be looked at");
            }
        }
        let mut repairs = 0;
        for StalledTask { task, round } in self.stalled.stalled(slack, self.config.batch).await? {
            match self.store.wake(task, round).await {
                Ok(Some(repair)) => {
                    repairs += 1;
                    tracing::info!(%task, state = repair.state, message = repair.message, "a stalled task is set going again");
                }
                Ok(None) => {}
                // One task that can not be woken must not keep the others asleep.
                Err(error) => {
                    tracing::error!(%task, error = &error as &dyn std::error::Error, "a stalled task can not be set going again");
                }
            }
        }
        Ok(repairs)
    }
}
