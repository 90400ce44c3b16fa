//! Credit accounts and their postings.

use super::{Page, ReadError, Reader, Viewer, Window};
use domain::id::{AccountId, TenantId};
use domain::time::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row};

/// An account as its read model shows it. Amounts are in minor units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountRow {
    /// The account.
    pub account: AccountId,
    /// Its owner.
    pub tenant: TenantId,
    /// Version of its stream; 0 for an account that nothing has happened to.
    pub version: i64,
    /// Free to be held.
    pub available: i64,
    /// Set aside by open holds.
    pub held: i64,
    /// Charged so far, refunds not taken off.
    pub charged: i64,
    /// Given back of what was charged.
    pub refunded: i64,
    /// When it last changed.
    pub updated_at: Option<Timestamp>,
}

/// A posting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRow {
    /// Version of the account that it made: its place in the list.
    pub version: i64,
    /// What kind of posting.
    pub kind: String,
    /// Its business key: one posting per key.
    pub business_key: String,
    /// Amount in minor units.
    pub amount: i64,
    /// What of it was charged, in minor units.
    pub charged: i64,
    /// When.
    pub created_at: Timestamp,
}

impl FromRow<'_, PgRow> for AccountRow {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            account: AccountId(row.try_get("account_id")?),
            tenant: TenantId(row.try_get("tenant_id")?),
            version: row.try_get("version")?,
            available: row.try_get("available")?,
            held: row.try_get("held")?,
            charged: row.try_get("charged")?,
            refunded: row.try_get("refunded")?,
            updated_at: row.try_get("updated_at")?,
        })
    }
}

impl FromRow<'_, PgRow> for EntryRow {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            version: row.try_get("version")?,
            kind: row.try_get("kind")?,
            business_key: row.try_get("business_key")?,
            amount: row.try_get("amount")?,
            charged: row.try_get("charged")?,
            created_at: row.try_get("created_at")?,
        })
    }
}

impl Reader {
    /// The account of a tenant, if this viewer may see it. An account with no history is an empty one.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn account(&self, viewer: Viewer, tenant: TenantId) -> Result<Option<AccountRow>, ReadError> {
        if !viewer.sees(tenant) {
            return Ok(None);
        }
        let account = AccountId::of(tenant);
        let row: Option<AccountRow> = sqlx::query_as(
            "/* projections.account */
             SELECT account_id, tenant_id, version, available, held, charged, refunded, updated_at
               FROM read_accounts WHERE account_id = $1 AND tenant_id = $2",
        )
        .bind(account.0)
        .bind(tenant.0)
        .fetch_optional(&self.pool)
        .await?;
        let empty = AccountRow {
            account,
            tenant,
            version: 0,
            available: 0,
            held: 0,
            charged: 0,
            refunded: 0,
            updated_at: None,
        };
        Ok(Some(row.unwrap_or(empty)))
    }

    /// A part of the postings of a tenant's account, newest first; a place is a version.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn entries(
        &self,
        viewer: Viewer,
        tenant: TenantId,
        window: Window<i64>,
    ) -> Result<Page<EntryRow>, ReadError> {
        if !viewer.sees(tenant) {
            return Ok(window.page(Vec::new()));
        }
        let statement = if window.is_forward() {
            "/* projections.entries */
             SELECT version, kind, business_key, amount, charged, created_at
               FROM read_account_entries WHERE account_id = $1 AND version < $2 ORDER BY version DESC LIMIT $3"
        } else {
            "/* projections.entries_backward */
             SELECT version, kind, business_key, amount, charged, created_at
               FROM read_account_entries WHERE account_id = $1 AND version > $2 ORDER BY version LIMIT $3"
        };
        let from_the_end = if window.is_forward() { i64::MAX } else { i64::MIN };
        let rows = sqlx::query_as(statement)
            .bind(AccountId::of(tenant).0)
            .bind(window.place().unwrap_or(from_the_end))
            .bind(window.limit())
            .fetch_all(&self.pool)
            .await?;
        Ok(window.page(rows))
    }
}
