//! What snapshots hold: read back, a state is the same; and `golden_states/<aggregate>.shape<n>.json` holds fast how each shape
//! encodes. `BLESS=1 cargo test -p domain snapshots` writes a missing one.

use super::support;
use domain::aggregate::{Aggregate, Category, Decision};
use domain::attempt::{self, Attempt};
use domain::id::TaskId;
use domain::ledger::{self, Account};
use domain::money::Credits;
use domain::process::Folded;
use domain::snapshot::Snapshot;
use domain::task::{self, Task};
use domain::testkit::Subject;
use domain::testkit::strategies::{Step, histories, sessions};
use domain::time::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use uuid::Uuid;

type Anyhow = Result<(), Box<dyn std::error::Error>>;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden_states")
}

/// One state of each name, the first that the sample commands lead to.
fn one_of_each<A: Subject>(commands: &[A::Command], name: impl Fn(&A) -> &'static str) -> BTreeMap<&'static str, A> {
    let mut found = BTreeMap::new();
    let mut seen: Vec<A> = vec![];
    let mut todo = VecDeque::from([A::absent()]);
    while let Some(state) = todo.pop_front() {
        if seen.contains(&state) || seen.len() > 2_000 {
            continue;
        }
        seen.push(state.clone());
        found.entry(name(&state)).or_insert_with(|| state.clone());
        for command in commands {
            let Ok(Decision::Record(events)) = state.decide(command.clone(), support::now()) else { continue };
            let next = events.iter().try_fold(state.clone(), |state, event| state.evolve(event));
            todo.extend(next.ok());
        }
    }
    found
}

/// An account with every kind of posting, and every way a hold can be.
fn busy_account() -> Account {
    use ledger::Command as It;
    let task = |n| TaskId(Uuid::from_u128(n));
    let hold = |n, expires_at| It::Hold { task: task(n), amount: Credits(120), expires_at };
    let refund = |key: &str, amount| It::Refund {
        task: task(3),
        key: key.to_owned(),
        amount: Credits(amount),
        reason: "the wrong boat".to_owned(),
    };
    let adjust = |key: &str, amount| It::Adjust {
        key: key.to_owned(),
        amount: Credits(amount),
        reason: "granted twice by hand".to_owned(),
        by: "operator:1".to_owned(),
    };
    let commands = [
        It::Grant { key: "voucher-1".to_owned(), amount: Credits(1_000) },
        It::Grant { key: "Gutschein; \"7:ü\"\n".to_owned(), amount: Credits(500) },
        adjust("correction-1", -30),
        adjust("correction-2", 40),
        hold(1, None),
        hold(2, Some(support::later(600))),
        hold(3, None),
        It::Settle { task: task(3), charge: Credits(100) },
        refund("case-1", 40),
        refund("case-2", 1),
        hold(4, None),
        It::Settle { task: task(4), charge: Credits(0) },
        hold(5, None),
        It::Release { task: task(5) },
        hold(6, Some(support::now())),
        It::Expire { task: task(6) },
        It::Grant { key: String::new(), amount: Credits(7) },
    ];
    commands.into_iter().fold(Account::absent(), |account, command| {
        let Decision::Record(events) = account.decide(command, support::now()).expect("it is legal") else {
            panic!("each of them is new");
        };
        events.iter().try_fold(account, |it, event| it.evolve(event)).expect("what was decided fits")
    })
}

/// The golden files of all shapes so far are there, and the newest is how these states are encoded today.
fn check<A: Aggregate + Snapshot>(states: &BTreeMap<&'static str, A>) -> Anyhow {
    let mut encoded = serde_json::Map::new();
    for (name, state) in states {
        let snapshot = state.to_snapshot()?;
        assert_eq!(A::from_snapshot(snapshot.clone()).as_ref(), Some(state), "{name} does not survive a round trip");
        encoded.insert((*name).to_owned(), snapshot);
    }
    let text = format!("{}\n", serde_json::to_string_pretty(&encoded)?);
    for shape in 1..=A::SHAPE {
        let file = format!("{}.shape{shape}.json", A::CATEGORY.name());
        let path = folder().join(&file);
        if shape == A::SHAPE && !path.exists() && std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &text)?;
        }
        let golden = std::fs::read_to_string(&path).map_err(|_| format!("{file} is missing: BLESS=1 writes it"))?;
        let golden: Value = serde_json::from_str(&golden)?;
        assert!(
            shape < A::SHAPE || golden == Value::Object(encoded.clone()),
            "{file}: the states of an {} are encoded otherwise than they were, or folded to others: raise its SHAPE, and write \
             a new golden file with BLESS=1",
            A::CATEGORY.name()
        );
    }
    Ok(())
}

#[test]
fn an_encoding_that_changes_needs_a_new_shape() -> Anyhow {
    let tasks = one_of_each::<Task>(&support::task_commands(), |it| it.state().name());
    assert_eq!(tasks.len(), task::State::ALL.len(), "{:?}", tasks.keys());
    check(&tasks)?;
    let attempts = one_of_each::<Attempt>(&support::attempt_commands(), |it| it.state().name());
    assert_eq!(attempts.len(), attempt::State::ALL.len(), "{:?}", attempts.keys());
    check(&attempts)?;
    check(&BTreeMap::from([("EMPTY", Account::absent()), ("BUSY", busy_account())]))
}

