//! Judges a system from outside: every invariant by SQL, the simulator's counters, and each read model against its rebuild.

use crate::simulator::Simulator;
use crate::stack::{Stack, eventually};
use anyhow::ensure;
use std::time::Duration;

/// Checks everything; waits a little for what may still be on its way (settlements, outbox rows).
///
/// # Errors
/// Names each invariant that does not hold.
pub async fn judge(stack: &Stack) -> anyhow::Result<()> {
    eventually(Duration::from_secs(90), async || quiet(stack).await).await?;
    let findings = projections::doctor::examine(stack.pool(), projections::doctor::Limits::default()).await?;
    let broken: Vec<String> = findings
        .iter()
        .filter(|it| !it.ok)
        .map(|it| format!("{}: {} ({})", it.invariant, it.detail, it.count))
        .collect();
    ensure!(!findings.is_empty(), "the doctor examined nothing");
    ensure!(broken.is_empty(), "invariants do not hold:\n  {}", broken.join("\n  "));
    never_twice(stack).await?;
    no_open_hold_after_the_end(stack).await
}

/// Nothing is on its way: no unsent row, no task that has ended with an open hold.
async fn quiet(stack: &Stack) -> anyhow::Result<()> {
    let unsent: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM outbox_events WHERE published_at IS NULL AND parked_at IS NULL AND available_at < now()",
    )
    .fetch_one(stack.pool())
    .await?;
    ensure!(unsent == 0, "{unsent} outbox rows are unsent");
    no_open_hold_after_the_end(stack).await
}

/// The provider accepted at most one job per attempt.
async fn never_twice(stack: &Stack) -> anyhow::Result<()> {
    let counters = Simulator::of(stack)?.counters().await?;
    let twice: Vec<_> = counters.accepted.iter().filter(|(_, count)| **count > 1).collect();
    ensure!(twice.is_empty(), "submitted twice: {twice:?}");
    Ok(())
}

async fn no_open_hold_after_the_end(stack: &Stack) -> anyhow::Result<()> {
    let open: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM read_tasks t JOIN read_holds h USING (task_id)
          WHERE t.state IN ('SUCCEEDED', 'FAILED', 'CANCELED', 'CANCELED_WITH_OUTPUT') AND h.state = 'OPEN'",
    )
    .fetch_one(stack.pool())
    .await?;
    ensure!(open == 0, "{open} tasks have ended with an open hold");
    Ok(())
}
