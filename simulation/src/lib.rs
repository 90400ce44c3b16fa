#![doc = include_str!("../README.md")]

mod api;
mod broker;
mod clock;
mod coverage;
mod dice;
mod handling;
mod mutants;
mod people;
mod process;
mod projection;
mod provider;
mod relay;
mod shrink;
mod store;
mod trace;
mod watch;
mod world;

pub use coverage::{Coverage, Reached};
pub use dice::Faults;
pub use mutants::Mutant;
pub use shrink::{Story, shrink};
pub use watch::Violation;

use world::World;

/// What a run is made of. The same setup gives the same history, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Where all chance comes from.
    pub seed: u64,
    /// The tasks, by number: a story is shrunk by leaving some out.
    pub tasks: Vec<u32>,
    /// How long people submit and faults happen, in simulated hours (people submit in the first half).
    pub hours: u64,
    /// Which kinds of fault may happen.
    pub faults: Faults,
}

impl Setup {
    /// So many tasks with all kinds of fault.
    #[must_use]
    pub fn new(seed: u64, tasks: u32, hours: u64) -> Self {
        Self { seed, tasks: (0..tasks).collect(), hours, faults: Faults::all() }
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The first broken promise, which ended the run.
    pub violation: Option<Violation>,
    /// Hash of the whole history.
    pub hash: u64,
    /// Rows of the transition tables that were taken.
    pub coverage: Coverage,
    /// Messages that the broker took.
    pub messages: u64,
    /// Steps taken.
    pub steps: u64,
    /// Repairs made by the scan for stalled tasks.
    pub repairs: u64,
    /// How many tasks were created.
    pub created: u64,
    /// A line for each step, where it was recorded.
    pub lines: Vec<String>,
}

/// Runs a world to its end, or to the first broken promise.
#[must_use]
pub fn run(setup: &Setup, mutant: Option<Mutant>, recorded: bool) -> Outcome {
    domain::mutant::set(mutant.and_then(Mutant::in_domain));
    let mut world = World::new(setup, mutant, recorded);
    world.run();
    domain::mutant::set(None);
    Outcome {
        messages: world.broker.copies.len() as u64,
        steps: world.steps,
        repairs: world.repairs,
        created: world.lives.values().map(|it| it.created.len() as u64).sum(),
        hash: world.trace.hash(),
        violation: world.violation,
        coverage: world.coverage,
        lines: world.trace.into_lines(),
    }
}
