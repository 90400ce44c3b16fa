//! Who may do what in the database. Two group roles: the service, which can do what its statements need and no more, and
//! readers, for auditors and other programs. The owner of the tables (who migrates) is a third, and none of theirs.
//!
//! Roles belong to the server, not to the database, so their names can be configured, and making them may be somebody else's
//! business: `deploy/postgres/roles.sql` does it then. What each may do is granted here, after every migration. A table that is
//! not in [`TABLES`] is nobody's but its owner's.

use crate::connect::OpenError;
use serde::Deserialize;
use sqlx::{AssertSqlSafe, PgConnection, PgPool};

/// The name of a role: lower-case letters, digits and `_`, so that it needs no quoting anywhere.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct RoleName(String);

/// A name that is none.
#[derive(Debug, thiserror::Error)]
#[error("a role's name has 1 to 63 lower-case letters, digits and `_`, and begins with a letter")]
pub struct BadRoleName;

impl TryFrom<String> for RoleName {
    type Error = BadRoleName;

    fn try_from(name: String) -> Result<Self, BadRoleName> {
        let fits = name.len() <= 63
            && name.starts_with(|first: char| first.is_ascii_lowercase())
            && name.chars().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_');
        if fits { Ok(Self(name)) } else { Err(BadRoleName) }
    }
}

impl std::fmt::Display for RoleName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The two group roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles {
    /// What the service's login is a member of.
    pub service: RoleName,
    /// What auditors' and other programs' logins are members of.
    pub reader: RoleName,
}

impl Default for Roles {
    fn default() -> Self {
        let name = |name: &str| RoleName(name.to_owned());
        Self { service: name("aivideo_service"), reader: name("aivideo_reader") }
    }
}

/// A table, what the service may do with it, and what readers may see of it.
type Grant = (&'static str, &'static str, &'static str);

const ALL_ROWS: &str = "SELECT, INSERT, UPDATE, DELETE";

/// Every table. Facts are only added to; what may be deleted is what is kept for a time only, and read models. Readers see
/// neither prompts nor bodies of messages that nobody could read: those may hold anything.
const TABLES: &[Grant] = &[
    ("_sqlx_migrations", "SELECT", "SELECT"),
    ("events", "SELECT, INSERT", "SELECT"),
    ("event_hashes", "SELECT, INSERT", "SELECT"),
    ("seals", "SELECT, INSERT", "SELECT"),
    ("archives", "SELECT, INSERT", "SELECT"),
    ("archived_streams", "SELECT, INSERT", "SELECT"),
    // Who looked at what is added to, like the facts.
    ("audit_accesses", "SELECT, INSERT", "SELECT"),
    ("snapshots", ALL_ROWS, "SELECT"),
    ("outbox_events", ALL_ROWS, "SELECT"),
    ("inbox_dedup", ALL_ROWS, "SELECT"),
    ("message_partitions", "SELECT", "SELECT"),
    // The parts that have no day are pruned row by row, under their own names.
    ("outbox_sent_rest", "SELECT, UPDATE, DELETE", "SELECT"),
    ("inbox_rest", "SELECT, UPDATE, DELETE", "SELECT"),
    (
        "message_quarantine",
        ALL_ROWS,
        "SELECT (id, consumer_name, original_event_id, topic, message_key, payload_hash, error_class, error_message, \
         first_failed_at, last_failed_at, delivery_count, status)",
    ),
    ("idempotency_keys", "SELECT, INSERT, UPDATE", "SELECT"),
    ("generation_requests", "SELECT, INSERT", "SELECT (task_id, tenant_id, created_at)"),
    ("uploads", "SELECT, INSERT", "SELECT"),
    ("provider_callbacks", "SELECT, INSERT, DELETE", "SELECT"),
    ("unmatched_callbacks", "SELECT, INSERT, DELETE", "SELECT"),
    ("provider_outages", ALL_ROWS, "SELECT"),
    ("notifications", "SELECT, INSERT, DELETE", "SELECT"),
    ("repairs", "SELECT, INSERT, DELETE", "SELECT"),
    ("projection_checkpoints", "SELECT, INSERT, UPDATE", "SELECT"),
    // Written by functions only.
    ("reader_groups", "SELECT", "SELECT"),
    ("reader_group_members", "SELECT", "SELECT"),
    ("reader_group_partitions", "SELECT", "SELECT"),
    ("read_tasks", ALL_ROWS, "SELECT"),
    ("read_attempts", ALL_ROWS, "SELECT"),
    ("read_assets", ALL_ROWS, "SELECT"),
    ("read_accounts", ALL_ROWS, "SELECT"),
    ("read_account_entries", ALL_ROWS, "SELECT"),
    ("read_holds", ALL_ROWS, "SELECT"),
];

/// Whoever goes by the log reads how many positions there are.
const LOG_SEQUENCE: &str = "events_position_seq";

/// Functions that readers may call; the service may call all but triggers.
const READERS_FUNCTIONS: &[&str] = &[
    "readable_position",
    "log_events_after",
    "log_partition",
    "partition_events_after",
    // These write, with their owner's rights, but to the tables of reader groups only, and for the login that made the group.
    "make_reader_group",
    "claim_partitions",
    "move_checkpoint",
    "leave_reader_group",
    "drop_reader_group",
];

/// What became of the roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Granted {
    /// Both exist, and may do what they are for; the service's login is a member.
    All,
    /// The migrating role may not do it: what an administrator has to run.
    Missing {
        /// What is missing, as a sentence.
        what: String,
        /// SQL statements.
        run: String,
    },
}

