//! A credit account as clients see it.

use super::context::{state, viewer};
use super::error::fault;
use super::node_id::Kind;
use super::page::{DEFAULT_PAGE, count};
use super::scalars::{BigInt, Credits};
use async_graphql::{Context, ID, Object, Result, SimpleObject};
use chrono::{DateTime, Utc};
use projections::query::AccountRow;

/// A tenant's credits.
pub(crate) struct Account(pub(crate) AccountRow);

/// A posting.
#[derive(Clone, Debug, SimpleObject)]
pub(crate) struct AccountEntry {
    /// The account's version that it made: its place, for `before`.
    version: BigInt,
    /// What kind of posting: `grant`, `adjust`, `hold`, `settle`, `release`, `expire` or `refund`.
    kind: String,
    /// What it stands for; there is one posting per key.
    business_key: String,
    /// What it adds to what is available; less than nothing for a hold.
    amount: Credits,
    /// What of it was charged.
    charged: Credits,
    /// When.
    created_at: DateTime<Utc>,
}

/// A tenant's credits.
#[Object]
impl Account {
    /// Global id, for `node(id)`.
    pub(crate) async fn id(&self) -> ID {
        Kind::Account.global(self.0.account.0)
    }

    /// Its owner.
    async fn tenant_id(&self) -> ID {
        ID(self.0.tenant.to_string())
    }

    /// Counts its postings; 0 before the first.
    async fn version(&self) -> BigInt {
        BigInt(self.0.version)
    }

    /// Free to be used.
    async fn available(&self) -> Credits {
        Credits(self.0.available)
    }

    /// Set aside for tasks that have not ended.
    async fn held(&self) -> Credits {
        Credits(self.0.held)
    }

    /// Charged so far, refunds not taken off.
    async fn charged(&self) -> Credits {
        Credits(self.0.charged)
    }

    /// Given back of what was charged.
    async fn refunded(&self) -> Credits {
        Credits(self.0.refunded)
    }

    /// When it last changed.
    async fn updated_at(&self) -> Option<DateTime<Utc>> {
        self.0.updated_at
    }

    /// Its postings, newest first.
    #[graphql(complexity = "5 + 10 * child_complexity")]
    async fn entries(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "At most so many, 1 to 100; 20 where no number is given.")] first: Option<i32>,
        #[graphql(desc = "Only postings before this version.")] before: Option<BigInt>,
    ) -> Result<Vec<AccountEntry>> {
        let count = first.map_or(Ok(DEFAULT_PAGE), |first| count("first", first))?;
        let reader = &state(ctx)?.reader;
        let rows = reader
            .entries(viewer(ctx)?, self.0.tenant, before.map(|it| it.0), count)
            .await
            .map_err(|error| fault(ctx, &error))?;
        Ok(rows
            .into_iter()
            .map(|row| AccountEntry {
                version: BigInt(row.version),
                kind: row.kind,
                business_key: row.business_key,
                amount: Credits(row.amount),
                charged: Credits(row.charged),
                created_at: row.created_at,
            })
            .collect())
    }
}
