//! Making a story short: fewer hours, fewer tasks, fewer kinds of fault, as long as the same promise is broken.

use crate::dice::Fault;
use crate::mutants::Mutant;
use crate::{Outcome, Setup, run};

/// A broken promise with the smallest world found that breaks it.
#[derive(Clone, Debug)]
pub struct Story {
    /// The smallest setup.
    pub setup: Setup,
    /// Its run, recorded.
    pub outcome: Outcome,
    /// Kinds of fault that it still needs, in words.
    pub needs: Vec<&'static str>,
}

/// Shrinks a setup that breaks `invariant`.
#[must_use]
pub fn shrink(setup: &Setup, mutant: Option<Mutant>, invariant: &'static str) -> Story {
    let breaks = |setup: &Setup| run(setup, mutant, false).violation.is_some_and(|it| it.invariant == invariant);
    let mut best = setup.clone();
    // First, while there are many tasks: which of them breaks it depends on when each comes, and that on the hours.
    while best.hours > 1 {
        let shorter = Setup { hours: best.hours / 2, ..best.clone() };
        if !breaks(&shorter) {
            break;
        }
        best = shorter;
    }
    let mut size = best.tasks.len() / 2;
    while size >= 1 {
        let mut from = 0;
        while from < best.tasks.len() {
            let mut tasks = best.tasks.clone();
            tasks.drain(from..(from + size).min(tasks.len()));
            let smaller = Setup { tasks, ..best.clone() };
            if !smaller.tasks.is_empty() && breaks(&smaller) {
                best = smaller;
            } else {
                from += size;
            }
        }
        size /= 2;
    }
    for fault in Fault::ALL {
        let calmer = Setup { faults: best.faults.without(*fault), ..best.clone() };
        if breaks(&calmer) {
            best = calmer;
        }
    }
    let needs = Fault::ALL.iter().filter(|it| best.faults.has(**it)).map(|it| it.text()).collect();
    Story { outcome: run(&best, mutant, true), setup: best, needs }
}
