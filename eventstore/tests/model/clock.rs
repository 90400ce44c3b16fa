//! A database whose clock the test sets, so that both stores record the same times, to the microsecond.
//!
//! The store asks for `clock_timestamp()` without naming a schema. Sessions of these stores look in the schema `clock` first.

use super::Anyhow;
use super::facts::Facts;
use domain::process::Policy;
use domain::time::Timestamp;
use eventstore::Store;
use eventstore::testkit::TestDatabase;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};

const CLOCK: &str = "
    CREATE SCHEMA clock;
    CREATE TABLE clock.hand (at timestamptz NOT NULL);
    INSERT INTO clock.hand VALUES ('epoch');
    CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT at FROM clock.hand';
    GRANT USAGE ON SCHEMA clock TO PUBLIC;
    GRANT SELECT ON clock.hand TO PUBLIC;
    ALTER TABLE events DISABLE TRIGGER USER;";

/// Every table that the store writes to on behalf of a command or a message.
const CLEAR: &str = "
    DELETE FROM events; DELETE FROM outbox_events; DELETE FROM inbox_dedup; DELETE FROM message_quarantine;
    DELETE FROM idempotency_keys; DELETE FROM generation_requests; DELETE FROM notifications; DELETE FROM repairs;";

/// A database of its own, with the clock.
pub struct Clocked {
    database: TestDatabase,
}

impl Clocked {
    pub async fn create() -> Anyhow<Self> {
        let database = TestDatabase::create().await?;
        database.sql(CLOCK).await?;
        Ok(Self { database })
    }

    /// A store with a pool and a cache of its own.
    pub async fn store(&self, policy: Policy) -> Anyhow<Store> {
        let pool = PgPoolOptions::new().max_connections(4).connect_with(self.options()).await?;
        Ok(Store::on(pool, policy))
    }

    /// A way to the database through `port` only, that finds out about a broken connection when it uses it. It has one
    /// connection at a time, so that the same calls come in the same order each time.
    pub async fn pool_through(&self, port: u16) -> Anyhow<PgPool> {
        let options = self.options().host("127.0.0.1").port(port).ssl_mode(PgSslMode::Disable);
        Ok(PgPoolOptions::new().max_connections(1).test_before_acquire(false).connect_with(options).await?)
    }

    /// Where the server listens.
    pub fn server(&self) -> (String, u16) {
        let options = self.database.pool().connect_options();
        (options.get_host().to_owned(), options.get_port())
    }

    fn options(&self) -> PgConnectOptions {
        // Naming `pg_catalog` keeps it from being looked into before all others.
        let options = self.database.pool().connect_options();
        options.as_ref().clone().options([("search_path", "clock,public,pg_catalog"), ("lock_timeout", "10000")])
    }

    pub async fn set(&self, now: Timestamp) -> Anyhow {
        sqlx::query("UPDATE clock.hand SET at = $1").bind(now).execute(self.database.owner()).await?;
        Ok(())
    }

    /// Forgets everything. A store from before must not be used again: it remembers.
    pub async fn clear(&self) -> Anyhow {
        Ok(self.database.sql(CLEAR).await?)
    }

    /// Events and messages alone.
    pub async fn history(&self) -> Anyhow<Facts> {
        Facts::read_history(self.database.pool()).await
    }

    pub async fn facts(&self) -> Anyhow<Facts> {
        Facts::read(self.database.pool()).await
    }
}
