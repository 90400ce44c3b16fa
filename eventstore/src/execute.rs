//! Handling a person's command, with an idempotency key.
//!
//! The key's row commits together with what the command did. A refusal leaves no trace, so the same key may be tried again
//! when the reason is gone; two callers at once with the same key get one result.
//!
//! The first try is two trips to the database: one statement reads, one writes all there is to write. Where that meets a row of
//! the key, or others were first, the next try is a transaction that queues up, and asks for the key before anything else.

use crate::append::{Append, Beside, KeyRow, Meta, RequestRow};
use crate::connect::Store;
use crate::consume::pause;
use crate::error::{ExecuteError, StoreError};
use crate::transaction::Session;
use domain::aggregate::Refusal;
use domain::id::{TaskId, TenantId};
use domain::process::{Case, CaseKey, Turn};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use std::sync::Arc;

/// An idempotency key and the request it stands for.
#[derive(Clone, Debug)]
pub struct IdempotencyKey {
    /// What is asked for, such as `submitGeneration`: the same key may be used for another operation.
    pub operation: &'static str,
    /// The caller's key.
    pub key: String,
    /// Digest of the request's content: the same key with other content is refused.
    pub fingerprint: [u8; 32],
}

/// Who asks, and under which key.
#[derive(Clone, Debug)]
pub struct Request {
    /// Who and why.
    pub meta: Meta,
    /// The key, where the caller gave one.
    pub key: Option<IdempotencyKey>,
    /// Only for tasks of the caller's tenant: an operator's command leaves this off.
    pub tenant_wall: bool,
}

/// What is stored beside the events when a task is submitted.
#[derive(Clone)]
pub struct Submission {
    /// The task.
    pub task: TaskId,
    /// The user's text; it must not contain U+0000.
    pub prompt: String,
}

/// What a command reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executed {
    /// The task; `None` for a command to an account.
    pub task: Option<TaskId>,
    /// The version it reached: a query that asks for at least this one sees it.
    pub version: i64,
    /// The state's name after it.
    pub state: String,
    /// Whether an earlier request with the same key had done it.
    #[serde(default)]
    pub replayed: bool,
}

const ROUNDS: u32 = 20;

