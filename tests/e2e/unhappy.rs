//! Unhappy ends: each in a named state, with the hold settled or released once, and never a second job at the provider.

use crate::Run;
use anyhow::ensure;
use serde_json::Value;
use std::time::Duration;
use tests::{Broker, Simulator, Stack, User};

const PATIENCE: Duration = Duration::from_secs(90);

/// What a prompt's fault must lead to.
struct Case {
    name: &'static str,
    prompt: &'static str,
    state: &'static str,
    /// Error class and code; empty where there is none, `*` for any.
    error: (&'static str, &'static str),
    /// Jobs that the provider accepted.
    jobs: u64,
}

const CASES: &[Case] = &[
    Case {
        name: "bad_parameter",
        prompt: "[sim: refuse=422] x",
        state: "FAILED",
        error: ("BAD_REQUEST", "*"),
        jobs: 0,
    },
    Case {
        name: "moderated",
        prompt: "[sim: refuse=moderation] x",
        state: "FAILED",
        error: ("MODERATION", "*"),
        jobs: 0,
    },
    Case { name: "fails_later", prompt: "[sim: fail=internal] x", state: "FAILED", error: ("PROVIDER", "*"), jobs: 1 },
    Case {
        name: "moderated_later",
        prompt: "[sim: fail=moderation] x",
        state: "FAILED",
        error: ("MODERATION", "*"),
        jobs: 1,
    },
    Case { name: "p3_throttled_twice", prompt: "[sim: throttle=2] x", state: "SUCCEEDED", error: ("", ""), jobs: 1 },
    Case {
        name: "p1_accepted_then_dropped",
        prompt: "[sim: drop=after] x",
        state: "SUCCEEDED",
        error: ("", ""),
        jobs: 1,
    },
    Case { name: "p1_dropped_before", prompt: "[sim: drop=before] x", state: "SUCCEEDED", error: ("", ""), jobs: 1 },
    Case { name: "p1_502_after_commit", prompt: "[sim: 5xx=after] x", state: "SUCCEEDED", error: ("", ""), jobs: 1 },
    Case { name: "p1_502_before_commit", prompt: "[sim: 5xx=before] x", state: "SUCCEEDED", error: ("", ""), jobs: 1 },
    Case {
        name: "p1_accepted_then_hangs",
        prompt: "[sim: hang=after callback=none] x",
        state: "SUCCEEDED",
        error: ("", ""),
        jobs: 1,
    },
    Case {
        name: "p2_callback_before_the_answer",
        prompt: "[sim: callback=early run=1] x",
        state: "SUCCEEDED",
        error: ("", ""),
        jobs: 1,
    },
    Case {
        name: "p2_callback_and_no_answer",
        prompt: "[sim: callback=early drop=after run=1] x",
        state: "SUCCEEDED",
        error: ("", ""),
        jobs: 1,
    },
    Case {
        name: "callbacks_three_times",
        prompt: "[sim: callback=duplicate] x",
        state: "SUCCEEDED",
        error: ("", ""),
        jobs: 1,
    },
    Case { name: "no_callback", prompt: "[sim: callback=none] x", state: "SUCCEEDED", error: ("", ""), jobs: 1 },
    Case { name: "d1_truncated_download", prompt: "[sim: cut=1] x", state: "SUCCEEDED", error: ("", ""), jobs: 1 },
    Case { name: "d4_expired_address", prompt: "[sim: expire=1] x", state: "SUCCEEDED", error: ("", ""), jobs: 1 },
    Case { name: "unknown_status_word", prompt: "[sim: status=weird] x", state: "SUCCEEDED", error: ("", ""), jobs: 1 },
    Case {
        name: "never_finishes",
        prompt: "[sim: never] x",
        state: "FAILED",
        error: ("TIMEOUT", "provider_never_finished"),
        jobs: 1,
    },
];

/// All of them: submitted at once, so that they meet each other as they do in life.
pub async fn all(stack: &Stack, broker: Broker, run: &mut Run) {
    let name = |what: &str| format!("{}::main_path::unhappy::{what}", broker.word());
    let user = match User::new(stack, 1_000_000).await {
        Ok(user) => user,
        Err(error) => return run.fail(&name("user"), &format!("{error:#}")),
    };
    let mut tasks = vec![];
    for case in CASES {
        tasks.push(user.submit(case.prompt).await);
    }
    for (case, task) in CASES.iter().zip(tasks) {
        run.scenario(&name(case.name), 2 * PATIENCE, async { ended_as(stack, &user, &task?, case).await }).await;
    }
    run.scenario(&name("canceled_before_submit"), PATIENCE, canceled_before_submit(stack, &user)).await;
    run.scenario(&name("canceled_while_running"), 2 * PATIENCE, canceled_while_running(stack, &user)).await;
    run.scenario(&name("cancel_is_asked_again"), 2 * PATIENCE, cancel_is_asked_again(stack, &user)).await;
    run.scenario(&name("cancel_races_success"), 2 * PATIENCE, cancel_races_success(stack, &user)).await;
}

