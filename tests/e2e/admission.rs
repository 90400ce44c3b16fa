//! Limits hold whatever becomes of Redis: the provider never sees more jobs at once than it may, and every task ends.

use anyhow::{Context, ensure};
use std::time::Duration;
use tests::stack::eventually;
use tests::{Simulator, Stack, User};

/// Two jobs at the provider at once. While Redis is down nothing is submitted, so that the limit holds then too; what happens with
/// `admit`, where each process counts for itself, the crate's tests show.
pub const SETTINGS: &[(&str, &str)] = &[
    ("AIVIDEO_ADMISSION__PROVIDERS__DEFAULT", "2"),
    ("AIVIDEO_ADMISSION__WHEN_DOWN", "wait"),
    ("AIVIDEO_ADMISSION__DOWN_WAIT_SECONDS", "2"),
    ("AIVIDEO_ADMISSION__CALL_SECONDS", "5"),
    ("AIVIDEO_ADMISSION__RECHECK_FIRST_SECONDS", "10"),
    ("AIVIDEO_ADMISSION__RECHECK_LAST_SECONDS", "20"),
    ("AIVIDEO_ADMISSION__SWEEP_SECONDS", "2"),
];

const MANY: usize = 20;
const FEW: usize = 3;

/// A tenant with many tasks and one with few, and Redis is killed while they run: it comes back empty.
pub async fn two_at_once(stack: &Stack) -> anyhow::Result<()> {
    let (busy, calm) = (User::new(stack, 1_000_000).await?, User::new(stack, 1_000_000).await?);
    for _ in 0..MANY {
        busy.submit("[sim: run=1500] x").await?;
    }
    for _ in 0..FEW {
        calm.submit("[sim: run=1500] x").await?;
    }
    jobs_reach(stack, 3).await?;
    stack.kill("redis").await?;
    // Those that run end; nothing else begins without Redis.
    eventually(Duration::from_secs(60), async || {
        let running: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM read_attempts WHERE state IN ('SUBMITTING', 'SUBMIT_UNKNOWN', 'RUNNING')",
        )
        .fetch_one(stack.pool())
        .await?;
        ensure!(running == 0, "{running} run");
        Ok(())
    })
    .await?;
    let said = stack.dev(&["aivideo", "status"]).await?;
    ensure!(said.contains("Redis DOES NOT ANSWER"), "{said}");
    stack.start("redis").await?;
    let counters = Simulator::of(stack)?.counters().await?;
    jobs_reach(stack, counters.accepted.len() + 1).await?;
    // The calm tenant came last and asked for little: it does not wait for all that the busy one has in line.
    calm.until_all_ended(stack, FEW, Duration::from_secs(90)).await?;
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM read_tasks WHERE tenant_id = $1 AND finished_at IS NULL")
        .bind(busy.tenant)
        .fetch_one(stack.pool())
        .await?;
    ensure!(left > 0, "the busy tenant was served first");
    let ends = busy.until_all_ended(stack, MANY, Duration::from_secs(180)).await?;
    ensure!(ends.get("SUCCEEDED") == Some(&i64::try_from(MANY)?), "not all succeeded: {ends:?}");
    let counters = Simulator::of(stack)?.counters().await?;
    ensure!(counters.accepted.values().all(|jobs| *jobs == 1), "an attempt has more than one job");
    ensure!(counters.most_at_once == 2, "the provider saw {} jobs at once, not 2", counters.most_at_once);
    let said = stack.dev(&["aivideo", "status"]).await?;
    let line = said.lines().find(|line| line.starts_with("admission")).context("status says nothing of admission")?;
    ensure!(line.contains("0 tasks wait"), "{line}");
    Ok(())
}

async fn jobs_reach(stack: &Stack, jobs: usize) -> anyhow::Result<()> {
    let simulator = Simulator::of(stack)?;
    eventually(Duration::from_secs(90), async || {
        let accepted = simulator.counters().await?.accepted.len();
        ensure!(accepted >= jobs, "{accepted} jobs, waited for {jobs}");
        Ok(())
    })
    .await
}
