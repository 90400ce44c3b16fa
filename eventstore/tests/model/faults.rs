//! Each database call of a task's life fails once, before or after the server has carried it out; then everything is sent
//! again. The facts are those of the life without a fault.
//!
//! A call that never reached the server leaves no trace at all. A commit whose answer was lost may add, because whoever asked
//! can not know that it was carried out:
//!
//! - After "the request may leave now" (`attempt.submission_begun`): nobody makes the call. The redelivery finds a worker at it
//!   and leaves it alone; when its lease is over, the scan gives the answer up for lost, looks the job up, finds it absent twice,
//!   and submits again: the provider has still been asked for one job.
//! - After "the work begins now" (`task.processing_begun`): it is begun, and counted, once more.
//! - After a poll's answer (`attempt.polled`): it is recorded once more.

use super::Anyhow;
use super::facts::Facts;
use super::life::{End, Lane, Lived, TASK, live};
use super::proxy::Cut;
use domain::aggregate::Category;
use domain::process::CaseKey;
use domain::testkit::invariants::{AllInvariants, Recorded, Watch};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

/// So many lives at a time, each in a database of its own: most of a broken life is waiting.
const LANES: usize = 6;

/// The names of a category's events without what a lost answer may add: see the module.
fn essence(facts: &Facts, category: Category) -> Vec<String> {
    let events = facts.streams.iter().filter(|(stream, _)| stream.category == category).flat_map(|(_, events)| events);
    let mut names: Vec<String> = events.map(|event| event.stored.name.clone()).collect();
    let begun = |name: &String| name.ends_with(".submission_begun");
    if let (Some(first), Some(last)) = (names.iter().position(begun), names.iter().rposition(begun)) {
        names.drain(first..last);
    }
    names.dedup_by(|next, name| next == name && matches!(name.as_str(), "task.processing_begun" | "attempt.polled"));
    names
}

/// What a history has more of than another, by name.
fn added(facts: &Facts, faultless: &Facts) -> BTreeSet<String> {
    let count =
        |facts: &Facts, name: &str| facts.streams.values().flatten().filter(|event| event.stored.name == name).count();
    let names: BTreeSet<String> = facts.streams.values().flatten().map(|event| event.stored.name.clone()).collect();
    names.into_iter().filter(|name| count(facts, name) > count(faultless, name)).collect()
}

fn hold_against_invariants(history: &[Recorded]) -> Anyhow {
    let mut watch = AllInvariants::default();
    for recorded in history {
        watch.observe(recorded)?;
    }
    Ok(watch.at_rest()?)
}

/// How the end stands: the task's state without its times, the attempt's, and the credits.
fn standing(lived: &Lived) -> Anyhow<(&'static str, &'static str, String)> {
    let case = lived.memory.load(CaseKey { with_account: true, ..CaseKey::task(TASK) })?;
    let account = format!("{:?} {:?}", case.account.state.available, case.account.state.hold(TASK));
    Ok((case.task.state.state().name(), case.attempt.state.state().name(), account))
}

/// What a broken life may differ in, and what it may not.
fn compare(lived: &Lived, faultless: &Lived, cut: Cut) -> Anyhow<BTreeSet<String>> {
    hold_against_invariants(&lived.facts.recorded()?)?;
    if lived.most_jobs != faultless.most_jobs {
        return Err(format!("{} jobs for one attempt", lived.most_jobs).into());
    }
    if standing(lived)? != standing(faultless)? {
        return Err(format!("it ends as {:?}, not {:?}", standing(lived)?, standing(faultless)?).into());
    }
    if let Some((who, row)) = lived.facts.inbox.iter().find(|(_, row)| row.phase != "done") {
        return Err(format!("acknowledged and not done: {who:?} {row:?}").into());
    }
    let (found, expected) = (&lived.facts, &faultless.facts);
    if (&found.streams, &found.outbox) == (&expected.streams, &expected.outbox) {
        return Ok(BTreeSet::new());
    }
    if cut == Cut::Before {
        return Err(format!("a call that was never made left a trace\n{}", found.difference(expected)).into());
    }
    for category in [Category::Account, Category::Attempt, Category::Task] {
        if essence(found, category) != essence(expected, category) {
            return Err(found.difference(expected).into());
        }
    }
    Ok(added(found, expected))
}

/// Takes numbers of calls until there are none left.
async fn lane(
    at: Arc<Lane>,
    end: End,
    faultless: Arc<Lived>,
    numbers: Arc<Mutex<Vec<(usize, Cut)>>>,
) -> Anyhow<Vec<BTreeSet<String>>> {
    let mut all = Vec::new();
    loop {
        let Some((number, cut)) = numbers.lock().await.pop() else { return Ok(all) };
        let lived = live(&at, end, Some((number, cut)));
        let lived = lived.await.map_err(|fault| format!("{end:?}, call {number}, {cut:?}: {fault}"))?;
        let added = compare(&lived, &faultless, cut);
        all.push(added.map_err(|fault| format!("{end:?}, call {number}, {cut:?}: {fault}"))?);
    }
}

/// Every call of one life, both ways. Returns the names of events that were added in some of them.
async fn every_call(at: &[Arc<Lane>], end: End) -> Anyhow<BTreeSet<String>> {
    let faultless = Arc::new(live(&at[0], end, None).await?);
    if faultless.repeated > 0 {
        return Err("something had to be repeated without a fault".into());
    }
    hold_against_invariants(&faultless.facts.recorded()?)?;
    let numbers = (1..=faultless.calls).flat_map(|number| [(number, Cut::Before), (number, Cut::After)]).collect();
    let numbers = Arc::new(Mutex::new(numbers));
    let mut lanes = JoinSet::new();
    for one in at {
        lanes.spawn(lane(Arc::clone(one), end, Arc::clone(&faultless), Arc::clone(&numbers)));
    }
    let mut lives = Vec::new();
    while let Some(lane) = lanes.join_next().await {
        lives.extend(lane??);
    }
    assert_eq!(lives.len(), 2 * faultless.calls);
    let different = lives.iter().filter(|added| !added.is_empty()).count();
    let added: BTreeSet<String> = lives.into_iter().flatten().collect();
    println!("{end:?}: {} calls, each broken twice; {different} lives with more events: {added:?}", faultless.calls);
    Ok(added)
}

#[test]
fn any_call_may_fail_and_the_task_lives_the_same_life() -> Anyhow {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut at = Vec::new();
    for _ in 0..LANES {
        at.push(Arc::new(runtime.block_on(Lane::create())?));
    }
    let mut added = BTreeSet::new();
    for end in End::ALL {
        added.extend(runtime.block_on(every_call(&at, end))?);
    }
    // Each of the three ways was met, so the comparison that allows them is needed, and nothing else was.
    let allowed = [
        "attempt.answer_lost",
        "attempt.deferred",
        "attempt.looked_up",
        "attempt.polled",
        "attempt.submission_begun",
        "task.deferred",
        "task.processing_begun",
        "task.submission_begun",
        "task.track_lost",
    ];
    assert_eq!(added, allowed.into_iter().map(str::to_owned).collect());
    Ok(())
}
