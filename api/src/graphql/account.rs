//! A credit account as clients see it.

use super::context::{state, viewer};
use super::error::fault;
use super::node_id::Kind;
use super::page::{DEFAULT_PAGE, Edge, PageInfo, Place, count, edges, window};
use super::scalars::{BigInt, Credits, Instant};
use async_graphql::{Context, ID, Object, Result, SimpleObject};
use projections::query::{AccountRow, EntryRow, Page, Window};

/// A tenant's credits.
pub(crate) struct Account(pub(crate) AccountRow);

/// A posting.
#[derive(Clone, Debug, SimpleObject)]
pub(crate) struct AccountEntry {
    /// The account's version that it made.
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
    created_at: Instant,
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
    async fn updated_at(&self) -> Option<Instant> {
        self.0.updated_at.map(Instant)
    }

    /// Its postings, newest first.
    #[graphql(complexity = "5 + 10 * child_complexity", deprecation = "`postings` has pages in both directions.")]
    async fn entries(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "At most so many, 1 to 100; 20 where no number is given.")] first: Option<i32>,
        #[graphql(desc = "Only postings before this version.")] before: Option<BigInt>,
    ) -> Result<Vec<AccountEntry>> {
        let count = first.map_or(Ok(DEFAULT_PAGE), |first| count("first", first))?;
        let page = self.page(ctx, Window::First { count, after: before.map(|it| it.0) }).await?;
        Ok(page.rows.into_iter().map(AccountEntry::from).collect())
    }

    /// Its postings, newest first. `first` with `after`, or `last` with `before`; 20 where no number is given, 100 at most.
    #[graphql(complexity = "5 + first.or(last).unwrap_or(20).clamp(1, 100) as usize * child_complexity")]
    async fn postings(
        &self,
        ctx: &Context<'_>,
        #[graphql(desc = "The first so many, from the newest or after a place: 1 to 100.")] first: Option<i32>,
        #[graphql(desc = "Only what comes after this place: a cursor of this list.")] after: Option<String>,
        #[graphql(desc = "The last so many, up to the oldest or before a place: 1 to 100.")] last: Option<i32>,
        #[graphql(desc = "Only what comes before this place: a cursor of this list.")] before: Option<String>,
    ) -> Result<Option<AccountEntryConnection>> {
        let window = window(first, after.as_deref(), last, before.as_deref())?;
        Ok(Some(self.page(ctx, window.map(|Posting(version)| version)).await?.into()))
    }
}

impl Account {
    async fn page(&self, ctx: &Context<'_>, window: Window<i64>) -> Result<Page<EntryRow>> {
        let page = state(ctx)?.reader.entries(viewer(ctx)?, self.0.tenant, window).await;
        page.map_err(|error| fault(ctx, &error))
    }
}

impl From<EntryRow> for AccountEntry {
    fn from(row: EntryRow) -> Self {
        Self {
            version: BigInt(row.version),
            kind: row.kind,
            business_key: row.business_key,
            amount: Credits(row.amount),
            charged: Credits(row.charged),
            created_at: Instant(row.created_at),
        }
    }
}

/// The place of a posting: the version that it made.
struct Posting(i64);

impl Place for Posting {
    const LIST: &'static str = "p1";

    fn write(&self) -> String {
        self.0.to_string()
    }

    fn read(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }
}

/// A page of postings, newest first.
#[derive(SimpleObject)]
pub(crate) struct AccountEntryConnection {
    /// The postings with their places.
    edges: Vec<Edge<AccountEntry>>,
    /// Where this page lies.
    page_info: PageInfo,
}

impl From<Page<EntryRow>> for AccountEntryConnection {
    fn from(page: Page<EntryRow>) -> Self {
        let (edges, page_info) = edges(page, |row| Posting(row.version), AccountEntry::from);
        Self { edges, page_info }
    }
}
