//! Following a task.

use super::context::{call, caller, state, viewer};
use super::error::{coded, fault};
use super::node_id::Kind;
use super::task::Task;
use crate::clock::now;
use crate::http::log_fault;
use async_graphql::{Context, Error, ID, Result};
use domain::id::{CorrelationId, TaskId};
use domain::task::State;
use domain::time::Timestamp;
use futures_util::Stream;
use futures_util::stream::unfold;
use projections::query::{Reader, Viewer, Watch};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How often a follower looks without having been woken: notifications may be lost.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// How often reading may fail in a row before the subscription ends.
const MAX_FAILURES: u32 = 10;

/// The root of subscriptions.
pub(crate) struct Subscription;

/// The root of subscriptions: graphql-transport-ws at `/graphql/ws`, with the token as `authorization` in `connection_init`.
#[async_graphql::Subscription]
impl Subscription {
    /// A task's state: as it is now, then each newer version as it becomes visible (versions in between may be skipped, and never go
    /// back). It ends after a terminal state, and when the token expires, with the error UNAUTHENTICATED.
    async fn task_status(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "Its UUID or its global id.")] task_id: ID,
        #[graphql(desc = "The version that the client has already: only newer ones are sent. For connecting again.")]
        from_version: Option<i64>,
    ) -> Result<impl Stream<Item = Result<Task>> + use<>> {
        let (caller, viewer) = (caller(ctx)?, viewer(ctx)?);
        let task = TaskId(Kind::Task.read(&task_id)?);
        let reader = state(ctx)?.reader.clone();
        // The facts know it before the read model does.
        if !reader.task_exists(viewer, task).await.map_err(|error| fault(ctx, &error))? {
            return Err(coded("NOT_FOUND", "there is no such task"));
        }
        let follower = Follower {
            watch: reader.changes().watch(task),
            reader,
            viewer,
            task,
            sent: from_version.unwrap_or(0),
            expires: caller.expires,
            correlation: call(ctx)?.correlation,
            failures: 0,
            ended: false,
        };
        Ok(unfold(follower, Follower::next))
    }
}

struct Follower {
    reader: Reader,
    watch: Watch,
    viewer: Viewer,
    task: TaskId,
    /// The newest version that the client has.
    sent: i64,
    expires: Timestamp,
    correlation: CorrelationId,
    failures: u32,
    ended: bool,
}

impl Follower {
    async fn next(mut self) -> Option<(Result<Task>, Self)> {
        loop {
            if self.ended {
                return None;
            }
            if now() >= self.expires {
                self.ended = true;
                return Some((Err(coded("UNAUTHENTICATED", "the token has expired")), self));
            }
            match self.reader.task(self.viewer, self.task).await {
                Ok(Some(row)) => {
                    self.failures = 0;
                    let is_terminal = State::parse(&row.state).is_some_and(State::is_terminal);
                    self.ended = is_terminal;
                    if row.version > self.sent {
                        self.sent = row.version;
                        return Some((Ok(Task::alone(row)), self));
                    }
                    if is_terminal {
                        return None;
                    }
                }
                Ok(None) => self.failures = 0,
                Err(error) => {
                    log_fault(&error, self.correlation);
                    if let Some(failed) = self.count_failure() {
                        return Some((Err(failed), self));
                    }
                    sleep(LOOK_AGAIN).await;
                }
            }
            self.wait().await;
        }
    }

    /// Until something may have changed, or the token ends.
    async fn wait(&mut self) {
        let left = (self.expires - now()).to_std().unwrap_or_default();
        let _ = timeout(LOOK_AGAIN.min(left), self.watch.changed()).await;
    }

    fn count_failure(&mut self) -> Option<Error> {
        self.failures += 1;
        self.ended = self.failures >= MAX_FAILURES;
        let correlation = self.correlation.to_string();
        self.ended.then(|| {
            use async_graphql::ErrorExtensions;
            coded("INTERNAL", "something went wrong on our side; connect again later")
                .extend_with(|_, extensions| extensions.set("correlationId", correlation))
        })
    }
}
