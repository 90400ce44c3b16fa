//! The event store beside what PostgreSQL can do, and beside other stores.

use crate::append::{EVENTS_OF_A_STREAM, Writer, attempt_alone, request};
use crate::database::Database;
use crate::fill::{Filled, fill, first_account};
use crate::load::Loader;
use crate::peers::Peer;
use crate::pgbench::Pgbench;
use crate::read::Rates;
use crate::work::rate;
use crate::{Programs, Taken};
use bench::report::{Row, median, write};
use clap::{Args, ValueEnum};
use domain::id::AccountId;
use domain::ledger;
use domain::money::Credits;
use domain::process::CaseKey;
use eventstore::Store;

/// A part of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Appends, beside pgbench and other stores.
    Append,
    /// Loads of a stream of 30 events, beside other stores.
    Load,
    /// Loads of an account with 10,000 events.
    Account,
    /// Reading the log, and rebuilding from it, beside COPY.
    Read,
    /// Appends while the log is sealed, beside appends without a sealer.
    Seal,
}

/// How it is run.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    taken: Taken,
    #[command(flatten)]
    programs: Programs,
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["append", "load", "account", "read", "seal"])]
    only: Vec<Part>,
    /// How many write at the same time.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64])]
    writers: Vec<usize>,
    /// Events in the log that is read and rebuilt from.
    #[arg(long, default_value_t = 50_000)]
    events: u64,
}

/// Tasks that load at the same time.
const LOADERS: [usize; 2] = [1, 16];
/// Streams that are loaded.
const STREAMS: usize = 100;
/// Tasks whose holds and settlements make an account of 10,000 events.
const TASKS_OF_THE_ACCOUNT: i64 = 5_000;

/// `./dev bench store`.
///
/// # Errors
/// The server's, or one of the programs fails.
pub async fn run(options: &Options) -> anyhow::Result<()> {
    let mut rows = vec![];
    let taken = take(options, &mut rows).await;
    // What was measured before something failed took minutes.
    if !rows.is_empty() {
        write("store", &rows)?;
    }
    taken
}

async fn take(options: &Options, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let wanted = |part| options.only.contains(&part);
    if wanted(Part::Append) || wanted(Part::Load) {
        rows.extend(beside_others(options).await?);
    }
    if wanted(Part::Account) {
        rows.extend(account(options).await?);
    }
    if wanted(Part::Read) {
        rows.extend(read(options).await?);
    }
    if wanted(Part::Seal) {
        rows.extend(crate::seal::run(options.taken).await?);
    }
    Ok(())
}

/// What ours, pgbench and the others came to with so many tasks, a figure a run.
struct Beside {
    tasks: usize,
    ours: Vec<f64>,
    pgbench: Vec<f64>,
    peers: Vec<Vec<f64>>,
}

impl Beside {
    fn new(tasks: usize, peers: usize) -> Self {
        Self { tasks, ours: vec![], pgbench: vec![], peers: vec![vec![]; peers] }
    }

    /// One row beside each of the others, the best of the peers with the aim; where there are none, ours alone.
    fn rows(&self, what: &str, peers: &[Peer]) -> Vec<Row> {
        let ours = median(self.ours.clone());
        let row = |reference: &str, theirs: Option<f64>, aim: &'static str, share: f64| Row {
            measure: format!("{what}, {} at once", self.tasks),
            ours,
            unit: "per second",
            reference: reference.to_owned(),
            theirs,
            ratio: theirs.map(|theirs| ours / theirs),
            aim,
            met: theirs.filter(|_| !aim.is_empty()).map(|theirs| ours >= share * theirs),
        };
        let mut rows = vec![];
        if !self.pgbench.is_empty() {
            let theirs = median(self.pgbench.clone());
            rows.push(row("pgbench, one prepared statement", Some(theirs), "70 % of pgbench", 0.7));
        }
        let theirs: Vec<f64> = self.peers.iter().map(|rates| median(rates.clone())).collect();
        let best = theirs.iter().copied().fold(0.0, f64::max);
        for (peer, &theirs) in peers.iter().zip(&theirs) {
            let aim = if theirs >= best { "2 x the best other store" } else { "" };
            rows.push(row(peer.name, Some(theirs), aim, 2.0));
        }
        if rows.is_empty() {
            rows.push(row("", None, "", 0.0));
        }
        rows
    }
}

