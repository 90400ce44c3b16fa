//! What many want at once is one statement: as fast, and for each of them as if there were no others.

use super::consume::{SUBMIT, accepting};
use super::support::{Anyhow, database, deliveries, invariants, request, submitted, tenant_with};
use domain::id::{AccountId, TaskId};
use domain::money::Credits;
use domain::process::{CaseKey, SubmitTask, Turn, grant, submit};
use domain::task::Order;
use domain::testkit::strategies::usual_order;
use eventstore::{ExecuteError, Outcome, Store, Submission};
use sqlx::postgres::PgPoolOptions;
use std::collections::BTreeSet;
use tokio::task::JoinSet;
use uuid::Uuid;

#[tokio::test(flavor = "multi_thread")]
async fn many_commands_and_messages_at_once_take_few_transactions() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let mut tenants = vec![];
    for _ in 0..100 {
        tenants.push(tenant_with(store, 1_000).await?);
    }
    let mut callers: JoinSet<Anyhow<TaskId>> = JoinSet::new();
    for tenant in tenants {
        let store = store.clone();
        callers.spawn(async move { submitted(&store, tenant, None).await?.task.ok_or_else(|| "no task".into()) });
    }
    let mut messages = vec![];
    for task in callers.join_all().await {
        messages.extend(deliveries(store, task?, SUBMIT).await?);
    }
    let written = "SELECT count(DISTINCT xmin::text) FROM events WHERE name = 'task.submitted'";
    let transactions = database.count(written).await?;
    assert!(transactions < 50, "{transactions} transactions wrote 100 submissions");
    let mut handlings = JoinSet::new();
    for message in messages {
        let store = store.clone();
        handlings.spawn(async move { store.consume(&SubmitTask, &accepting(), &message).await });
    }
    for handled in handlings.join_all().await {
        assert_eq!(handled?.outcome(), Outcome::Done);
    }
    let written = "SELECT count(DISTINCT xmin::text) FROM events WHERE category = 'attempt'";
    let transactions = database.count(written).await?;
    assert!(transactions < 100, "{transactions} transactions wrote the two steps of 100 messages");
    invariants(store).await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_the_database_refuses_takes_no_other_along() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let mut tenants = vec![];
    for _ in 0..40 {
        tenants.push(tenant_with(store, 1_000).await?);
    }
    let mut callers = JoinSet::new();
    for (number, tenant) in tenants.into_iter().enumerate() {
        let store = store.clone();
        callers.spawn(async move {
            // PostgreSQL has no U+0000.
            let prompt = if number == 17 { "a\0boat" } else { "a boat" };
            let task = TaskId(Uuid::new_v4());
            let order = Order { tenant, account: AccountId::of(tenant), hold: Credits(100), ..usual_order(task) };
            let key = CaseKey { account: Some(order.account), with_account: true, ..CaseKey::task(task) };
            let submission = Submission { task, prompt: prompt.to_owned() };
            let request = request(tenant, Some("k"));
            let done = store.execute(&request, key, Some(&submission), |turn| submit(turn, order.clone())).await;
            (number, done)
        });
    }
    for (number, done) in callers.join_all().await {
        match done {
            Err(ExecuteError::Store(error)) if number == 17 => assert!(!error.is_passing(), "{error}"),
            other => assert!(number != 17 && other.is_ok(), "{number}: {other:?}"),
        }
    }
    assert_eq!(database.count("SELECT count(*) FROM events WHERE name = 'task.submitted'").await?, 39);
    invariants(store).await
}

/// What an earlier request with the key came to is the answer, whenever it came to it: not that the credits are spent, which it has
/// spent itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_just_used_is_answered_and_not_refused() -> Anyhow {
    let database = database().await?;
    for round in 0..30 {
        let tenant = tenant_with(database.store(), 100).await?;
        let (mut callers, mut others) = (JoinSet::new(), JoinSet::new());
        for number in 0..12 {
            // Each of them like a process of its own: what they write does not go together.
            let store = Store::on(database.store().pool().clone(), database.store().policy().clone());
            if number % 3 == 0 {
                callers.spawn(async move { submitted(&store, tenant, Some("order-1")).await });
                continue;
            }
            others.spawn(async move {
                let account = CaseKey::account(AccountId::of(tenant));
                let one = |turn: &mut Turn<'_>| grant(turn, format!("one-{number}"), Credits(1));
                store.execute(&request(tenant, None), account, None, one).await
            });
        }
        let mut tasks = BTreeSet::new();
        for caller in callers.join_all().await {
            tasks.insert(caller.map_err(|error| format!("round {round}: {error}"))?.task);
        }
        assert_eq!(tasks.len(), 1, "round {round}");
        for other in others.join_all().await {
            other?;
        }
    }
    invariants(database.store()).await
}

/// A process that does not know a newer event (a release is being rolled out) still knows what it has handled and carried out.
#[tokio::test]
async fn what_was_done_is_known_where_its_history_can_not_be_folded_any_more() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let tenant = tenant_with(store, 1_000).await?;
    let done = submitted(store, tenant, Some("order-1")).await?;
    let task = done.task.ok_or("no task")?;
    let message = deliveries(store, task, SUBMIT).await?.remove(0);
    assert_eq!(store.consume(&SubmitTask, &accepting(), &message).await?.outcome(), Outcome::Done);
    database
        .sql(
            "INSERT INTO events (event_id, category, stream_id, version, name, schema_version, body, tenant_id, correlation_id,
                                 causation_id, actor, recorded_at)
             SELECT gen_random_uuid(), category, stream_id, version + 1, 'task.exploded', 1, '{}', tenant_id, correlation_id,
                    causation_id, actor, recorded_at
               FROM (SELECT DISTINCT ON (stream_id) * FROM events WHERE category IN ('task', 'account')
                      ORDER BY stream_id, version DESC) newest",
        )
        .await?;
    let pool = PgPoolOptions::new().connect_lazy_with(store.pool().connect_options().as_ref().clone());
    let started = Store::on(pool, store.policy().clone());
    let again = started.consume(&SubmitTask, &accepting(), &message).await?;
    assert_eq!(again.outcome(), Outcome::Duplicate);
    let again = submitted(&started, tenant, Some("order-1")).await?;
    assert_eq!((again.task, again.replayed), (Some(task), true));
    Ok(())
}
