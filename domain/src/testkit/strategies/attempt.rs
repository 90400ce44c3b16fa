//! Commands to an attempt. The one place where a new one is added.

use super::basics::{hostile_text, hostile_timestamps, task_ids, timestamps, words};
use crate::attempt::{Command, Heard};
use crate::id::TaskId;
use crate::task::ErrorClass;
use crate::time::Timestamp;
use proptest::prelude::*;

pub(crate) fn commands() -> BoxedStrategy<Command> {
    from(&task_ids(), &(0_u32..4).boxed(), &timestamps(), &words())
}

pub(crate) fn hostile_commands() -> BoxedStrategy<Command> {
    let numbers = prop_oneof![0_u32..4, prop::sample::select(vec![u32::MAX - 1, u32::MAX]), any::<u32>()].boxed();
    from(&task_ids(), &numbers, &hostile_timestamps(), &prop_oneof![words(), hostile_text()].boxed())
}

fn from(
    tasks: &BoxedStrategy<TaskId>,
    numbers: &BoxedStrategy<u32>,
    times: &BoxedStrategy<Timestamp>,
    words: &BoxedStrategy<String>,
) -> BoxedStrategy<Command> {
    let (numbers, times, words) = (|| numbers.clone(), || times.clone(), || words.clone());
    let jobs = || prop_oneof![4 => Just("job-1".to_owned()), 1 => Just("job-2".to_owned()), 1 => words()];
    let class = prop::sample::select(ErrorClass::ALL.to_vec());
    prop_oneof![
        3 => (tasks.clone(), numbers(), words())
            .prop_map(|(task, number, provider)| Command::Plan { task, number, provider }),
        4 => times().prop_map(|give_up_at| Command::BeginSubmission { give_up_at }),
        3 => (jobs(), heard(words()), times(), times()).prop_map(|(job, how, next_poll_at, give_up_at)| {
            Command::Accept { job, how, next_poll_at, give_up_at }
        }),
        3 => (words(), numbers()).prop_map(|(reason, round)| Command::Defer { reason, round }),
        3 => (numbers(), times(), words())
            .prop_map(|(round, next_lookup_at, cause)| Command::LoseAnswer { round, next_lookup_at, cause }),
        2 => (any::<bool>(), times(), words())
            .prop_map(|(absent, next_lookup_at, finding)| Command::NoteLookup { absent, next_lookup_at, finding }),
        2 => (any::<Option<u8>>(), times(), words())
            .prop_map(|(percent, next_poll_at, finding)| Command::NotePoll { percent, next_poll_at, finding }),
        1 => any::<Option<u64>>().prop_map(|usage_millis| Command::Succeed { usage_millis }),
        1 => (prop::option::of(numbers()), class, words(), words())
            .prop_map(|(round, class, code, message)| Command::Fail { round, class, code, message }),
        1 => Just(Command::ConfirmCancel),
        1 => words().prop_map(|reason| Command::GiveUp { reason }),
        2 => jobs().prop_map(|job| Command::RecordOrphan { job }),
    ]
    .boxed()
}

/// Every way in which a job becomes known.
fn heard(operators: BoxedStrategy<String>) -> BoxedStrategy<Heard> {
    let machines = prop::sample::select(vec![Heard::Answer, Heard::Callback, Heard::LookUp]);
    prop_oneof![3 => machines, 1 => operators.prop_map(|by| Heard::Operator { by })].boxed()
}
