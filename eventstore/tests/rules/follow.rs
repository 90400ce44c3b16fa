//! How other programs follow the log, run from the text of `docs/event-store.md`.

use super::Anyhow;
use domain::id::{AccountId, CausationId, CorrelationId, TenantId};
use domain::money::Credits;
use domain::process::{CaseKey, grant};
use eventstore::roles::Roles;
use eventstore::testkit::TestDatabase;
use eventstore::{Meta, Request, Store};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool, Row};
use std::time::Duration;
use uuid::Uuid;

/// The statements of a named block of the document.
pub fn documented(block: &str) -> Anyhow<String> {
    let text = include_str!("../../../docs/event-store.md");
    let begin = format!("```sql {block}\n");
    let after = text.split(&begin).nth(1).ok_or_else(|| format!("docs/event-store.md has no block {block}"))?;
    Ok(after.split("```").next().ok_or("the block does not end")?.trim().trim_end_matches(';').to_owned())
}

pub fn query(statement: &str) -> sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments> {
    sqlx::query(AssertSqlSafe(statement.to_owned()))
}

pub async fn granted(store: &Store, credits: i64) -> Anyhow<Uuid> {
    let tenant = TenantId(Uuid::new_v4());
    let correlation = CorrelationId(Uuid::new_v4());
    let meta = Meta {
        tenant,
        correlation,
        causation: CausationId(correlation.0),
        actor: "user:test".to_owned(),
        trace: correlation.0.simple().to_string(),
    };
    let request = Request { meta, key: None, tenant_wall: true };
    let command = |turn: &mut domain::process::Turn<'_>| grant(turn, "test".to_owned(), Credits(credits));
    store.execute(&request, CaseKey::account(AccountId::of(tenant)), None, command).await?;
    Ok(tenant.0)
}

/// Readers of the log, in their role.
pub async fn readers(database: &TestDatabase) -> Anyhow<PgPool> {
    sqlx::query("GRANT aivideo_reader TO CURRENT_USER").execute(database.owner()).await?;
    let options = database.owner().connect_options().as_ref().clone();
    let options = options.options([("role", Roles::default().reader.to_string())]);
    Ok(PgPoolOptions::new().max_connections(2).connect_with(options).await?)
}

/// One round of the documented follower. `own`: its own database; `crash`: it dies before its commit. Says how many it read.
async fn round(own: &PgPool, log: &PgPool, crash: bool) -> Anyhow<usize> {
    let mut tx = own.begin().await?;
    let position: i64 = query(&documented("follow-begin")?).fetch_one(&mut *tx).await?.get(0);
    let events = query(&documented("follow-read")?).bind(position).fetch_all(log).await?;
    for event in &events {
        let body: serde_json::Value = event.get("body");
        // Every event of this test is a grant: it stands for the one that the document speaks of.
        let credits = body["amount"].as_i64().ok_or("a grant has an amount")?;
        query(&documented("follow-apply")?)
            .bind(event.get::<Uuid, _>("stream_id"))
            .bind(credits)
            .execute(&mut *tx)
            .await?;
    }
    if let Some(last) = events.last() {
        query(&documented("follow-done")?).bind(last.get::<i64, _>("position")).execute(&mut *tx).await?;
    }
    if crash {
        tx.rollback().await?
    } else {
        tx.commit().await?
    }
    Ok(events.len())
}

