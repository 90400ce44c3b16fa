//! Opening the database: pool, migrations, and the refusal to run on a schema this build does not know.

use crate::append::Appends;
use crate::batches::Batches;
use crate::load::{FoldCache, Readings};
use crate::roles::{self, Granted, RoleName, Roles};
use crate::snapshot::Snapshots;
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
    /// `postgres://user:password@host:port/database`, as the service. A secret: it is never printed.
    pub url: String,
    /// The same database as the owner of its tables, for `aivideo migrate` and for tools that need more than the service may.
    /// A secret too. Without it, `url` is the owner's.
    #[serde(default)]
    pub owner_url: Option<String>,
    /// The group role of the service's logins.
    #[serde(default = "default_service")]
    pub service_role: RoleName,
    /// The group role of auditors and other programs.
    #[serde(default = "default_reader")]
    pub reader_role: RoleName,
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
            .field("owner_url", &self.owner_url.as_ref().map(|_| "<secret>"))
            .field("service_role", &self.service_role)
            .field("reader_role", &self.reader_role)
            .field("max_connections", &self.max_connections)
            .field("acquire_timeout_ms", &self.acquire_timeout_ms)
            .finish()
    }
}

impl DatabaseConfig {
    /// The same, as the owner of the tables.
    #[must_use]
    pub fn as_owner(&self) -> Self {
        Self { url: self.owner_url.clone().unwrap_or_else(|| self.url.clone()), ..self.clone() }
    }

    /// The group roles.
    #[must_use]
    pub fn roles(&self) -> Roles {
        Roles { service: self.service_role.clone(), reader: self.reader_role.clone() }
    }
}

fn default_service() -> RoleName {
    Roles::default().service
}

fn default_reader() -> RoleName {
    Roles::default().reader
}
/// How many statements that read, and how many that append, are on their way to the database at once. Few: what comes meanwhile
/// goes together.
const READINGS_AT_ONCE: usize = 2;
const APPENDS_AT_ONCE: usize = 2;

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
    /// The roles' rights could not be set.
    #[error("what the database's roles may do could not be set; nothing of it is changed")]
    Roles(#[source] sqlx::Error),
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
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) readings: Batches<Readings>,
    /// Of those who meet a stream for the first time.
    pub(crate) cold_readings: Batches<Readings>,
    pub(crate) appends: Batches<Appends>,
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
            // The statements are short. What looks dear to the planner (a scan where scans are switched off: a sequence has no
            // other way to be read) would be compiled to machine code each time: 16 ms for one row.
            ("jit", "off"),
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
        let (ringer, snapshots) = (Ringer::new(pool.clone()), Snapshots::new(pool.clone()));
        Self {
            policy: Arc::new(policy),
            cache: Arc::new(FoldCache::default()),
            snapshots,
            readings: Batches::new(Readings { pool: pool.clone() }, READINGS_AT_ONCE),
            cold_readings: Batches::new(Readings { pool: pool.clone() }, READINGS_AT_ONCE),
            appends: Batches::new(Appends { pool: pool.clone(), ringer: Arc::clone(&ringer) }, APPENDS_AT_ONCE),
            ringer,
            pool,
        }
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

    /// Sees to the group roles and what they may do; `config` says what they are called, and who is the service. This store must
    /// be the owner's.
    ///
    /// # Errors
    /// [`OpenError::Url`], [`OpenError::Roles`].
    pub async fn grant(&self, config: &DatabaseConfig) -> Result<Granted, OpenError> {
        let service: PgConnectOptions = config.url.parse().map_err(|_| OpenError::Url)?;
        // An owner who is the service too needs no membership.
        let login = config.owner_url.as_ref().map(|_| service.get_username());
        roles::apply(&self.pool, &config.roles(), login).await
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
