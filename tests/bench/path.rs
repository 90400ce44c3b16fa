//! How fast news travels: from COMMIT to the broker's answer, and from COMMIT to visible in GraphQL, at 50 tasks a second on
//! Apache RocketMQ, with the commit rate of a bare INSERT of the same bytes beside it.
//!
//! The provider refuses the tasks: what is measured is our path, not ffmpeg.

use anyhow::Context;
use bench::report::{Row, median, percentile, write};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tests::{Broker, Stack, User};

const RUNS: usize = 5;
const RATE: u64 = 50;
const SECONDS: u64 = 10;
const TENANTS: usize = 5;

/// One run's figures, in milliseconds and commits a second.
struct Measured {
    broker: [f64; 2],
    visible: [f64; 2],
    bare_commits: f64,
    answered: f64,
}

/// The benchmark.
///
/// # Errors
/// The system does not start, or a request fails.
pub async fn run() -> anyhow::Result<()> {
    let stack = Stack::up("bench", Broker::Apache, true, &[]).await?;
    let mut users = vec![];
    for _ in 0..TENANTS {
        users.push(Arc::new(User::new(&stack, 1_000_000_000).await?));
    }
    // What is measured later has been done before: caches are warm, queues are assigned.
    one_run(&stack, &users, 20).await?;
    let mut runs = vec![];
    for number in 1..=RUNS {
        let it = one_run(&stack, &users, SECONDS).await?;
        println!("run {number}: to the broker p99 {:.1} ms, visible p99 {:.1} ms", it.broker[1], it.visible[1]);
        runs.push(it);
    }
    stack.down(false).await?;
    write("path", &rows(&runs))
}

fn rows(runs: &[Measured]) -> Vec<Row> {
    let of = |pick: &dyn Fn(&Measured) -> f64| median(runs.iter().map(pick).collect());
    let latency = |measure: &str, ours: f64, aim: &'static str, met: Option<bool>| Row {
        measure: measure.to_owned(),
        ours,
        unit: "ms",
        reference: String::new(),
        theirs: None,
        ratio: None,
        aim,
        met,
    };
    let broker = of(&|it| it.broker[1]);
    let visible = of(&|it| it.visible[1]);
    let (bare, tasks) = (of(&|it| it.bare_commits), of(&|it| it.answered));
    vec![
        latency("outbox row written to broker's answer recorded, p50", of(&|it| it.broker[0]), "", None),
        latency("outbox row written to broker's answer recorded, p99", broker, "under 50 ms", Some(broker < 50.0)),
        latency("mutation answered to visible in GraphQL, p50", of(&|it| it.visible[0]), "", None),
        latency("mutation answered to visible in GraphQL, p99", visible, "under 50 ms", Some(visible < 50.0)),
        Row {
            measure: "tasks accepted a second (load offered: 50)".to_owned(),
            ours: tasks,
            unit: "per second",
            reference: "bare INSERT of an event's bytes, one session, commits".to_owned(),
            theirs: Some(bare),
            ratio: Some(tasks / bare),
            aim: "",
            met: None,
        },
    ]
}

async fn one_run(stack: &Stack, users: &[Arc<User>], seconds: u64) -> anyhow::Result<Measured> {
    let bare_commits = bare_insert(stack).await?;
    let since: chrono::DateTime<chrono::Utc> =
        sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(stack.pool()).await?;
    let start = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_millis(1000 / RATE));
    let mut requests = tokio::task::JoinSet::new();
    for number in 0..RATE * seconds {
        ticks.tick().await;
        let user = Arc::clone(&users[usize::try_from(number)? % users.len()]);
        requests.spawn(async move { submit_and_see(&user).await });
    }
    let mut visible = vec![];
    while let Some(request) = requests.join_next().await {
        visible.push(request??);
    }
    let answered = visible.len() as f64 / start.elapsed().as_secs_f64();
    // What the last tasks set off is on its way.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut broker: Vec<f64> = sqlx::query_scalar(
        "SELECT (extract(epoch FROM published_at - created_at) * 1000)::float8 FROM outbox_events
          WHERE created_at > $1 AND published_at IS NOT NULL",
    )
    .bind(since)
    .fetch_all(stack.pool())
    .await?;
    anyhow::ensure!(!broker.is_empty(), "nothing was published");
    Ok(Measured {
        broker: [percentile(&mut broker, 50.0), percentile(&mut broker, 99.0)],
        visible: [percentile(&mut visible, 50.0), percentile(&mut visible, 99.0)],
        bare_commits,
        answered,
    })
}

/// Milliseconds from the mutation's answer (it is given after COMMIT) until a query that asks for that version is answered.
async fn submit_and_see(user: &User) -> anyhow::Result<f64> {
    let payload = user.submit_once("[sim: refuse=422] x", &uuid::Uuid::new_v4().to_string()).await?;
    let committed = Instant::now();
    let version = payload["version"].as_i64().with_context(|| format!("not accepted: {payload}"))?;
    // Answered with "not yet" when the read model is further behind than a query waits: asked again, and the time runs on.
    user.task_at(&payload["taskId"], version).await?;
    Ok(committed.elapsed().as_secs_f64() * 1000.0)
}

/// Commits a second of one session that inserts what an event takes, one row a transaction.
async fn bare_insert(stack: &Stack) -> anyhow::Result<f64> {
    let mut session = stack.pool().acquire().await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS bench_bare (id uuid, name text, body jsonb, at timestamptz)")
        .execute(&mut *session)
        .await?;
    let body = json!({ "attempt_no": 1, "job": "0123456789abcdef0123456789abcdef", "percent": 50 });
    let start = Instant::now();
    let mut commits = 0_u32;
    while start.elapsed() < Duration::from_secs(2) {
        sqlx::query("INSERT INTO bench_bare VALUES ($1, $2, $3, now())")
            .bind(uuid::Uuid::new_v4())
            .bind("attempt.polled")
            .bind(&body)
            .execute(&mut *session)
            .await?;
        commits += 1;
    }
    Ok(f64::from(commits) / start.elapsed().as_secs_f64())
}
