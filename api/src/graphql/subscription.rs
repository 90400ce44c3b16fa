//! Watching tasks.

use super::context::{call, caller, record, state, viewer};
use super::error::{coded, fault};
use super::live::TaskUpdate;
use super::node_id::Kind;
use super::scalars::BigInt;
use super::task::Task;
use crate::auth::{Authority, Caller};
use crate::clock::now;
use crate::http::log_fault;
use crate::seats::{Seat, Seats};
use async_graphql::{Context, Error, ErrorExtensions, ID, Result};
use domain::id::{CorrelationId, TaskId, TenantId};
use futures_util::Stream;
use futures_util::stream::unfold;
use projections::live::{Begin, Feed, Item, Topic};
use projections::query::{ReadError, Viewer};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Pause after a reading that failed.
const TRY_AGAIN: Duration = Duration::from_secs(2);
/// How often reading may fail in a row before the subscription ends.
const MAX_FAILURES: u32 = 10;
/// How often a token is looked at again.
const LOOK_AT_TOKEN: Duration = Duration::from_secs(5);
/// Most tasks that one subscription names.
const MAX_TASKS: usize = 100;

/// The root of subscriptions.
pub(crate) struct Subscription;

/// The root of subscriptions: graphql-transport-ws at `/graphql/ws`, with the token as `authorization` in `connection_init`; or
/// `/graphql` with `Accept: text/event-stream`. Each ends with the error UNAUTHENTICATED when its token is over, and with UNAVAILABLE
/// when the server stops: connect again then, from where you were.
#[async_graphql::Subscription]
impl Subscription {
    /// A task's state: as it is now, then each newer version, in order. It ends after a terminal state.
    async fn task_status(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "Its UUID or its global id.")] task_id: ID,
        #[graphql(
            desc = "The version that the client has already: only newer ones are sent, each of them. For connecting again."
        )]
        from_version: Option<i64>,
    ) -> Result<impl Stream<Item = Result<Task>> + use<>> {
        let tasks = named(ctx, &[task_id]).await?;
        watched(ctx, "taskStatus", &tasks).await?;
        let begin = from_version.map_or(Begin::Now, Begin::Version);
        let follower = Follower::open(ctx, Topic::Tasks(tasks), begin)?;
        let sent = from_version.unwrap_or(0);
        Ok(unfold((follower, sent), async |(mut follower, mut sent)| {
            loop {
                match follower.next().await? {
                    Err(error) => return Some((Err(error), (follower, sent))),
                    Ok(item) => {
                        if let Some((version, task)) = TaskUpdate::newer_than(item, sent) {
                            sent = version;
                            return Some((Ok(task), (follower, sent)));
                        }
                    }
                }
            }
        }))
    }

    /// Tasks: first each as it is, then everything that happens to one of them, in order. It ends when all have ended.
    async fn task_updates(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "Up to 100: UUIDs or global ids.")] task_ids: Vec<ID>,
        #[graphql(
            desc = "The last position that the client got: only what came after it is sent, instead of a snapshot."
        )]
        after: Option<BigInt>,
    ) -> Result<impl Stream<Item = Result<TaskUpdate>> + use<>> {
        let tasks = named(ctx, &task_ids).await?;
        watched(ctx, "taskUpdates", &tasks).await?;
        let follower = Follower::open(ctx, Topic::Tasks(tasks), begin(after))?;
        Ok(follower.updates())
    }

    /// A tenant's tasks: first those that have not ended, at most 200 among the newest 1000, then everything that happens to any of the
    /// tenant's tasks, new ones included, in order.
    async fn tenant_updates(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "Whose; the caller's own by default.")] tenant_id: Option<ID>,
        #[graphql(
            desc = "The last position that the client got: only what came after it is sent, instead of a snapshot."
        )]
        after: Option<BigInt>,
    ) -> Result<impl Stream<Item = Result<TaskUpdate>> + use<>> {
        let tenant = match tenant_id {
            Some(id) => TenantId(Kind::Account.read(&id)?),
            None => caller(ctx)?.tenant,
        };
        if !viewer(ctx)?.sees(tenant) {
            return Err(coded("NOT_FOUND", "there is no such tenant"));
        }
        record(ctx, "tenantUpdates", tenant).await?;
        let follower = Follower::open(ctx, Topic::Tenant(tenant), begin(after))?;
        Ok(follower.updates())
    }
}

