//! Each transition table, both ways: every step that `decide` records is a row, every row is reached, and without a row every
//! input is refused, as "not from this state" or with a code that says why there is no such row.

use super::support;
use domain::aggregate::{Aggregate, Decision, NOT_FROM_THIS_STATE, Row};
use domain::attempt::Attempt;
use domain::ledger::{Account, HOLD_EXPIRED, KEY_TAKEN};
use domain::task::{State, Task};
use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

/// The codes of refusals for want of a row. A key can also be taken where there is one: that is a guard then.
const NO_ROW: [&str; 3] = [NOT_FROM_THIS_STATE, HOLD_EXPIRED, KEY_TAKEN];

/// Walks all states that the sample commands reach, up to a bound (counters make them endless).
fn walk<A, S, C>(
    table: &[Row<S, C>],
    commands: &[A::Command],
    state_of: impl Fn(&A, &A::Command) -> S,
    on: impl Fn(&A::Command) -> C,
) where
    A: Aggregate,
    A::Command: Clone + Debug,
    S: Copy + Eq + Hash + Debug,
    C: Copy + Eq + Hash + Debug,
{
    let mut reached = HashSet::new();
    let mut seen: Vec<A> = vec![];
    let mut todo = std::collections::VecDeque::from([A::absent()]);
    while let Some(state) = todo.pop_front() {
        if seen.contains(&state) || seen.len() > 2_000 {
            continue;
        }
        seen.push(state.clone());
        for command in commands {
            let (from, kind) = (state_of(&state, command), on(command));
            let rows: Vec<_> = table.iter().filter(|row| row.from == from && row.on == kind).collect();
            match state.decide(command.clone(), support::now()) {
                Ok(Decision::Record(events)) => {
                    assert!(!events.is_empty(), "{from:?} {kind:?} records nothing");
                    let next = events.iter().try_fold(state.clone(), |it, event| it.evolve(event));
                    let next = next.unwrap_or_else(|misfit| panic!("{from:?} {kind:?}: {misfit}"));
                    let to = state_of(&next, command);
                    assert!(rows.iter().any(|row| row.to == to), "no row for {from:?} --{kind:?}--> {to:?}");
                    reached.insert((from, kind, to));
                    todo.push_back(next);
                }
                Ok(Decision::AlreadySo) => {}
                Err(refusal) if NO_ROW.contains(&refusal.code) && (rows.is_empty() || refusal.code != KEY_TAKEN) => {
                    assert!(rows.is_empty(), "{from:?} refuses {kind:?}, yet the table has a row");
                }
                Err(refusal) => {
                    assert!(!rows.is_empty(), "{from:?} {kind:?} has a guard ({}) but no row", refusal.code);
                    assert!(!refusal.message.is_empty() && !refusal.state.is_empty());
                }
            }
        }
    }
    for row in table {
        assert!(reached.contains(&(row.from, row.on, row.to)), "row {row:?} is never reached");
    }
}

#[test]
fn the_task_does_what_its_table_says() {
    walk(
        domain::task::TRANSITIONS,
        &support::task_commands(),
        |task: &Task, _| task.state(),
        domain::task::Command::on,
    );
}

#[test]
fn the_attempt_does_what_its_table_says() {
    walk(
        domain::attempt::TRANSITIONS,
        &support::attempt_commands(),
        |attempt: &Attempt, _| attempt.state(),
        domain::attempt::Command::on,
    );
}

#[test]
fn the_account_does_what_its_table_says() {
    walk(domain::ledger::TRANSITIONS, &support::account_commands(), Account::state_for, domain::ledger::Command::on);
}

#[test]
fn no_row_leads_out_of_a_terminal_state() {
    for row in domain::task::TRANSITIONS {
        assert!(!row.from.is_terminal(), "{row:?} leaves a terminal state");
    }
    let named = State::ALL.iter().filter(|it| it.is_terminal()).map(|it| it.name()).collect::<HashSet<_>>();
    let drawn = domain::diagram::terminal(&domain::diagram::task_rows()).into_iter().collect::<HashSet<_>>();
    assert_eq!(drawn, named, "the diagram's ends are the terminal states");
}
