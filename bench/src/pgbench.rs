//! What PostgreSQL itself can do: pgbench writes the same bytes into the same tables, in one prepared statement.

use crate::append::FINDING;
use crate::database::Database;
use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;
use uuid::Uuid;

/// One event and one outbox row. Values that are the same each time come in as parameters, like ours do.
const SCRIPT: &str = "\
WITH e AS (INSERT INTO events (event_id, category, stream_id, version, name, schema_version, body, tenant_id, \
correlation_id, causation_id, actor, recorded_at) VALUES (gen_random_uuid(), :category, gen_random_uuid(), :version, :name, \
:schema_version, :body, :tenant, :correlation, :causation, :actor, now())) INSERT INTO outbox_events (event_id, \
aggregate_type, aggregate_id, event_type, schema_version, topic, tag, payload, deliver_at, tenant_id, trace_id, \
correlation_id, causation_id, occurred_at, available_at) VALUES (gen_random_uuid(), :aggregate, gen_random_uuid(), :type, \
:schema_version, :topic, :tag, :payload, now(), :tenant, :trace, :correlation, :causation, now(), now());
";

/// pgbench on a database with our tables.
pub struct Pgbench {
    program: PathBuf,
    database: Database,
    script: PathBuf,
}

impl Pgbench {
    /// Makes the database.
    ///
    /// # Errors
    /// The server refuses, or the script can not be written.
    pub async fn prepare(program: &Path) -> anyhow::Result<Self> {
        let database = Database::create("pgbench").await?;
        database.store(1).await?.close().await;
        let script = std::env::temp_dir().join(format!("aivideo-bench-{}.sql", std::process::id()));
        std::fs::write(&script, SCRIPT)?;
        Ok(Self { program: program.to_owned(), database, script })
    }

    /// Drops the database.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn end(&self) -> anyhow::Result<()> {
        std::fs::remove_file(&self.script)?;
        self.database.drop_it().await
    }

    /// Transactions a second.
    ///
    /// # Errors
    /// It can not be started, or fails.
    pub async fn rate(&self, writers: usize, seconds: f64) -> anyhow::Result<f64> {
        let url = self.database.url();
        let clients = writers.to_string();
        // It knows whole seconds only.
        let time = format!("{:.0}", seconds.ceil().max(1.0));
        let output = Command::new(&self.program)
            .args([
                "-n",
                "-M",
                "prepared",
                "-c",
                &clients,
                "-j",
                if writers > 1 { "2" } else { "1" },
                "-T",
                &time,
                "-f",
            ])
            .arg(&self.script)
            .args(values().into_iter().flat_map(|(name, value)| ["-D".to_owned(), format!("{name}={value}")]))
            // Not in the arguments: every user of the machine can read those.
            .env("PGHOST", url.host_str().unwrap_or("localhost"))
            .env("PGPORT", url.port().unwrap_or(5432).to_string())
            .env("PGUSER", url.username())
            .env("PGPASSWORD", url.password().unwrap_or_default())
            .env("PGDATABASE", url.path().trim_start_matches('/'))
            .stdin(Stdio::null())
            .output()
            .await
            .with_context(|| format!("{} can not be started", self.program.display()))?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "pgbench failed: {}", String::from_utf8_lossy(&output.stderr));
        let rate = said.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
        rate.with_context(|| format!("pgbench told no rate: {said}"))
    }
}

/// As long as the values of [`crate::append`].
fn values() -> Vec<(&'static str, String)> {
    let uuid = || Uuid::new_v4().to_string();
    let at = "2026-01-01T00:00:00.123456Z";
    vec![
        ("category", "attempt".to_owned()),
        ("version", "1".to_owned()),
        ("name", "attempt.polled".to_owned()),
        ("schema_version", "1".to_owned()),
        ("body", format!(r#"{{"percent":50,"next_poll_at":"{at}","finding":"{FINDING}"}}"#)),
        ("tenant", uuid()),
        ("correlation", uuid()),
        ("causation", uuid()),
        ("actor", "worker:poll".to_owned()),
        ("aggregate", "task".to_owned()),
        ("type", "generation.poll.due".to_owned()),
        ("topic", "generation.poll.delay".to_owned()),
        ("tag", "POLL".to_owned()),
        ("payload", format!(r#"{{"task_id":"{}","attempt_id":"{}","version":4}}"#, uuid(), uuid())),
        ("trace", Uuid::new_v4().simple().to_string()),
    ]
}
