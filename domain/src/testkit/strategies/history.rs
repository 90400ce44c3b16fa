//! Sessions (what callers send) and histories (what came of it).

use super::basics::start;
use crate::aggregate::Decision;
use crate::testkit::Subject;
use crate::time::Timestamp;
use chrono::TimeDelta;
use proptest::prelude::*;
use proptest::sample::Index;

/// A command and the time it is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<C> {
    /// When.
    pub at: Timestamp,
    /// What.
    pub command: C,
}

/// Up to `length` commands as they reach an aggregate on a bad day: sensible ones mostly, a few hostile ones, and earlier
/// ones again, at once or much later. Time does not go back.
pub fn sessions<A: Subject>(length: usize) -> BoxedStrategy<Vec<Step<A::Command>>> {
    let fresh = prop_oneof![12 => A::commands(), 1 => A::hostile_commands()];
    let next = (prop_oneof![4 => fresh.prop_map(Ok), 1 => any::<Index>().prop_map(Err)], 0_i64..240);
    prop::collection::vec(next, 0..=length)
        .prop_map(|drawn| {
            let mut steps: Vec<Step<A::Command>> = Vec::with_capacity(drawn.len());
            let mut at = start();
            for (command, pause) in drawn {
                at += TimeDelta::seconds(pause);
                let command = match command {
                    Ok(fresh) => fresh,
                    Err(_) if steps.is_empty() => continue,
                    Err(earlier) => steps[earlier.index(steps.len())].command.clone(),
                };
                steps.push(Step { at, command });
            }
            steps
        })
        .boxed()
}

/// A history, and how it came about.
#[derive(Clone, Debug)]
pub struct History<A: Subject> {
    /// The commands that were recorded.
    pub steps: Vec<Step<A::Command>>,
    /// What was recorded, in order.
    pub events: Vec<A::Event>,
    /// The state after it.
    pub state: A,
}

/// Histories of up to `length` recorded commands, made by `decide` alone. At each step several commands are tried, and
/// the first that is recorded counts: so that histories get far.
pub fn histories<A: Subject>(length: usize) -> BoxedStrategy<History<A>> {
    let step = (prop::collection::vec(A::commands(), 1..10), 0_i64..240);
    prop::collection::vec(step, 0..=length)
        .prop_map(|drawn| {
            let mut history = History { steps: Vec::new(), events: Vec::new(), state: A::absent() };
            let mut at = start();
            for (candidates, pause) in drawn {
                at += TimeDelta::seconds(pause);
                advance(&mut history, candidates, at);
            }
            history
        })
        .boxed()
}

fn advance<A: Subject>(history: &mut History<A>, candidates: Vec<A::Command>, at: Timestamp) {
    for command in candidates {
        let Ok(Decision::Record(events)) = history.state.decide(command.clone(), at) else { continue };
        // A decision that does not fold is for a property to find, not for a strategy to hide: the history ends here.
        let Ok(state) = events.iter().try_fold(history.state.clone(), |state, event| state.evolve(event)) else {
            return;
        };
        history.state = state;
        history.events.extend(events);
        history.steps.push(Step { at, command });
        return;
    }
}
