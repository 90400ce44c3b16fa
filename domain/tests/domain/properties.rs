//! For any sequence of commands: no panic, terminal stays terminal, folding at once equals folding step by step, a repeated
//! command records nothing, credits are conserved and never negative.

use super::support;
use domain::aggregate::{Aggregate, Decision};
use domain::attempt::Attempt;
use domain::id::TaskId;
use domain::ledger::{self, Account};
use domain::money::Credits;
use domain::task::Task;
use proptest::prelude::*;
use uuid::Uuid;

/// Runs commands by index, keeping each state; a command that was just accepted is given again and must record nothing new
/// of a creating kind (the aggregate says `AlreadySo`, or refuses).
fn run<A>(commands: &[A::Command], picks: &[usize]) -> (A, Vec<A::Event>)
where
    A: Aggregate,
    A::Command: Clone,
{
    let mut state = A::absent();
    let mut history = vec![];
    for pick in picks {
        let command = commands[pick % commands.len()].clone();
        if let Ok(Decision::Record(events)) = state.decide(command, support::now()) {
            for event in events {
                state = state.evolve(&event).expect("a recorded event fits the state it was decided in");
                history.push(event);
            }
        }
    }
    (state, history)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_tasks_history_folds_to_its_state(picks in prop::collection::vec(any::<usize>(), 0..60)) {
        let (state, history) = run::<Task>(&support::task_commands(), &picks);
        let folded = history.iter().try_fold(Task::absent(), |it, event| it.evolve(event)).expect("it folds");
        prop_assert_eq!(&folded, &state);
        if state.state().is_terminal() {
            for command in support::task_commands() {
                let decided = state.decide(command, support::now());
                prop_assert!(!matches!(decided, Ok(Decision::Record(_))), "a terminal task recorded {:?}", decided);
            }
        }
    }

    #[test]
    fn an_attempts_history_folds_to_its_state(picks in prop::collection::vec(any::<usize>(), 0..60)) {
        let (state, history) = run::<Attempt>(&support::attempt_commands(), &picks);
        let folded = history.iter().try_fold(Attempt::absent(), |it, event| it.evolve(event)).expect("it folds");
        prop_assert_eq!(folded, state);
        // no-blind-resubmit: between two submissions the provider has said that nothing was created.
        let mut may_submit = true;
        for event in &history {
            match event {
                domain::attempt::Event::SubmissionBegun { .. } => {
                    prop_assert!(may_submit, "submitted again without a word from the provider");
                    may_submit = false;
                }
                domain::attempt::Event::Deferred { .. } => may_submit = true,
                _ => {}
            }
        }
    }

    #[test]
    fn an_accounts_history_folds_to_its_state(picks in prop::collection::vec(any::<usize>(), 0..60)) {
        let (state, history) = run::<Account>(&support::account_commands(), &picks);
        let folded = history.iter().try_fold(Account::absent(), |it, event| it.evolve(event)).expect("it folds");
        prop_assert_eq!(folded, state);
    }

    #[test]
    fn credits_are_conserved(steps in prop::collection::vec((0_u8..4, 0_u128..4, -5_i64..200), 0..80)) {
        let mut account = Account::absent();
        let mut granted = 0_i64;
        for (kind, key, amount) in steps {
            let task = TaskId(Uuid::from_u128(key));
            let command = match kind {
                0 => ledger::Command::Grant { key: format!("grant-{key}"), amount: Credits(amount) },
                1 => ledger::Command::Hold { task, amount: Credits(amount), expires_at: None },
                2 => ledger::Command::Settle { task, charge: Credits(amount) },
                _ => ledger::Command::Release { task },
            };
            if let Ok(Decision::Record(events)) = account.decide(command.clone(), support::now()) {
                for event in &events {
                    if let ledger::Event::Granted { amount, .. } = event {
                        granted += amount.0;
                    }
                    account = account.evolve(event).expect("it fits");
                }
                let again = account.decide(command, support::now());
                prop_assert_eq!(again, Ok(Decision::AlreadySo), "a repeated command");
            }
            prop_assert!(account.available >= Credits::ZERO && account.held >= Credits::ZERO);
            prop_assert_eq!(granted, account.available.0 + account.held.0 + account.charged.0);
        }
    }
}

#[test]
fn an_account_refuses_what_it_can_not_carry() {
    let full = ledger::Command::Grant { key: "all".to_owned(), amount: Credits(i64::MAX) };
    let Ok(Decision::Record(events)) = Account::absent().decide(full, support::now()) else {
        panic!("the first grant is recorded");
    };
    let account = Account::absent().evolve(&events[0]).expect("it fits");
    let one_more = ledger::Command::Grant { key: "one more".to_owned(), amount: Credits(1) };
    assert_eq!(account.decide(one_more, support::now()).expect_err("overflow").code, "overflow");
}
