//! The history of one task, as the domain's own rules write it: what a log is filled with.

use crate::append::{FINDING, PROVIDER};
use anyhow::Context;
use domain::attempt::{Command as Attempt, Heard};
use domain::id::{AccountId, AssetId, AttemptId, TaskId, TenantId};
use domain::ledger::Command as Account;
use domain::money::Credits;
use domain::outcome::{Probe, StoredObject};
use domain::process::{Case, CaseKey, Change, Folded, Origin, Policy, StreamId, Turn, submit};
use domain::stored::{Stored, StoredEvent};
use domain::task::{Command as Task, Order, Video, Work};
use domain::time::{Timestamp, seconds};
use uuid::Uuid;

/// Polls of the attempt: with what is before and after them, its stream has 30 events.
const POLLS: u32 = 26;

/// Ids that stand in the bodies where another task's will be put.
#[derive(Clone, Copy)]
pub struct Ids {
    /// The task.
    pub task: TaskId,
    /// Its only attempt.
    pub attempt: AttemptId,
    /// Who pays: its id is the tenant's.
    pub account: AccountId,
    /// The video.
    pub asset: AssetId,
}

/// An event of the history.
pub struct Line {
    /// Its stream, by the ids of [`History::ids`].
    pub stream: StreamId,
    /// Its version; of the account's events, counted from this task's first one.
    pub version: i64,
    /// What is stored.
    pub stored: Stored,
    /// The message that it announces at once or later: type, schema version, topic, tag, payload.
    pub message: Option<(&'static str, i16, &'static str, &'static str, serde_json::Value)>,
}

/// A task from its submission to its settlement.
pub struct History {
    /// Whose history it is.
    pub ids: Ids,
    /// In the order in which it happened.
    pub lines: Vec<Line>,
}

/// Writes it.
///
/// # Errors
/// The rules refuse a step: they have changed, and this history has to follow.
pub fn history(now: Timestamp) -> anyhow::Result<History> {
    let task = TaskId(Uuid::new_v4());
    let tenant = TenantId(Uuid::new_v4());
    let attempt = AttemptId::of(task, 1);
    let ids = Ids { task, attempt, account: AccountId::of(tenant), asset: AssetId::of(attempt, "video") };
    let policy = Policy::default();
    let key = CaseKey { account: Some(ids.account), with_account: true, ..CaseKey::task(task) };
    let mut case = Case::begin(key);
    for stream in case.wants() {
        case.supply(stream, Folded::absent(stream.category));
    }
    let mut turn = Turn::new(case, now, &policy);
    turn.account(Account::Grant { key: "funds".to_owned(), amount: Credits(1_000_000) })?;
    live(&mut turn, ids, tenant)?;
    lines(&turn, ids)
}

fn live(turn: &mut Turn<'_>, ids: Ids, tenant: TenantId) -> anyhow::Result<()> {
    let now = turn.now;
    let (soon, later) = (now + seconds(10), now + seconds(1_800));
    submit(turn, order(ids, tenant, now))?;
    turn.task(Task::BeginSubmission { attempt_no: 1 })?;
    turn.attempt(Attempt::Plan { task: ids.task, number: 1, provider: PROVIDER.to_owned() })?;
    turn.attempt(Attempt::BeginSubmission { give_up_at: later })?;
    let job = ids.attempt.0.simple().to_string();
    turn.attempt(Attempt::Accept { job, how: Heard::Answer, next_poll_at: soon, give_up_at: later })?;
    turn.task(Task::Accept)?;
    for _ in 0..POLLS {
        turn.attempt(Attempt::NotePoll { percent: Some(50), next_poll_at: soon, finding: FINDING.to_owned() })?;
    }
    turn.attempt(Attempt::Succeed { usage_millis: Some(61_000) })?;
    turn.task(Task::BeginFetch)?;
    turn.task(Task::StoreVideo(Video { asset: ids.asset, object: object(ids, "video.mp4", "video/mp4") }))?;
    turn.task(Task::BeginProcessing { max_tries: 5, busy_until: later })?;
    let probe = Probe {
        duration_millis: Some(5_004),
        width: 1_280,
        height: 720,
        video_codec: "h264".to_owned(),
        audio_codec: Some("aac".to_owned()),
        millihertz: Some(24_000),
    };
    let charge = Credits(60);
    turn.task(Task::Finish { probe, thumbnail: object(ids, "thumbnail.jpg", "image/jpeg"), charge })?;
    turn.account(Account::Settle { task: ids.task, charge })?;
    Ok(())
}

fn order(ids: Ids, tenant: TenantId, now: Timestamp) -> Order {
    Order {
        task: ids.task,
        tenant,
        account: ids.account,
        provider: PROVIDER.to_owned(),
        model: "standard".to_owned(),
        duration_seconds: 5,
        input_assets: vec![],
        request_ref: format!("generation_request/{}", ids.task.0),
        hold: Credits(100),
        price_per_second: Credits(10),
        submitted_at: now,
        give_up_at: now + seconds(3_600),
        retry_of: None,
        user: "user".to_owned(),
        priority: 0,
        work: Work::Generate,
        seeded: false,
        alternatives: vec![],
    }
}

fn object(ids: Ids, name: &str, content_type: &str) -> StoredObject {
    StoredObject {
        key: format!("{}/{}/{name}", ids.task.0, ids.attempt.0),
        bytes: 1_482_113,
        sha256: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08".to_owned(),
        content_type: content_type.to_owned(),
    }
}

fn lines(turn: &Turn<'_>, ids: Ids) -> anyhow::Result<History> {
    let mut versions = std::collections::HashMap::new();
    let mut lines = vec![];
    for change in &turn.changes {
        let stream = change.stream();
        let version = versions.entry(stream).and_modify(|it| *it += 1).or_insert(1_i64);
        let stored = match change {
            Change::Task(_, event) => event.encode(),
            Change::Attempt(_, event) => event.encode(),
            Change::Account(_, event) => event.encode(),
        }?;
        let origin = Origin::Event { stream, version: *version };
        let message = match turn.announcements.iter().find(|it| it.origin == origin) {
            None => None,
            Some(it) => {
                let message = &it.message;
                let schema = i16::try_from(message.schema_version())?;
                let topic = message.topic().name();
                Some((message.event_type(), schema, topic, message.tag(), message.payload()?))
            }
        };
        lines.push(Line { stream, version: *version, stored, message });
    }
    let granted = lines.first().context("nothing was recorded")?;
    anyhow::ensure!(granted.stored.name == "account.granted", "the account has to have credits first");
    Ok(History { ids, lines })
}
