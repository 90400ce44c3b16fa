//! Whatever may happen, the read rows say what the domain says: held against histories that take every transition there is.

use super::rows::Rows;
use super::{At, assets, attempts, tasks};
use domain::aggregate::Aggregate;
use domain::testkit::strategies::{histories, start, usual_order};
use domain::{attempt, task};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use uuid::Uuid;

/// Enough for every transition: `histories_take_every_transition` in `domain` needs fewer, from the same luck.
const HISTORIES: usize = 1_000;
const LENGTH: usize = 14;

fn at(stream: Uuid, version: i64) -> At {
    At { position: version, stream, version, tenant: Uuid::nil(), recorded_at: start() }
}

#[test]
fn a_task_s_row_says_what_the_domain_says() {
    let mut runner = TestRunner::deterministic();
    for _ in 0..HISTORIES {
        let history = histories::<task::Task>(LENGTH).new_tree(&mut runner).expect("nothing is filtered").current();
        let (mut rows, mut state) = (Rows::default(), task::Task::absent());
        let id = Uuid::from_u128(1);
        for (version, event) in (1..).zip(&history.events) {
            state = state.evolve(event).expect("it folds");
            tasks::fold(&mut rows, at(id, version), event).expect("it folds here too");
            assets::fold(&mut rows, at(id, version), event).expect("it folds here too");
            let row = rows.tasks.get(&id).expect("a row");
            let said = (row.version, row.state.as_str(), row.finished_at.is_some());
            let expected = (version, state.state().name(), state.state().is_terminal());
            assert_eq!(said, expected, "after {:#?}", &history.events[..usize::try_from(version).expect("few")]);
        }
    }
}

#[test]
fn an_attempt_s_row_says_what_the_domain_says() {
    let mut runner = TestRunner::deterministic();
    for _ in 0..HISTORIES {
        let history =
            histories::<attempt::Attempt>(LENGTH).new_tree(&mut runner).expect("nothing is filtered").current();
        let (mut rows, mut state) = (Rows::default(), attempt::Attempt::absent());
        let id = Uuid::from_u128(2);
        for (version, event) in (1..).zip(&history.events) {
            if let attempt::Event::Planned { task, .. } = event {
                let order = usual_order(*task);
                tasks::fold(&mut rows, at(task.0, 1), &task::Event::Submitted { order }).expect("a task to try");
            }
            state = state.evolve(event).expect("it folds");
            attempts::fold(&mut rows, at(id, version), event).expect("it folds here too");
            let row = rows.attempts.get(&id).expect("a row");
            let said = (row.version, row.state.as_str());
            assert_eq!(said, (version, state.state().name()), "after {:#?}", history.events);
        }
    }
}
