//! The peers of the event store, one measure a call: `peers PEER prepare|append|load`. README.md says how each is driven.
//!
//! It prints one line of JSON, `{"done": N, "seconds": S}`. The benchmark calls it once for each measure of each run, so that
//! ours and theirs take turns on one server.

mod cqrs_es_peer;
mod disintegrate_peer;
mod es_entity_peer;
mod facts;
mod measure;

use clap::{Parser, ValueEnum};
use measure::{Measure, measure, prepare};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

#[derive(Clone, Copy, ValueEnum)]
enum Name {
    CqrsEs,
    Disintegrate,
    EsEntity,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// Makes the tables and the streams that `load` reads.
    Prepare,
    /// One event in one transaction, again and again.
    Append,
    /// A stream of 30 events, folded.
    Load,
}

#[derive(Parser)]
struct Arguments {
    peer: Name,
    what: What,
    /// Tasks at the same time, with a connection each.
    #[arg(long, default_value_t = 1)]
    writers: u32,
    /// How long it is measured, in seconds.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// A database of this peer's own.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let pool = PgPoolOptions::new()
        .min_connections(arguments.writers)
        .max_connections(arguments.writers.max(4))
        .connect(&arguments.database)
        .await?;
    let done = match arguments.peer {
        Name::CqrsEs => run::<cqrs_es_peer::CqrsEs>(&arguments, pool).await?,
        Name::Disintegrate => run::<disintegrate_peer::Disintegrate>(&arguments, pool).await?,
        Name::EsEntity => run::<es_entity_peer::Entities>(&arguments, pool).await?,
    };
    println!("{done}");
    Ok(())
}

async fn run<P: measure::Peer>(arguments: &Arguments, pool: PgPool) -> anyhow::Result<serde_json::Value> {
    if matches!(arguments.what, What::Prepare) {
        P::create_tables(&pool).await?;
        return prepare(P::open(pool).await?).await;
    }
    let what = if matches!(arguments.what, What::Append) { Measure::Append } else { Measure::Load };
    measure(P::open(pool).await?, what, arguments.writers, arguments.seconds).await
}
