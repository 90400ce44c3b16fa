//! What operators and frontends see of the running system, and field cases that need all of it.

use crate::Run;
use anyhow::{Context, ensure};
use futures_util::future::join_all;
use serde_json::json;
use std::net::TcpListener;
use std::time::{Duration, Instant};
use tests::stack::eventually;
use tests::{Broker, RoleProcess, Stack, User};
use uuid::Uuid;

/// All that share the system of the main path.
pub async fn all(stack: &Stack, broker: Broker, run: &mut Run) {
    let name = |what: &str| format!("{}::main_path::{what}", broker.word());
    let minute = Duration::from_secs(60);
    run.scenario(&name("l1_two_requests_one_credit"), minute, two_requests_one_credit(stack)).await;
    run.scenario(&name("explorer_and_readiness"), minute, explorer_and_readiness(stack)).await;
    run.scenario(&name("o4_broker_away"), 4 * minute, broker_away(stack)).await;
    run.scenario(&name("rebuild_and_verify"), 2 * minute, rebuild_and_verify(stack)).await;
    run.scenario(&name("up_twice_is_harmless"), 2 * minute, up_twice(stack)).await;
}

/// K2: fifty creates with one key, at three API processes.
pub async fn fifty_creates_with_one_key(stack: &Stack) -> anyhow::Result<()> {
    let mut processes = vec![RoleProcess::start(stack, "k2-serve-1", &["serve"], &[])?];
    let mut addresses = vec![stack.setting("AIVIDEO_API__PUBLIC_URL")?.to_owned()];
    for copy in [2, 3] {
        let address = free_address()?;
        let listen = [("AIVIDEO_API__LISTEN", address.as_str())];
        processes.push(RoleProcess::start(stack, &format!("k2-serve-{copy}"), &["serve"], &listen)?);
        addresses.push(format!("http://{address}"));
    }
    for address in &addresses {
        tests::stack::ready(address, Duration::from_secs(60)).await?;
    }
    let user = User::new(stack, 1_000_000).await?;
    let users: Vec<User> = addresses.iter().map(|address| user.elsewhere(address)).collect();
    // Each process opens its connections first: fifty at once, each with its handshake, take long on a busy machine.
    eventually(Duration::from_secs(60), async || {
        let looks = (0..90).map(|at| users[at % users.len()].client.run("{ account { available } }", json!({})));
        join_all(looks).await.into_iter().collect::<Result<Vec<_>, _>>().map(drop).map_err(Into::into)
    })
    .await?;
    let answers =
        join_all((0..50).map(|at| users[at % users.len()].submit_once("[sim: refuse=422] x", "one-key"))).await;
    let mut tasks: Vec<String> = vec![];
    for answer in answers {
        let answer = answer?;
        ensure!(answer["refusal"].is_null(), "{answer}");
        tasks.push(answer["taskId"].as_str().context("no task id")?.to_owned());
    }
    tasks.dedup();
    ensure!(tasks.len() == 1, "{} tasks", tasks.len());
    let holds: i64 = sqlx::query_scalar("SELECT count(*) FROM events WHERE name = 'account.held' AND stream_id = $1")
        .bind(user.tenant)
        .fetch_one(stack.pool())
        .await?;
    ensure!(holds == 1, "{holds} holds");
    for process in &mut processes {
        process.terminate().await?;
    }
    Ok(())
}

/// An address that nothing listens at.
pub fn free_address() -> anyhow::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

async fn two_requests_one_credit(stack: &Stack) -> anyhow::Result<()> {
    // One second costs 25, and 30 are held.
    let user = User::new(stack, 30).await?;
    let both = join_all(["a", "b"].map(|key| user.submit_once("[sim: run=500] x", key))).await;
    let both: Vec<_> = both.into_iter().collect::<Result<_, _>>()?;
    let refused: Vec<_> = both.iter().filter(|it| !it["refusal"].is_null()).collect();
    ensure!(refused.len() == 1, "{both:?}");
    ensure!(
        refused[0]["refusal"]["code"].as_str().is_some_and(|code| code.eq_ignore_ascii_case("insufficient_credits")),
        "{both:?}"
    );
    Ok(())
}

async fn explorer_and_readiness(stack: &Stack) -> anyhow::Result<()> {
    let base = stack.setting("AIVIDEO_API__PUBLIC_URL")?;
    let page = reqwest::get(format!("{base}/graphql")).await?;
    ensure!(page.status().is_success(), "the explorer says {}", page.status());
    let page = page.text().await?;
    ensure!(page.contains("<html") && page.len() > 1000, "the explorer is no page");
    ensure!(reqwest::get(format!("{base}/ready")).await?.status().is_success(), "not ready");
    ensure!(reqwest::get(format!("{base}/live")).await?.status().is_success(), "not live");
    Ok(())
}