fn begin(after: Option<BigInt>) -> Begin {
    after.map_or(Begin::Now, |position| Begin::Position(position.0))
}

/// The tasks that are named, if all of them are there for the caller. The facts know them before the read model does.
async fn named(ctx: &Context<'_>, ids: &[ID]) -> Result<BTreeSet<TaskId>> {
    let viewer = viewer(ctx)?;
    if ids.is_empty() || ids.len() > MAX_TASKS {
        return Err(coded("BAD_ID", format!("name 1 to {MAX_TASKS} tasks")));
    }
    let tasks = ids.iter().map(|id| Kind::Task.read(id).map(TaskId)).collect::<Result<BTreeSet<_>>>()?;
    let wanted: Vec<TaskId> = tasks.iter().copied().collect();
    let found = state(ctx)?.reader.existing(viewer, &wanted).await.map_err(|error| fault(ctx, &error))?;
    if found.len() < tasks.len() {
        return Err(coded("NOT_FOUND", "there is no such task"));
    }
    Ok(tasks)
}

/// Records which tasks are watched.
async fn watched(ctx: &Context<'_>, what: &str, tasks: &BTreeSet<TaskId>) -> Result<()> {
    for task in tasks {
        record(ctx, what, task).await?;
    }
    Ok(())
}

/// A feed, for as long as its token holds.
struct Follower {
    feed: Feed,
    _seat: Seat,
    caller: Caller,
    authority: Option<Authority>,
    looked_at_token: Instant,
    correlation: CorrelationId,
    failures: u32,
    ended: bool,
}

impl Follower {
    fn open(ctx: &Context<'_>, topic: Topic, begin: Begin) -> Result<Self> {
        let (call, caller) = (call(ctx)?, caller(ctx)?.clone());
        let viewer: Viewer = caller.viewer();
        let seat = ctx.data::<Arc<Seats>>()?.take(caller.tenant);
        let seat =
            seat.ok_or_else(|| coded("TOO_MANY_SUBSCRIPTIONS", "your tenant has as many open as it may: close some"))?;
        Ok(Self {
            _seat: seat,
            feed: Feed::open(&state(ctx)?.reader, viewer, topic, begin),
            caller,
            authority: call.authority.clone(),
            looked_at_token: Instant::now(),
            correlation: call.correlation,
            failures: 0,
            ended: false,
        })
    }

    fn updates(self) -> impl Stream<Item = Result<TaskUpdate>> {
        unfold(self, async |mut follower| {
            let item = follower.next().await?;
            Some((item.map(TaskUpdate::of), follower))
        })
    }

    async fn next(&mut self) -> Option<Result<Item>> {
        loop {
            if self.ended {
                return None;
            }
            if let Some(over) = self.authority_is_over() {
                self.ended = true;
                return Some(Err(over));
            }
            let left = (self.caller.expires - now()).to_std().unwrap_or_default();
            match timeout(LOOK_AT_TOKEN.min(left), self.feed.next()).await {
                // Time to look at the token.
                Err(_) => {}
                Ok(Ok(item)) => {
                    self.failures = 0;
                    return item.map(Ok);
                }
                Ok(Err(error)) => {
                    if let Some(failed) = self.failed(&error) {
                        return Some(Err(failed));
                    }
                    sleep(TRY_AGAIN).await;
                }
            }
        }
    }

    /// Why nothing more may be told, if so.
    fn authority_is_over(&mut self) -> Option<Error> {
        if !self.caller.is_current() {
            return Some(coded("UNAUTHENTICATED", "the token has expired"));
        }
        if self.looked_at_token.elapsed() < LOOK_AT_TOKEN {
            return None;
        }
        self.looked_at_token = Instant::now();
        let bad = self.authority.as_ref()?.still(&self.caller).err()?;
        Some(coded("UNAUTHENTICATED", bad.to_string()))
    }

    /// What ends it, if this does.
    fn failed(&mut self, error: &ReadError) -> Option<Error> {
        self.failures += 1;
        if matches!(error, ReadError::NotLive) {
            self.ended = true;
            return Some(coded("UNAVAILABLE", "not here, not now; connect again"));
        }
        log_fault(error, self.correlation);
        self.ended = self.failures >= MAX_FAILURES;
        let correlation = self.correlation.to_string();
        self.ended.then(|| {
            coded("INTERNAL", "something went wrong on our side; connect again later")
                .extend_with(|_, extensions| extensions.set("correlationId", correlation))
        })
    }
}
