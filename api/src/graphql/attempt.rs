//! An attempt as clients see it.

use super::error::coded;
use super::names::{AttemptState, named};
use super::node_id::Kind;
use super::scalars::Instant;
use super::task::Failure;
use async_graphql::{ID, Object, Result};
use projections::query::AttemptRow;

/// One try to have a provider carry out a task.
pub(crate) struct Attempt(pub(crate) AttemptRow);

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

    /// When it was decided on.
    async fn created_at(&self) -> Instant {
        Instant(self.0.created_at)
    }

    /// When it last changed.
    async fn updated_at(&self) -> Instant {
        Instant(self.0.updated_at)
    }
}
