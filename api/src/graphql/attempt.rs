//! An attempt as clients see it.

use super::error::coded;
use super::names::{AttemptState, named};
use super::node_id::Kind;
use super::scalars::{BigInt, Instant};
use super::siblings::Siblings;
use super::task::Failure;
use async_graphql::{Context, ID, Object, Result, SimpleObject};
use projections::query::AttemptRow;
use std::sync::Arc;

/// One try to have a provider carry out a task.
pub(crate) struct Attempt(pub(crate) AttemptRow, pub(crate) Arc<Siblings>);

/// What happened to an attempt, and when.
#[derive(Clone, Debug, SimpleObject)]
pub(crate) struct TimelineEntry {
    /// What happened, by the event's name, such as `attempt.accepted`.
    event: String,
    /// The attempt's version that it made.
    version: BigInt,
    /// When it was recorded.
    at: Instant,
    /// Who: `user:…`, `provider:…`, or the consumer that worked.
    actor: String,
}

/// Events of a task that a timeline is made of.
const TIMELINE: u32 = 1_000;

/// One try to have a provider carry out a task.
#[Object]
impl Attempt {
    /// Global id, for `node(id)`.
    pub(crate) async fn id(&self) -> ID {
        Kind::Attempt.global(self.0.attempt.0)
    }

    /// The same as a UUID.
    async fn attempt_id(&self) -> ID {
        ID(self.0.attempt.to_string())
    }

    /// Its number among the task's attempts, from 1.
    async fn number(&self) -> i32 {
        self.0.number
    }

    /// What it is at.
    async fn state(&self) -> Result<AttemptState> {
        named(&self.0.state).ok_or_else(|| coded("INTERNAL", "the state can not be shown by this build"))
    }

    /// Counts its changes, from 1.
    async fn version(&self) -> i64 {
        self.0.version
    }

    /// The provider.
    async fn provider(&self) -> &str {
        &self.0.provider
    }

    /// The provider's job id, once it has one.
    async fn provider_job_id(&self) -> Option<&String> {
        self.0.provider_job_id.as_ref()
    }

    /// How often its submission was begun.
    async fn round(&self) -> i32 {
        self.0.round
    }

    /// How often the provider was asked how it is doing.
    async fn polls(&self) -> i32 {
        self.0.polls
    }

    /// How far the provider says it is, 0 to 100.
    async fn percent(&self) -> Option<i32> {
        self.0.percent
    }

    /// Jobs at the provider that carry its reference but are not the one it works with.
    async fn orphans(&self) -> &[String] {
        &self.0.orphans
    }

    /// Why it failed, if it did.
    async fn error(&self) -> Option<Failure> {
        Failure::of(self.0.error_class.as_ref(), self.0.error_code.as_ref(), self.0.error_message.as_ref())
    }

    /// When its submission last began.
    async fn submit_started_at(&self) -> Option<Instant> {
        self.0.submit_started_at.map(Instant)
    }

    /// When the answer to it came.
    async fn submit_finished_at(&self) -> Option<Instant> {
        self.0.submit_finished_at.map(Instant)
    }

    /// What happened to it, in order: its part of the task's history, of which the first 1000 events are looked at.
    #[graphql(complexity = "20 + 10 * child_complexity")]
    async fn timeline(&self, ctx: &Context<'_>) -> Result<Vec<TimelineEntry>> {
        let history = self.1.history(ctx, self.0.task, 0, TIMELINE).await?.unwrap_or_default();
        let stream = format!("attempt-{}", self.0.attempt);
        let own = history.into_iter().filter(|row| row.stream == stream);
        let entry = |row: projections::query::HistoryRow| TimelineEntry {
            event: row.name,
            version: BigInt(row.version),
            at: Instant(row.recorded_at),
            actor: row.actor,
        };
        Ok(own.map(entry).collect())
    }

    /// When it was decided on.
    async fn created_at(&self) -> Instant {
        Instant(self.0.created_at)
    }

    /// When it last changed.
    async fn updated_at(&self) -> Instant {
        Instant(self.0.updated_at)
    }
}

impl Attempt {
    /// An attempt that is shown by itself.
    pub(crate) fn alone(row: AttemptRow) -> Self {
        let siblings = Siblings::of_task(row.task);
        Self(row, siblings)
    }
}
