//! End-to-end tests on real parts: PostgreSQL, RocketMQ (both brokers), ffmpeg, the provider over HTTP, processes that are
//! killed. Everything is started through `./dev`, as a user would.
//!
//! `cargo test --workspace --test e2e -- apache main_path` runs the scenarios whose names contain all the words: brokers
//! (embedded, apache), groups (main_path, chaos, pairs), or a whole name.

mod admission;
mod chaos;
mod facts;
mod main_path;
mod shutdown;
mod unhappy;

use std::time::{Duration, Instant};
use tests::{Broker, Stack};

/// Short waits, so that limits are met within a test; the rules are the same.
const SETTINGS: &[(&str, &str)] = &[
    ("AIVIDEO_POLICY__SUBMIT_TIMEOUT_MS", "4000"),
    ("AIVIDEO_POLICY__LEASE_MARGIN_MS", "3000"),
    ("AIVIDEO_POLICY__SETTLE_DELAY_MS", "1500"),
    ("AIVIDEO_POLICY__POLL_FIRST_MS", "1000"),
    ("AIVIDEO_POLICY__POLL_CAP_MS", "3000"),
    // Callbacks that are lost on purpose are covered for as soon.
    ("AIVIDEO_POLICY__POLL_CALLING_BACK_FIRST_MS", "1000"),
    ("AIVIDEO_POLICY__POLL_CALLING_BACK_CAP_MS", "3000"),
    ("AIVIDEO_POLICY__MAX_RUNNING_SECONDS", "40"),
    ("AIVIDEO_POLICY__BACKOFF_BASE_MS", "1000"),
    ("AIVIDEO_POLICY__BACKOFF_CAP_MS", "5000"),
    // Media work whose worker was killed goes on when its lease ends, and the lease must exceed what a try may take.
    ("AIVIDEO_POLICY__PROCESSING_LEASE_SECONDS", "90"),
    ("AIVIDEO_LIMITS__TRANSFER_SECONDS", "10"),
    ("AIVIDEO_MEDIA__TIMEOUT_SECONDS", "5"),
    ("AIVIDEO_MEDIA__RENDER_TIMEOUT_SECONDS", "10"),
    ("AIVIDEO_SCAN__INTERVAL_MS", "2000"),
    ("AIVIDEO_SCAN__SLACK_MS", "8000"),
];

/// The results of a run.
struct Run {
    words: Vec<String>,
    passed: usize,
    failed: Vec<String>,
    filtered: usize,
}

impl Run {
    fn wants(&self, name: &str) -> bool {
        self.words.iter().all(|word| name.contains(word.as_str()))
    }

    /// Runs one scenario, with a limit of time.
    async fn scenario(&mut self, name: &str, limit: Duration, scenario: impl Future<Output = anyhow::Result<()>>) {
        if !self.wants(name) {
            self.filtered += 1;
            return;
        }
        let start = Instant::now();
        let result = tokio::time::timeout(limit, scenario).await;
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(Ok(())) => {
                self.passed += 1;
                println!("test {name} ... ok ({seconds:.1} s)");
            }
            Ok(Err(error)) => self.fail(name, &format!("{error:#}")),
            Err(_) => self.fail(name, &format!("not done within {} s", limit.as_secs())),
        }
    }

    fn fail(&mut self, name: &str, cause: &str) {
        println!("test {name} ... FAILED\n    {cause}");
        self.failed.push(name.to_owned());
    }
}

fn main() -> std::process::ExitCode {
    let words = std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    let mut run = Run { words, passed: 0, failed: vec![], filtered: 0 };
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return std::process::ExitCode::FAILURE;
        }
    };
    runtime.block_on(async {
        for broker in brokers() {
            on(broker, &mut run).await;
        }
    });
    let verdict = if run.failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {} passed; {} failed; 0 ignored; 0 measured; {} filtered out",
        run.passed,
        run.failed.len(),
        run.filtered
    );
    if run.failed.is_empty() { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}

/// Both, or the one that `DEV_BROKER` names.
fn brokers() -> Vec<Broker> {
    match std::env::var("DEV_BROKER").as_deref() {
        Ok("embedded") => vec![Broker::Embedded],
        Ok("apache") => vec![Broker::Apache],
        _ => vec![Broker::Embedded, Broker::Apache],
    }
}

/// All scenarios on one broker. Those of a group share a system; the judge has the last word on each.
async fn on(broker: Broker, run: &mut Run) {
    let minute = Duration::from_secs(60);
    let name = |what: &str| format!("{}::{what}", broker.word());
    if let Some(stack) = started(&name("main_path"), broker, true, run).await {
        let before = run.failed.len();
        run.scenario(&name("main_path::finished_video"), 2 * minute, main_path::finished_video(&stack)).await;
        run.scenario(&name("main_path::with_an_image"), 2 * minute, main_path::with_an_image(&stack)).await;
        run.scenario(&name("main_path::read_your_writes"), 3 * minute, main_path::read_your_writes(&stack)).await;
        unhappy::all(&stack, broker, run).await;
        facts::all(&stack, broker, run).await;
        run.scenario(&name("main_path::judged"), 3 * minute, tests::judge(&stack)).await;
        finished(stack, run, before).await;
    }
    if let Some(stack) = started(&name("admission"), broker, true, run).await {
        let before = run.failed.len();
        run.scenario(&name("admission::two_at_once"), 6 * minute, admission::two_at_once(&stack)).await;
        run.scenario(&name("admission::judged"), 3 * minute, tests::judge(&stack)).await;
        finished(stack, run, before).await;
    }
    if let Some(stack) = started(&name("chaos"), broker, true, run).await {
        let before = run.failed.len();
        run.scenario(&name("chaos::fifty_tasks_one_process"), 12 * minute, chaos::one_process(&stack)).await;
        finished(stack, run, before).await;
    }
    if let Some(stack) = started(&name("pairs"), broker, false, run).await {
        let before = run.failed.len();
        run.scenario(&name("pairs::fifty_tasks_two_of_every_role"), 12 * minute, chaos::two_of_every_role(&stack))
            .await;
        run.scenario(
            &name("pairs::k2_fifty_creates_with_one_key"),
            3 * minute,
            facts::fifty_creates_with_one_key(&stack),
        )
        .await;
        run.scenario(&name("pairs::stop_with_work_in_flight"), 4 * minute, shutdown::with_work_in_flight(&stack)).await;
        run.scenario(&name("pairs::backlog_of_twenty_thousand"), 15 * minute, facts::backlog(&stack)).await;
        finished(stack, run, before).await;
    }
}

async fn started(name: &str, broker: Broker, service: bool, run: &mut Run) -> Option<Stack> {
    let group = name.rsplit("::").next().unwrap_or(name);
    // A system is started only for scenarios that were asked for: words name a broker, a group, or both.
    let named = |word: &String| name.contains(word.as_str()) || (word.contains("::") && word.contains(name));
    if !run.words.iter().all(named) {
        run.filtered += 1;
        return None;
    }
    let limited: &[_] = if group == "admission" { admission::SETTINGS } else { &[] };
    match Stack::up(&format!("{}-{group}", broker.word()), broker, service, &[SETTINGS, limited].concat()).await {
        Ok(stack) => Some(stack),
        Err(error) => {
            run.fail(&format!("{name}::up"), &format!("{error:#}"));
            None
        }
    }
}

async fn finished(stack: Stack, run: &mut Run, failed_before: usize) {
    let keep = run.failed.len() > failed_before && std::env::var_os("CI").is_none();
    if let Err(error) = stack.down(keep).await {
        run.fail("down", &format!("{error:#}"));
    }
}
