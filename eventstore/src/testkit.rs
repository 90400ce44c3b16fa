//! A fresh database for each test, on the server that `DATABASE_URL` names; a server that may be killed; a connection that
//! breaks. Only for tests.

mod proxy;
mod server;
mod template;

pub use proxy::{FaultProxy, Reset};
pub use server::OwnServer;

use crate::connect::{MIGRATOR, OpenError, Store};
use crate::delivery::{Ack, Outcome};
use crate::error::StoreError;
use crate::history::{History, HistoryError, Moment, Past};
use crate::load::{FoldCache, Through};
use crate::logged::{LoggedEvent, read_log};
use crate::roles::{self, Granted, Roles};
use domain::process::{Case, CaseKey, Policy, StreamId};
use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Why a test has no database.
#[derive(Debug, thiserror::Error)]
pub enum TestkitError {
    /// Nobody said where the server is.
    #[error(
        "DATABASE_URL is not set: these tests need a PostgreSQL 15 or newer; `./dev test` starts one and runs them"
    )]
    NoServer,
    /// The server could not be used.
    #[error(
        "the test database could not be made; does the server of DATABASE_URL run, and may its role create databases?"
    )]
    Server(#[from] sqlx::Error),
    /// A migration failed.
    #[error("a migration failed")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// The roles' rights could not be set.
    #[error(transparent)]
    Roles(#[from] OpenError),
    /// The roles could not be made.
    #[error("{what}: run this as an administrator:\n{run}")]
    NoRoles {
        /// What is missing.
        what: String,
        /// SQL.
        run: String,
    },
    /// A server of its own could not be made, killed or started again.
    #[error("a PostgreSQL of the test's own does not work: {said}")]
    Part {
        /// What was said about it.
        said: String,
    },
    /// The machine refused a process, a signal or a file.
    #[error("the machine refused what a server of the test's own needs")]
    Machine(#[from] std::io::Error),
}

/// Leave to acknowledge what was made durable by other means than this store: for benchmarks of such.
pub const fn acknowledge() -> Ack {
    Ack::new(Outcome::Done)
}

impl Store {
    /// Reads a case as a process does that has met none of its streams before: nothing is kept in memory, before or after.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn load_cold(&self, key: CaseKey) -> Result<Case, StoreError> {
        Self { cache: Arc::new(FoldCache::default()), ..self.clone() }.load_case(key).await
    }

    /// Reads the log after a position, as far as it may be read, at most `limit` events.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn log_after(&self, after: i64, limit: i64) -> Result<Vec<LoggedEvent>, StoreError> {
        let mut connection = self.pool.acquire().await?;
        let up_to = sqlx::query_scalar("/* testkit.readable */ SELECT up_to FROM readable_position()")
            .fetch_one(&mut *connection)
            .await?;
        Ok(read_log(&mut connection, after, up_to, limit).await?)
    }
}

/// A database of its own, with all migrations, dropped at the end. The store on it may do what the service may, and no more.
pub struct TestDatabase {
    store: Store,
    owner: PgPool,
    name: String,
    server: PgConnectOptions,
}

impl TestDatabase {
    /// Makes one, with the default rules.
    ///
    /// # Errors
    /// [`TestkitError`].
    pub async fn create() -> Result<Self, TestkitError> {
        Self::with_policy(Policy::default()).await
    }

    /// Makes one, with these rules.
    ///
    /// # Errors
    /// [`TestkitError`].
    pub async fn with_policy(policy: Policy) -> Result<Self, TestkitError> {
        Self::on(&named_server()?, policy).await
    }

