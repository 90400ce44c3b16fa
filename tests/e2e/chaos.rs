//! Fifty tasks with mixed faults, while processes are killed. Afterwards every invariant is checked from outside.

use crate::facts::free_address;
use anyhow::{Context, ensure};
use rand::RngExt;
use rand::seq::IndexedRandom;
use std::collections::BTreeMap;
use std::time::Duration;
use tests::stack::ready;
use tests::{RoleProcess, Stack, User, judge};

const TASKS: usize = 50;
const KILLS: usize = 20;

/// A mixture of everything that happens to providers, their networks and their users.
const PROMPTS: &[&str] = &[
    "[sim: run=1500] a boat",
    "[sim: drop=after] a boat",
    "[sim: 5xx=after] a boat",
    "[sim: throttle=2] a boat",
    "[sim: callback=duplicate run=1500] a boat",
    "[sim: callback=early] a boat",
    "[sim: cut=1] a boat",
    "[sim: fail=internal] a boat",
    "[sim: refuse=moderation] a boat",
    "[sim: run=4000 callback=none] a boat",
];

/// The service is killed twenty times, the broker once, PostgreSQL once.
pub async fn one_process(stack: &Stack) -> anyhow::Result<()> {
    let user = User::new(stack, 10_000_000).await?;
    let submitting = submit_all(&user);
    let killing = async {
        for kill in 0..KILLS {
            sleep_some(300, 2500).await;
            restart_a_part(stack, kill).await?;
            restart(stack, "service").await?;
        }
        anyhow::Ok(())
    };
    let (tasks, killed) = tokio::join!(submitting, killing);
    killed?;
    ended_and_judged(stack, &user, &tasks?).await
}

/// Two processes of every role: work is shared, nothing happens twice, and either can be killed.
pub async fn two_of_every_role(stack: &Stack) -> anyhow::Result<()> {
    let second_api = free_address()?;
    let log =
        "info,messaging::listener=debug,projections::relay=debug,rocketmq_client_rust=warn,rocketmq_transport=error";
    let first = [("AIVIDEO_LOG", log)];
    let second = [first[0], ("AIVIDEO_API__LISTEN", second_api.as_str())];
    let mut processes = vec![
        RoleProcess::start(stack, "serve-1", &["serve"], &first)?,
        RoleProcess::start(stack, "serve-2", &["serve"], &second)?,
        RoleProcess::start(stack, "work-1", &["work"], &first)?,
        RoleProcess::start(stack, "work-2", &["work"], &first)?,
        RoleProcess::start(stack, "relay-1", &["relay"], &first)?,
        RoleProcess::start(stack, "relay-2", &["relay"], &first)?,
        RoleProcess::start(stack, "project-1", &["project"], &first)?,
        RoleProcess::start(stack, "project-2", &["project"], &first)?,
    ];
    ready(stack.setting("AIVIDEO_API__PUBLIC_URL")?, Duration::from_secs(60)).await?;
    ready(&format!("http://{second_api}"), Duration::from_secs(60)).await?;
    let user = User::new(stack, 10_000_000).await?;
    let submitting = submit_all(&user);
    let killing = async {
        for kill in 0..KILLS {
            sleep_some(300, 2500).await;
            restart_a_part(stack, kill).await?;
            let index = rand::rng().random_range(0..processes.len());
            processes[index].kill().await?;
            sleep_some(100, 1000).await;
            processes[index].restart(stack)?;
        }
        anyhow::Ok(())
    };
    let (tasks, killed) = tokio::join!(submitting, killing);
    killed?;
    ended_and_judged(stack, &user, &tasks?).await?;
    shared(stack)?;
    for process in &mut processes {
        process.kill().await?;
    }
    Ok(())
}

async fn submit_all(user: &User) -> anyhow::Result<Vec<String>> {
    let mut tasks = vec![];
    for number in 0..TASKS {
        let prompt = PROMPTS[number % PROMPTS.len()];
        tasks.push(user.submit_with_key(prompt, &format!("task-{number}")).await?);
        sleep_some(100, 900).await;
        if number % 17 == 16 {
            // A user who changes their mind; whatever comes of it has a name.
            let task = tasks.choose(&mut rand::rng()).context("no task yet")?.clone();
            drop(user.cancel(&task).await);
        }
    }
    Ok(tasks)
}

/// On the way, the broker is killed once and PostgreSQL once.
async fn restart_a_part(stack: &Stack, kill: usize) -> anyhow::Result<()> {
    match kill {
        7 => restart(stack, "broker").await,
        13 => restart(stack, "postgres").await,
        _ => Ok(()),
    }
}

async fn restart(stack: &Stack, part: &str) -> anyhow::Result<()> {
    stack.kill(part).await?;
    sleep_some(100, 800).await;
    stack.start(part).await
}

async fn ended_and_judged(stack: &Stack, user: &User, tasks: &[String]) -> anyhow::Result<()> {
    let distinct: BTreeMap<&String, ()> = tasks.iter().map(|task| (task, ())).collect();
    ensure!(distinct.len() == TASKS, "{} tasks for {TASKS} keys", distinct.len());
    let ends = user.until_all_ended(stack, TASKS, Duration::from_secs(300)).await?;
    println!("    ends: {ends:?}");
    let succeeded = ends.get("SUCCEEDED").copied().unwrap_or(0);
    // Of ten prompts two are meant to fail; up to two tasks were cancelled.
    ensure!(succeeded >= i64::try_from(TASKS * 8 / 10 - 2)?, "too few succeeded: {ends:?}");
    judge(stack).await
}

/// Both copies of each role did a part of the work, by their own count.
fn shared(stack: &Stack) -> anyhow::Result<()> {
    for (role, word) in [("work", "handled"), ("relay", "published")] {
        let mut counts = vec![];
        for copy in [1, 2] {
            let log = std::fs::read_to_string(stack.state().join("logs").join(format!("{role}-{copy}.log")))?;
            counts.push(log.lines().filter(|line| line.contains("DEBUG") && line.contains(word)).count());
        }
        println!("    {word} by the two copies of {role}: {counts:?}");
        ensure!(counts.iter().all(|count| *count >= 10), "{role}: the work was not shared: {counts:?}");
    }
    Ok(())
}

async fn sleep_some(from: u64, to: u64) {
    let millis = rand::rng().random_range(from..to);
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
