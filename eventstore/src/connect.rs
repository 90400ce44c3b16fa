//! Opening the database: pool, migrations, and the refusal to run on a schema this build does not know.

use crate::load::FoldCache;
use crate::wakeup::Ringer;
use domain::process::Policy;
use serde::Deserialize;
use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgPool};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// All migrations, in order.
pub static MIGRATOR: Migrator = sqlx::migrate!("../migrations");

/// How the database is reached.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatabaseConfig {
    /// `postgres://user:password@host:port/database`. A secret: it is never printed.
    pub url: String,
    /// Most connections of this process.
    #[serde(default = "default_connections")]
    pub max_connections: u32,
    /// How long a statement waits for a free connection, in milliseconds.
    #[serde(default = "default_acquire")]
    pub acquire_timeout_ms: u64,
}

impl std::fmt::Debug for DatabaseConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatabaseConfig")
            .field("url", &"<secret>")
            .field("max_connections", &self.max_connections)
            .field("acquire_timeout_ms", &self.acquire_timeout_ms)
            .finish()
    }
}

/// How long after its last use a connection is taken to be alive.
const TRUSTED: Duration = Duration::from_secs(1);

const fn default_connections() -> u32 {
    24
}

const fn default_acquire() -> u64 {
    10_000
}

/// Why the database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL can not be read. It is not shown: it may hold a password.
    #[error("the database URL can not be read: it has the form postgres://user:password@host:port/database")]
    Url,
    /// No connection.
    #[error("no connection to the database; check that it runs and that the URL is right")]
    Connect(#[source] sqlx::Error),
    /// A migration failed.
    #[error("a migration failed; nothing of it is applied")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    /// The schema is older than this build.
    #[error("the schema lacks {missing} migrations of this build: run `aivideo migrate` first")]
    SchemaBehind {
        /// How many.
        missing: usize,
    },
    /// The schema is newer than this build.
    #[error("the schema has migrations that this build does not know: run a newer build")]
    SchemaAhead,
}

/// The event store. Cheap to clone: clones share the pool and the cache of folded streams.
#[derive(Clone)]
pub struct Store {
    pub(crate) pool: PgPool,
    pub(crate) policy: Arc<Policy>,
    pub(crate) cache: Arc<FoldCache>,
    pub(crate) ringer: Arc<Ringer>,
}

impl Store {
    /// Connects, without looking at the schema.
    ///
    /// # Errors
    /// [`OpenError::Url`], [`OpenError::Connect`].
    pub async fn connect(config: &DatabaseConfig, policy: Policy) -> Result<Self, OpenError> {
        let options: PgConnectOptions = config.url.parse().map_err(|_| OpenError::Url)?;
        let options = options.application_name("aivideo").options([
            // A session that dies or hangs inside a transaction must not hold others back for ever.
            ("idle_in_transaction_session_timeout", "15000"),
            ("lock_timeout", "10000"),
            ("statement_timeout", "60000"),
        ]);
        let pool = PgPoolOptions::new()
            .max_connections(config.max_connections)
            .acquire_timeout(Duration::from_millis(config.acquire_timeout_ms))
            // A connection that was in use a moment ago is not asked whether it lives: that is a trip to the database.
            .test_before_acquire(false)
            .before_acquire(|connection, used| {
                Box::pin(async move { Ok(used.idle_for < TRUSTED || connection.ping().await.is_ok()) })
            })
            .connect_with(options)
            .await
            .map_err(OpenError::Connect)?;
        Ok(Self::on(pool, policy))
    }

    /// A store on an existing pool.
    #[must_use]
    pub fn on(pool: PgPool, policy: Policy) -> Self {
        let ringer = Ringer::new(pool.clone());
        Self { pool, policy: Arc::new(policy), cache: Arc::new(FoldCache::default()), ringer }
    }

    /// Connects, and refuses a schema that this build was not made for.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(config: &DatabaseConfig, policy: Policy) -> Result<Self, OpenError> {
        let store = Self::connect(config, policy).await?;
        store.check_schema().await?;
        Ok(store)
    }

    /// Applies what is missing of the migrations.
    ///
    /// # Errors
    /// [`OpenError::Migrate`].
    pub async fn migrate(&self) -> Result<(), OpenError> {
        MIGRATOR.run(&self.pool).await.map_err(OpenError::Migrate)
    }

    async fn check_schema(&self) -> Result<(), OpenError> {
        let applied: Result<Vec<i64>, sqlx::Error> =
            sqlx::query_scalar("/* eventstore.check_schema */ SELECT version FROM _sqlx_migrations WHERE success")
                .fetch_all(&self.pool)
                .await;
        let known: HashSet<i64> = MIGRATOR.iter().map(|migration| migration.version).collect();
        let applied: HashSet<i64> = match applied {
            Ok(versions) => versions.into_iter().collect(),
            Err(error) if error.as_database_error().and_then(|it| it.code()).as_deref() == Some("42P01") => {
                HashSet::new()
            }
            Err(error) => return Err(OpenError::Connect(error)),
        };
        let missing = known.difference(&applied).count();
        if missing > 0 {
            return Err(OpenError::SchemaBehind { missing });
        }
        if applied.difference(&known).next().is_some() {
            return Err(OpenError::SchemaAhead);
        }
        Ok(())
    }

    /// The pool, for the read side.
    #[must_use]
    pub const fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Closes the connections; what is in use is waited for.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// The product rules.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }
}
