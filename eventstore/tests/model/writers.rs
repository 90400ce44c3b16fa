//! Two writers with pools and caches of their own. By turns: the same as the model. At once: the same as the model with their
//! transactions in some order; the model tries them all.

use super::Anyhow;
use super::action::{Action, Said};
use super::clock::Clocked;
use super::facts::Facts;
use super::memory::Memory;
use super::sequences::memory;
use super::steps::{Cast, Step, policy, steps};
use super::work::Work;
use eventstore::Store;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::cell::Cell;
use uuid::Uuid;

const CASES: u32 = 32;

/// Which writer takes a step, or that both take one: this one, and the next.
#[derive(Clone, Copy, Debug)]
enum Turn {
    First,
    Second,
    Both,
}

/// What two actions said, first and second, and the model after them.
type Ending = (Said, Said, Memory);

/// Every way to interleave the transactions of two actions.
fn interleavings(first: &Action, second: &Action, memory: &Memory) -> Vec<Ending> {
    let mut endings = Vec::new();
    let mut open = vec![((Work::new(first), None), (Work::new(second), None), memory.clone())];
    while let Some((first, second, memory)) = open.pop() {
        if let (Some(first), Some(second)) = (&first.1, &second.1) {
            endings.push((Said::clone(first), Said::clone(second), memory));
            continue;
        }
        if first.1.is_none() {
            let (mut first, mut memory) = (first.clone(), memory.clone());
            first.1 = first.0.advance(&mut memory);
            open.push((first, second.clone(), memory));
        }
        if second.1.is_none() {
            let (mut second, mut memory) = (second, memory);
            second.1 = second.0.advance(&mut memory);
            open.push((first, second, memory));
        }
    }
    endings
}

struct Writers {
    database: Clocked,
    stores: [Store; 2],
    /// Pairs that ran at once, and how many of them the order of transactions mattered to.
    pairs: Cell<(u32, u32)>,
}

impl Writers {
    async fn create() -> Anyhow<Self> {
        let database = Clocked::create().await?;
        let stores = [database.store(policy()).await?, database.store(policy()).await?];
        Ok(Self { database, stores, pairs: Cell::default() })
    }

    async fn sequence(&self, steps: &[(Step, Turn)]) -> Anyhow {
        self.database.clear().await?;
        let mut memory = memory();
        let mut cast = Cast::new(Uuid::new_v4());
        for action in cast.opening() {
            self.alone(&action, &self.stores[0], &mut memory).await?;
        }
        let mut waiting: Option<Action> = None;
        for (step, turn) in steps {
            let Some(action) = cast.resolve(step, &mut memory) else { continue };
            match (turn, waiting.take()) {
                (_, Some(before)) => self.at_once(&before, &action, &mut memory).await?,
                (Turn::Both, None) => waiting = Some(action),
                (Turn::First, None) => self.alone(&action, &self.stores[0], &mut memory).await?,
                (Turn::Second, None) => self.alone(&action, &self.stores[1], &mut memory).await?,
            }
        }
        self.compare(&memory.facts).await
    }

    async fn alone(&self, action: &Action, store: &Store, memory: &mut Memory) -> Anyhow {
        self.database.set(memory.now).await?;
        let found = action.run(store).await?;
        let expected = Work::run(action, memory);
        if found != expected {
            return Err(format!("{action:?}\n  found    {found:?}\n  expected {expected:?}").into());
        }
        Ok(())
    }

    async fn at_once(&self, first: &Action, second: &Action, memory: &mut Memory) -> Anyhow {
        self.database.set(memory.now).await?;
        let endings = interleavings(first, second, memory);
        let (one, two) = tokio::join!(first.run(&self.stores[0]), second.run(&self.stores[1]));
        let (one, two) = (one?, two?);
        let found = self.database.facts().await?.unordered();
        let (pairs, mattered) = self.pairs.get();
        let matters = endings.iter().any(|it| (&it.0, &it.1) != (&endings[0].0, &endings[0].1));
        self.pairs.set((pairs + 1, mattered + u32::from(matters)));
        let fits = |it: &&Ending| it.0 == one && it.1 == two && it.2.facts.clone().unordered() == found;
        if let Some((.., after)) = endings.iter().find(fits) {
            *memory = after.clone();
            return Ok(());
        }
        let mut text = format!("at once:\n  {first:?}\n  {second:?}\nfound {one:?}\n  and {two:?}\n");
        for (nth, it) in endings.iter().enumerate() {
            text += &format!("order {nth}: {:?}\n  and {:?}\n", it.0, it.1);
            text += &found.difference(&it.2.facts.clone().unordered());
        }
        Err(text.into())
    }

    async fn compare(&self, expected: &Facts) -> Anyhow {
        let found = self.database.facts().await?.unordered();
        let expected = expected.clone().unordered();
        if found != expected {
            return Err(found.difference(&expected).into());
        }
        Ok(())
    }
}

#[test]
fn two_writers_do_what_one_would() -> Anyhow {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let writers = runtime.block_on(Writers::create())?;
    let turn = prop_oneof![1 => Just(Turn::First), 1 => Just(Turn::Second), 2 => Just(Turn::Both)];
    let sequences = (steps(40), prop::collection::vec(turn, 40))
        .prop_map(|(steps, turns)| steps.into_iter().zip(turns).collect::<Vec<_>>());
    let config = Config { cases: CASES, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    TestRunner::new(config).run(&sequences, |steps| {
        runtime.block_on(writers.sequence(&steps)).map_err(|difference| TestCaseError::fail(difference.to_string()))
    })?;
    let (pairs, mattered) = writers.pairs.get();
    assert!(pairs >= 100 && mattered >= 10, "{pairs} pairs at once, the order mattered to {mattered}: too few");
    Ok(())
}
