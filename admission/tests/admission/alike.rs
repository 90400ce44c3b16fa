//! Redis and the process answer alike, whatever is asked: the script is held to the code in Rust that it follows.

use crate::server::{Anyhow, Server};
use crate::support::{at_most, config, in_redis, slot};
use admission::{Admission, AdmissionConfig, Asked, Called, InProcess};
use domain::process::{Entry, Slot};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

#[derive(Clone, Debug)]
enum Word {
    Ask(Slot),
    Keep(Slot),
    GiveBack(Slot),
    Withdraw(Slot),
    Tick,
}

fn slots() -> impl Strategy<Value = Slot> {
    let at = prop::sample::select(vec!["replicate", "fal"]);
    let model = prop::sample::select(vec!["paper-boat", "kite"]);
    let user = prop::sample::select(vec!["", "anna", "bert"]);
    // What an attempt is for does not change: it follows from its number.
    (0_u128..4, 0_u128..6, 1_u32..=3, -1_i16..=1, at, model, user).prop_map(
        |(tenant, number, round, priority, provider, model, user)| {
            let number = number * 1_000
                + match (provider, model, user) {
                    ("fal", ..) => 100,
                    _ => 0,
                }
                + if model == "kite" { 10 } else { 0 }
                + u128::try_from(user.len()).unwrap_or(0) * 20
                + u128::from(user == "bert");
            Slot {
                round,
                priority,
                provider: provider.to_owned(),
                model: model.to_owned(),
                user: user.to_owned(),
                ..slot(tenant, number)
            }
        },
    )
}

fn words() -> impl Strategy<Value = Vec<Word>> {
    let word = prop_oneof![
        6 => slots().prop_map(Word::Ask),
        1 => slots().prop_map(Word::Keep),
        4 => slots().prop_map(Word::GiveBack),
        1 => slots().prop_map(Word::Withdraw),
        1 => Just(Word::Tick),
    ];
    prop::collection::vec(word, 1..120)
}

/// An answer in which only what must be equal is left: times differ a little, and providers are gone through in any order.
fn told(asked: Asked) -> (String, Vec<String>) {
    let entry = match asked.entry {
        Entry::Granted => "granted".to_owned(),
        Entry::Wait { why, .. } => why.name().to_owned(),
    };
    (entry, sorted(&asked.called))
}

fn sorted(called: &[Called]) -> Vec<String> {
    let mut all: Vec<String> = called.iter().map(|it| it.attempt.to_string()).collect();
    all.sort();
    all
}

async fn said(at: &dyn Admission, word: &Word) -> Anyhow<(String, Vec<String>)> {
    let said = |called: Vec<Called>| (String::new(), sorted(&called));
    Ok(match word {
        Word::Ask(slot) => told(at.ask(slot).await?),
        Word::Keep(slot) => {
            at.keep(slot).await?;
            (String::new(), vec![])
        }
        Word::GiveBack(slot) => said(at.give_back(slot.attempt, slot.round).await?),
        Word::Withdraw(slot) => said(at.withdraw(slot.attempt).await?),
        Word::Tick => said(at.tick().await?),
    })
}

#[tokio::test]
async fn both_answer_alike() -> Anyhow {
    let server = Server::start()?;
    let config = AdmissionConfig { tenants: at_most(2), users: at_most(1), models: at_most(4), ..config(3) };
    let mut runner = TestRunner::deterministic();
    let (mut granted, mut waited) = (0, 0);
    for case in 0..60 {
        let words = words().new_tree(&mut runner).expect("nothing is filtered").current();
        let (here, there) = (InProcess::new(&config), in_redis(&server, &config).await?);
        for (number, word) in words.iter().enumerate() {
            let (one, other) = (said(&here, word).await?, said(&there, word).await?);
            assert_eq!(one, other, "case {case}: word {number} of {:#?}", &words[..=number]);
            granted += usize::from(one.0 == "granted");
            waited += usize::from(one.0.starts_with("slot_"));
        }
        let (one, other) = (here.count().await?, there.count().await?);
        assert_eq!(one, other, "case {case}: {words:#?}");
    }
    assert!(granted > 200 && waited > 200, "{granted} were granted and {waited} waited: the words say too little");
    Ok(())
}