/// Makes the roles where they are missing, takes everything from them that they should not have, and grants the rest.
/// `login`: the role that the service logs in as, which becomes a member; none where that is the owner. Repeating it changes
/// nothing.
///
/// # Errors
/// [`OpenError::Roles`]: nothing is changed.
pub async fn apply(pool: &PgPool, roles: &Roles, login: Option<&str>) -> Result<Granted, OpenError> {
    granted(pool, roles, login).await.map_err(OpenError::Roles)
}

async fn granted(pool: &PgPool, roles: &Roles, login: Option<&str>) -> Result<Granted, sqlx::Error> {
    for role in [&roles.service, &roles.reader] {
        if !make(pool, role).await? {
            let create = |role: &RoleName| format!("CREATE ROLE {role} NOLOGIN;\n");
            return Ok(Granted::Missing {
                what: format!("the role {role} does not exist, and the migrating role may not make it"),
                run: [create(&roles.service), create(&roles.reader)].concat(),
            });
        }
    }
    let mut tx = pool.begin().await?;
    // Two at once would change the same rows of the catalogue, and PostgreSQL refuses that.
    sqlx::query("/* roles.one_at_a_time */ SELECT pg_advisory_xact_lock(6::bigint << 56)").execute(&mut *tx).await?;
    on_schema(&mut tx, roles).await?;
    on_tables(&mut tx, roles).await?;
    on_functions(&mut tx, roles).await?;
    tx.commit().await?;
    let Some(login) = login else { return Ok(Granted::All) };
    if member(pool, &roles.service, login).await? {
        return Ok(Granted::All);
    }
    Ok(Granted::Missing {
        what: format!(
            "the service's login is no member of {}, and the migrating role may not make it one",
            roles.service
        ),
        run: format!("GRANT {} TO \"{}\";\n", roles.service, login.replace('"', "\"\"")),
    })
}

/// Whether it exists now. Another database of the same server may make it at the same moment.
async fn make(pool: &PgPool, role: &RoleName) -> Result<bool, sqlx::Error> {
    let known: bool = sqlx::query_scalar("/* roles.known */ SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)")
        .bind(&role.0)
        .fetch_one(pool)
        .await?;
    if known {
        return Ok(true);
    }
    match sqlx::query(AssertSqlSafe(format!("/* roles.make */ CREATE ROLE {role} NOLOGIN"))).execute(pool).await {
        Ok(_) => Ok(true),
        Err(error) => match code(&error).as_deref() {
            Some("42710" | "23505") => Ok(true),
            Some("42501") => Ok(false),
            _ => Err(error),
        },
    }
}

fn code(error: &sqlx::Error) -> Option<String> {
    error.as_database_error().and_then(|it| it.code()).map(std::borrow::Cow::into_owned)
}

