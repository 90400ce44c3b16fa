//! Setting stalled tasks going again: the way out when a message was lost, whoever lost it (chapter 7.10.5).

use crate::append::Meta;
use crate::connect::Store;
use crate::error::{ExecuteError, StoreError};
use crate::execute::Request;
use domain::aggregate::Refusal;
use domain::id::{AttemptId, CausationId, CorrelationId, TaskId, TenantId, message_id};
use domain::process::{Case, CaseKey, Turn, retry_now, wake_up};
use domain::task::Task;
use uuid::Uuid;

/// A repair that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// The task.
    pub task: TaskId,
    /// The state it was found in.
    pub state: &'static str,
    /// The event type of the message that was published for it.
    pub message: &'static str,
}

/// What came of calling a task whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalledUp {
    /// Its next try is due, and a message says so.
    Told,
    /// It is about to be handled: it may get its slot by itself, or wait in a moment. To be called again soon.
    NotYet,
    /// It does not wait for this attempt any more.
    Gone,
}

impl Store {
    /// Publishes the message that a task is waiting for, as of its facts, and records that. `round` and the task's versions
    /// make the message's id: several scanners at the same time publish it once.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn wake(&self, task: TaskId, round: i64) -> Result<Option<Repair>, StoreError> {
        let mut tx = self.begin().await?;
        let key = CaseKey { with_account: true, ..CaseKey::task(task) };
        let (case, now) = tx.load(Case::begin(key)).await?;
        let (Some(message), Some(order)) = (wake_up(&case, now), case.task.state.order()) else {
            return Ok(None);
        };
        let detail = format!("{}:{}:{}:{round}", message.event_type(), case.task.version, case.attempt.version);
        let id = message_id(now, "repair", task.0, &detail);
        let correlation = tx.correlation(task).await?.unwrap_or(CorrelationId(task.0));
        let meta = Meta {
            tenant: order.tenant,
            correlation,
            causation: CausationId(id),
            actor: "reconciler".to_owned(),
            trace: correlation.0.simple().to_string(),
        };
        let repair = Repair { task, state: case.task.state.state().name(), message: message.event_type() };
        // Before the message: the outbox knows an id only as long as it is unsent, which may be over by now.
        let recorded = sqlx::query(
            "/* eventstore.repair */
             INSERT INTO repairs (task_id, state, message, event_id) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
        )
        .bind(task.0)
        .bind(repair.state)
        .bind(repair.message)
        .bind(id)
        .execute(&mut *tx.inner)
        .await?;
        if recorded.rows_affected() == 0 {
            // Another scanner has just published it.
            return Ok(None);
        }
        tx.publish(id, &message, meta, now).await?;
        tx.commit().await?;
        Ok(Some(repair))
    }

    /// A slot is free for an attempt that waits for one: its task's next try is due now.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn call_up(&self, task: TaskId, attempt: AttemptId) -> Result<CalledUp, StoreError> {
        let (tenant, correlation) = {
            let mut tx = self.begin().await?;
            let Some(first) = tx.first(task).await? else { return Ok(CalledUp::Gone) };
            first
        };
        let request = Request {
            meta: Meta {
                tenant,
                correlation,
                causation: CausationId(attempt.0),
                actor: "admission".to_owned(),
                trace: correlation.0.simple().to_string(),
            },
            key: None,
            tenant_wall: false,
        };
        let called = self.execute(&request, CaseKey::task(task), None, |turn| match &turn.case.task.state {
            Task::WaitingRetry { next_attempt, retry_at, .. } if AttemptId::of(task, *next_attempt) == attempt => {
                if *retry_at <= turn.now {
                    return Err(not_called(turn, NOT_YET));
                }
                retry_now(turn, "admission".to_owned())
            }
            Task::Queued(_) => Err(not_called(turn, NOT_YET)),
            _ => Err(not_called(turn, "not_waiting")),
        });
        match called.await {
            Ok(_) => Ok(CalledUp::Told),
            Err(ExecuteError::Refused(refusal)) if refusal.code == NOT_YET => Ok(CalledUp::NotYet),
            Err(ExecuteError::Store(error)) => Err(error),
            Err(_) => Ok(CalledUp::Gone),
        }
    }

    /// The tenant of a task, whoever asks: for operators' tools.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn tenant_of(&self, task: TaskId) -> Result<Option<TenantId>, StoreError> {
        let tenant: Option<Uuid> = sqlx::query_scalar(
            "/* eventstore.tenant_of */
             SELECT tenant_id FROM events WHERE category = 'task' AND stream_id = $1 AND version = 1",
        )
        .bind(task.0)
        .fetch_optional(&self.pool)
        .await?;
        Ok(tenant.map(TenantId))
    }
}

/// It is just asking for a slot, and may be about to record that it waits: too soon to call it.
const NOT_YET: &str = "not_yet";

fn not_called(turn: &Turn<'_>, code: &'static str) -> Refusal {
    let state = turn.case.task.state.state().name();
    let message = "it does not wait for this attempt now".to_owned();
    Refusal { aggregate: "task", state, command: "Retry", code, message }
}

impl crate::transaction::Tx<'_> {
    /// Whose a task is, and the request that it began with.
    async fn first(&mut self, task: TaskId) -> Result<Option<(TenantId, CorrelationId)>, StoreError> {
        let row: Option<(Uuid, Uuid)> = sqlx::query_as(
            "/* eventstore.first */
             SELECT tenant_id, correlation_id FROM events WHERE category = 'task' AND stream_id = $1 AND version = 1",
        )
        .bind(task.0)
        .fetch_optional(&mut *self.inner)
        .await?;
        Ok(row.map(|(tenant, correlation)| (TenantId(tenant), CorrelationId(correlation))))
    }

    async fn correlation(&mut self, task: TaskId) -> Result<Option<CorrelationId>, StoreError> {
        let id: Option<Uuid> = sqlx::query_scalar(
            "/* eventstore.correlation */
             SELECT correlation_id FROM events WHERE category = 'task' AND stream_id = $1 AND version = 1",
        )
        .bind(task.0)
        .fetch_optional(&mut *self.inner)
        .await?;
        Ok(id.map(CorrelationId))
    }
}
