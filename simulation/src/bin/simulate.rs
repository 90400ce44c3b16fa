//! Runs the simulation: `./dev simulate --help`.

use clap::Parser;
use simulation::{Coverage, Mutant, Outcome, Setup, Story, Violation, run, shrink};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Simulates the whole chain with one seed a world, and checks every promise after every step.
#[derive(Parser)]
struct Arguments {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Tasks in each world, at most 1000.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    tasks: u32,
    /// Simulated hours with faults in each world; what is under way then has to come to its end without them.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1000))]
    hours: u64,
    /// Worlds, one seed after the other.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Goes on with further seeds for so many minutes.
    #[arg(long)]
    minutes: Option<u64>,
    /// Prints every step of one world.
    #[arg(long, value_name = "SEED")]
    replay: Option<u64>,
    /// Switches on one seeded fault after the other; each must be found.
    #[arg(long)]
    mutants: bool,
    /// With --mutants: tells the story of how each was found.
    #[arg(long, requires = "mutants")]
    stories: bool,
    /// Where to write the figures as JSON.
    #[arg(long, default_value = "target/simulate.json")]
    json: std::path::PathBuf,
}

/// A mutant is looked for in at most so many worlds.
const WORLDS_FOR_A_MUTANT: u64 = 400;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.replay {
        return replay(&Setup::new(seed, arguments.tasks, arguments.hours));
    }
    if arguments.mutants {
        return mutants(&arguments);
    }
    simulate(&arguments)
}

