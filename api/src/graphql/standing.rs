//! How a task stands: why, its place in the line, its credits, and what can be done next.

use super::names::named;
use super::scalars::{Credits, Instant};
use crate::auth::{Caller, Role};
use crate::clock::now;
use async_graphql::{Enum, SimpleObject};
use domain::task::{ErrorClass, On, State, TRANSITIONS};
use domain::time::Timestamp;
use projections::query::{HoldRow, PlaceInLine, TaskRow};

/// The place of a task that waits for a provider to take it.
#[derive(Clone, Debug, SimpleObject)]
pub(crate) struct QueuePlace {
    /// So many tasks wait for the same provider and were submitted before, of all tenants.
    ahead: i64,
    /// Whether these are all; otherwise there are at least so many.
    exact: bool,
    /// How much longer it will wait, in seconds, judging by the provider's latest tasks; 0 where it is late. Null where nothing can be
    /// said. An estimate, no promise.
    expected_wait_seconds: Option<i64>,
}

impl QueuePlace {
    pub(crate) fn of(place: &PlaceInLine, created_at: Timestamp) -> Self {
        let waited = (now() - created_at).num_milliseconds() as f64 / 1_000.0;
        let left = place.usual_wait_seconds.map(|usual| (usual - waited).max(0.0).ceil() as i64);
        Self { ahead: place.ahead, exact: place.exact, expected_wait_seconds: left }
    }
}

/// The credits of a task. What was set aside is what was charged, what was given back, and what is still held.
#[derive(Clone, Debug, SimpleObject)]
pub(crate) struct TaskCredits {
    /// Set aside when it was submitted.
    reserved: Credits,
    /// Still set aside.
    held: Credits,
    /// Charged when it ended.
    settled: Credits,
    /// Given back when it ended.
    released: Credits,
    /// Given back later of what was charged.
    refunded: Credits,
    /// What the hold is at: `OPEN`, or how it was closed.
    state: String,
    /// When an open hold ends by itself.
    expires_at: Option<Instant>,
}

impl From<&HoldRow> for TaskCredits {
    fn from(row: &HoldRow) -> Self {
        Self {
            reserved: Credits(row.reserved),
            held: Credits(row.reserved - row.settled - row.released),
            settled: Credits(row.settled),
            released: Credits(row.released),
            refunded: Credits(row.refunded),
            state: row.state.clone(),
            expires_at: row.expires_at.map(Instant),
        }
    }
}

/// What can be done with a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
pub(crate) enum TaskAction {
    /// `cancelTask`.
    Cancel,
    /// `retryTask`: as a new task, with credits of its own.
    Retry,
    /// `exportTask`: the video in another size, as a new task.
    Export,
    /// Its video can be had: `video { url }`.
    Download,
}

/// What this caller can do with the task. What is legal is what the domain's own table and rules say.
pub(crate) fn actions(row: &TaskRow, caller: &Caller) -> Vec<TaskAction> {
    let Some(state) = State::parse(&row.state) else { return Vec::new() };
    let own = caller.tenant == row.tenant && caller.has(Role::Creator);
    let has_video = matches!(state, State::PartiallyReady | State::Succeeded);
    let allowed = [
        (TaskAction::Cancel, can_cancel(state) && row.canceled_by.is_none() && (own || caller.has(Role::Operator))),
        (TaskAction::Retry, own && can_retry(state, row.error_class.as_deref())),
        (TaskAction::Export, own && state == State::Succeeded),
        (TaskAction::Download, has_video),
    ];
    allowed.into_iter().filter_map(|(action, is_allowed)| is_allowed.then_some(action)).collect()
}

fn can_cancel(state: State) -> bool {
    TRANSITIONS.iter().any(|row| row.from == state && row.on == On::Cancel)
}

/// As `domain::process::retry` has it.
fn can_retry(state: State, class: Option<&str>) -> bool {
    match state {
        State::Failed => class != Some(ErrorClass::Moderation.name()),
        State::Canceled => true,
        _ => false,
    }
}

/// Why a task is at what it is at.
pub(crate) fn reason(row: &TaskRow) -> String {
    let by = row.canceled_by.as_deref().unwrap_or("somebody");
    let said = match named::<super::names::TaskState>(&row.state) {
        None => "this build does not know its state",
        Some(state) => {
            use super::names::TaskState as It;
            match state {
                It::Queued => "waits in line; nobody has been asked yet",
                It::Submitting => "a provider is being asked",
                It::WaitingRetry => "the provider could not take it; it is asked again",
                It::ProviderRunning => "a provider works on it",
                It::Reconciling => {
                    "it is not clear yet whether the provider has it; it is being looked up, and not submitted again"
                }
                It::CancelReconciling => return format!("{by} wants it cancelled; the provider's answer is awaited"),
                It::Fetching => "the provider has finished; its output is being fetched",
                It::Rendering => "it is being rendered",
                It::MediaProcessing => "the video is stored and is being examined",
                It::PartiallyReady => "the video can be played; its thumbnail is still to come",
                It::ManualReview => {
                    return row.review_reason.clone().unwrap_or_else(|| "a person has been asked".to_owned());
                }
                It::Succeeded => "the video is ready",
                It::Failed => return row.error_message.clone().unwrap_or_else(|| "it failed".to_owned()),
                It::Canceled => return format!("cancelled by {by}"),
                It::CanceledWithOutput => {
                    return format!("cancelled by {by}; the provider had finished, its output was not delivered");
                }
            }
        }
    };
    said.to_owned()
}
