//! Commands to an account. The one place where a new one is added.

use super::basics::{credits, hostile_credits, hostile_text, hostile_timestamps, keys, task_ids, timestamps, words};
use crate::id::TaskId;
use crate::ledger::Command;
use crate::money::Credits;
use crate::time::Timestamp;
use proptest::prelude::*;

pub(crate) fn commands() -> BoxedStrategy<Command> {
    let expiry = prop::option::of(timestamps());
    from(&task_ids(), &keys(), &credits(), &expiry.boxed(), &words())
}

pub(crate) fn hostile_commands() -> BoxedStrategy<Command> {
    let words = prop_oneof![words(), hostile_text()].boxed();
    let keys = prop_oneof![keys(), hostile_text()].boxed();
    from(&task_ids(), &keys, &hostile_credits(), &prop::option::of(hostile_timestamps()).boxed(), &words)
}

fn from(
    tasks: &BoxedStrategy<TaskId>,
    keys: &BoxedStrategy<String>,
    credits: &BoxedStrategy<Credits>,
    expiry: &BoxedStrategy<Option<Timestamp>>,
    words: &BoxedStrategy<String>,
) -> BoxedStrategy<Command> {
    let (tasks, keys, credits, words) = (|| tasks.clone(), || keys.clone(), || credits.clone(), || words.clone());
    prop_oneof![
        2 => (keys(), credits()).prop_map(|(key, amount)| Command::Grant { key, amount }),
        3 => (tasks(), credits(), expiry.clone())
            .prop_map(|(task, amount, expires_at)| Command::Hold { task, amount, expires_at }),
        2 => (tasks(), credits()).prop_map(|(task, charge)| Command::Settle { task, charge }),
        1 => tasks().prop_map(|task| Command::Release { task }),
        1 => tasks().prop_map(|task| Command::Expire { task }),
        2 => (tasks(), keys(), credits(), words())
            .prop_map(|(task, key, amount, reason)| Command::Refund { task, key, amount, reason }),
        1 => (keys(), credits(), any::<bool>(), words(), words()).prop_map(|(key, amount, takes, reason, by)| {
            let amount = if takes { Credits(amount.0.saturating_neg()) } else { amount };
            Command::Adjust { key, amount, reason, by }
        }),
    ]
    .boxed()
}
