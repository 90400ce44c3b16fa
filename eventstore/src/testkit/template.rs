//! The database that test databases are copies of: all migrations and rights, applied once for each content of them. To copy it
//! takes a fraction of what it takes to migrate, and most tests are about something else.

use super::{TestkitError, drop_database, migrate_empty};
use crate::connect::MIGRATOR;
use sha2::{Digest, Sha256};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};
use uuid::Uuid;

/// What the rights are made from.
const RIGHTS: &str = include_str!("../roles.rs");
const PREFIX: &str = "aivideo_template_";
/// Of databases that are being made into one. Those of a process that died are dropped by the next one that makes one.
const UNFINISHED: &str = "aivideo_unfinished_";
/// So many of other contents stay: of other branches whose tests use the same server.
const KEPT: i64 = 3;
/// A template may be dropped by another branch's tests between two statements; not again and again.
const TRIES: u32 = 5;
/// One is made at a time. The top byte keeps this lock apart from the others (6 to 12: `eventstore`, `projections`).
const MAKING: i64 = 13 << 56;

/// Makes a database with all migrations and rights, which nobody is connected to.
pub(super) async fn copy(admin: &mut PgConnection, server: &PgConnectOptions, name: &str) -> Result<(), TestkitError> {
    let template = template_for(admin).await?;
    // Both names are made of hexadecimal digits. A copy of the files makes the server write everything out, twice.
    let create = format!("CREATE DATABASE {name} TEMPLATE {template} STRATEGY WAL_LOG");
    let mut tries = 0;
    loop {
        match run(admin, create.clone()).await {
            Err(error) if code(&error).as_deref() == Some("3D000") && tries < TRIES => tries += 1,
            other => return Ok(other?),
        }
        make(server, &template).await?;
    }
}

/// The name says what it holds: its owner, who alone may copy it, the migrations, the rights, and the day, for which one of the
/// migrations makes tables.
async fn template_for(admin: &mut PgConnection) -> Result<String, sqlx::Error> {
    let owner_and_day: String =
        sqlx::query_scalar("SELECT concat(current_user, ' ', (now() AT TIME ZONE 'UTC')::date)")
            .fetch_one(admin)
            .await?;
    let mut digest = Sha256::new_with_prefix(owner_and_day);
    digest.update(RIGHTS);
    for migration in MIGRATOR.iter() {
        digest.update(migration.version.to_be_bytes());
        digest.update(&migration.checksum);
    }
    Ok(format!("{PREFIX}{}", &hex::encode(digest.finalize())[..16]))
}

/// Makes the template, unless somebody else did meanwhile. It gets its name when it is finished, so one of this name always is.
async fn make(server: &PgConnectOptions, template: &str) -> Result<(), TestkitError> {
    let mut admin = server.connect().await?;
    // Held by the session: whoever dies gives it back.
    sqlx::query("SELECT pg_advisory_lock($1)").bind(MAKING).execute(&mut admin).await?;
    let is_there: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
        .bind(template)
        .fetch_one(&mut admin)
        .await?;
    if !is_there {
        drop_outdated(&mut admin).await?;
        let unfinished = format!("{UNFINISHED}{}", Uuid::new_v4().simple());
        run(&mut admin, format!("CREATE DATABASE {unfinished}")).await?;
        migrate_empty(server.clone().database(&unfinished), &MIGRATOR).await?;
        run(&mut admin, format!("ALTER DATABASE {unfinished} ALLOW_CONNECTIONS false")).await?;
        match run(&mut admin, format!("ALTER DATABASE {unfinished} RENAME TO {template}")).await {
            // Somebody who has the lock of another database of this server.
            Err(error) if code(&error).as_deref() == Some("42P04") => drop_database(&mut admin, &unfinished).await?,
            other => other?,
        }
    }
    Ok(admin.close().await?)
}

/// Drops what processes that died left unfinished, and old templates. What is in use, or somebody else's, stays.
async fn drop_outdated(admin: &mut PgConnection) -> Result<(), TestkitError> {
    let outdated: Vec<String> = sqlx::query_scalar(
        "SELECT datname::text FROM pg_database WHERE starts_with(datname, $1)
         UNION ALL
         (SELECT datname::text FROM pg_database WHERE starts_with(datname, $2) ORDER BY oid DESC OFFSET $3)",
    )
    .bind(UNFINISHED)
    .bind(PREFIX)
    .bind(KEPT)
    .fetch_all(&mut *admin)
    .await?;
    for name in outdated {
        if let Err(error) = run(admin, format!("DROP DATABASE IF EXISTS {name}")).await {
            tracing::debug!(%name, error = &error as &dyn std::error::Error, "an old template stays");
        }
    }
    Ok(())
}

async fn run(admin: &mut PgConnection, statement: String) -> Result<(), sqlx::Error> {
    sqlx::query(AssertSqlSafe(statement)).execute(admin).await?;
    Ok(())
}

fn code(error: &sqlx::Error) -> Option<String> {
    error.as_database_error().and_then(|it| it.code()).map(std::borrow::Cow::into_owned)
}
