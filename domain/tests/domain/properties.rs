//! For any sequence of commands, repeated, stale, hostile and in any order: what holds for every aggregate.

use domain::aggregate::{Aggregate, Decision, Refusal};
use domain::attempt::Attempt;
use domain::ledger::{self, Account};
use domain::money::Credits;
use domain::stored::StoredEvent;
use domain::task::Task;
use domain::testkit::Subject;
use domain::testkit::strategies::{Step, histories, hostile_timestamps, sessions, start};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseError, TestRunner};
use std::collections::HashSet;

type Checked = Result<(), TestCaseError>;

/// Gives the commands one after the other, and checks each step.
fn run<A: Subject>(session: Vec<Step<A::Command>>) -> Result<(A, Vec<A::Event>), TestCaseError> {
    let (mut state, mut history) = (A::absent(), vec![]);
    for Step { at, command } in session {
        match state.decide(command.clone(), at) {
            Ok(Decision::Record(events)) => {
                let before = state.clone();
                for event in events {
                    prop_assert_eq!(A::Event::decode(event.encode().expect("it encodes")), Ok(event.clone()));
                    state = state.evolve(&event).expect("what was decided fits");
                    history.push(event);
                }
                in_the_table(&before, &command, &state)?;
                again(&state, &command, at)?;
            }
            Ok(Decision::AlreadySo) => {}
            Err(refusal) => says_what(&state, &command, &refusal)?,
        }
    }
    Ok((state, history))
}

fn in_the_table<A: Subject>(before: &A, command: &A::Command, after: &A) -> Checked {
    let (from, on, to) = (before.state_met(command), A::on(command), after.state_met(command));
    let known = A::TABLE.iter().any(|row| row.from == from && row.on == on && row.to == to);
    prop_assert!(known, "no row for {:?} --{:?}--> {:?}", from, on, to);
    Ok(())
}

/// A command that was just carried out is `AlreadySo`, or refused; but for those that lead from a state to itself, such as
/// putting off once more: each is an event of its own.
fn again<A: Subject>(state: &A, command: &A::Command, at: domain::time::Timestamp) -> Checked {
    let (here, on) = (state.state_met(command), A::on(command));
    match state.decide(command.clone(), at) {
        Ok(Decision::AlreadySo) => Ok(()),
        Err(refusal) => says_what(state, command, &refusal),
        Ok(Decision::Record(_)) => {
            let stays = A::TABLE.iter().any(|row| row.from == here && row.on == on && row.to == here);
            prop_assert!(stays, "{:?} was recorded twice in a row", command);
            Ok(())
        }
    }
}

fn says_what<A: Subject>(state: &A, command: &A::Command, refusal: &Refusal) -> Checked {
    prop_assert_eq!(refusal.aggregate, A::CATEGORY.name());
    prop_assert_eq!(refusal.state, A::state_name(state.state_met(command)));
    prop_assert_eq!(refusal.command, format!("{:?}", A::on(command)));
    prop_assert!(!refusal.message.is_empty());
    let word = refusal.code.chars().all(|it| it.is_ascii_lowercase() || it == '_') && !refusal.code.is_empty();
    prop_assert!(word, "{} is no code", refusal.code);
    Ok(())
}

