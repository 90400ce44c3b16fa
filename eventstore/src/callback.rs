//! A provider's callback as a fact: recorded together with the message that applies it, before the provider is answered.

use crate::append::Meta;
use crate::connect::Store;
use crate::error::StoreError;
use domain::id::{AttemptId, CausationId, CorrelationId, TaskId, TenantId, message_id};
use domain::message::Message;
use domain::message::kinds::CallbackRef;
use uuid::Uuid;

/// What a believed callback said.
#[derive(Clone, Debug)]
pub struct CallbackFact {
    /// The provider.
    pub provider: String,
    /// The provider's id of the delivery: the same when it is sent again.
    pub delivery: String,
    /// The attempt it is about.
    pub attempt: AttemptId,
    /// The provider's job id.
    pub job: String,
    /// SHA-256 of the raw body.
    pub body_sha256: [u8; 32],
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallbackKept {
    /// It is recorded and will be applied.
    New,
    /// It was recorded before.
    Repeated,
    /// It is about an attempt that we never made. An attempt is always durable before a provider hears of it.
    UnknownAttempt,
}

impl Store {
    /// Records a callback and publishes the message that applies it, in one transaction.
    ///
    /// # Errors
    /// [`StoreError::Database`]: nothing is recorded, and the provider must not be answered with success.
    pub async fn record_callback(&self, fact: &CallbackFact) -> Result<CallbackKept, StoreError> {
        let mut tx = self.begin().await?;
        let Some((task, tenant, correlation)) = tx.attempt_origin(fact.attempt).await? else {
            return Ok(CallbackKept::UnknownAttempt);
        };
        let inserted = sqlx::query(
            "/* eventstore.record_callback */
             INSERT INTO provider_callbacks (provider, delivery_id, attempt_id, task_id, job_id, body_sha256)
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
        )
        .bind(&fact.provider)
        .bind(&fact.delivery)
        .bind(fact.attempt.0)
        .bind(task.0)
        .bind(&fact.job)
        .bind(fact.body_sha256.as_slice())
        .execute(&mut *tx.inner)
        .await?;
        if inserted.rows_affected() == 0 {
            return Ok(CallbackKept::Repeated);
        }
        let now = tx.now().await?;
        let id = message_id(now, "callback", fact.attempt.0, &format!("{}:{}", fact.provider, fact.delivery));
        let message =
            Message::CallbackReceived(CallbackRef { task_id: task, attempt_id: fact.attempt, job: fact.job.clone() });
        let meta = Meta {
            tenant,
            correlation,
            causation: CausationId(id),
            actor: format!("provider:{}", fact.provider),
            trace: correlation.0.simple().to_string(),
        };
        tx.publish(id, &message, meta, now).await?;
        tx.commit().await?;
        Ok(CallbackKept::New)
    }
}

impl crate::transaction::Tx<'_> {
    async fn attempt_origin(
        &mut self,
        attempt: AttemptId,
    ) -> Result<Option<(TaskId, TenantId, CorrelationId)>, StoreError> {
        let row: Option<(Uuid, Uuid, Uuid)> = sqlx::query_as(
            "/* eventstore.attempt_origin */
             SELECT (body->>'task')::uuid, tenant_id, correlation_id FROM events
              WHERE category = 'attempt' AND stream_id = $1 AND version = 1",
        )
        .bind(attempt.0)
        .fetch_optional(&mut *self.inner)
        .await?;
        Ok(row.map(|(task, tenant, correlation)| (TaskId(task), TenantId(tenant), CorrelationId(correlation))))
    }
}