async fn beside_others(options: &Options) -> anyhow::Result<Vec<Row>> {
    let Options { taken, programs, .. } = options;
    println!("preparing the databases");
    let database = Database::create("ours").await?;
    let most = options.writers.iter().chain(&LOADERS).copied().max().unwrap_or(1);
    let store = database.store(u32::try_from(most)?).await?;
    let cases = streams(&store).await?;
    let pgbench = Pgbench::prepare(&programs.pgbench).await?;
    let peers = Peer::prepare(programs.peers.as_deref()).await?;
    let counts = |part, counts: &[usize]| -> Vec<Beside> {
        let wanted = if options.only.contains(&part) { counts } else { &[] };
        wanted.iter().map(|&tasks| Beside::new(tasks, peers.len())).collect()
    };
    let mut appends = counts(Part::Append, &options.writers);
    let mut loads = counts(Part::Load, &LOADERS);
    for number in 1..=taken.runs {
        for it in &mut appends {
            let writers = (0..it.tasks).map(|_| Writer::new(&store)).collect();
            it.ours.push(rate(writers, taken.seconds).await?);
            it.pgbench.push(pgbench.rate(it.tasks, taken.seconds).await?);
            for (peer, rates) in peers.iter().zip(&mut it.peers) {
                rates.push(peer.rate_or_none("append", it.tasks, taken.seconds).await);
            }
        }
        for it in &mut loads {
            let loaders = Loader::several(&store, cases.clone(), EVENTS_OF_A_STREAM as i64, it.tasks)?;
            it.ours.push(rate(loaders, taken.seconds).await?);
            for (peer, rates) in peers.iter().zip(&mut it.peers) {
                rates.push(peer.rate_or_none("load", it.tasks, taken.seconds).await);
            }
        }
        println!("  run {number} of {} taken", taken.runs);
    }
    let mut rows: Vec<Row> =
        appends.iter().flat_map(|it| it.rows("appends of an event and an outbox row", &peers)).collect();
    rows.extend(loads.iter().flat_map(|it| it.rows("cold loads of a 30-event stream", &peers)));
    store.close().await;
    database.drop_it().await?;
    pgbench.end().await?;
    for peer in &peers {
        peer.end().await?;
    }
    Ok(rows)
}

/// Streams of 30 events, written by the store itself.
async fn streams(store: &Store) -> anyhow::Result<Vec<CaseKey>> {
    let mut cases = vec![];
    for _ in 0..STREAMS {
        cases.push(attempt_alone(Writer::new(store).whole_stream().await?));
    }
    Ok(cases)
}

/// Loads of an account of 10,000 events beside loads of a stream of 30.
async fn account(options: &Options) -> anyhow::Result<Vec<Row>> {
    println!("filling an account of 10,000 events");
    let database = Database::create("account").await?;
    let store = database.store(8).await?;
    fill(&store, Filled::one_account(TASKS_OF_THE_ACCOUNT), false).await?;
    let account = AccountId(first_account(store.pool()).await?);
    let key = CaseKey::account(account);
    // What is kept of long streams is written when the store meets them.
    for number in 0..5 {
        let grant = ledger::Command::Grant { key: format!("bench-{number}"), amount: Credits(1) };
        store.execute(&request(), key, None, |turn| turn.account(grant.clone())).await?;
    }
    let short = streams(&store).await?;
    let (mut ours, mut theirs) = (vec![], vec![]);
    for _ in 0..options.taken.runs {
        let seconds = options.taken.seconds;
        ours.push(rate(Loader::several(&store, vec![key], 2 * TASKS_OF_THE_ACCOUNT + 6, 1)?, seconds).await?);
        theirs.push(rate(Loader::several(&store, short.clone(), EVENTS_OF_A_STREAM as i64, 1)?, seconds).await?);
    }
    let snapshots = snapshots(&store).await?;
    store.close().await;
    database.drop_it().await?;
    let (ours, theirs) = (1000.0 / median(ours), 1000.0 / median(theirs));
    Ok(vec![Row {
        measure: format!("cold load of an account of 10,000 events, {snapshots}"),
        ours,
        unit: "ms",
        reference: "cold load of a 30-event stream".to_owned(),
        theirs: Some(theirs),
        ratio: Some(ours / theirs),
        aim: "3 x a short stream",
        met: Some(ours <= 3.0 * theirs),
    }])
}

/// Whether the store keeps snapshots, by what it has written.
async fn snapshots(store: &Store) -> anyhow::Result<&'static str> {
    let table: Option<String> = sqlx::query_scalar(
        "/* bench.snapshots */ SELECT tablename::text FROM pg_tables WHERE tablename LIKE '%snapshot%' LIMIT 1",
    )
    .fetch_optional(store.pool())
    .await?;
    Ok(if table.is_some() { "with snapshots" } else { "without snapshots" })
}

async fn read(options: &Options) -> anyhow::Result<Vec<Row>> {
    println!("filling a log of {} events", options.events);
    let database = Database::create("log").await?;
    let store = database.store(4).await?;
    fill(&store, Filled::of_events(options.events), false).await?;
    let mut rates = Rates::default();
    for number in 1..=options.taken.runs {
        rates.take(&store, true).await?;
        println!("  run {number} of {} taken", options.taken.runs);
    }
    store.close().await;
    database.drop_it().await?;
    Ok(rates.rows())
}