#[test]
fn people_find_the_name_of_the_state_and_plain_amounts() -> Anyhow {
    for (name, state) in one_of_each::<Task>(&support::task_commands(), |it| it.state().name()) {
        let ordered = state.order().map(serde_json::to_value).transpose()?;
        let value = serde_json::to_value(state)?;
        assert_eq!((&value["state"], value.get("order")), (&json!(name), ordered.as_ref()));
    }
    for (name, state) in one_of_each::<Attempt>(&support::attempt_commands(), |it| it.state().name()) {
        assert_eq!(serde_json::to_value(state)?["state"], name);
    }
    let account = serde_json::to_value(busy_account())?;
    assert_eq!(account["available"], 1_218);
    assert_eq!(account["grants"], json!({"": 7, "voucher-1": 1_000, "Gutschein; \"7:ü\"\n": 500}));
    let third = &account["holds"][Uuid::from_u128(3).to_string()];
    assert_eq!(*third, json!({"state": "SETTLED", "charged": 100, "refunded": 41}));
    Ok(())
}

/// Whatever is done to a snapshot's text, it is read as a state or not at all: no panic, no endless work.
#[test]
fn a_damaged_account_is_not_read() -> Anyhow {
    let sound = busy_account().to_snapshot()?;
    let damaged = |field: &str, value: Value| {
        let mut state = sound.clone();
        state[field] = value;
        Account::from_snapshot(state)
    };
    let one = format!("{}r;", Uuid::from_u128(9).simple());
    for holds in ["x", ";", "é", "0", &one[1..], &one[..33], &one.replace('r', "q"), &format!("{one}{one}")] {
        assert_eq!(damaged("holds", json!(holds)), None, "{holds}");
    }
    for grants in ["9:a1;", "-1:a1;", "1:é1;", "99999999999999999999:a1;", "1:a;", "1:a1", "1:b1;1:a1;"] {
        assert_eq!(damaged("grants", json!(grants)), None, "{grants}");
    }
    assert_eq!(damaged("held", json!("much")), None);
    assert_eq!(damaged("more", json!(1)), None);
    for garbage in [json!(null), json!([]), json!({}), json!("state"), json!(7)] {
        for category in [Category::Account, Category::Attempt, Category::Task] {
            assert_eq!(Folded::from_snapshot(category, 1, garbage.clone()), None, "{garbage}");
        }
    }
    Ok(())
}

fn survives<A: Aggregate + Snapshot>(state: &A) -> Result<A, TestCaseError> {
    let text = state.to_snapshot().expect("it encodes").to_string();
    let read = A::from_snapshot(serde_json::from_str(&text).expect("it is JSON"));
    prop_assert_eq!(read.as_ref(), Some(state));
    read.ok_or_else(|| TestCaseError::fail("not read"))
}

/// Commands meet the state that came out of a snapshot and the one that was folded from the first event: both answer the same, and
/// evolve to the same, wherever in the session the snapshot was taken.
fn same_from_a_snapshot<A: Subject + Snapshot>(
    session: Vec<Step<A::Command>>,
    at_step: usize,
) -> Result<(), TestCaseError> {
    let (mut whole, mut shortened) = (A::absent(), A::absent());
    for (index, Step { at, command }) in session.into_iter().enumerate() {
        if index == at_step {
            shortened = survives(&whole)?;
        }
        let decided = whole.decide(command.clone(), at);
        match (&decided, shortened.decide(command, at)) {
            (Ok(Decision::Record(one)), Ok(Decision::Record(other))) => prop_assert_eq!(one, &other),
            (Ok(Decision::AlreadySo), Ok(Decision::AlreadySo)) => {}
            (Err(one), Err(other)) => prop_assert_eq!(one, &other),
            (one, other) => prop_assert!(false, "{:?} / {:?}", one.is_ok(), other.is_ok()),
        }
        if let Ok(Decision::Record(events)) = decided {
            let fold = |state: A| events.iter().try_fold(state, |it, event| it.evolve(event)).expect("it fits");
            (whole, shortened) = (fold(whole), fold(shortened));
        }
        prop_assert_eq!(&whole, &shortened);
        prop_assert_eq!(whole.to_snapshot().expect("it encodes"), shortened.to_snapshot().expect("it encodes"));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn an_account_goes_on_from_a_snapshot(session in sessions::<Account>(80), at_step in 0_usize..80) {
        same_from_a_snapshot::<Account>(session, at_step)?;
    }

    #[test]
    fn a_task_goes_on_from_a_snapshot(session in sessions::<Task>(60), at_step in 0_usize..60) {
        same_from_a_snapshot::<Task>(session, at_step)?;
    }

    #[test]
    fn an_attempt_goes_on_from_a_snapshot(history in histories::<Attempt>(30), at_step in 0_usize..30) {
        same_from_a_snapshot::<Attempt>(history.steps, at_step)?;
    }

    #[test]
    fn times_of_holds_keep_their_nanoseconds(seconds in -62_000_000_000_i64..250_000_000_000, nanos in 0_u32..1_000_000_000) {
        let at = Timestamp::from_timestamp(seconds, nanos);
        let granted = Account::absent().evolve(&ledger::Event::Granted { key: "k".to_owned(), amount: Credits(1) });
        let held = ledger::Event::Held { task: support::order().task, amount: Credits(1), expires_at: at };
        survives(&granted.and_then(|it| it.evolve(&held)).expect("it fits"))?;
    }
}
