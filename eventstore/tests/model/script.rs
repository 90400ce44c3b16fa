//! An outside world whose answers depend on the luck of the step alone: whoever asks the same gets the same.

use domain::outcome::{
    Answer, Call, CancelAsked, Created, FaultClass, Fetched, Found, JobState, Polled, Probe, Processed, ProviderFault,
    Rendered, StoredObject,
};
use eventstore::{CallContext, Caller, Committed};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Answers by luck, and remembers what was asked.
pub struct Script {
    luck: u64,
    calls: Mutex<Vec<Call>>,
}

impl Script {
    pub const fn new(luck: u64) -> Self {
        Self { luck, calls: Mutex::new(Vec::new()) }
    }

    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Caller for Script {
    fn call<'a>(
        &'a self,
        call: &'a Committed<Call>,
        _context: CallContext,
    ) -> Pin<Box<dyn Future<Output = Answer> + Send + 'a>> {
        Box::pin(async move {
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            calls.push(call.get().clone());
            answer(call.get(), self.luck, calls.len())
        })
    }
}

/// The answer to the `nth` call (from 1) of a delivery with this luck.
pub fn answer(call: &Call, luck: u64, nth: usize) -> Answer {
    let luck = (luck >> (4 * nth.min(12))) % 16;
    let cause = || "no luck".to_owned();
    match call {
        Call::Create { attempt, .. } => Answer::Created(match luck {
            0..=6 => Created::Accepted { job: format!("job-{attempt}") },
            7 => Created::Throttled { retry_after: Some(Duration::from_secs(7)) },
            8 => Created::NotSent { cause: cause() },
            9 => Created::Rejected(fault(FaultClass::Moderation)),
            10 => Created::Rejected(fault(FaultClass::Internal)),
            _ => Created::Unknown { cause: cause() },
        }),
        Call::Find { attempt, .. } => Answer::Found(match luck {
            0..=4 => Found::Job { job: format!("job-{attempt}") },
            5..=9 => Found::Absent,
            10..=12 => Found::Inconclusive { cause: cause() },
            _ => Found::Ambiguous { jobs: vec!["job-a".to_owned(), "job-b".to_owned()] },
        }),
        Call::Poll { .. } => Answer::Polled(polled(luck)),
        Call::Cancel { .. } => Answer::CancelAsked(match luck {
            0..=7 => CancelAsked::Requested,
            8..=11 => CancelAsked::AlreadyEnded,
            12 => CancelAsked::NotFound,
            _ => CancelAsked::Unknown,
        }),
        Call::Fetch { key, .. } => Answer::Fetched(match luck {
            0..=10 => Fetched::Stored(object(key, "video/mp4")),
            11 => Fetched::Stored(object(key, "text/html")),
            12 => Fetched::Never { code: "gone", cause: cause() },
            _ => Fetched::NotNow { cause: cause() },
        }),
        Call::Process { thumbnail_key, .. } => Answer::Processed(match luck {
            0..=8 => Processed::Ready { probe: probe(), thumbnail: object(thumbnail_key, "image/jpeg") },
            9..=11 => Processed::Partial { probe: probe(), cause: cause() },
            12 => Processed::Corrupt { cause: cause() },
            _ => Processed::NotNow { cause: cause() },
        }),
        Call::Render { key, .. } => Answer::Rendered(match luck {
            0..=10 => Rendered::Stored(object(key, "video/mp4")),
            11 => Rendered::Never { code: "no_such_size", cause: cause() },
            _ => Rendered::NotNow { cause: cause() },
        }),
    }
}

fn polled(luck: u64) -> Polled {
    match luck {
        0..=6 => Polled::State(JobState::Succeeded { output_url: "https://out".to_owned(), usage_millis: Some(900) }),
        7..=9 => Polled::State(JobState::Running { percent: Some(10) }),
        10 => Polled::State(JobState::Failed(fault(FaultClass::Internal))),
        11 => Polled::State(JobState::Failed(fault(FaultClass::Moderation))),
        12 => Polled::State(JobState::NotFound),
        13 => Polled::State(JobState::Canceled),
        _ => Polled::Unavailable { cause: "503".to_owned(), retry_after: Some(Duration::from_secs(9)) },
    }
}

pub fn fault(class: FaultClass) -> ProviderFault {
    ProviderFault { class, code: "E7".to_owned(), message: "no".to_owned() }
}

pub fn object(key: &str, content_type: &str) -> StoredObject {
    StoredObject { key: key.to_owned(), bytes: 1_000, sha256: "ab".repeat(32), content_type: content_type.to_owned() }
}

pub const fn probe_of(millis: u64, codec: String) -> Probe {
    Probe {
        duration_millis: Some(millis),
        width: 1280,
        height: 720,
        video_codec: codec,
        audio_codec: None,
        millihertz: Some(24_000),
    }
}

pub fn probe() -> Probe {
    probe_of(3_500, "h264".to_owned())
}
