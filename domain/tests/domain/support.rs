//! Sample values, shared by the tests of the domain.

use chrono::{TimeDelta, TimeZone, Utc};
use domain::attempt::{self, Heard};
use domain::id::{AssetId, AttemptId, TaskId};
use domain::ledger;
use domain::money::Credits;
use domain::outcome::{Probe, StoredObject};
use domain::task::{self, Container, ErrorClass, ExportSpec, Order, Video, Work};
use domain::testkit::strategies::usual_order;
use domain::time::Timestamp;
use uuid::Uuid;

pub fn now() -> Timestamp {
    Utc.timestamp_opt(1_790_000_000, 123_456_000).single().expect("a valid instant")
}

pub fn later(seconds: i64) -> Timestamp {
    now() + TimeDelta::seconds(seconds)
}

pub fn order() -> Order {
    usual_order(TaskId(Uuid::from_u128(1)))
}

/// An export of the sample order's video: a task of its own.
pub fn export_order(height_px: u32) -> Order {
    let task = TaskId(Uuid::from_u128(3));
    let spec = ExportSpec { container: Container::Mp4, height_px };
    let source_key = "tenants/t/video.mp4".to_owned();
    Order { task, work: Work::Export { source: order().task, source_key, spec }, ..order() }
}

pub fn attempt_id() -> AttemptId {
    AttemptId::of(order().task, 1)
}

pub fn object(name: &str, content_type: &str) -> StoredObject {
    StoredObject {
        key: format!("tenants/t/{name}"),
        bytes: 1234,
        sha256: "ab".repeat(32),
        content_type: content_type.to_owned(),
    }
}

pub fn video() -> Video {
    Video { asset: AssetId::of(attempt_id(), "video"), object: object("video.mp4", "video/mp4") }
}

pub fn probe() -> Probe {
    Probe {
        duration_millis: Some(3_900),
        width: 320,
        height: 240,
        video_codec: "h264".to_owned(),
        audio_codec: None,
        millihertz: Some(25_000),
    }
}

pub fn task_commands() -> Vec<task::Command> {
    use task::Command as It;
    vec![
        It::Submit(order()),
        It::Submit(export_order(720)),
        It::Submit(export_order(721)),
        It::BeginSubmission { attempt_no: 1 },
        It::BeginSubmission { attempt_no: 2 },
        It::Accept,
        It::Defer { retry_at: now(), reason: "throttled".to_owned() },
        It::Defer { retry_at: later(60), reason: "throttled".to_owned() },
        It::Wait { retry_at: now(), reason: "throttled".to_owned() },
        It::Wait { retry_at: later(60), reason: "slot_tenant".to_owned() },
        It::Replace { retry_at: now(), reason: "internal".to_owned(), max_attempts: 2 },
        It::LoseTrack,
        It::BeginFetch,
        It::DelayFetch { retry_at: later(5), cause: "cut short".to_owned() },
        It::BeginRender,
        It::DelayRender { retry_at: later(5), cause: "no room".to_owned() },
        It::StoreVideo(video()),
        It::BeginProcessing { max_tries: 2, busy_until: later(660) },
        It::BeginProcessing { max_tries: 2, busy_until: now() },
        It::DelayProcessing { retry_at: later(5), cause: "no room".to_owned() },
        It::FinishVideo { probe: probe(), charge: Credits(100), retry_at: later(5), cause: "no picture".to_owned() },
        It::FinishVideo { probe: probe(), charge: Credits(121), retry_at: later(5), cause: "no picture".to_owned() },
        It::Finish { probe: probe(), thumbnail: object("thumbnail.jpg", "image/jpeg"), charge: Credits(100) },
        It::Finish { probe: probe(), thumbnail: object("thumbnail.jpg", "image/jpeg"), charge: Credits(121) },
        It::ForgoExtras,
        It::Fail { class: ErrorClass::Provider, code: "internal".to_owned(), message: "it broke".to_owned() },
        It::Fail { class: ErrorClass::Timeout, code: "late".to_owned(), message: "too late".to_owned() },
        It::Cancel { by: "user:1".to_owned() },
        It::Retry { by: "user:1".to_owned(), give_up_at: later(7200) },
        It::ConfirmCancel,
        It::DiscardOutput,
        It::AskPerson { reason: "ambiguous".to_owned() },
    ]
}

pub fn attempt_commands() -> Vec<attempt::Command> {
    use attempt::Command as It;
    let accept = |job: &str| It::Accept {
        job: job.to_owned(),
        how: Heard::LookUp,
        next_poll_at: later(2),
        give_up_at: later(600),
    };
    let fail = |round| It::Fail { round, class: ErrorClass::Provider, code: "x".to_owned(), message: "y".to_owned() };
    vec![
        It::Plan { task: order().task, number: 1, provider: "replicate".to_owned() },
        It::BeginSubmission { give_up_at: later(45) },
        It::BeginSubmission { give_up_at: now() },
        accept("job-a"),
        accept("job-b"),
        It::Defer { reason: "throttled".to_owned(), round: 1 },
        It::Defer { reason: "throttled".to_owned(), round: 2 },
        It::LoseAnswer { round: 1, next_lookup_at: later(5), cause: "reset".to_owned() },
        It::NoteLookup { absent: true, next_lookup_at: later(9), finding: "none".to_owned() },
        It::NoteLookup { absent: false, next_lookup_at: later(9), finding: "503".to_owned() },
        It::NotePoll { percent: Some(40), next_poll_at: later(4), finding: "running".to_owned() },
        It::Succeed { usage_millis: Some(2_000) },
        fail(None),
        fail(Some(1)),
        fail(Some(2)),
        It::ConfirmCancel,
        It::GiveUp { reason: "too long".to_owned() },
        It::RecordOrphan { job: "job-c".to_owned() },
    ]
}

pub fn account_commands() -> Vec<ledger::Command> {
    use ledger::Command as It;
    let task = order().task;
    let other = TaskId(Uuid::from_u128(2));
    let hold = |task, expires_at| It::Hold { task, amount: Credits(120), expires_at };
    let refund = |key: &str, amount| It::Refund {
        task,
        key: key.to_owned(),
        amount: Credits(amount),
        reason: "the wrong boat".to_owned(),
    };
    let adjust = |amount| It::Adjust {
        key: "correction-1".to_owned(),
        amount: Credits(amount),
        reason: "granted twice by hand".to_owned(),
        by: "operator:1".to_owned(),
    };
    vec![
        It::Grant { key: "voucher-1".to_owned(), amount: Credits(150) },
        It::Grant { key: "voucher-2".to_owned(), amount: Credits(0) },
        hold(task, Some(now())),
        hold(other, None),
        It::Settle { task, charge: Credits(100) },
        It::Settle { task, charge: Credits(121) },
        It::Settle { task, charge: Credits(-1) },
        It::Release { task },
        It::Release { task: other },
        It::Expire { task },
        It::Expire { task: other },
        refund("case-1", 40),
        refund("case-1", 41),
        refund("case-2", 61),
        adjust(-30),
        adjust(-31),
        adjust(0),
    ]
}
