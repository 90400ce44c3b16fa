//! A fresh database for each test, on the server that `DATABASE_URL` names. Only for tests.

use crate::connect::{MIGRATOR, Store};
use domain::process::Policy;
use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
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
        Self::migrated_by(policy, &MIGRATOR).await
    }

    /// Makes one with the migrations before this one only, as the release before left it. [`Store::migrate`] applies the rest.
    ///
    /// # Errors
    /// [`TestkitError`].
    pub async fn before_migration(version: i64, policy: Policy) -> Result<Self, TestkitError> {
        let earlier = MIGRATOR.iter().filter(|it| it.version < version).cloned().collect();
        Self::migrated_by(policy, &Migrator::with_migrations(earlier)).await
    }

    async fn migrated_by(policy: Policy, migrator: &Migrator) -> Result<Self, TestkitError> {
        let url = std::env::var("DATABASE_URL").map_err(|_| TestkitError::NoServer)?;
        let server = PgConnectOptions::from_str(&url)?.disable_statement_logging();
        let name = format!("aivideo_test_{}", Uuid::new_v4().simple());
        let mut admin = server.connect().await?;
        // The name is made of hexadecimal digits above.
        sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut admin).await?;
        admin.close().await?;
        let pool = PgPoolOptions::new().max_connections(16).connect_with(server.clone().database(&name)).await?;
        migrator.run(&pool).await?;
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