impl Store {
    /// Carries out a command on one case.
    ///
    /// # Errors
    /// [`ExecuteError`].
    pub async fn execute<F>(
        &self,
        request: &Request,
        key: CaseKey,
        submission: Option<&Submission>,
        command: F,
    ) -> Result<Executed, ExecuteError>
    where
        F: Fn(&mut Turn<'_>) -> Result<(), Refusal> + Send + Sync,
    {
        let mut lost = 0;
        loop {
            match self.execute_once(request, key, submission, &command, lost > 0).await {
                Err(ExecuteError::Store(StoreError::Race)) if lost < ROUNDS => {
                    lost += 1;
                    pause(5 << lost.min(5)).await;
                }
                other => return other,
            }
        }
    }

    /// What an earlier request with this key came to; `None` where there was none. For requests that would be refused today
    /// (their model has left the catalogue): what was done stays done, and its answer stays the answer.
    ///
    /// # Errors
    /// [`ExecuteError::KeyReused`]: it was another request.
    pub async fn replayed(&self, tenant: TenantId, key: &IdempotencyKey) -> Result<Option<Executed>, ExecuteError> {
        let mut connection = self.pool.acquire().await.map_err(StoreError::from)?;
        Ok(read_key(&mut connection, tenant, key).await?.map(|before| Executed { replayed: true, ..before }))
    }

    async fn execute_once<F>(
        &self,
        request: &Request,
        key: CaseKey,
        submission: Option<&Submission>,
        command: &F,
        contended: bool,
    ) -> Result<Executed, ExecuteError>
    where
        F: Fn(&mut Turn<'_>) -> Result<(), Refusal> + Send + Sync,
    {
        let session = if contended {
            // Locks need a transaction.
            let mut tx = self.begin().await?;
            tx.queue_up(&Case::begin(key).wants()).await?;
            if let Some(kept) = &request.key
                && let Some(before) = read_key(&mut tx.inner, request.meta.tenant, kept).await?
            {
                return Ok(Executed { replayed: true, ..before });
            }
            Session::Alone(tx)
        } else {
            Session::Together(self)
        };
        let tried = self.decide(session, request, key, submission, command).await;
        // Before it is refused: what an earlier request with the key came to is the answer. It may have come to it a moment ago,
        // since first tries take no locks.
        match (tried, &request.key) {
            (Err(refused), Some(kept)) if refused.is_of_the_case() => {
                self.replayed(request.meta.tenant, kept).await?.ok_or(refused)
            }
            (other, _) => other,
        }
    }

    async fn decide<F>(
        &self,
        mut session: Session<'_>,
        request: &Request,
        key: CaseKey,
        submission: Option<&Submission>,
        command: &F,
    ) -> Result<Executed, ExecuteError>
    where
        F: Fn(&mut Turn<'_>) -> Result<(), Refusal> + Send + Sync,
    {
        let (case, now) = session.load(Case::begin(key)).await?;
        if submission.is_none() && key.task.is_some() {
            check_owner(&case, request)?;
        }
        let mut turn = Turn::new(case, now, &self.policy);
        command(&mut turn)?;
        let executed = reached(&turn);
        let kept = request.key.as_ref().map(|key| key.row(request, &executed)).transpose()?;
        let beside = match (kept, submission.map(|it| it.row(request))) {
            (None, None) => Beside::Nothing,
            (kept, asked) => Beside::Keep(kept, asked),
        };
        session.record(Append::of(turn, Arc::new(request.meta.clone()))?.with(beside)).await?;
        Ok(executed)
    }
}

impl IdempotencyKey {
    fn row(&self, request: &Request, executed: &Executed) -> Result<KeyRow, StoreError> {
        Ok(KeyRow {
            tenant: request.meta.tenant.0,
            operation: self.operation,
            key: self.key.clone(),
            fingerprint: self.fingerprint,
            result: serde_json::to_value(executed)?,
        })
    }
}

impl Submission {
    fn row(&self, request: &Request) -> RequestRow {
        RequestRow { tenant: request.meta.tenant.0, task: self.task.0, prompt: self.prompt.clone() }
    }
}

/// A task of somebody else is answered like one that does not exist.
fn check_owner(case: &Case, request: &Request) -> Result<(), ExecuteError> {
    match case.task.state.order() {
        Some(order) if !request.tenant_wall || order.tenant == request.meta.tenant => Ok(()),
        _ => Err(ExecuteError::NotFound { what: "task" }),
    }
}

fn reached(turn: &Turn<'_>) -> Executed {
    match turn.case.task.state.order() {
        Some(order) => Executed {
            task: Some(order.task),
            version: turn.case.task.version,
            state: turn.case.task.state.state().name().to_owned(),
            replayed: false,
        },
        None => {
            Executed { task: None, version: turn.case.account.version, state: "ACTIVE".to_owned(), replayed: false }
        }
    }
}

/// What the request of a key came to; `None` where no request had it.
async fn read_key(
    connection: &mut PgConnection,
    tenant: TenantId,
    key: &IdempotencyKey,
) -> Result<Option<Executed>, ExecuteError> {
    let kept: Option<(Vec<u8>, serde_json::Value)> = sqlx::query_as(
        "/* eventstore.read_key */
         SELECT fingerprint, result FROM idempotency_keys WHERE tenant_id = $1 AND operation = $2 AND key = $3",
    )
    .bind(tenant.0)
    .bind(key.operation)
    .bind(&key.key)
    .fetch_optional(connection)
    .await
    .map_err(StoreError::from)?;
    let Some((fingerprint, result)) = kept else { return Ok(None) };
    if fingerprint != key.fingerprint {
        return Err(ExecuteError::KeyReused);
    }
    Ok(Some(serde_json::from_value(result).map_err(StoreError::from)?))
}
