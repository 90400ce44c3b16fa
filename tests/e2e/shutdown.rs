//! X1: SIGTERM with work in flight while a second worker is alive.

use anyhow::ensure;
use std::time::Duration;
use tests::stack::{eventually, ready};
use tests::{RoleProcess, Simulator, Stack, User, judge};

/// The provider holds its answer for seconds; the worker that waits for it is asked to end. It finishes what it has begun, or
/// leaves it to the facts: no job is submitted twice, each task ends once.
pub async fn with_work_in_flight(stack: &Stack) -> anyhow::Result<()> {
    let _serve = RoleProcess::start(stack, "x1-serve", &["serve"], &[])?;
    let _relay = RoleProcess::start(stack, "x1-relay", &["relay"], &[])?;
    let _project = RoleProcess::start(stack, "x1-project", &["project"], &[])?;
    let mut first = RoleProcess::start(stack, "x1-work-1", &["work"], &[])?;
    ready(stack.setting("AIVIDEO_API__PUBLIC_URL")?, Duration::from_secs(60)).await?;
    let user = User::new(stack, 1_000_000).await?;
    let mut tasks = vec![];
    for _ in 0..6 {
        tasks.push(user.submit("[sim: hang=after run=500 callback=none] x").await?);
    }
    // The provider has taken a job and holds its answer back: the worker waits for it.
    eventually(Duration::from_secs(60), async || {
        let in_flight = submitting(stack).await?;
        ensure!(in_flight > 0, "no submit is in flight");
        Ok(())
    })
    .await?;
    let _second = RoleProcess::start(stack, "x1-work-2", &["work"], &[])?;
    first.terminate().await?;
    let ends = user.until_all_ended(stack, tasks.len(), Duration::from_secs(120)).await?;
    ensure!(ends.get("SUCCEEDED") == Some(&6), "{ends:?}");
    let counters = Simulator::of(stack)?.counters().await?;
    ensure!(counters.accepted.values().all(|count| *count <= 1), "{counters:?}");
    judge(stack).await
}

/// Attempts whose request has left and whose answer is awaited, by the facts.
async fn submitting(stack: &Stack) -> anyhow::Result<i64> {
    Ok(sqlx::query_scalar(
        "SELECT count(*) FROM events b WHERE b.name = 'attempt.submission_begun' AND NOT EXISTS (
             SELECT 1 FROM events l WHERE l.category = b.category AND l.stream_id = b.stream_id AND l.version > b.version)",
    )
    .fetch_one(stack.pool())
    .await?)
}
