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
    /// It is about an attempt that nobody knows. An attempt is always durable before a provider hears of it, so this is one that
    /// was lost with a database, or is not there yet because the database was put back to an earlier time: the callback is kept
    /// for a while, and applied by [`Store::match_callbacks`] should the attempt turn up.
    UnknownAttempt,
    /// The attempt is at another provider: nothing is kept. One provider's word says nothing about another's job.
    NotTheirs,
}

/// What an attempt's first event says.
struct Origin {
    task: TaskId,
    tenant: TenantId,
    correlation: CorrelationId,
    provider: Option<String>,
}

impl Store {
    /// Records a callback and publishes the message that applies it, in one transaction.
    ///
    /// # Errors
    /// [`StoreError::Database`]: nothing is recorded, and the provider must not be answered with success.
    pub async fn record_callback(&self, fact: &CallbackFact) -> Result<CallbackKept, StoreError> {
        let mut tx = self.begin().await?;
        let Some(origin) = tx.attempt_origin(fact.attempt).await? else {
            tx.keep_unmatched(fact).await?;
            tx.commit().await?;
            return Ok(CallbackKept::UnknownAttempt);
        };
        if origin.provider.as_ref() != Some(&fact.provider) {
            return Ok(CallbackKept::NotTheirs);
        }
        if !tx.record_callback(fact, &origin).await? {
            return Ok(CallbackKept::Repeated);
        }
        tx.commit().await?;
        Ok(CallbackKept::New)
    }

    /// Applies kept callbacks whose attempts have turned up, at most `limit`: how many.
    ///
    /// # Errors
    /// [`StoreError::Database`]; what was applied until then stays so.
    pub async fn match_callbacks(&self, limit: i64) -> Result<u64, StoreError> {
        type Row = (String, String, Uuid, String, Vec<u8>);
        let found: Vec<Row> = sqlx::query_as(
            "/* eventstore.matched_callbacks */
             SELECT provider, delivery_id, attempt_id, job_id, body_sha256 FROM unmatched_callbacks u
              WHERE EXISTS (SELECT FROM events WHERE category = 'attempt' AND stream_id = u.attempt_id AND version = 1)
              ORDER BY received_at LIMIT $1",
        )
        .bind(limit)
        .fetch_all(&self.pool)
        .await?;
        let mut applied = 0;
        for (provider, delivery, attempt, job, body) in found {
            let body_sha256 = body.try_into().unwrap_or([0; 32]);
            let fact = CallbackFact { provider, delivery, attempt: AttemptId(attempt), job, body_sha256 };
            applied += u64::from(self.match_callback(&fact).await?);
        }
        Ok(applied)
    }

    async fn match_callback(&self, fact: &CallbackFact) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        // Whoever deletes the row applies it.
        let mine = sqlx::query(
            "/* eventstore.match_callback */
             DELETE FROM unmatched_callbacks WHERE provider = $1 AND delivery_id = $2 AND attempt_id = $3",
        )
        .bind(&fact.provider)
        .bind(&fact.delivery)
        .bind(fact.attempt.0)
        .execute(&mut *tx.inner)
        .await?;
        let mut applied = false;
        if mine.rows_affected() == 1
            && let Some(origin) = tx.attempt_origin(fact.attempt).await?
            && origin.provider.as_ref() == Some(&fact.provider)
        {
            applied = tx.record_callback(fact, &origin).await?;
        }
        tx.commit().await?;
        Ok(applied)
    }

    /// How many callbacks are kept whose attempts nobody knows.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn unmatched_callbacks(&self) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar("/* eventstore.unmatched_callbacks */ SELECT count(*) FROM unmatched_callbacks")
            .fetch_one(&self.pool)
            .await?)
    }
}

impl crate::transaction::Tx<'_> {
    /// Writes the fact and the message that applies it; `false`: it was there before.
    async fn record_callback(&mut self, fact: &CallbackFact, origin: &Origin) -> Result<bool, StoreError> {
        let inserted = sqlx::query(
            "/* eventstore.record_callback */
             INSERT INTO provider_callbacks (provider, delivery_id, attempt_id, task_id, job_id, body_sha256)
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
        )
        .bind(&fact.provider)
        .bind(&fact.delivery)
        .bind(fact.attempt.0)
        .bind(origin.task.0)
        .bind(&fact.job)
        .bind(fact.body_sha256.as_slice())
        .execute(&mut *self.inner)
        .await?;
        if inserted.rows_affected() == 0 {
            return Ok(false);
        }
        let now = self.now().await?;
        let id = message_id(now, "callback", fact.attempt.0, &format!("{}:{}", fact.provider, fact.delivery));
        let message = Message::CallbackReceived(CallbackRef {
            task_id: origin.task,
            attempt_id: fact.attempt,
            job: fact.job.clone(),
        });
        let meta = Meta {
            tenant: origin.tenant,
            correlation: origin.correlation,
            causation: CausationId(id),
            actor: format!("provider:{}", fact.provider),
            trace: origin.correlation.0.simple().to_string(),
        };
        self.publish(id, &message, meta, now).await?;
        Ok(true)
    }

    async fn keep_unmatched(&mut self, fact: &CallbackFact) -> Result<(), StoreError> {
        sqlx::query(
            "/* eventstore.keep_unmatched */
             INSERT INTO unmatched_callbacks (provider, delivery_id, attempt_id, job_id, body_sha256)
             VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
        )
        .bind(&fact.provider)
        .bind(&fact.delivery)
        .bind(fact.attempt.0)
        .bind(&fact.job)
        .bind(fact.body_sha256.as_slice())
        .execute(&mut *self.inner)
        .await?;
        Ok(())
    }

    async fn attempt_origin(&mut self, attempt: AttemptId) -> Result<Option<Origin>, StoreError> {
        let row: Option<(Uuid, Uuid, Uuid, Option<String>)> = sqlx::query_as(
            "/* eventstore.attempt_origin */
             SELECT (body->>'task')::uuid, tenant_id, correlation_id, body->>'provider' FROM events
              WHERE category = 'attempt' AND stream_id = $1 AND version = 1",
        )
        .bind(attempt.0)
        .fetch_optional(&mut *self.inner)
        .await?;
        Ok(row.map(|(task, tenant, correlation, provider)| Origin {
            task: TaskId(task),
            tenant: TenantId(tenant),
            correlation: CorrelationId(correlation),
            provider,
        }))
    }
}
