//! `read_accounts`, `read_account_entries`, `read_holds`: balances, one row a posting, one row a hold.

use super::{At, Fault, one};
use crate::error::FoldCause;
use domain::ledger::{Event, State};
use domain::money::Credits;
use domain::time::Timestamp;
use sqlx::PgConnection;
use uuid::Uuid;

/// A posting: what it moves, and the key there is one posting for.
#[derive(Default)]
struct Posting {
    kind: &'static str,
    key: String,
    /// Added to what is available; negative for a hold.
    amount: i64,
    held: i64,
    charged: i64,
    refunded: i64,
}

/// The task whose hold was closed or whose charge was refunded.
pub(super) async fn fold(connection: &mut PgConnection, at: At, event: &Event) -> Result<Option<Uuid>, Fault> {
    let posting = posting(event);
    post(connection, at, &posting).await?;
    match event {
        Event::Granted { .. } | Event::Adjusted { .. } => Ok(None),
        Event::Held { task, amount, expires_at } => {
            open(connection, at, task.0, amount.0, *expires_at).await?;
            Ok(None)
        }
        Event::Settled { task, charged, released } => {
            close(connection, at, task.0, charged.0, released.0, State::Settled).await?;
            Ok(Some(task.0))
        }
        Event::Released { task, released } => {
            close(connection, at, task.0, 0, released.0, State::Released).await?;
            Ok(Some(task.0))
        }
        Event::HoldExpired { task, released, .. } => {
            close(connection, at, task.0, 0, released.0, State::Expired).await?;
            Ok(Some(task.0))
        }
        Event::Refunded { task, amount, .. } => {
            refund(connection, at, task.0, amount.0).await?;
            Ok(Some(task.0))
        }
    }
}

fn posting(event: &Event) -> Posting {
    // Settling, releasing and expiring are three ways to close one hold: they share a key, so that a hold is closed once.
    let freed = |kind, task, released: &Credits| Posting {
        kind,
        key: format!("close:{task}"),
        amount: released.0,
        held: -released.0,
        ..Posting::default()
    };
    match event {
        Event::Granted { key, amount } => {
            Posting { kind: "grant", key: format!("grant:{key}"), amount: amount.0, ..Posting::default() }
        }
        Event::Adjusted { key, amount, .. } => {
            Posting { kind: "adjust", key: format!("adjust:{key}"), amount: amount.0, ..Posting::default() }
        }
        Event::Held { task, amount, .. } => Posting {
            kind: "hold",
            key: format!("hold:{task}"),
            amount: -amount.0,
            held: amount.0,
            ..Posting::default()
        },
        Event::Settled { task, charged, released } => Posting {
            kind: "settle",
            key: format!("close:{task}"),
            amount: released.0,
            held: -(charged.0.saturating_add(released.0)),
            charged: charged.0,
            ..Posting::default()
        },
        Event::Released { task, released } => freed("release", task, released),
        Event::HoldExpired { task, released, .. } => freed("expire", task, released),
        Event::Refunded { key, amount, .. } => Posting {
            kind: "refund",
            key: format!("refund:{key}"),
            amount: amount.0,
            refunded: amount.0,
            ..Posting::default()
        },
    }
}

/// The posting's row and the balance it leads to. An account has its tenant's id; whoever granted credits may be of another
/// tenant.
async fn post(connection: &mut PgConnection, at: At, posting: &Posting) -> Result<(), Fault> {
    let moved = sqlx::query(
        "/* fold.posted */
         WITH entry AS (
             INSERT INTO read_account_entries (account_id, version, kind, business_key, amount, charged, created_at, position)
             VALUES ($1, $2, $3, $4, $5, $7, $9, $10))
         INSERT INTO read_accounts AS a (account_id, tenant_id, version, available, held, charged, refunded, updated_at, position)
         SELECT $1, $1, $2, $5, $6, $7, $8, $9, $10
          WHERE $2 = 1 OR EXISTS (SELECT FROM read_accounts WHERE account_id = $1)
         ON CONFLICT (account_id) DO UPDATE
            SET version = $2, available = a.available + $5, held = a.held + $6, charged = a.charged + $7,
                refunded = a.refunded + $8, updated_at = $9, position = $10
          WHERE a.version = $2 - 1",
    )
    .bind(at.stream)
    .bind(at.version)
    .bind(posting.kind)
    .bind(&posting.key)
    .bind(posting.amount)
    .bind(posting.held)
    .bind(posting.charged)
    .bind(posting.refunded)
    .bind(at.recorded_at)
    .bind(at.position)
    .execute(connection)
    .await?;
    one(moved.rows_affected(), FoldCause::OutOfOrder)
}

async fn open(
    connection: &mut PgConnection,
    at: At,
    task: Uuid,
    reserved: i64,
    expires_at: Option<Timestamp>,
) -> Result<(), Fault> {
    sqlx::query(
        "/* fold.hold_opened */
         INSERT INTO read_holds (task_id, account_id, reserved, state, expires_at, updated_at, position)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(task)
    .bind(at.stream)
    .bind(reserved)
    .bind(State::Open.name())
    .bind(expires_at)
    .bind(at.recorded_at)
    .bind(at.position)
    .execute(connection)
    .await?;
    Ok(())
}

/// A hold is closed after its task has ended: then nothing is left for the task to wait for.
async fn close(
    connection: &mut PgConnection,
    at: At,
    task: Uuid,
    settled: i64,
    released: i64,
    state: State,
) -> Result<(), Fault> {
    let closed = sqlx::query(
        "/* fold.hold_closed */
         WITH rest AS (UPDATE read_tasks SET wake_at = NULL WHERE task_id = $1 AND finished_at IS NOT NULL)
         UPDATE read_holds SET settled = $3, released = $4, state = $5, updated_at = $6, position = $7
          WHERE task_id = $1 AND account_id = $2 AND state = $8",
    )
    .bind(task)
    .bind(at.stream)
    .bind(settled)
    .bind(released)
    .bind(state.name())
    .bind(at.recorded_at)
    .bind(at.position)
    .bind(State::Open.name())
    .execute(connection)
    .await?;
    one(closed.rows_affected(), FoldCause::Dangling("open hold"))
}

async fn refund(connection: &mut PgConnection, at: At, task: Uuid, amount: i64) -> Result<(), Fault> {
    let refunded = sqlx::query(
        "/* fold.refunded */
         UPDATE read_holds SET refunded = refunded + $3, updated_at = $4, position = $5
          WHERE task_id = $1 AND account_id = $2 AND state = $6 AND refunded + $3 <= settled",
    )
    .bind(task)
    .bind(at.stream)
    .bind(amount)
    .bind(at.recorded_at)
    .bind(at.position)
    .bind(State::Settled.name())
    .execute(connection)
    .await?;
    one(refunded.rows_affected(), FoldCause::Dangling("charge"))
}