/// Folding the whole history at once comes to the state that was reached step by step.
fn folds<A: Subject>(session: Vec<Step<A::Command>>) -> Result<A, TestCaseError> {
    let (state, history) = run::<A>(session)?;
    let folded = history.iter().try_fold(A::absent(), |it, event| it.evolve(event));
    prop_assert_eq!(folded, Ok(state.clone()));
    Ok(state)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_task_holds_in_any_session(session in sessions::<Task>(60)) {
        folds::<Task>(session)?;
    }

    #[test]
    fn an_attempt_holds_in_any_session(session in sessions::<Attempt>(60)) {
        folds::<Attempt>(session)?;
    }

    #[test]
    fn an_account_holds_in_any_session(session in sessions::<Account>(80)) {
        folds::<Account>(session)?;
    }

    /// Of an account, every command is idempotent: there is no posting that is an event of its own each time.
    #[test]
    fn a_repeated_posting_is_already_so(session in sessions::<Account>(80)) {
        let mut account = Account::absent();
        for Step { at, command } in session {
            if let Ok(Decision::Record(events)) = account.decide(command.clone(), at) {
                account = events.iter().try_fold(account, |it, event| it.evolve(event)).expect("it fits");
                prop_assert_eq!(account.decide(command, at), Ok(Decision::AlreadySo));
            }
        }
    }

    /// After every posting, what came in is what is there, and nothing is less than nothing; amounts at the ends of what an
    /// integer carries included.
    #[test]
    fn credits_are_conserved_and_never_negative(session in sessions::<Account>(80)) {
        let mut account = Account::absent();
        for Step { at, command } in session {
            if let Ok(Decision::Record(events)) = account.decide(command, at) {
                account = events.iter().try_fold(account, |it, event| it.evolve(event)).expect("it fits");
                prop_assert!(account.is_conserved(), "{:?}", account);
            }
        }
    }

    /// No command leads out of a terminal state, at whatever time.
    #[test]
    fn terminal_stays_terminal(
        history in histories::<Task>(14),
        commands in prop::collection::vec(prop_oneof![Task::commands(), Task::hostile_commands()], 1..20),
        at in hostile_timestamps(),
    ) {
        if history.state.state().is_terminal() {
            for command in commands {
                let decided = history.state.decide(command, at);
                prop_assert!(!matches!(decided, Ok(Decision::Record(_))), "a terminal task recorded {:?}", decided);
            }
        }
    }

    /// An event of another history is refused as corrupt, or is one that could have happened here; it never panics.
    #[test]
    fn events_of_other_histories_do_not_panic(one in histories::<Account>(12), other in histories::<Account>(12)) {
        let mut account = one.state;
        for event in &other.events {
            if let Ok(next) = account.clone().evolve(event) {
                prop_assert!(next.is_conserved(), "{:?} after {:?}", next, event);
                account = next;
            }
        }
    }
}

/// Draws by a fixed seed: the same in every run.
fn draw<T: std::fmt::Debug>(strategy: &BoxedStrategy<T>, count: usize) -> Vec<T> {
    let mut runner = TestRunner::deterministic();
    (0..count).map(|_| strategy.new_tree(&mut runner).expect("nothing is filtered").current()).collect()
}

fn makes_every_command<A: Subject>() {
    for strategy in [A::commands(), A::hostile_commands()] {
        let made: HashSet<A::On> = draw(&strategy, 2_000).iter().map(A::on).collect();
        let missing: Vec<_> = A::EVERY_ON.iter().filter(|on| !made.contains(on)).collect();
        assert!(
            missing.is_empty(),
            "{missing:?} are never made: add them in testkit/strategies/{}.rs",
            A::CATEGORY.name()
        );
    }
}

#[test]
fn the_test_kit_makes_every_command() {
    makes_every_command::<Task>();
    makes_every_command::<Attempt>();
    makes_every_command::<Account>();
}

/// Properties over histories that never get anywhere show nothing: together they take every row of the table.
fn gets_everywhere<A: Subject>() {
    let mut missing: HashSet<_> = A::TABLE.iter().map(|row| (row.from, row.on)).collect();
    let mut runner = TestRunner::deterministic();
    for _ in 0..3_000 {
        let history = histories::<A>(14).new_tree(&mut runner).expect("nothing is filtered").current();
        let mut state = A::absent();
        let events = &mut history.events.iter();
        for step in &history.steps {
            missing.remove(&(state.state_met(&step.command), A::on(&step.command)));
            let Ok(Decision::Record(decided)) = state.decide(step.command.clone(), step.at) else {
                panic!("not again")
            };
            state = events.take(decided.len()).try_fold(state, |it, event| it.evolve(event)).expect("it folds");
        }
        if missing.is_empty() {
            return;
        }
    }
    panic!("no history takes {missing:?}");
}

#[test]
fn histories_take_every_transition() {
    gets_everywhere::<Task>();
    gets_everywhere::<Attempt>();
    gets_everywhere::<Account>();
}

/// Every version of every event has its golden file, and so decodes (see `golden.rs`): no step of an upcast is missing.
#[test]
fn every_version_ever_written_is_kept() {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let names = [domain::task::Event::NAMES, domain::attempt::Event::NAMES, ledger::Event::NAMES].concat();
    for (name, current) in names {
        for version in 1..=current {
            let file = golden.join(format!("{name}.v{version}.json"));
            assert!(file.exists(), "{} is gone, or was never committed", file.display());
        }
    }
}

#[test]
fn an_account_refuses_what_it_can_not_carry() {
    let full = ledger::Command::Grant { key: "all".to_owned(), amount: Credits(i64::MAX) };
    let Ok(Decision::Record(events)) = Account::absent().decide(full, start()) else {
        panic!("the first grant is recorded");
    };
    let account = Account::absent().evolve(&events[0]).expect("it fits");
    let one_more = ledger::Command::Grant { key: "one more".to_owned(), amount: Credits(1) };
    assert_eq!(account.decide(one_more, start()).expect_err("overflow").code, "overflow");
}
