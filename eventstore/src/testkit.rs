//! A fresh database for each test, on the server that `DATABASE_URL` names; a server that may be killed; a connection that
//! breaks. Only for tests.

mod proxy;
mod server;

pub use proxy::{FaultProxy, Reset};
pub use server::OwnServer;

use crate::connect::{MIGRATOR, Store};
use domain::process::Policy;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgPool};
use std::str::FromStr;
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

/// A database of its own, with all migrations, dropped at the end.
pub struct TestDatabase {
    store: Store,
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
        let url = std::env::var("DATABASE_URL").map_err(|_| TestkitError::NoServer)?;
        Self::on(&url, policy).await
    }

    /// Makes one on another server, with these rules.
    ///
    /// # Errors
    /// [`TestkitError`].
    pub async fn on(url: &str, policy: Policy) -> Result<Self, TestkitError> {
        let server = PgConnectOptions::from_str(url)?.disable_statement_logging();
        let name = format!("aivideo_test_{}", Uuid::new_v4().simple());
        let mut admin = server.connect().await?;
        // The name is made of hexadecimal digits above.
        sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut admin).await?;
        admin.close().await?;
        let pool = PgPoolOptions::new().max_connections(16).connect_with(server.clone().database(&name)).await?;
        MIGRATOR.run(&pool).await?;
        Ok(Self { store: Store::on(pool, policy), name, server })
    }

    /// A store on it.
    #[must_use]
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// The pool behind the store.
    #[must_use]
    pub const fn pool(&self) -> &PgPool {
        self.store.pool()
    }

    /// A pool of its own on this database, with other settings of its sessions: `(name, value)`.
    ///
    /// # Errors
    /// [`TestkitError::Server`].
    pub async fn another_pool(&self, connections: u32, settings: &[(&str, &str)]) -> Result<PgPool, TestkitError> {
        let options = self.server.clone().database(&self.name).options(settings.iter().copied());
        Ok(PgPoolOptions::new().max_connections(connections).connect_with(options).await?)
    }

    /// A pool whose connections go through a proxy. Nothing is connected yet.
    #[must_use]
    pub fn pool_through(&self, proxy: &FaultProxy, connections: u32) -> PgPool {
        let options = self.server.clone().database(&self.name).host("127.0.0.1").port(proxy.port());
        // What is encrypted can not be cut at a place of one's choice.
        PgPoolOptions::new().max_connections(connections).connect_lazy_with(options.ssl_mode(PgSslMode::Disable))
    }

    /// The server's host and port.
    #[must_use]
    pub fn server(&self) -> (String, u16) {
        (self.server.get_host().to_owned(), self.server.get_port())
    }

    /// Runs statements that a test brings, such as to put rows where another part would, or to break something.
    ///
    /// # Errors
    /// [`TestkitError::Server`].
    pub async fn sql(&self, statements: &str) -> Result<(), TestkitError> {
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(self.pool()).await?;
        Ok(())
    }

    /// The one number that a query answers.
    ///
    /// # Errors
    /// [`TestkitError::Server`].
    pub async fn count(&self, query: &str) -> Result<i64, TestkitError> {
        Ok(sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_one(self.pool()).await?)
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
                let drop_it = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
                // A worker of autovacuum may be in it just then: it can not be sent away, but it soon leaves.
                for _ in 0..50 {
                    let dropped = sqlx::query(AssertSqlSafe(drop_it.clone())).execute(&mut admin).await;
                    if dropped.is_ok() {
                        return Some(());
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                }
                None
            })
        })
        .join();
        if !matches!(dropped, Ok(Some(_))) {
            tracing::warn!(database = %self.name, "a test database was left behind");
        }
    }
}
