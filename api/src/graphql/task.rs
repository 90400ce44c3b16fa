//! A task as clients see it.

use super::asset::Asset;
use super::attempt::Attempt;
use super::context::{assets, attempts};
use super::error::coded;
use super::history::{HistoryEvent, history};
use super::names::{AssetKind, TaskState, named};
use super::node_id::Kind;
use super::scalars::{BigInt, Credits, Instant};
use async_graphql::{Context, ID, Object, Result, SimpleObject};
use projections::query::TaskRow;

/// A video generation that was asked for.
pub(crate) struct Task(pub(crate) TaskRow);

/// Why a task or an attempt failed.
#[derive(Clone, Debug, SimpleObject)]
pub(crate) struct Failure {
    /// What to go by: `moderation`, `bad_request`, `provider_account`, `provider`, `timeout`, `output` or `operator`.
    class: String,
    /// A stable code, the provider's own where it has one.
    code: Option<String>,
    /// A sentence for people.
    message: Option<String>,
}

impl Failure {
    pub(crate) fn of(class: Option<&String>, code: Option<&String>, message: Option<&String>) -> Option<Self> {
        class.map(|class| Self { class: class.clone(), code: code.cloned(), message: message.cloned() })
    }
}

/// A video generation that was asked for.
#[Object]
impl Task {
    /// Global id, for `node(id)`.
    pub(crate) async fn id(&self) -> ID {
        Kind::Task.global(self.0.task.0)
    }

    /// The same as a UUID. Arguments take either.
    async fn task_id(&self) -> ID {
        ID(self.0.task.to_string())
    }

    /// What it is at.
    async fn state(&self) -> Result<TaskState> {
        named(&self.0.state).ok_or_else(|| coded("INTERNAL", "the state can not be shown by this build"))
    }

    /// Counts its changes, from 1. Ask for at least the version that a mutation returned.
    async fn version(&self) -> i64 {
        self.0.version
    }

    /// The model.
    async fn model(&self) -> &str {
        &self.0.model
    }

    /// Length asked for, in seconds.
    async fn duration_seconds(&self) -> i32 {
        self.0.duration_seconds
    }

    /// Uploaded input images.
    async fn input_asset_ids(&self) -> Vec<ID> {
        self.0.input_assets.iter().map(|asset| ID(asset.to_string())).collect()
    }

    /// How far the provider says it is, 0 to 100; 100 once there is a video.
    #[graphql(complexity = 5)]
    async fn progress_percent(&self, ctx: &Context<'_>) -> Result<Option<i32>> {
        use domain::task::State;
        if [State::PartiallyReady.name(), State::Succeeded.name()].contains(&self.0.state.as_str()) {
            return Ok(Some(100));
        }
        let attempts = attempts(ctx, self.0.task).await?;
        Ok(attempts.iter().find(|attempt| attempt.number == self.0.attempt_no).and_then(|attempt| attempt.percent))
    }

    /// Number of the current attempt; 0 before the first.
    async fn attempt_no(&self) -> i32 {
        self.0.attempt_no
    }

    /// Why it failed, if it did.
    async fn error(&self) -> Option<Failure> {
        Failure::of(self.0.error_class.as_ref(), self.0.error_code.as_ref(), self.0.error_message.as_ref())
    }

    /// What the person who was asked to look at it needs to know.
    async fn review_reason(&self) -> Option<&String> {
        self.0.review_reason.as_ref()
    }

    /// Credits set aside for it: the most it can cost.
    async fn hold(&self) -> Credits {
        Credits(self.0.hold)
    }

    /// What it cost, once that is known.
    async fn charge(&self) -> Option<Credits> {
        self.0.charge.map(Credits)
    }

    /// When it was submitted.
    async fn created_at(&self) -> Instant {
        Instant(self.0.created_at)
    }

    /// When it last changed.
    async fn updated_at(&self) -> Instant {
        Instant(self.0.updated_at)
    }

    /// When it ended.
    async fn finished_at(&self) -> Option<Instant> {
        self.0.finished_at.map(Instant)
    }

    /// The tries at providers, by number.
    #[graphql(complexity = "5 + 3 * child_complexity")]
    async fn attempts(&self, ctx: &Context<'_>) -> Result<Vec<Attempt>> {
        Ok(attempts(ctx, self.0.task).await?.into_iter().map(Attempt).collect())
    }

    /// The video and its thumbnail.
    #[graphql(complexity = "5 + 2 * child_complexity")]
    async fn assets(&self, ctx: &Context<'_>) -> Result<Vec<Asset>> {
        Ok(assets(ctx, self.0.task).await?.into_iter().map(Asset).collect())
    }

    /// The video, once there is one; it can be played before the task has succeeded.
    #[graphql(complexity = "5 + child_complexity")]
    async fn video(&self, ctx: &Context<'_>) -> Result<Option<Asset>> {
        self.asset(ctx, AssetKind::Video).await
    }

    /// A still of the video, once there is one.
    #[graphql(complexity = "5 + child_complexity")]
    async fn thumbnail(&self, ctx: &Context<'_>) -> Result<Option<Asset>> {
        self.asset(ctx, AssetKind::Thumbnail).await
    }

    /// Everything that was recorded about it, in order: its own events, its attempts' and its account's for it.
    #[graphql(complexity = "20 + 20 * child_complexity")]
    async fn history(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "At most so many, 1 to 1000; 200 where no number is given.")] first: Option<i32>,
        #[graphql(desc = "Only events after this position.")] after: Option<BigInt>,
    ) -> Result<Option<Vec<HistoryEvent>>> {
        history(ctx, self.0.task, first, after).await
    }
}

impl Task {
    async fn asset(&self, ctx: &Context<'_>, kind: AssetKind) -> Result<Option<Asset>> {
        let assets = assets(ctx, self.0.task).await?;
        Ok(assets.into_iter().find(|asset| named(&asset.kind) == Some(kind)).map(Asset))
    }
}
