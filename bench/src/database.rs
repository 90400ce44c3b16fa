//! Databases of the benchmark's own, on the server that `DATABASE_URL` names.

use anyhow::Context;
use domain::process::Policy;
use eventstore::{DatabaseConfig, Store};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use url::Url;

/// A database that is made empty, and dropped by [`Database::drop_it`].
pub struct Database {
    server: Url,
    name: String,
}

impl Database {
    /// Makes it; one of that name that was left behind goes first.
    ///
    /// # Errors
    /// `DATABASE_URL` is not set or no URL, or the server refuses.
    pub async fn create(name: &str) -> anyhow::Result<Self> {
        let server = std::env::var("DATABASE_URL")
            .context("DATABASE_URL is not set: ./dev bench starts a PostgreSQL and sets it")?;
        let database = Self { server: Url::parse(&server)?, name: format!("aivideo_bench_{name}") };
        database.drop_it().await?;
        database.on_server(format!("CREATE DATABASE {}", database.name)).await?;
        Ok(database)
    }

    /// Where it is.
    pub fn url(&self) -> Url {
        let mut url = self.server.clone();
        url.set_path(&self.name);
        url
    }

    /// A store over it, opened as the service opens one, with all migrations.
    ///
    /// # Errors
    /// It can not be opened or migrated.
    pub async fn store(&self, connections: u32) -> anyhow::Result<Store> {
        // As from a configuration file: what it does not say has the service's defaults.
        let config = serde_json::json!({ "url": self.url().as_str(), "max_connections": connections });
        let config: DatabaseConfig = serde_json::from_value(config)?;
        let store = Store::connect(&config, Policy::default()).await?;
        store.migrate().await?;
        Ok(store)
    }

    /// Drops it, whoever is connected.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn drop_it(&self) -> anyhow::Result<()> {
        self.on_server(format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name)).await
    }

    async fn on_server(&self, statement: String) -> anyhow::Result<()> {
        let mut admin = PgConnection::connect(self.server.as_str()).await?;
        // The names in it are this program's own.
        sqlx::query(AssertSqlSafe(statement)).execute(&mut admin).await?;
        Ok(admin.close().await?)
    }
}