fn replay(setup: &Setup) -> ExitCode {
    let outcome = run(setup, None, true);
    for line in &outcome.lines {
        println!("{line}");
    }
    println!("history {:016x}", outcome.hash);
    if outcome.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The figures of a run over many worlds.
#[derive(serde::Serialize)]
struct Report {
    first_seed: u64,
    last_seed: u64,
    passed: u64,
    failed: u64,
    tasks_created: u64,
    messages: u64,
    steps: u64,
    repairs: u64,
    seconds: f64,
    tasks_per_minute: f64,
    history: String,
    coverage: Vec<simulation::Reached>,
    violations: Vec<(u64, Violation)>,
}

fn simulate(arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let limit = arguments.minutes.map(|it| Duration::from_secs(it * 60));
    let mut total = Totals::default();
    let mut seed = arguments.seed;
    loop {
        let setup = Setup::new(seed, arguments.tasks, arguments.hours);
        total.take(&setup, run(&setup, None, false));
        let more = limit.map_or(seed + 1 < arguments.seed + arguments.seeds, |limit| started.elapsed() < limit);
        if !more || total.violations.len() >= 5 {
            break;
        }
        seed += 1;
    }
    let report = total.report(arguments.seed, seed, started.elapsed().as_secs_f64());
    let complete = print(&report, &total.coverage);
    write(&arguments.json, &report);
    println!("{} passed, {} failed", report.passed, report.failed);
    if complete && report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(Default)]
struct Totals {
    passed: u64,
    failed: u64,
    created: u64,
    messages: u64,
    steps: u64,
    repairs: u64,
    history: u64,
    coverage: Coverage,
    violations: Vec<(u64, Violation)>,
}

impl Totals {
    fn take(&mut self, setup: &Setup, outcome: Outcome) {
        self.created += outcome.created;
        self.messages += outcome.messages;
        self.steps += outcome.steps;
        self.repairs += outcome.repairs;
        self.history = self.history.rotate_left(7) ^ outcome.hash;
        self.coverage.add(&outcome.coverage);
        let tasks = setup.tasks.len() as u64;
        match outcome.violation {
            None => self.passed += tasks,
            Some(violation) => {
                self.failed += tasks;
                tell(&shrink(setup, None, violation.invariant));
                self.violations.push((setup.seed, violation));
            }
        }
    }

    fn report(&self, first_seed: u64, last_seed: u64, seconds: f64) -> Report {
        Report {
            first_seed,
            last_seed,
            passed: self.passed,
            failed: self.failed,
            tasks_created: self.created,
            messages: self.messages,
            steps: self.steps,
            repairs: self.repairs,
            seconds,
            tasks_per_minute: (self.passed + self.failed) as f64 * 60.0 / seconds.max(0.001),
            history: format!("{:016x}", self.history),
            coverage: self.coverage.rows(),
            violations: self.violations.clone(),
        }
    }
}

/// The most lines of a story that are printed.
const STORY_LINES: usize = 60;

fn tell(story: &Story) {
    println!("--- seed {}, tasks {:?}, {} h", story.setup.seed, story.setup.tasks, story.setup.hours);
    println!("--- needs: {}", story.needs.join("; "));
    let lines = &story.outcome.lines;
    if lines.len() > STORY_LINES {
        println!("    ({} earlier lines: ./dev simulate --replay {})", lines.len() - STORY_LINES, story.setup.seed);
    }
    for line in lines.iter().skip(lines.len().saturating_sub(STORY_LINES)) {
        println!("{line}");
    }
}

/// Says whether every row was reached.
fn print(report: &Report, coverage: &Coverage) -> bool {
    println!("{:<8} {:<19} {:<16} {:<20} {:>9}", "table", "from", "command", "to", "taken");
    for row in &report.coverage {
        println!("{:<8} {:<19} {:<16} {:<20} {:>9}", row.aggregate, row.from, row.on, row.to, row.count);
    }
    let missed = report.coverage.iter().filter(|it| it.count == 0).count();
    let strays = coverage.strays();
    for stray in &strays {
        println!("a step that no table has: {stray}");
    }
    println!(
        "seeds {} to {}: {} tasks created, {} messages, {} steps, {} repairs in {:.1} s: {:.0} tasks a minute",
        report.first_seed,
        report.last_seed,
        report.tasks_created,
        report.messages,
        report.steps,
        report.repairs,
        report.seconds,
        report.tasks_per_minute
    );
    println!("history {}", report.history);
    // A short run can not reach everything.
    let enough = report.passed + report.failed >= 5_000;
    if missed > 0 {
        println!("{missed} rows were never taken{}", if enough { "" } else { " (too few tasks to tell)" });
    }
    strays.is_empty() && (missed == 0 || !enough)
}

fn write(path: &std::path::Path, report: &Report) {
    let written = serde_json::to_string_pretty(report).map_err(std::io::Error::from).and_then(|text| {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, text)
    });
    if let Err(error) = written {
        eprintln!("the figures could not be written to {}: {error}", path.display());
    }
}

fn mutants(arguments: &Arguments) -> ExitCode {
    let mut survived = 0;
    println!("{:<52} {:<20} {:>6} {:>7}", "mutant", "killed by", "seed", "tasks");
    for mutant in Mutant::ALL {
        if !mutant.is_built_in() {
            println!("{:<52} not in this build: --features mutants", mutant.text());
            survived += 1;
            continue;
        }
        let killed = (0..WORLDS_FOR_A_MUTANT).find_map(|world| {
            let setup = Setup::new(arguments.seed + world, arguments.tasks, arguments.hours);
            let violation = run(&setup, Some(*mutant), false).violation?;
            Some((setup.seed, (world + 1) * u64::from(arguments.tasks), violation))
        });
        match killed {
            Some((seed, tasks, it)) => {
                println!("{:<52} {:<20} {seed:>6} {tasks:>7}", mutant.text(), it.invariant);
                if arguments.stories {
                    let setup = Setup::new(seed, arguments.tasks, arguments.hours);
                    tell(&shrink(&setup, Some(*mutant), it.invariant));
                }
            }
            None => {
                survived += 1;
                println!("{:<52} SURVIVED {} tasks", mutant.text(), WORLDS_FOR_A_MUTANT * u64::from(arguments.tasks));
            }
        }
    }
    println!("{} killed, {survived} survived", Mutant::ALL.len() - survived);
    if survived == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
