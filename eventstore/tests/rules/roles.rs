//! Least privilege: what each role may do with each table, as the catalogue says and as statements are answered.

use super::Anyhow;
use eventstore::roles::{Granted, RoleName, Roles, apply};
use eventstore::testkit::{TestDatabase, in_role};
use sqlx::{AssertSqlSafe, PgPool};
use std::collections::BTreeMap;

/// Each table with what the service and what readers may do: Select, Insert, Update, Delete, Truncate; c: select some columns
/// only. A new table needs a row here and in `eventstore/src/roles.rs`: until then nobody but its owner can use it.
const EXPECTED: &[(&str, &str, &str)] = &[
    ("_sqlx_migrations", "S", "S"),
    ("events", "SI", "S"),
    ("event_hashes", "SI", "S"),
    ("seals", "SI", "S"),
    ("archives", "SI", "S"),
    ("archived_streams", "SI", "S"),
    ("audit_accesses", "SI", "S"),
    ("outbox_events", "SIUD", "S"),
    ("inbox_dedup", "SIUD", "S"),
    ("message_partitions", "S", "S"),
    ("snapshots", "SIUD", "S"),
    ("message_quarantine", "SIUD", "c"),
    ("idempotency_keys", "SIU", "S"),
    ("generation_requests", "SI", "c"),
    ("uploads", "SI", "S"),
    ("provider_callbacks", "SID", "S"),
    ("unmatched_callbacks", "SID", "S"),
    ("provider_outages", "SIUD", "S"),
    ("notifications", "SID", "S"),
    ("repairs", "SID", "S"),
    ("projection_checkpoints", "SIU", "S"),
    ("reader_groups", "S", "S"),
    ("reader_group_members", "S", "S"),
    ("reader_group_partitions", "S", "S"),
    ("read_tasks", "SIUD", "S"),
    ("read_attempts", "SIUD", "S"),
    ("read_assets", "SIUD", "S"),
    ("read_accounts", "SIUD", "S"),
    ("read_account_entries", "SIUD", "S"),
    ("read_holds", "SIUD", "S"),
];

/// What the catalogue says, for all tables but partitions, which are reached through theirs.
async fn rights(pool: &PgPool, role: &RoleName) -> Anyhow<BTreeMap<String, String>> {
    let rows: Vec<(String, String)> = sqlx::query_as(
        "SELECT relname::text,
                concat(CASE WHEN has_table_privilege($1, oid, 'SELECT') THEN 'S'
                            WHEN has_any_column_privilege($1, oid, 'SELECT') THEN 'c' END,
                       CASE WHEN has_any_column_privilege($1, oid, 'INSERT') THEN 'I' END,
                       CASE WHEN has_any_column_privilege($1, oid, 'UPDATE') THEN 'U' END,
                       CASE WHEN has_table_privilege($1, oid, 'DELETE') THEN 'D' END,
                       CASE WHEN has_table_privilege($1, oid, 'TRUNCATE') THEN 'T' END,
                       CASE WHEN has_table_privilege($1, oid, 'TRIGGER') THEN 'G' END,
                       CASE WHEN has_any_column_privilege($1, oid, 'REFERENCES') THEN 'R' END)
           FROM pg_class
          WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT relispartition",
    )
    .bind(role.to_string())
    .fetch_all(pool)
    .await?;
    Ok(rows.into_iter().collect())
}

/// Where the catalogue and the table above disagree, in words.
async fn disagreements(pool: &PgPool, roles: &Roles) -> Anyhow<Vec<String>> {
    let (service, reader) = (rights(pool, &roles.service).await?, rights(pool, &roles.reader).await?);
    let mut found = vec![];
    for (table, may) in &service {
        match EXPECTED.iter().find(|(name, ..)| name == table) {
            None => found.push(format!("{table}: nobody decided who may use it")),
            Some((_, expected, _)) if may != expected => {
                found.push(format!("{table}: the service may {may}, not {expected}"))
            }
            Some((_, _, expected)) if reader[table] != *expected => {
                found.push(format!("{table}: readers may {}, not {expected}", reader[table]));
            }
            Some(_) => {}
        }
    }
    found.extend(
        EXPECTED
            .iter()
            .filter(|(table, ..)| !service.contains_key(*table))
            .map(|(table, ..)| format!("{table} is gone")),
    );
    Ok(found)
}

#[tokio::test]
async fn the_catalogue_agrees_with_what_was_decided() -> Anyhow {
    let database = TestDatabase::create().await?;
    let roles = Roles::default();
    assert_eq!(disagreements(database.owner(), &roles).await?, Vec::<String>::new());
    // Once more, and with a table that nobody decided about: it stays its owner's.
    let loosen =
        "CREATE TABLE undecided (id bigint); GRANT ALL ON undecided TO PUBLIC; GRANT CREATE ON SCHEMA public TO PUBLIC";
    database.sql(loosen).await?;
    assert_eq!(apply(database.owner(), &roles, None).await?, Granted::All);
    assert_eq!(disagreements(database.owner(), &roles).await?, ["undecided: nobody decided who may use it"]);
    let left = &rights(database.owner(), &roles.service).await?["undecided"];
    assert_eq!(left, "", "nothing is left of what everybody could do");
    refused(database.pool(), &["CREATE TABLE mine (id bigint)"]).await?;
    // A right too many is taken away.
    database.sql("DROP TABLE undecided; GRANT UPDATE ON events TO aivideo_service; GRANT SELECT ON generation_requests TO aivideo_reader").await?;
    assert_eq!(disagreements(database.owner(), &roles).await?.len(), 2);
    assert_eq!(apply(database.owner(), &roles, None).await?, Granted::All);
    assert_eq!(disagreements(database.owner(), &roles).await?, Vec::<String>::new());
    Ok(())
}