    /// Makes one with the migrations before this one only, as the release before left it. [`Self::migrate`] applies the rest.
    ///
    /// # Errors
    /// [`TestkitError`].
    pub async fn before_migration(version: i64, policy: Policy) -> Result<Self, TestkitError> {
        let earlier = MIGRATOR.iter().filter(|it| it.version < version).cloned().collect();
        let (server, name) = (server_options(&named_server()?)?, new_name());
        let mut admin = server.connect().await?;
        // The name is made of hexadecimal digits.
        sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut admin).await?;
        admin.close().await?;
        migrate_empty(server.clone().database(&name), &Migrator::with_migrations(earlier)).await?;
        Ok(Self::named(server, name, policy))
    }

    /// Makes one on another server, with these rules.
    ///
    /// # Errors
    /// [`TestkitError`].
    pub async fn on(url: &str, policy: Policy) -> Result<Self, TestkitError> {
        let (server, name) = (server_options(url)?, new_name());
        let mut admin = server.connect().await?;
        template::copy(&mut admin, &server, &name).await?;
        admin.close().await?;
        Ok(Self::named(server, name, policy))
    }

    /// Connects when it is used: not every test needs both pools.
    fn named(server: PgConnectOptions, name: String, policy: Policy) -> Self {
        let options = server.clone().database(&name);
        let owner = PgPoolOptions::new().max_connections(20).connect_lazy_with(options.clone());
        // The service's statements are told, for tests that count them; that one was slow, on a busy machine, is no news.
        let (debug, off) = ("debug".parse().expect("a level of logs"), "off".parse().expect("a level of logs"));
        let told = as_service(options).log_statements(debug).log_slow_statements(off, Duration::from_secs(1));
        let service = PgPoolOptions::new().max_connections(16).connect_lazy_with(told);
        Self { store: Store::on(service, policy), owner, name, server }
    }

    /// Applies the migrations that it has not, and grants what they need, as `aivideo migrate` does.
    ///
    /// # Errors
    /// [`TestkitError`].
    pub async fn migrate(&self) -> Result<(), TestkitError> {
        MIGRATOR.run(&self.owner).await?;
        roles::apply(&self.owner, &Roles::default(), None).await?;
        Ok(())
    }

    /// A store on it.
    #[must_use]
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// The pool behind the store: of sessions that may do what the service may.
    #[must_use]
    pub const fn pool(&self) -> &PgPool {
        self.store.pool()
    }

    /// A pool of the tables' owner.
    #[must_use]
    pub const fn owner(&self) -> &PgPool {
        &self.owner
    }

    /// A pool of its own on this database, with other settings of its sessions: `(name, value)`.
    ///
    /// # Errors
    /// [`TestkitError::Server`].
    pub async fn another_pool(&self, connections: u32, settings: &[(&str, &str)]) -> Result<PgPool, TestkitError> {
        let options = as_service(self.server.clone().database(&self.name)).options(settings.iter().copied());
        Ok(PgPoolOptions::new().max_connections(connections).connect_with(options).await?)
    }

    /// A pool whose connections go through a proxy. Nothing is connected yet.
    #[must_use]
    pub fn pool_through(&self, proxy: &FaultProxy, connections: u32) -> PgPool {
        let options = as_service(self.server.clone().database(&self.name)).host("127.0.0.1").port(proxy.port());
        // What is encrypted can not be cut at a place of one's choice.
        PgPoolOptions::new().max_connections(connections).connect_lazy_with(options.ssl_mode(PgSslMode::Disable))
    }

    /// The server's host and port.
    #[must_use]
    pub fn server(&self) -> (String, u16) {
        (self.server.get_host().to_owned(), self.server.get_port())
    }

    /// Runs statements that a test brings, such as to put rows where another part would, or to break something. As the owner.
    ///
    /// # Errors
    /// [`TestkitError::Server`].
    pub async fn sql(&self, statements: &str) -> Result<(), TestkitError> {
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&self.owner).await?;
        Ok(())
    }

    /// The one number that a query answers. As the owner.
    ///
    /// # Errors
    /// [`TestkitError::Server`].
    pub async fn count(&self, query: &str) -> Result<i64, TestkitError> {
        Ok(sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_one(&self.owner).await?)
    }
}

