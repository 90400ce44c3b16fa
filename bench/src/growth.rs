//! Whether a log may grow: append, relay and load in a long log beside the same in a short one.

use crate::Taken;
use crate::append::{EVENTS_OF_A_STREAM, Writer, attempt_alone};
use crate::database::Database;
use crate::fill::{Filled, attempts, fill};
use crate::load::Loader;
use crate::relay::pick_up;
use crate::work::rate;
use anyhow::Context;
use bench::report::{Row, median, write};
use clap::Args;
use domain::id::AttemptId;
use domain::process::CaseKey;
use eventstore::Store;

/// How it is run.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    taken: Taken,
    /// Events in the long log.
    #[arg(long, default_value_t = 10_000_000)]
    events: u64,
    /// Events in the short one.
    #[arg(long, default_value_t = 100_000)]
    beside: u64,
    /// Writers, and tasks that load.
    #[arg(long, default_value_t = 4)]
    writers: usize,
}

/// A filled log and what was measured in it.
struct Log {
    database: Database,
    store: Store,
    filled: Filled,
    append: Vec<f64>,
    relay: Vec<f64>,
    load: Vec<f64>,
}

impl Log {
    async fn filled(name: &str, events: u64, connections: usize) -> anyhow::Result<Self> {
        println!("filling a log of {events} events");
        let database = Database::create(name).await?;
        let store = database.store(u32::try_from(connections)?.max(8)).await?;
        let filled = Filled::of_events(events);
        fill(&store, filled, true).await?;
        Ok(Self { database, store, filled, append: vec![], relay: vec![], load: vec![] })
    }

    async fn take(&mut self, options: &Options) -> anyhow::Result<()> {
        let Options { taken, writers, .. } = options;
        let appending = (0..*writers).map(|_| Writer::new(&self.store)).collect();
        self.append.push(rate(appending, taken.seconds).await?);
        self.relay.push(pick_up(&self.store).await?);
        let cases: Vec<CaseKey> = attempts(self.store.pool(), self.filled, 2_000)
            .await?
            .into_iter()
            .map(|id| attempt_alone(AttemptId(id)))
            .collect();
        let loading = Loader::several(&self.store, cases, EVENTS_OF_A_STREAM as i64, *writers)?;
        self.load.push(rate(loading, taken.seconds).await?);
        Ok(())
    }

    async fn end(self) -> anyhow::Result<()> {
        self.store.close().await;
        self.database.drop_it().await
    }
}

/// `./dev bench growth`.
///
/// # Errors
/// The server's.
pub async fn run(options: &Options) -> anyhow::Result<()> {
    let mut short = Log::filled("short", options.beside, options.writers).await?;
    let mut long = Log::filled("long", options.events, options.writers).await.context("the long log")?;
    for number in 1..=options.taken.runs {
        short.take(options).await?;
        long.take(options).await?;
        println!("  run {number} of {} taken", options.taken.runs);
    }
    let row = |what: &str, unit, long: &[f64], short: &[f64]| {
        let (ours, theirs) = (median(long.to_vec()), median(short.to_vec()));
        Row {
            measure: format!("{what}, {} events in the log", options.events),
            ours,
            unit,
            reference: format!("{} events in the log", options.beside),
            theirs: Some(theirs),
            ratio: Some(ours / theirs),
            aim: "takes 1.3 times as long",
            met: Some(theirs <= 1.3 * ours),
        }
    };
    let rows = [
        row(&format!("appends, {} writers", options.writers), "per second", &long.append, &short.append),
        row("messages that a relay picks up", "per second", &long.relay, &short.relay),
        row("cold loads of 30-event streams", "per second", &long.load, &short.load),
    ];
    short.end().await?;
    long.end().await?;
    write("growth", &rows)
}
