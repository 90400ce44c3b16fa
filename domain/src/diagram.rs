//! The transition tables as Mermaid state diagrams: docs are made from the tables, never by hand.

use crate::aggregate::Row;
use std::fmt::Write;

/// A table in a form that knows no types: names of states and commands.
pub type NamedRow = (&'static str, &'static str, &'static str, &'static str);

/// The task's table by names.
#[must_use]
pub fn task_rows() -> Vec<NamedRow> {
    crate::task::TRANSITIONS
        .iter()
        .map(|it: &Row<_, _>| (it.from.name(), it.on.name(), it.to.name(), it.when))
        .collect()
}

/// The attempt's table by names.
#[must_use]
pub fn attempt_rows() -> Vec<NamedRow> {
    crate::attempt::TRANSITIONS.iter().map(|it| (it.from.name(), it.on.name(), it.to.name(), it.when)).collect()
}

/// The account's table by names.
#[must_use]
pub fn account_rows() -> Vec<NamedRow> {
    crate::ledger::TRANSITIONS.iter().map(|it| (it.from.name(), it.on.name(), it.to.name(), it.when)).collect()
}

/// The states of a table that nothing leads out of. A row that stays in its state (late news is recorded) leads nowhere.
#[must_use]
pub fn terminal(rows: &[NamedRow]) -> Vec<&'static str> {
    let mut ends: Vec<&'static str> = vec![];
    for (_, _, to, _) in rows {
        let leaves = rows.iter().any(|(from, _, next, _)| from == to && next != to);
        if !leaves && !ends.contains(to) {
            ends.push(to);
        }
    }
    ends
}

/// A Mermaid state diagram of a table.
#[must_use]
pub fn mermaid(rows: &[NamedRow]) -> String {
    let mut text = String::from("stateDiagram-v2\n");
    for (from, on, to, when) in rows {
        let note = if when.is_empty() { String::new() } else { format!(" [{when}]") };
        // Writing to a string can not fail.
        let _ = writeln!(text, "    {from} --> {to}: {on}{note}");
    }
    for state in terminal(rows) {
        let _ = writeln!(text, "    {state} --> [*]");
    }
    text
}
