//! The simulation as a test: fixed worlds, fresh ones, the same history twice, and every mutant found.

use simulation::{Coverage, Faults, Mutant, Outcome, Setup, run, shrink};
use std::time::{SystemTime, UNIX_EPOCH};

const TASKS: u32 = 50;
const HOURS: u64 = 4;

fn sound(seed: u64) -> Outcome {
    let setup = Setup::new(seed, TASKS, HOURS);
    let outcome = run(&setup, None, false);
    if let Some(violation) = &outcome.violation {
        let story = shrink(&setup, None, violation.invariant);
        panic!(
            "seed {seed} breaks {}: {}\n{}\n./dev simulate --replay {seed} --tasks {TASKS} --hours {HOURS}",
            violation.invariant,
            violation.text,
            story.outcome.lines.join("\n")
        );
    }
    outcome
}

#[test]
fn fixed_worlds_keep_every_promise() {
    let mut coverage = Coverage::default();
    for seed in 1..=60 {
        let outcome = sound(seed);
        assert!(outcome.created > 0 && outcome.messages > outcome.created, "seed {seed} does nothing");
        coverage.add(&outcome.coverage);
    }
    assert_eq!(coverage.strays(), Vec::<String>::new(), "every step is a row of its table");
    let missed: Vec<_> = coverage.rows().into_iter().filter(|row| row.count == 0).collect();
    assert!(missed.len() <= 12, "so few tasks reach nearly every row: {missed:?}");
}

#[test]
fn fresh_worlds_keep_every_promise() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let first = now * 100;
    println!("fresh seeds {first} to {}", first + 19);
    for seed in first..first + 20 {
        sound(seed);
    }
}

#[test]
fn a_world_without_faults_repairs_nothing() {
    let outcome = run(&Setup { faults: Faults::none(), ..Setup::new(7, TASKS, HOURS) }, None, false);
    assert_eq!(outcome.violation, None);
    assert_eq!(outcome.created, u64::from(TASKS));
    assert_eq!(outcome.repairs, 0, "nothing is lost, so there is nothing to repair");
}

#[test]
fn the_same_setup_gives_the_same_history() {
    let setup = Setup::new(11, TASKS, HOURS);
    let (first, second) = (run(&setup, None, true), run(&setup, None, true));
    assert_eq!(first.lines, second.lines);
    assert_eq!(first.hash, second.hash);
    assert_eq!(first.hash, run(&setup, None, false).hash, "telling the story changes nothing");
    assert_ne!(first.hash, run(&Setup::new(12, TASKS, HOURS), None, false).hash);
}

#[test]
fn every_mutant_is_found() {
    for mutant in Mutant::ALL {
        assert!(mutant.is_built_in(), "{}: not in this build", mutant.text());
        let found =
            (1..=400).any(|seed| run(&Setup::new(seed, TASKS, HOURS), Some(*mutant), false).violation.is_some());
        assert!(found, "{} survived {} tasks", mutant.text(), 400 * TASKS);
    }
}

#[test]
fn a_story_is_short_and_ends_with_what_broke() {
    let mutant = Some(Mutant::CancelAtOnce);
    let (setup, violation) = (1..=50)
        .find_map(|seed| {
            let setup = Setup::new(seed, TASKS, HOURS);
            run(&setup, mutant, false).violation.map(|it| (setup, it))
        })
        .expect("it is found");
    let story = shrink(&setup, mutant, violation.invariant);
    assert!(story.setup.tasks.len() <= 2, "{:?}", story.setup.tasks);
    assert_eq!(story.setup.hours, 1);
    let last = story.outcome.lines.last().expect("a line");
    assert!(last.contains("VIOLATION") && last.contains(violation.invariant), "{last}");
}
