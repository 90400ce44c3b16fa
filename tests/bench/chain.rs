//! The whole chain: relay, broker, consumer, acknowledgement, on Apache RocketMQ, with the real domain and read models; beside it
//! the barest chain that is still correct. In turn, on one server and one broker: messages handled a second.
//!
//! The provider and the media tools answer at once and from memory: what is measured is how messages move.

mod bare;
mod ours;

use anyhow::Context;
use bench::report::{Row, median, write};
use messaging::{BrokerConfig, Client};
use std::sync::Arc;
use std::time::Duration;
use tests::{Broker, Stack};

const RUNS: usize = 5;
/// Tasks of one run.
const TASKS: usize = 400;
/// Messages of one task: with this many polls ours has as many as the barest chain.
const MESSAGES: usize = 20;
/// Handlers at once, over all groups.
const THREADS: usize = 64;

/// The benchmark.
///
/// # Errors
/// The system does not start, or a run does not come to its end.
pub async fn run() -> anyhow::Result<()> {
    let stack = Stack::up("chain", Broker::Apache, false, &[]).await?;
    let (mut ours, mut bare) = (vec![], vec![]);
    // What is measured later has been done before.
    ours::run(&stack, TASKS / 4).await?;
    bare::run(&stack, TASKS / 4).await?;
    for number in 1..=RUNS {
        let (one, other) = (ours::run(&stack, TASKS).await?, bare::run(&stack, TASKS).await?);
        println!("run {number}: {one:.0} messages a second, the barest chain {other:.0}");
        ours.push(one);
        bare.push(other);
    }
    stack.down(false).await?;
    let (ours, bare) = (median(ours), median(bare));
    let row = Row {
        measure: format!("messages handled, {MESSAGES} a task, {THREADS} handlers"),
        ours,
        unit: "per second",
        reference: "one statement a message, nothing decided".to_owned(),
        theirs: Some(bare),
        ratio: Some(ours / bare),
        aim: "70 % of the barest",
        met: Some(ours / bare >= 0.7),
    };
    write("chain", &[row])
}

/// A client of its own for one run: no consumer of an earlier one is left.
fn client(stack: &Stack, threads: &[(messaging::Group, usize)]) -> anyhow::Result<Arc<Client>> {
    let config = BrokerConfig {
        name_server: stack.setting("AIVIDEO_BROKER__NAME_SERVER")?.to_owned(),
        threads: threads.iter().copied().collect(),
        ..BrokerConfig::default()
    };
    Client::new(config).context("the broker's client")
}

/// Waits until `handled` says that everything was, and fails after a minute.
async fn until(what: &str, expected: usize, handled: impl Fn() -> u64) -> anyhow::Result<()> {
    let all = async {
        while handled() < expected as u64 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(60), all).await;
    in_time.with_context(|| format!("{what}: {} of {expected} messages were handled in a minute", handled()))
}
