//! People's commands on a real PostgreSQL: keys, credits, races.

use super::support::{Anyhow, database, invariants, submitted, tenant_with};
use domain::id::TenantId;
use eventstore::ExecuteError;
use std::collections::BTreeSet;

/// one-task-per-key: fifty callers at once with one key get one task and one hold.
#[tokio::test(flavor = "multi_thread")]
async fn callers_at_once_with_one_key_get_one_task() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let tenant = tenant_with(store, 10_000).await?;
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let store = store.clone();
        callers.spawn(async move { submitted(&store, tenant, Some("order-1")).await });
    }
    let mut tasks = BTreeSet::new();
    let mut fresh = 0;
    while let Some(caller) = callers.join_next().await {
        let executed = caller??;
        fresh += usize::from(!executed.replayed);
        tasks.insert(executed.task);
    }
    assert_eq!((tasks.len(), fresh), (1, 1));
    let holds: i64 =
        sqlx::query_scalar("SELECT count(*) FROM events WHERE name = 'account.held'").fetch_one(store.pool()).await?;
    assert_eq!(holds, 1);
    // K3: the same key of another tenant is another key.
    let other = tenant_with(store, 10_000).await?;
    assert!(!submitted(store, other, Some("order-1")).await?.replayed);
    invariants(store).await?;
    Ok(())
}

/// L1 and Q2: many requests, credits for some of them; nobody sees a serialization failure.
#[tokio::test(flavor = "multi_thread")]
async fn credits_are_never_spent_twice() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    // Each request holds 100.
    let tenant = tenant_with(store, 550).await?;
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..30 {
        let store = store.clone();
        callers.spawn(async move { submitted(&store, tenant, None).await });
    }
    let (mut taken, mut refused) = (0, 0);
    while let Some(caller) = callers.join_next().await {
        match caller? {
            Ok(_) => taken += 1,
            Err(ExecuteError::Refused(refusal)) if refusal.code == "insufficient_credits" => refused += 1,
            Err(other) => return Err(other.into()),
        }
    }
    assert_eq!((taken, refused), (5, 25));
    invariants(store).await?;
    Ok(())
}

/// K4: a refusal leaves no trace; the same key works when the reason is gone.
#[tokio::test]
async fn a_refusal_does_not_poison_the_key() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let poor = TenantId(uuid::Uuid::new_v4());
    for _ in 0..2 {
        let refused = submitted(store, poor, Some("k")).await;
        assert!(matches!(refused, Err(ExecuteError::Refused(_))), "{refused:?}");
    }
    let rich = tenant_with(store, 100).await?;
    assert!(!submitted(store, rich, Some("k")).await?.replayed);
    assert!(submitted(store, rich, Some("k")).await?.replayed);
    Ok(())
}

/// The log is append-only: the service has no right to change it, and its owner is refused by the table itself.
#[tokio::test]
async fn events_can_not_be_changed_or_removed() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    tenant_with(store, 100).await?;
    for statement in ["UPDATE events SET actor = 'me'", "DELETE FROM events", "TRUNCATE events"] {
        let error = sqlx::query(statement).execute(store.pool()).await.expect_err(statement);
        assert!(error.to_string().contains("permission denied"), "{error}");
        let error = sqlx::query(statement).execute(database.owner()).await.expect_err(statement);
        assert!(error.to_string().contains("append-only"), "{error}");
    }
    Ok(())
}
