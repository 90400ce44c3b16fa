//! The same sequence, in the model and on PostgreSQL: after each step the same answer, at the end the same facts.

use super::Anyhow;
use super::action::Said;
use super::clock::Clocked;
use super::facts::Facts;
use super::memory::Memory;
use super::steps::{Cast, Step, policy, steps};
use super::work::Work;
use domain::testkit::strategies::start;
use eventstore::Store;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeSet;
use uuid::Uuid;

const CASES: u32 = 128;
const STEPS: usize = 40;

pub fn memory() -> Memory {
    Memory { facts: Facts::default(), policy: policy(), now: start() }
}

/// Runs one sequence on both.
async fn both(database: &Clocked, store: &Store, steps: &[Step], seen: &RefCell<BTreeSet<String>>) -> Anyhow {
    database.clear().await?;
    let mut memory = memory();
    let mut cast = Cast::new(Uuid::new_v4());
    let mut actions: Vec<_> = cast.opening().into_iter().map(Some).collect();
    actions.extend(steps.iter().map(|_| None));
    let opening = actions.iter().flatten().count();
    for (number, action) in actions.into_iter().enumerate() {
        let action = match action {
            Some(action) => action,
            None => match cast.resolve(&steps[number - opening], &mut memory) {
                Some(action) => action,
                None => continue,
            },
        };
        database.set(memory.now).await?;
        let found = action.run(store).await?;
        let expected = Work::run(&action, &mut memory);
        if found != expected {
            return Err(format!("step {number}, {action:?}\n  found    {found:?}\n  expected {expected:?}").into());
        }
        seen.borrow_mut().insert(kind(&found));
    }
    let found = database.facts().await?;
    let names = found.streams.values().flatten().map(|event| event.stored.name.clone());
    seen.borrow_mut().extend(names);
    if found != memory.facts {
        return Err(found.difference(&memory.facts).into());
    }
    Ok(())
}

fn kind(said: &Said) -> String {
    match said {
        Said::Executed(it) if it.replayed => "replayed".to_owned(),
        Said::Executed(_) => "executed".to_owned(),
        Said::Refused(refusal) => format!("refused: {}", refusal.code),
        Said::Acknowledged(outcome, _) => format!("{outcome:?}"),
        Said::KeyReused => "KeyReused".to_owned(),
        Said::NotFound => "NotFound".to_owned(),
        Said::Unfinished(..) => "Unfinished".to_owned(),
    }
}

#[test]
fn the_store_does_what_the_model_does() -> Anyhow {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let database = runtime.block_on(Clocked::create())?;
    let store = runtime.block_on(database.store(policy()))?;
    let seen = RefCell::new(BTreeSet::new());
    let config = Config { cases: CASES, failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    let mut runner = TestRunner::new(config);
    runner.run(&steps(STEPS), |steps| {
        runtime
            .block_on(both(&database, &store, &steps, &seen))
            .map_err(|difference| TestCaseError::fail(difference.to_string()))
    })?;
    // A generator that makes nothing happen proves nothing.
    let seen = seen.into_inner();
    let wanted = [
        "executed",
        "replayed",
        "KeyReused",
        "NotFound",
        "Done",
        "Duplicate",
        "Declined",
        "Parked",
        "refused: insufficient_credits",
        "task.accepted",
        "task.track_lost",
        "task.succeeded",
        "task.failed",
        "task.canceled",
        "account.settled",
        "account.released",
    ];
    let missing: Vec<_> = wanted.iter().filter(|it| !seen.contains(**it)).collect();
    assert!(missing.is_empty(), "never happened: {missing:?}; what did: {seen:?}");
    Ok(())
}
