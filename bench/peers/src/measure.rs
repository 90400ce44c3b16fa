//! The two measures, the same for every peer.

use crate::facts::{BEGINNING, EVENTS_OF_A_STREAM, STREAMS};
use sqlx::PgPool;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// An event store, used as its documentation says.
pub trait Peer: Sized + Send + Sync + 'static {
    /// What it calls a stream by.
    type Id: Clone + Send + Sync + 'static;

    /// Makes its tables in an empty database.
    fn create_tables(pool: &PgPool) -> impl Future<Output = anyhow::Result<()>> + Send;
    /// A store over the tables.
    fn open(pool: PgPool) -> impl Future<Output = anyhow::Result<Self>> + Send;
    /// Begins a stream: three events in one transaction.
    fn begin(&self) -> impl Future<Output = anyhow::Result<Self::Id>> + Send;
    /// Reads the stream, decides, and appends one event, in one transaction.
    fn append(&self, id: &Self::Id) -> impl Future<Output = anyhow::Result<()>> + Send;
    /// Reads the stream and folds it; says how many polls it knows of.
    fn load(&self, id: &Self::Id) -> impl Future<Output = anyhow::Result<usize>> + Send;
    /// The streams that are there.
    fn streams(&self) -> impl Future<Output = anyhow::Result<Vec<Self::Id>>> + Send;
}

/// What is measured.
#[derive(Clone, Copy)]
pub enum Measure {
    /// Transactions that append.
    Append,
    /// Streams loaded.
    Load,
}

/// Before the clock starts: connections are made, statements prepared, caches filled.
const WARM_UP: Duration = Duration::from_millis(500);

/// Writes the streams that are read later.
pub async fn prepare<P: Peer>(peer: P) -> anyhow::Result<serde_json::Value> {
    let peer = Arc::new(peer);
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let peer = Arc::clone(&peer);
        tasks.spawn(async move {
            for _ in 0..STREAMS / 4 {
                let id = peer.begin().await?;
                for _ in BEGINNING..EVENTS_OF_A_STREAM {
                    peer.append(&id).await?;
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    Ok(serde_json::json!({ "done": STREAMS, "seconds": start.elapsed().as_secs_f64() }))
}

/// Measures for so long, with so many tasks.
pub async fn measure<P: Peer>(peer: P, what: Measure, tasks: u32, seconds: f64) -> anyhow::Result<serde_json::Value> {
    let peer = Arc::new(peer);
    let streams = match what {
        Measure::Append => Arc::default(),
        Measure::Load => Arc::new(peer.streams().await?),
    };
    let from = Instant::now() + WARM_UP;
    let until = from + Duration::from_secs_f64(seconds);
    let mut running = JoinSet::new();
    for number in 0..tasks as usize {
        let (peer, streams) = (Arc::clone(&peer), Arc::clone(&streams));
        running.spawn(async move {
            match what {
                Measure::Append => append(&*peer, from, until).await,
                Measure::Load => load(&*peer, &streams, number * 7, from, until).await,
            }
        });
    }
    let mut done = 0_u64;
    while let Some(task) = running.join_next().await {
        done += task??;
    }
    // What was begun in time is counted, and so is the time until it was done.
    Ok(serde_json::json!({ "done": done, "seconds": from.elapsed().as_secs_f64() }))
}

async fn append<P: Peer>(peer: &P, from: Instant, until: Instant) -> anyhow::Result<u64> {
    let mut done = 0;
    loop {
        let id = peer.begin().await?;
        done += u64::from(Instant::now() >= from);
        for _ in BEGINNING..EVENTS_OF_A_STREAM {
            if Instant::now() >= until {
                return Ok(done);
            }
            peer.append(&id).await?;
            done += u64::from(Instant::now() >= from);
        }
    }
}

async fn load<P: Peer>(
    peer: &P,
    streams: &[P::Id],
    first: usize,
    from: Instant,
    until: Instant,
) -> anyhow::Result<u64> {
    anyhow::ensure!(!streams.is_empty(), "there are no streams: run prepare first");
    let mut done = 0;
    for id in streams.iter().cycle().skip(first % streams.len()) {
        if Instant::now() >= until {
            break;
        }
        let polls = peer.load(id).await?;
        anyhow::ensure!(polls == EVENTS_OF_A_STREAM - BEGINNING, "a stream came back with {polls} polls");
        done += u64::from(Instant::now() >= from);
    }
    Ok(done)
}