async fn ended_as(stack: &Stack, user: &User, task: &str, case: &Case) -> anyhow::Result<()> {
    let ends = ["SUCCEEDED", "FAILED", "CANCELED", "CANCELED_WITH_OUTPUT", "MANUAL_REVIEW"];
    let it = user.until(task, &ends, PATIENCE).await?;
    ensure!(it["state"] == case.state, "it ended as {it}");
    let (class, code) = case.error;
    if class.is_empty() {
        ensure!(it["error"].is_null(), "it succeeded with an error: {it}");
    } else {
        ensure!(it["error"]["class"].as_str().is_some_and(|met| met.eq_ignore_ascii_case(class)), "{it}");
        ensure!(code == "*" || it["error"]["code"] == code, "{it}");
    }
    jobs_are(stack, &it, task, case.jobs).await?;
    hold_is_closed(stack, task, case.state == "SUCCEEDED").await
}

/// The simulator's count for the task's attempts.
async fn jobs_are(stack: &Stack, it: &Value, task: &str, wanted: u64) -> anyhow::Result<()> {
    let counters = Simulator::of(stack)?.counters().await?;
    let attempts: Vec<String> =
        sqlx::query_scalar("SELECT attempt_id::text FROM read_attempts WHERE task_id::text = $1")
            .bind(task)
            .fetch_all(stack.pool())
            .await?;
    ensure!(attempts.len() == 1, "{} attempts", attempts.len());
    let jobs: u64 = attempts.iter().filter_map(|attempt| counters.accepted.get(attempt)).sum();
    ensure!(jobs == wanted, "the provider accepted {jobs} jobs, not {wanted}: {it}");
    Ok(())
}

async fn hold_is_closed(stack: &Stack, task: &str, paid: bool) -> anyhow::Result<()> {
    tests::stack::eventually(Duration::from_secs(20), async || {
        let (state, reserved, settled, released): (String, i64, i64, i64) =
            sqlx::query_as("SELECT state, reserved, settled, released FROM read_holds WHERE task_id::text = $1")
                .bind(task)
                .fetch_one(stack.pool())
                .await?;
        ensure!(state == if paid { "SETTLED" } else { "RELEASED" }, "the hold is {state}");
        ensure!(reserved == settled + released, "{reserved} is not {settled} + {released}");
        let postings: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM events WHERE name IN ('account.settled', 'account.released') AND body->>'task' = $1",
        )
        .bind(task)
        .fetch_one(stack.pool())
        .await?;
        ensure!(postings == 1, "{postings} postings closed the hold");
        Ok(())
    })
    .await
}

/// A throttled task waits; cancelled then, nobody has it.
async fn canceled_before_submit(stack: &Stack, user: &User) -> anyhow::Result<()> {
    let task = user.submit("[sim: throttle=9] x").await?;
    user.until(&task, &["WAITING_RETRY"], PATIENCE).await?;
    let refusal = user.cancel(&task).await?;
    // Between two tries it may just be on its way to the provider: then the cancel is confirmed a moment later.
    ensure!(refusal.is_empty(), "the cancel was refused: {refusal}");
    user.until(&task, &["CANCELED"], PATIENCE).await?;
    hold_is_closed(stack, &task, false).await
}

async fn canceled_while_running(stack: &Stack, user: &User) -> anyhow::Result<()> {
    let task = user.submit("[sim: run=30000] x").await?;
    user.until(&task, &["PROVIDER_RUNNING"], PATIENCE).await?;
    ensure!(user.cancel(&task).await?.is_empty());
    ensure!(user.cancel(&task).await?.is_empty(), "a repeated cancel is the same cancel");
    let it = user.until(&task, &["CANCELED"], PATIENCE).await?;
    jobs_are(stack, &it, &task, 1).await?;
    hold_is_closed(stack, &task, false).await
}

async fn cancel_is_asked_again(stack: &Stack, user: &User) -> anyhow::Result<()> {
    let task = user.submit("[sim: run=30000 cancel=fail] x").await?;
    user.until(&task, &["PROVIDER_RUNNING"], PATIENCE).await?;
    ensure!(user.cancel(&task).await?.is_empty());
    user.until(&task, &["CANCELED"], PATIENCE).await?;
    hold_is_closed(stack, &task, false).await
}

/// 7.9.1: the provider finishes although it took the cancel. The rule of this installation delivers and charges.
async fn cancel_races_success(stack: &Stack, user: &User) -> anyhow::Result<()> {
    let task = user.submit("[sim: run=3000 cancel=late] x").await?;
    user.until(&task, &["PROVIDER_RUNNING"], PATIENCE).await?;
    ensure!(user.cancel(&task).await?.is_empty());
    user.until(&task, &["SUCCEEDED"], PATIENCE).await?;
    ensure!(!user.cancel(&task).await?.is_empty(), "a finished task can not be cancelled");
    hold_is_closed(stack, &task, true).await
}
