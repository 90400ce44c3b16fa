//! Benchmarks of the event store, beside PostgreSQL itself and beside other stores: `./dev bench store|growth|rebuild`.
//!
//! Each measure is taken `--runs` times, ours and theirs taking turns on one server, each in a database of its own; what is
//! reported is the median. docs/performance.md says what the figures mean.

mod append;
mod database;
mod fill;
mod growth;
mod history;
mod load;
mod peers;
mod pgbench;
mod read;
mod relay;
mod seal;
mod store;
mod work;

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Appending, loading, reading on and rebuilding, beside pgbench, COPY and other stores: under ten minutes.
    Store(store::Options),
    /// Append, relay and load in a log of ten million events beside one of a hundred thousand: takes long, most of it to fill.
    Growth(growth::Options),
    /// All read models of a million events, beside COPY of the same rows.
    Rebuild(RebuildOptions),
}

/// How each measure is taken.
#[derive(Args, Clone, Copy)]
struct Taken {
    /// How often each measure is taken.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// How long each measure is, in seconds.
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
}

#[derive(Args)]
struct RebuildOptions {
    /// Events in the log.
    #[arg(long, default_value_t = 1_000_000)]
    events: u64,
    /// How often it is taken.
    #[arg(long, default_value_t = 1)]
    runs: usize,
}

/// The programs that are measured beside ours.
#[derive(Args, Clone)]
struct Programs {
    /// pgbench of the server's release.
    #[arg(long, env = "BENCH_PGBENCH", default_value = "pgbench")]
    pgbench: PathBuf,
    /// The binary of bench/peers. Without it the other stores are left out.
    #[arg(long, env = "BENCH_PEERS")]
    peers: Option<PathBuf>,
}

async fn run(bench: Bench) -> anyhow::Result<()> {
    match bench {
        Bench::Store(options) => store::run(&options).await,
        Bench::Growth(options) => growth::run(&options).await,
        Bench::Rebuild(options) => read::rebuild_alone(options.events, options.runs).await,
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = tokio::runtime::Runtime::new()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(run(arguments.bench)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
