//! A task as clients see it.

use super::asset::Asset;
use super::attempt::Attempt;
use super::context::caller;
use super::error::coded;
use super::history::{HistoryEvent, part, shown};
use super::names::{AssetKind, TaskState, named};
use super::node_id::Kind;
use super::scalars::{BigInt, Credits, Instant};
use super::siblings::Siblings;
use super::standing::{QueuePlace, TaskAction, TaskCredits, actions, reason};
use async_graphql::{Context, ID, Object, Result, SimpleObject};
use domain::task::State;
use projections::query::TaskRow;
use std::sync::Arc;

/// A video generation that was asked for.
pub(crate) struct Task {
    row: TaskRow,
    siblings: Arc<Siblings>,
}

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
        Kind::Task.global(self.row.task.0)
    }

    /// The same as a UUID. Arguments take either.
    async fn task_id(&self) -> ID {
        ID(self.row.task.to_string())
    }

    /// What it is at.
    async fn state(&self) -> Result<TaskState> {
        named(&self.row.state).ok_or_else(|| coded("INTERNAL", "the state can not be shown by this build"))
    }

    /// Why it is at what it is at, as a sentence for people: what it waits for, why it failed, who cancelled it.
    async fn status_reason(&self) -> String {
        reason(&self.row)
    }

    /// When it goes on by itself at the latest; null at the end, and while a person has been asked.
    async fn next_step_at(&self) -> Option<Instant> {
        let ended = State::parse(&self.row.state).is_some_and(State::is_terminal);
        self.row.wake_at.filter(|_| !ended).map(Instant)
    }

    /// Its place in the line, while it waits for a provider to take it.
    #[graphql(complexity = "20 + child_complexity")]
    async fn queue(&self, ctx: &Context<'_>) -> Result<Option<QueuePlace>> {
        let place = self.siblings.place(ctx, self.row.task).await?;
        Ok(place.map(|place| QueuePlace::of(place, self.row.created_at)))
    }

    /// What came of the credits that were set aside for it.
    #[graphql(complexity = "5 + child_complexity")]
    async fn credits(&self, ctx: &Context<'_>) -> Result<Option<TaskCredits>> {
        Ok(self.siblings.hold(ctx, self.row.task).await?.map(TaskCredits::from))
    }

    /// What the caller can do with it next, as of this version.
    async fn actions(&self, ctx: &Context<'_>) -> Result<Vec<TaskAction>> {
        let caller = caller(ctx)?;
        Ok(actions(&self.row, caller))
    }

    /// Counts its changes, from 1. Ask for at least the version that a mutation returned.
    async fn version(&self) -> i64 {
        self.row.version
    }

    /// Whose it is.
    async fn tenant_id(&self) -> ID {
        ID(self.row.tenant.to_string())
    }

    /// The provider that is to do it; `export` where it is rendered here.
    async fn provider(&self) -> &str {
        &self.row.provider
    }

    /// Who wants it cancelled, or wanted.
    async fn canceled_by(&self) -> Option<&String> {
        self.row.canceled_by.as_ref()
    }

    /// The model.
    async fn model(&self) -> &str {
        &self.row.model
    }

    /// Length asked for, in seconds.
    async fn duration_seconds(&self) -> i32 {
        self.row.duration_seconds
    }

    /// Uploaded input images.
    async fn input_asset_ids(&self) -> Vec<ID> {
        self.row.input_assets.iter().map(|asset| ID(asset.to_string())).collect()
    }

    /// How far the provider says it is, 0 to 100; 100 once there is a video.
    #[graphql(complexity = 5)]
    async fn progress_percent(&self, ctx: &Context<'_>) -> Result<Option<i32>> {
        if [State::PartiallyReady.name(), State::Succeeded.name()].contains(&self.row.state.as_str()) {
            return Ok(Some(100));
        }
        let attempts = self.siblings.attempts(ctx, self.row.task).await?;
        Ok(attempts.iter().find(|attempt| attempt.number == self.row.attempt_no).and_then(|attempt| attempt.percent))
    }

    /// Number of the current attempt; 0 before the first.
    async fn attempt_no(&self) -> i32 {
        self.row.attempt_no
    }

    /// Why it failed, if it did.
    async fn error(&self) -> Option<Failure> {
        Failure::of(self.row.error_class.as_ref(), self.row.error_code.as_ref(), self.row.error_message.as_ref())
    }

    /// What the person who was asked to look at it needs to know.
    async fn review_reason(&self) -> Option<&String> {
        self.row.review_reason.as_ref()
    }

    /// Credits set aside for it: the most it can cost.
    async fn hold(&self) -> Credits {
        Credits(self.row.hold)
    }

    /// What it cost, once that is known.
    async fn charge(&self) -> Option<Credits> {
        self.row.charge.map(Credits)
    }

    /// When it was submitted.
    async fn created_at(&self) -> Instant {
        Instant(self.row.created_at)
    }

    /// When it last changed.
    async fn updated_at(&self) -> Instant {
        Instant(self.row.updated_at)
    }

    /// When it ended.
    async fn finished_at(&self) -> Option<Instant> {
        self.row.finished_at.map(Instant)
    }

    /// The tries at providers, by number.
    #[graphql(complexity = "5 + 3 * child_complexity")]
    async fn attempts(&self, ctx: &Context<'_>) -> Result<Vec<Attempt>> {
        Ok(self
            .siblings
            .attempts(ctx, self.row.task)
            .await?
            .iter()
            .cloned()
            .map(|row| Attempt(row, Arc::clone(&self.siblings)))
            .collect())
    }

    /// The video and its thumbnail.
    #[graphql(complexity = "5 + 2 * child_complexity")]
    async fn assets(&self, ctx: &Context<'_>) -> Result<Vec<Asset>> {
        Ok(self.siblings.assets(ctx, self.row.task).await?.iter().cloned().map(Asset).collect())
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
    #[graphql(complexity = "20 + first.unwrap_or(200).clamp(1, 1000) as usize / 10 * child_complexity")]
    async fn history(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "At most so many, 1 to 1000; 200 where no number is given.")] first: Option<i32>,
        #[graphql(desc = "Only events after this position.")] after: Option<BigInt>,
    ) -> Result<Option<Vec<HistoryEvent>>> {
        let (after, count) = part(first, after)?;
        Ok(self.siblings.history(ctx, self.row.task, after, count).await?.map(shown))
    }
}

impl Task {
    /// A task that is shown by itself.
    pub(crate) fn alone(row: TaskRow) -> Self {
        let siblings = Siblings::of(std::slice::from_ref(&row));
        Self { row, siblings }
    }

    /// One of the tasks that are shown side by side.
    pub(crate) const fn among(row: TaskRow, siblings: Arc<Siblings>) -> Self {
        Self { row, siblings }
    }

    async fn asset(&self, ctx: &Context<'_>, kind: AssetKind) -> Result<Option<Asset>> {
        let assets = self.siblings.assets(ctx, self.row.task).await?;
        Ok(assets.iter().find(|asset| named(&asset.kind) == Some(kind)).cloned().map(Asset))
    }
}