/// O4: while the broker is away nothing counts as sent; afterwards everything is.
async fn broker_away(stack: &Stack) -> anyhow::Result<()> {
    let user = User::new(stack, 1_000_000).await?;
    stack.kill("broker").await?;
    let task = user.submit("[sim: run=500] x").await?;
    let tried = "SELECT published_at IS NULL, publish_attempts, last_error_code FROM outbox_events
                  WHERE aggregate_id::text = $1 AND topic = 'generation.submit'";
    let failed = eventually(Duration::from_secs(40), async || {
        let (unsent, attempts, code): (bool, i32, Option<String>) =
            sqlx::query_as(tried).bind(&task).fetch_one(stack.pool()).await?;
        ensure!(attempts > 0 && code.is_some(), "tried {attempts} times: {code:?}");
        Ok((unsent, attempts))
    })
    .await;
    stack.start("broker").await?;
    let (unsent, attempts) = failed?;
    ensure!(unsent, "the row counts as sent");
    ensure!(attempts < 40, "tried {attempts} times: that is a tight loop");
    user.until(&task, &["SUCCEEDED"], Duration::from_secs(120)).await?;
    Ok(())
}

async fn rebuild_and_verify(stack: &Stack) -> anyhow::Result<()> {
    stack.dev(&["aivideo", "project", "verify"]).await?;
    stack.dev(&["aivideo", "project", "rebuild"]).await?;
    stack.dev(&["aivideo", "project", "verify"]).await?;
    let said = stack.dev(&["aivideo", "doctor"]).await?;
    ensure!(said.contains("passed, 0 failed"), "{said}");
    let said = stack.dev(&["aivideo", "status"]).await?;
    ensure!(said.contains("unsent"), "{said}");
    Ok(())
}

async fn up_twice(stack: &Stack) -> anyhow::Result<()> {
    let said = stack.dev(&["up"]).await?;
    ensure!(said.contains("already running"), "{said}");
    ensure!(said.contains("/graphql"), "{said}");
    Ok(())
}

/// Twenty thousand messages wait; then the consumers start. No message is lost or dropped by the client on the way.
pub async fn backlog(stack: &Stack) -> anyhow::Result<()> {
    const MESSAGES: i64 = 20_000;
    let _serve = RoleProcess::start(stack, "backlog-serve", &["serve"], &[])?;
    let _project = RoleProcess::start(stack, "backlog-project", &["project"], &[])?;
    let mut relay = RoleProcess::start(stack, "backlog-relay", &["relay"], &[])?;
    tests::stack::ready(stack.setting("AIVIDEO_API__PUBLIC_URL")?, Duration::from_secs(60)).await?;
    let user = User::new(stack, 1_000_000).await?;
    let task: Uuid = user.submit("[sim: refuse=422] x").await?.parse()?;
    let marker = Uuid::new_v4();
    sqlx::query(
        "INSERT INTO outbox_events (event_id, aggregate_type, aggregate_id, event_type, schema_version, topic, tag, payload,
                                    tenant_id, trace_id, correlation_id, causation_id, occurred_at, available_at)
         SELECT gen_random_uuid(), 'task', gen_random_uuid(), 'task.state.changed', 1, 'notification.event', 'STATE', $1, $2,
                '', $3, $3, now(), now()
           FROM generate_series(1, $4)",
    )
    .bind(json!({ "task_id": task, "task_version": 0 }))
    .bind(user.tenant)
    .bind(marker)
    .bind(MESSAGES)
    .execute(stack.pool())
    .await?;
    let start = Instant::now();
    let unsent = "SELECT count(*) FROM outbox_events WHERE correlation_id = $1 AND published_at IS NULL";
    none_left(stack, unsent, marker, 0).await?;
    let sent = start.elapsed().as_secs_f64();
    let mut work = RoleProcess::start(stack, "backlog-work", &["work", "--group", "cg.notification.push.v1"], &[])?;
    let start = Instant::now();
    let handled = "SELECT $2 - count(*) FROM inbox_dedup i JOIN outbox_events o USING (event_id)
                    WHERE o.correlation_id = $1 AND i.phase = 'done'";
    none_left(stack, handled, marker, MESSAGES).await?;
    let drained = start.elapsed().as_secs_f64();
    println!("    backlog: sent {:.0}/s, drained {:.0}/s", MESSAGES as f64 / sent, MESSAGES as f64 / drained);
    relay.terminate().await?;
    work.terminate().await?;
    let log = std::fs::read_to_string(stack.state().join("logs/backlog-work.log"))?;
    let complaints: Vec<&str> =
        log.lines().filter(|line| line.contains("capacity.exhausted") || line.contains("ERROR")).take(3).collect();
    ensure!(complaints.is_empty(), "the client complained: {complaints:?}");
    Ok(())
}

async fn none_left(stack: &Stack, query: &'static str, marker: Uuid, total: i64) -> anyhow::Result<()> {
    eventually(Duration::from_secs(420), async || {
        let query = sqlx::query_scalar(query).bind(marker);
        let query = if total > 0 { query.bind(total) } else { query };
        let left: i64 = query.fetch_one(stack.pool()).await?;
        ensure!(left == 0, "{left} left");
        Ok(())
    })
    .await
}
