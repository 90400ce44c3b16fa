//! Reading a log to its end, and rebuilding the read models from it, beside `COPY` of the same rows.

use crate::database::Database;
use crate::fill::{Filled, fill};
use anyhow::ensure;
use bench::report::{Row, median, write};
use eventstore::Store;
use futures_util::TryStreamExt;
use sqlx::postgres::PgPoolCopyExt;
use std::time::Instant;

/// Events that one reading asks for.
const BATCH: i64 = 5_000;

/// Events a second, in each of the runs.
#[derive(Default)]
pub struct Rates {
    copy: Vec<f64>,
    read: Vec<f64>,
    rebuilt: Vec<f64>,
}

impl Rates {
    /// Reads the whole log once in each way; `rebuild`: also folds it.
    ///
    /// # Errors
    /// The server's, or the projections'.
    pub async fn take(&mut self, store: &Store, rebuild: bool) -> anyhow::Result<()> {
        let events: i64 =
            sqlx::query_scalar("/* bench.count */ SELECT count(*) FROM events").fetch_one(store.pool()).await?;
        self.copy.push(copy(store, events).await?);
        self.read.push(catch_up(store, events).await?);
        if rebuild {
            let begun = Instant::now();
            let done = projections::rebuild::rebuild(store.pool(), |_| ()).await?;
            ensure!(done.events == events.unsigned_abs(), "{} of {events} events were folded", done.events);
            self.rebuilt.push(events as f64 / begun.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// What the runs came to.
    pub fn rows(&self) -> Vec<Row> {
        let copy = median(self.copy.clone());
        let row = |measure: &str, rates: &[f64], share: f64, aim| {
            let ours = median(rates.to_vec());
            Row {
                measure: measure.to_owned(),
                ours,
                unit: "events/s",
                reference: "COPY (SELECT …) TO STDOUT of the same rows".to_owned(),
                theirs: Some(copy),
                ratio: Some(ours / copy),
                aim,
                met: Some(ours >= share * copy),
            }
        };
        let mut rows = vec![row("catch-up reading", &self.read, 0.5, "50 % of COPY")];
        if !self.rebuilt.is_empty() {
            rows.push(row("rebuild of all read models", &self.rebuilt, 0.25, "25 % of COPY"));
        }
        rows
    }
}

/// `COPY` of all columns in the order of positions; the bytes are received and counted.
async fn copy(store: &Store, events: i64) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let mut rows = store
        .pool()
        .copy_out_raw(
            "COPY (SELECT position, event_id, category, stream_id, version, name, schema_version, body, tenant_id, \
             correlation_id, causation_id, actor, recorded_at FROM events ORDER BY position) TO STDOUT",
        )
        .await?;
    let mut lines = 0_i64;
    while let Some(bytes) = rows.try_next().await? {
        // One message a row is what the server sends.
        lines += i64::from(!bytes.is_empty());
    }
    ensure!(lines == events, "COPY gave {lines} of {events} rows");
    Ok(events as f64 / begun.elapsed().as_secs_f64())
}

/// The reader of the log, from the first event to the last.
async fn catch_up(store: &Store, events: i64) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let (mut after, mut read) = (0, 0_i64);
    loop {
        let batch = store.log_after(after, BATCH).await?;
        let Some(last) = batch.last() else { break };
        after = last.position;
        read += i64::try_from(batch.len())?;
    }
    ensure!(read == events, "{read} of {events} events were read");
    Ok(events as f64 / begun.elapsed().as_secs_f64())
}

/// `./dev bench rebuild`.
///
/// # Errors
/// The server's, or the projections'.
pub async fn rebuild_alone(events: u64, runs: usize) -> anyhow::Result<()> {
    let database = Database::create("rebuild").await?;
    let store = database.store(4).await?;
    fill(&store, Filled::of_events(events), false).await?;
    let mut rates = Rates::default();
    for number in 1..=runs {
        rates.take(&store, true).await?;
        println!("  run {number} of {runs} taken");
    }
    let mut rows = rates.rows();
    let seconds = events as f64 / median(rates.rebuilt.clone());
    rows.push(Row {
        measure: format!("rebuild of all read models, {events} events"),
        ours: seconds,
        unit: "s",
        reference: String::new(),
        theirs: None,
        ratio: None,
        aim: "a million under 60 s",
        met: Some(seconds < 60.0 * events as f64 / 1e6),
    });
    store.close().await;
    database.drop_it().await?;
    write("rebuild", &rows)
}
