//! `read_accounts`, `read_account_entries`, `read_holds`: balances, one row a posting, one row a hold.

use super::At;
use super::rows::Rows;
use super::tables::{AccountRow, EntryRow, HoldRow};
use crate::error::FoldCause;
use domain::ledger::{Event, State};
use domain::money::Credits;
use domain::time::Timestamp;
use uuid::Uuid;

/// A posting: what it moves, and the key there is one posting for.
#[derive(Default)]
pub(super) struct Posting {
    kind: &'static str,
    pub(super) key: String,
    /// Added to what is available; negative for a hold.
    amount: i64,
    held: i64,
    charged: i64,
    refunded: i64,
}

/// The task that a posting is for.
pub(super) const fn task(event: &Event) -> Option<Uuid> {
    match event {
        Event::Granted { .. } | Event::Adjusted { .. } => None,
        Event::Held { task, .. }
        | Event::Settled { task, .. }
        | Event::Released { task, .. }
        | Event::HoldExpired { task, .. }
        | Event::Refunded { task, .. } => Some(task.0),
    }
}

/// The task whose hold was closed or whose charge was refunded.
pub(super) fn fold(rows: &mut Rows, at: At, event: &Event) -> Result<Option<Uuid>, FoldCause> {
    post(rows, at, posting(event))?;
    match event {
        Event::Granted { .. } | Event::Adjusted { .. } => return Ok(None),
        Event::Held { task, amount, expires_at } => {
            open(rows, at, task.0, amount.0, *expires_at)?;
            return Ok(None);
        }
        Event::Settled { task, charged, released } => {
            close(rows, at, task.0, charged.0, released.0, State::Settled)?;
        }
        Event::Released { task, released } => close(rows, at, task.0, 0, released.0, State::Released)?,
        Event::HoldExpired { task, released, .. } => close(rows, at, task.0, 0, released.0, State::Expired)?,
        Event::Refunded { task, amount, .. } => refund(rows, at, task.0, amount.0)?,
    }
    Ok(task(event))
}

pub(super) fn posting(event: &Event) -> Posting {
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
fn post(rows: &mut Rows, at: At, posting: Posting) -> Result<(), FoldCause> {
    let repeated = |key: &str| Err(FoldCause::Repeated(key.to_owned()));
    if !rows.postings.insert((at.stream, at.version)) {
        return repeated("read_account_entries_pkey");
    }
    if !rows.business_keys.insert((at.stream, posting.key.clone())) {
        return repeated("read_account_entries_account_id_business_key_key");
    }
    if at.version == 1 && rows.accounts.get(&at.stream).is_none() {
        rows.accounts.add(at.stream, empty(at));
    }
    let row = rows.accounts.change(&at.stream).filter(|row| row.version == at.version - 1);
    let row = row.ok_or(FoldCause::OutOfOrder)?;
    row.available = sum(row.available, posting.amount)?;
    row.held = sum(row.held, posting.held)?;
    row.charged = sum(row.charged, posting.charged)?;
    row.refunded = sum(row.refunded, posting.refunded)?;
    row.version = at.version;
    row.updated_at = at.recorded_at;
    row.position = at.position;
    rows.entries.push(EntryRow {
        account_id: at.stream,
        version: at.version,
        kind: posting.kind.to_owned(),
        business_key: posting.key,
        amount: posting.amount,
        charged: posting.charged,
        created_at: at.recorded_at,
        position: at.position,
    });
    Ok(())
}

const fn empty(at: At) -> AccountRow {
    AccountRow {
        account_id: at.stream,
        tenant_id: at.stream,
        version: 0,
        available: 0,
        held: 0,
        charged: 0,
        refunded: 0,
        updated_at: at.recorded_at,
        position: at.position,
    }
}

fn sum(one: i64, other: i64) -> Result<i64, FoldCause> {
    one.checked_add(other).ok_or(FoldCause::OutOfRange)
}

fn open(rows: &mut Rows, at: At, task: Uuid, reserved: i64, expires_at: Option<Timestamp>) -> Result<(), FoldCause> {
    if rows.holds.get(&task).is_some() {
        return Err(FoldCause::Repeated("read_holds_pkey".to_owned()));
    }
    let row = HoldRow {
        task_id: task,
        account_id: at.stream,
        reserved,
        settled: 0,
        released: 0,
        refunded: 0,
        state: State::Open.name().to_owned(),
        expires_at,
        updated_at: at.recorded_at,
        position: at.position,
    };
    rows.holds.add(task, row);
    Ok(())
}

/// The hold of a task, if it is of this account and in this state.
fn hold(rows: &mut Rows, at: At, task: Uuid, state: State) -> Option<&mut HoldRow> {
    rows.holds.change(&task).filter(|row| row.account_id == at.stream && row.state == state.name())
}

/// A hold is closed after its task has ended: then nothing is left for the task to wait for.
fn close(rows: &mut Rows, at: At, task: Uuid, settled: i64, released: i64, state: State) -> Result<(), FoldCause> {
    let row = hold(rows, at, task, State::Open).ok_or(FoldCause::Dangling("open hold"))?;
    row.settled = settled;
    row.released = released;
    row.state = state.name().to_owned();
    row.updated_at = at.recorded_at;
    row.position = at.position;
    if rows.tasks.get(&task).is_some_and(|row| row.finished_at.is_some() && row.wake_at.is_some())
        && let Some(row) = rows.tasks.change(&task)
    {
        row.wake_at = None;
    }
    Ok(())
}

fn refund(rows: &mut Rows, at: At, task: Uuid, amount: i64) -> Result<(), FoldCause> {
    let row = hold(rows, at, task, State::Settled).ok_or(FoldCause::Dangling("charge"))?;
    let refunded = sum(row.refunded, amount)?;
    if refunded > row.settled {
        return Err(FoldCause::Dangling("charge"));
    }
    row.refunded = refunded;
    row.updated_at = at.recorded_at;
    row.position = at.position;
    Ok(())
}
