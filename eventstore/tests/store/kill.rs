//! PostgreSQL is killed under its writers, again and again.

use super::support::{Anyhow, policy};
use super::workload::{Tally, Workload};
use eventstore::testkit::{OwnServer, TestDatabase};
use rand::RngExt;
use std::time::{Duration, Instant};

const KILLS: usize = 50;
const WRITERS: usize = 6;

/// Nothing acknowledged is lost, and nothing is there twice: fifty times SIGKILL for all of PostgreSQL's processes, at any moment,
/// while six writers append; they ask again with the same key whenever an answer does not come. What is on the disk is what a
/// server with its usual durability has put there. (Only how a starting server makes sure of its files is the faster way.)
#[tokio::test(flavor = "multi_thread")]
async fn fifty_kills_of_the_database_lose_nothing_acknowledged() -> Anyhow {
    let mut server = OwnServer::start("kills", "-c fsync=on -c recovery_init_sync_method=syncfs")?;
    let database = TestDatabase::on(server.url(), policy()).await?;
    let store = database.store();
    let begun = Instant::now();
    let mut workload = Workload::start(store, store, WRITERS).await?;
    for _ in 0..KILLS {
        let before = Tally::count(&workload.tally.answered);
        let pause = Duration::from_millis(rand::rng().random_range(0..150));
        while Tally::count(&workload.tally.answered) < before + WRITERS {
            workload.check().await?;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        tokio::time::sleep(pause).await;
        server.kill().await?;
        server.start_again().await?;
    }
    let (tally, took) = (workload.tally.clone(), begun.elapsed());
    workload.judge(store).await?;
    let (answered, again) = (Tally::count(&tally.answered), Tally::count(&tally.asked_again));
    let done = Tally::count(&tally.had_been_done);
    println!("{KILLS} kills in {took:.0?}: {answered} answers, {again} asked again, {done} of which had been done");
    assert!(again >= KILLS, "only {again} questions were in the way of {KILLS} kills");
    Ok(())
}