async fn refused(pool: &PgPool, statements: &[&'static str]) -> Anyhow {
    for statement in statements {
        let error = sqlx::query(*statement).execute(pool).await.expect_err(statement);
        let code = error.as_database_error().and_then(|it| it.code());
        assert_eq!(code.as_deref(), Some("42501"), "{statement}: {error}");
    }
    Ok(())
}

#[tokio::test]
async fn the_service_can_not_undo_facts_or_change_the_schema() -> Anyhow {
    let database = TestDatabase::create().await?;
    refused(
        database.pool(),
        &[
            "UPDATE events SET actor = 'me'",
            "DELETE FROM events",
            "TRUNCATE events",
            "TRUNCATE outbox_events",
            "ALTER TABLE events DISABLE TRIGGER ALL",
            "DROP TRIGGER events_append_only ON events",
            "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
            "SELECT setval('events_position_seq', 1)",
            "SELECT nextval('events_position_seq')",
            "SET session_replication_role = replica",
            "UPDATE generation_requests SET prompt = ''",
            "UPDATE audit_accesses SET actor = ''",
            "DELETE FROM audit_accesses",
            "TRUNCATE audit_accesses",
            "DELETE FROM idempotency_keys",
            "DROP TABLE read_tasks",
            "CREATE TABLE mine (id bigint)",
            "CREATE SCHEMA mine",
            "CREATE ROLE mine",
            "UPDATE _sqlx_migrations SET success = false",
        ],
    )
    .await
}

#[tokio::test]
async fn readers_read_and_see_no_prompts() -> Anyhow {
    let database = TestDatabase::create().await?;
    let reading = Roles { service: Roles::default().reader, ..Roles::default() };
    // The same login, in the readers' role.
    let options = database.owner().connect_options().as_ref().clone().options([("role", reading.service.to_string())]);
    sqlx::query("GRANT aivideo_reader TO CURRENT_USER").execute(database.owner()).await?;
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1).connect_with(options).await?;
    for statement in [
        "SELECT * FROM events",
        "SELECT * FROM log_events_after(0, 10)",
        "SELECT * FROM readable_position()",
        "SELECT task_id, tenant_id, created_at FROM generation_requests",
        "SELECT * FROM read_tasks",
    ] {
        sqlx::query(statement).execute(&pool).await.map_err(|error| format!("{statement}: {error}"))?;
    }
    refused(
        &pool,
        &[
            "SELECT prompt FROM generation_requests",
            "SELECT * FROM generation_requests",
            "SELECT payload_snapshot FROM message_quarantine",
            "INSERT INTO notifications (task_id, task_version, tenant_id, state) VALUES (gen_random_uuid(), 1, gen_random_uuid(), '')",
            "UPDATE read_tasks SET state = ''",
            "DELETE FROM outbox_events",
            "SELECT announce_writer()",
            "INSERT INTO reader_groups (name, partitions, owner) VALUES ('mine', 1, 'me')",
            "UPDATE reader_group_partitions SET position = 0",
            "SELECT lock_reader_group('mine')",
        ],
    )
    .await
}

/// Two groups of other names on the same server: for two installations side by side.
#[tokio::test]
async fn names_are_configured_and_checked() -> Anyhow {
    for bad in ["", "Service", "a b", "a\"; DROP TABLE events; --", "1st", &"x".repeat(64)] {
        assert!(RoleName::try_from(bad.to_owned()).is_err(), "{bad}");
    }
    let name = |kind: &str| RoleName::try_from(format!("test_{kind}_{}", uuid::Uuid::new_v4().simple()));
    let roles = Roles { service: name("service")?, reader: name("reader")? };
    let database = TestDatabase::create().await?;
    let may: bool = sqlx::query_scalar("SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user")
        .fetch_one(database.owner())
        .await?;
    if may {
        let pool = in_role(database.owner(), database.owner().connect_options().as_ref().clone(), &roles).await?;
        assert_eq!(disagreements(database.owner(), &roles).await?, Vec::<String>::new());
        pool.close().await;
        let drop_them = format!(
            "GRANT {1} TO CURRENT_USER; DROP OWNED BY {0}, {1}; REVOKE {0}, {1} FROM CURRENT_USER; DROP ROLE {0}; DROP ROLE {1}",
            roles.service, roles.reader
        );
        sqlx::raw_sql(AssertSqlSafe(drop_them)).execute(database.owner()).await?;
    }
    // The service's role may make none: it is said what somebody else has to run.
    let Granted::Missing { what, run } = apply(database.pool(), &roles, Some("somebody")).await? else {
        return Err("a role was made by the service".into());
    };
    assert!(what.contains(&roles.service.to_string()) && run.contains("CREATE ROLE"), "{what}: {run}");
    Ok(())
}
