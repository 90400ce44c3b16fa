//! Setting stalled tasks going again: the way out when a message was lost, whoever lost it (chapter 7.10.5).

use crate::append::Meta;
use crate::connect::Store;
use crate::error::StoreError;
use domain::id::{CausationId, CorrelationId, TaskId, TenantId, message_id};
use domain::process::{Case, CaseKey, wake_up};
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

impl crate::transaction::Tx<'_> {
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
