//! Commands to a task. The one place where a new one is added.

use super::basics::{credits, hostile_credits, hostile_text, hostile_timestamps, orders, task_ids, timestamps, words};
use crate::id::{AssetId, AttemptId, TaskId};
use crate::money::Credits;
use crate::outcome::{Probe, StoredObject};
use crate::task::{Command, ErrorClass, Video};
use crate::time::Timestamp;
use proptest::prelude::*;

pub(crate) fn commands() -> BoxedStrategy<Command> {
    from(&prop_oneof![3 => Just(1_u32), 2 => 2_u32..=3].boxed(), &timestamps(), &words(), &credits())
}

pub(crate) fn hostile_commands() -> BoxedStrategy<Command> {
    let numbers = prop_oneof![0_u32..4, prop::sample::select(vec![u32::MAX - 1, u32::MAX]), any::<u32>()].boxed();
    from(&numbers, &hostile_timestamps(), &prop_oneof![words(), hostile_text()].boxed(), &hostile_credits())
}

type Numbers = BoxedStrategy<u32>;
type Times = BoxedStrategy<Timestamp>;
type Words = BoxedStrategy<String>;

fn from(numbers: &Numbers, times: &Times, words: &Words, credits: &BoxedStrategy<Credits>) -> BoxedStrategy<Command> {
    prop_oneof![
        17 => with_provider(numbers, times, words),
        17 => with_media(numbers, times, words, credits),
        11 => ends(times, words),
    ]
    .boxed()
}

fn with_provider(numbers: &Numbers, times: &Times, words: &Words) -> BoxedStrategy<Command> {
    let (numbers, times, words) = (|| numbers.clone(), || times.clone(), || words.clone());
    prop_oneof![
        3 => orders().prop_map(Command::Submit),
        4 => numbers().prop_map(|attempt_no| Command::BeginSubmission { attempt_no }),
        3 => Just(Command::Accept),
        2 => (times(), words()).prop_map(|(retry_at, reason)| Command::Defer { retry_at, reason }),
        3 => (times(), words()).prop_map(|(retry_at, reason)| Command::Wait { retry_at, reason }),
        2 => (times(), words(), numbers())
            .prop_map(|(retry_at, reason, max_attempts)| Command::Replace { retry_at, reason, max_attempts }),
        3 => Just(Command::LoseTrack),
        3 => Just(Command::BeginFetch),
        2 => (times(), words()).prop_map(|(retry_at, cause)| Command::DelayFetch { retry_at, cause }),
    ]
    .boxed()
}

fn with_media(
    numbers: &Numbers,
    times: &Times,
    words: &Words,
    credits: &BoxedStrategy<Credits>,
) -> BoxedStrategy<Command> {
    let (times, words, credits) = (|| times.clone(), || words.clone(), || credits.clone());
    // A video that is finished in two steps costs the same in both: else nobody ever gets to the second.
    let lengths = || prop_oneof![1 => Just(Some(3_900)), 1 => any::<Option<u32>>()];
    let charges = || prop_oneof![1 => Just(Credits(100)), 1 => credits()];
    prop_oneof![
        3 => Just(Command::BeginRender),
        1 => (times(), words()).prop_map(|(retry_at, cause)| Command::DelayRender { retry_at, cause }),
        3 => (task_ids(), numbers.clone()).prop_map(|(task, number)| Command::StoreVideo(video(task, number))),
        2 => (numbers.clone(), times())
            .prop_map(|(max_tries, busy_until)| Command::BeginProcessing { max_tries, busy_until }),
        1 => (times(), words()).prop_map(|(retry_at, cause)| Command::DelayProcessing { retry_at, cause }),
        3 => (lengths(), charges(), times(), words()).prop_map(|(length, charge, retry_at, cause)| {
            Command::FinishVideo { probe: probe(length), charge, retry_at, cause }
        }),
        3 => (lengths(), charges()).prop_map(|(length, charge)| {
            let thumbnail = object("thumbnail.jpg", "image/jpeg");
            Command::Finish { probe: probe(length), thumbnail, charge }
        }),
        1 => Just(Command::ForgoExtras),
    ]
    .boxed()
}

fn ends(times: &Times, words: &Words) -> BoxedStrategy<Command> {
    let words = || words.clone();
    let class = prop::sample::select(ErrorClass::ALL.to_vec());
    prop_oneof![
        1 => (class, words(), words()).prop_map(|(class, code, message)| Command::Fail { class, code, message }),
        3 => words().prop_map(|by| Command::Cancel { by }),
        2 => (words(), times.clone()).prop_map(|(by, give_up_at)| Command::Retry { by, give_up_at }),
        1 => Just(Command::ConfirmCancel),
        1 => Just(Command::DiscardOutput),
        3 => words().prop_map(|reason| Command::AskPerson { reason }),
    ]
    .boxed()
}

fn object(file: &str, content_type: &str) -> StoredObject {
    StoredObject {
        key: format!("tenants/t/{file}"),
        bytes: 1_234,
        sha256: "ab".repeat(32),
        content_type: content_type.to_owned(),
    }
}

fn video(task: TaskId, number: u32) -> Video {
    Video { asset: AssetId::of(AttemptId::of(task, number), "video"), object: object("video.mp4", "video/mp4") }
}

fn probe(duration_millis: Option<u32>) -> Probe {
    Probe {
        duration_millis: duration_millis.map(u64::from),
        width: 640,
        height: 360,
        video_codec: "h264".to_owned(),
        audio_codec: None,
        millihertz: Some(29_970),
    }
}