/// Writers append while the follower reads and dies now and then; each event counts once, late commits among them.
#[tokio::test]
async fn the_documented_follower_counts_each_event_once() -> Anyhow {
    const WRITERS: usize = 4;
    const EACH: usize = 25;
    let (database, own) = (TestDatabase::create().await?, TestDatabase::create().await?);
    own.sql(&documented("follow-setup")?).await?;
    let log = readers(&database).await?;
    // It has a position and does not commit for a while: whoever passes it misses it.
    let mut late = database.owner().begin().await?;
    sqlx::query("SELECT announce_writer()").execute(&mut *late).await?;
    let tenant = Uuid::new_v4();
    sqlx::query(
        "INSERT INTO events (event_id, category, stream_id, version, name, schema_version, body, tenant_id, correlation_id,
                             causation_id, actor, recorded_at)
         VALUES ($1, 'account', $1, 1, 'account.granted', 1, '{\"key\": \"late\", \"amount\": 7}', $1, $1, $1, 'test', now())",
    )
    .bind(tenant)
    .execute(&mut *late)
    .await?;
    let mut writing = tokio::task::JoinSet::new();
    for _ in 0..WRITERS {
        let store = database.store().clone();
        writing.spawn(async move {
            for _ in 0..EACH {
                granted(&store, 7).await?;
            }
            Anyhow::Ok(())
        });
    }
    for turn in 0..10 {
        assert_eq!(round(own.owner(), &log, turn % 2 == 0).await?, 0, "the late writer holds readers back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    late.commit().await?;
    let mut turn = 0;
    let total = i64::try_from(WRITERS * EACH + 1)?;
    while own.count("SELECT count(*) FROM spent").await? < total {
        turn += 1;
        assert!(turn < 2_000, "the follower does not get to the end");
        round(own.owner(), &log, turn % 3 == 0).await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    while let Some(ended) = writing.join_next().await {
        ended??;
    }
    assert_eq!(round(own.owner(), &log, false).await?, 0, "everything is read");
    assert_eq!(own.count("SELECT sum(credits)::bigint FROM spent").await?, 7 * total, "nothing counts twice");
    Ok(())
}

#[tokio::test]
async fn a_transaction_that_sees_one_moment_only_is_refused() -> Anyhow {
    let database = TestDatabase::create().await?;
    let log = readers(&database).await?;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let mut tx = log.begin().await?;
        query(&format!("SET TRANSACTION ISOLATION LEVEL {level}")).execute(&mut *tx).await?;
        let error =
            query("SELECT * FROM log_events_after(0, 10)").execute(&mut *tx).await.expect_err("it could skip events");
        assert!(error.to_string().contains("READ COMMITTED") && error.to_string().contains(level), "{error}");
        tx.rollback().await?;
    }
    Ok(())
}

/// What a slot hands out through the documented publication: the log, insert by insert. Where the server or the test's role does not
/// allow slots, the publication alone is looked at, and the test says so.
#[tokio::test]
async fn the_documented_publication_carries_the_log_and_nothing_else() -> Anyhow {
    let database = TestDatabase::create().await?;
    query(&documented("replication-publish")?).execute(database.owner()).await?;
    let published: (String, bool, bool, bool) = sqlx::query_as(
        "SELECT (SELECT string_agg(tablename::text, ',') FROM pg_publication_tables), pubinsert, pubupdate, pubdelete FROM pg_publication",
    )
    .fetch_one(database.owner())
    .await?;
    assert_eq!(published, ("events".to_owned(), true, false, false));
    let allowed: bool = sqlx::query_scalar(
        "SELECT current_setting('wal_level') = 'logical' AND (rolsuper OR rolreplication) FROM pg_roles WHERE rolname = current_user",
    )
    .fetch_one(database.owner())
    .await?;
    if !allowed {
        println!("no slot was made: it needs wal_level = logical and a role with REPLICATION");
        return Ok(());
    }
    let slot = format!("test_{}", Uuid::new_v4().simple());
    sqlx::query("SELECT pg_create_logical_replication_slot($1, 'pgoutput')")
        .bind(&slot)
        .execute(database.owner())
        .await?;
    let mut tenants = vec![];
    for _ in 0..3 {
        tenants.push(granted(database.store(), 7).await?);
    }
    let inserts = inserts(database.owner(), &slot, tenants.len()).await;
    // A slot that stays would keep the server's log for ever.
    sqlx::query("SELECT pg_drop_replication_slot($1)").bind(&slot).execute(database.owner()).await?;
    let inserts = inserts?;
    assert_eq!(inserts.len(), tenants.len(), "{inserts:?}");
    for (insert, tenant) in inserts.iter().zip(tenants) {
        assert!(insert.contains("account.granted") && insert.contains(&tenant.to_string()), "{insert}");
    }
    Ok(())
}

/// The inserts that a slot hands out, each column as text, until there are `count`. What is not on the disk yet is not handed out.
async fn inserts(pool: &PgPool, slot: &str, count: usize) -> Anyhow<Vec<String>> {
    let mut found = vec![];
    for _ in 0..100 {
        let read: Vec<Vec<u8>> = sqlx::query_scalar(
            "SELECT data FROM pg_logical_slot_get_binary_changes($1, NULL, NULL, 'proto_version', '1', 'publication_names', 'aivideo_log')",
        )
        .bind(slot)
        .fetch_all(pool)
        .await?;
        // pgoutput's messages begin with a letter: I is an insert.
        found.extend(
            read.iter().filter(|it| it.first() == Some(&b'I')).map(|it| String::from_utf8_lossy(it).into_owned()),
        );
        if found.len() >= count {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(found)
}
