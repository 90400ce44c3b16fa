//! Statements of account: what was there, what was posted, what is there.

use super::{EntryRow, ReadError, Reader, Viewer};
use domain::id::{AccountId, TenantId};
use domain::time::Timestamp;
use sqlx::{FromRow, Row};

/// A statement of an account over a time. Amounts are in minor units, and are of what is available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementRow {
    /// What was there before.
    pub opening: i64,
    /// The sum of what was posted.
    pub turnover: i64,
    /// What was there afterwards: reckoned back from what is there now.
    pub closing: i64,
    /// How many postings there are in that time.
    pub postings: i64,
    /// Of each kind: how many, and what they add up to.
    pub kinds: Vec<KindSum>,
    /// The version of the account that it goes by.
    pub version: i64,
}

/// The postings of one kind.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct KindSum {
    /// The kind.
    pub kind: String,
    /// How many.
    pub postings: i64,
    /// What they add to what is available.
    pub amount: i64,
    /// What of it was charged.
    pub charged: i64,
}

impl StatementRow {
    /// Whether opening and postings make up the closing balance, which is reckoned otherwise.
    #[must_use]
    pub fn adds_up(&self) -> bool {
        let kinds = self.kinds.iter().map(|kind| kind.amount).sum::<i64>();
        self.opening.checked_add(self.turnover) == Some(self.closing) && kinds == self.turnover
    }
}

impl Reader {
    /// The statement of a tenant's account from a time on and before another; `None`: not for this viewer.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn statement(
        &self,
        viewer: Viewer,
        tenant: TenantId,
        from: Timestamp,
        before: Timestamp,
    ) -> Result<Option<StatementRow>, ReadError> {
        if !viewer.sees(tenant) {
            return Ok(None);
        }
        let mut tx = self.pool.begin().await?;
        sqlx::query("/* statement.moment */ SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            .execute(&mut *tx)
            .await?;
        let account = AccountId::of(tenant).0;
        let sums = sqlx::query(
            "/* projections.statement */
             SELECT coalesce(sum(amount) FILTER (WHERE created_at < $2), 0)::bigint AS opening,
                    coalesce(sum(amount) FILTER (WHERE created_at >= $2 AND created_at < $3), 0)::bigint AS turnover,
                    coalesce(sum(amount) FILTER (WHERE created_at >= $3), 0)::bigint AS later,
                    count(*) FILTER (WHERE created_at >= $2 AND created_at < $3) AS postings,
                    coalesce((SELECT available FROM read_accounts WHERE account_id = $1), 0) AS available,
                    coalesce((SELECT version FROM read_accounts WHERE account_id = $1), 0) AS version
               FROM read_account_entries WHERE account_id = $1",
        )
        .bind(account)
        .bind(from)
        .bind(before)
        .fetch_one(&mut *tx)
        .await?;
        let kinds: Vec<KindSum> = sqlx::query_as(
            "/* projections.statement_kinds */
             SELECT kind, count(*) AS postings, sum(amount)::bigint AS amount, sum(charged)::bigint AS charged
               FROM read_account_entries WHERE account_id = $1 AND created_at >= $2 AND created_at < $3 GROUP BY kind ORDER BY kind",
        )
        .bind(account)
        .bind(from)
        .bind(before)
        .fetch_all(&mut *tx)
        .await?;
        tx.rollback().await?;
        let (available, later): (i64, i64) = (sums.try_get("available")?, sums.try_get("later")?);
        Ok(Some(StatementRow {
            opening: sums.try_get("opening")?,
            turnover: sums.try_get("turnover")?,
            closing: available - later,
            postings: sums.try_get("postings")?,
            kinds,
            version: sums.try_get("version")?,
        }))
    }

    /// Postings of a time, oldest first, after a version.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn statement_entries(
        &self,
        viewer: Viewer,
        tenant: TenantId,
        (from, before): (Timestamp, Timestamp),
        after: i64,
        limit: u32,
    ) -> Result<Vec<EntryRow>, ReadError> {
        if !viewer.sees(tenant) {
            return Ok(Vec::new());
        }
        Ok(sqlx::query_as(
            "/* projections.statement_entries */
             SELECT version, kind, business_key, amount, charged, created_at FROM read_account_entries
              WHERE account_id = $1 AND version > $2 AND created_at >= $3 AND created_at < $4 ORDER BY version LIMIT $5",
        )
        .bind(AccountId::of(tenant).0)
        .bind(after)
        .bind(from)
        .bind(before)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await?)
    }
}
