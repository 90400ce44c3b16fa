//! Connections to PostgreSQL that are reset anywhere in their bytes.

use super::support::{Anyhow, database, policy};
use super::workload::{Tally, Workload};
use eventstore::Store;
use eventstore::testkit::{FaultProxy, Reset};
use rand::RngExt;
use std::time::Duration;

const CALLS: usize = 1_000;
const CLIENTS: usize = 6;

/// E3: the connection ends at any byte, also after COMMIT was carried out and before its answer came. What was answered is there,
/// what was not is asked again with the same key, and each key has one effect.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_resolved_by_asking() -> Anyhow {
    let database = database().await?;
    let sure = database.store();
    let anywhere = || match rand::rng().random_bool(0.5) {
        // Opening a connection and preparing its statements takes some 10,000 bytes, a client's round 6,000.
        true => Reset::Byte(rand::rng().random_range(1..40_000)),
        false => Reset::Answer(rand::rng().random_range(1..100)),
    };
    let proxy = FaultProxy::start(database.server(), anywhere).await?;
    let store = Store::on(database.pool_through(&proxy, u32::try_from(CLIENTS)?), policy());
    let mut workload = Workload::start(&store, sure, CLIENTS).await?;
    let tally = workload.tally.clone();
    // On, if need be, until the case of the name has been met: an answer to COMMIT is one of many.
    while Tally::count(&tally.answered) < CALLS || Tally::count(&tally.had_been_done) == 0 {
        workload.check().await?;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    workload.judge(sure).await?;
    let (answered, again) = (Tally::count(&tally.answered), Tally::count(&tally.asked_again));
    let (done, resets) = (Tally::count(&tally.had_been_done), proxy.resets());
    println!("{resets} resets: {answered} answers, {again} asked again, {done} of which had been done");
    assert!(resets >= 100, "only {resets} resets");
    Ok(())
}