fn named_server() -> Result<String, TestkitError> {
    std::env::var("DATABASE_URL").map_err(|_| TestkitError::NoServer)
}

fn server_options(url: &str) -> Result<PgConnectOptions, TestkitError> {
    Ok(PgConnectOptions::from_str(url)?.disable_statement_logging())
}

fn new_name() -> String {
    format!("aivideo_test_{}", Uuid::new_v4().simple())
}

/// Applies migrations to an empty database, and sets what the roles may do there.
async fn migrate_empty(options: PgConnectOptions, migrator: &Migrator) -> Result<(), TestkitError> {
    let owner = PgPoolOptions::new().max_connections(1).connect_with(options).await?;
    migrator.run(&owner).await?;
    grant(&owner, &Roles::default()).await?;
    owner.close().await;
    Ok(())
}

/// Sets what the roles may do, and makes the login a member of the service's.
async fn grant(owner: &PgPool, names: &Roles) -> Result<(), TestkitError> {
    let login: String = sqlx::query_scalar("SELECT current_user::text").fetch_one(owner).await?;
    match roles::apply(owner, names, Some(&login)).await? {
        Granted::All => Ok(()),
        Granted::Missing { what, run } => Err(TestkitError::NoRoles { what, run }),
    }
}

/// The same login, in the role that [`TestDatabase`] gave its service.
fn as_service(options: PgConnectOptions) -> PgConnectOptions {
    options.options([("role", Roles::default().service.to_string())])
}

/// Sets what the roles may do, and connects as the service: the same login, in the service's role.
///
/// # Errors
/// [`TestkitError`].
pub async fn in_role(owner: &PgPool, options: PgConnectOptions, names: &Roles) -> Result<PgPool, TestkitError> {
    grant(owner, names).await?;
    let options = options.options([("role", names.service.to_string())]);
    Ok(PgPoolOptions::new().max_connections(16).connect_with(options).await?)
}

impl Store {
    /// Reads a case as `consume` and `execute` do at first, and nothing else. A store that has read nothing yet reads it cold.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn load_case(&self, key: CaseKey) -> Result<Case, StoreError> {
        Ok(self.load(Through::Batches, Case::begin(key)).await?.0)
    }

    /// Waits until this store has written the snapshots that were due.
    pub async fn snapshots_written(&self) {
        self.snapshots.quiet().await;
    }

    /// Writes a snapshot of a stream at a version now, whether one is due or not.
    ///
    /// # Errors
    /// [`HistoryError`]: there is no such version, or it is 0.
    pub async fn write_snapshot(&self, stream: StreamId, version: i64) -> Result<(), HistoryError> {
        let Past { folded, event, newest } = self.past(stream, Moment::Version(version)).await?;
        let last = event.ok_or(HistoryError::NoSuchVersion { stream, version, newest })?;
        Ok(self.snapshots.store(stream, &folded, &last.stored()).await?)
    }
}

impl Drop for TestDatabase {
    /// Drops the database on a thread of its own: a test may be leaving by a panic, and its runtime may be the current one.
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
            runtime.block_on(async move {
                let mut admin = server.connect().await.ok()?;
                drop_database(&mut admin, &name).await.ok()
            })
        })
        .join();
        if !matches!(dropped, Ok(Some(_))) {
            tracing::warn!(database = %self.name, "a test database was left behind");
        }
    }
}

/// Drops a database with whoever is in it.
async fn drop_database(admin: &mut PgConnection, name: &str) -> Result<(), sqlx::Error> {
    let drop_it = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
    let mut tries = 0;
    loop {
        // A worker of autovacuum may be in it just then: it can not be sent away, but it soon leaves.
        match sqlx::query(AssertSqlSafe(drop_it.clone())).execute(&mut *admin).await {
            Err(_) if tries < 50 => tries += 1,
            other => return other.map(drop),
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}