/// Whether the login is a member now, and has the group's rights without asking for them.
async fn member(pool: &PgPool, service: &RoleName, login: &str) -> Result<bool, sqlx::Error> {
    const MEMBER: &str = "/* roles.member */ SELECT pg_has_role($1, $2, 'USAGE') FROM pg_roles WHERE rolname = $1";
    let is = async || sqlx::query_scalar(MEMBER).bind(login).bind(&service.0).fetch_optional(pool).await;
    match is().await? {
        Some(true) => return Ok(true),
        Some(false) => {}
        // No such login: whoever makes it makes it a member.
        None => return Ok(false),
    }
    let login = login.replace('"', "\"\"");
    let grant = format!("/* roles.join */ GRANT {service} TO \"{login}\"");
    match sqlx::query(AssertSqlSafe(grant)).execute(pool).await {
        Ok(_) => Ok(true),
        Err(error) if code(&error).as_deref() == Some("42501") => Ok(false),
        // Another database of the server made it one at the same moment.
        Err(error) if code(&error).as_deref() == Some("XX000") => Ok(is().await? == Some(true)),
        Err(error) => Err(error),
    }
}

/// Statements are made of this file's words, checked role names, and names that PostgreSQL quoted.
async fn run(connection: &mut PgConnection, statement: String) -> Result<(), sqlx::Error> {
    sqlx::query(AssertSqlSafe(format!("/* roles.grant */ {statement}"))).execute(connection).await?;
    Ok(())
}

/// In a database made before PostgreSQL 15 everybody may make tables and functions, which statements might then find first.
async fn on_schema(connection: &mut PgConnection, roles: &Roles) -> Result<(), sqlx::Error> {
    let Roles { service, reader } = roles;
    let ours: Option<String> = sqlx::query_scalar(
        "/* roles.schema */
         SELECT quote_ident(nspname) FROM pg_namespace
          WHERE oid = current_schema()::regnamespace AND pg_has_role(nspowner, 'USAGE')",
    )
    .fetch_optional(&mut *connection)
    .await?;
    let Some(schema) = ours else { return Ok(()) };
    run(connection, format!("REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC, {service}, {reader}")).await?;
    run(connection, format!("GRANT USAGE ON SCHEMA {schema} TO {service}, {reader}")).await
}

/// Relations of this schema that the current role owns; partitions are reached through their table only.
const RELATIONS: &str = "
    /* roles.relations */
    SELECT relname::text, relkind::text, format('%I.%I', current_schema(), relname) FROM pg_class
     WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'S')
       AND pg_has_role(relowner, 'USAGE')
     ORDER BY relname";

async fn on_tables(connection: &mut PgConnection, roles: &Roles) -> Result<(), sqlx::Error> {
    let Roles { service, reader } = roles;
    let relations: Vec<(String, String, String)> = sqlx::query_as(RELATIONS).fetch_all(&mut *connection).await?;
    for (name, kind, place) in relations {
        let of = if kind == "S" { "SEQUENCE" } else { "TABLE" };
        run(connection, format!("REVOKE ALL ON {of} {place} FROM PUBLIC, {service}, {reader}")).await?;
        if name == LOG_SEQUENCE {
            run(connection, format!("GRANT SELECT ON SEQUENCE {place} TO {service}, {reader}")).await?;
        }
        if let Some((_, to_service, to_reader)) = TABLES.iter().find(|(table, ..)| *table == name) {
            run(connection, format!("GRANT {to_service} ON TABLE {place} TO {service}")).await?;
            run(connection, format!("GRANT {to_reader} ON TABLE {place} TO {reader}")).await?;
        }
    }
    Ok(())
}

/// Everybody may call a new function: with one that works as its owner, that would be everything its owner may.
const FUNCTIONS: &str = "
    /* roles.functions */
    SELECT proname::text, oid::regprocedure::text FROM pg_proc
     WHERE pronamespace = current_schema()::regnamespace AND prokind IN ('f', 'p') AND pg_has_role(proowner, 'USAGE')
       AND prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype)
     ORDER BY 2";

async fn on_functions(connection: &mut PgConnection, roles: &Roles) -> Result<(), sqlx::Error> {
    let Roles { service, reader } = roles;
    let functions: Vec<(String, String)> = sqlx::query_as(FUNCTIONS).fetch_all(&mut *connection).await?;
    for (name, signature) in functions {
        run(connection, format!("REVOKE ALL ON ROUTINE {signature} FROM PUBLIC, {service}, {reader}")).await?;
        run(connection, format!("GRANT EXECUTE ON ROUTINE {signature} TO {service}")).await?;
        if READERS_FUNCTIONS.contains(&name.as_str()) {
            run(connection, format!("GRANT EXECUTE ON ROUTINE {signature} TO {reader}")).await?;
        }
    }
    Ok(())
}
