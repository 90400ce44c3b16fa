//! Submitting: idempotency keys, input, roles.

use crate::world::{World, code, input, token};
use anyhow::Result;
use api::Role;
use axum::http::StatusCode;
use domain::id::TenantId;
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::collections::HashSet;
use uuid::Uuid;

const TASKS: &str = "SELECT count(*) FROM events WHERE name = 'task.submitted'";
const HOLDS: &str = "SELECT count(*) FROM events WHERE name = 'account.held'";
const KEYS: &str = "SELECT count(*) FROM idempotency_keys WHERE operation = 'submitGeneration'";

#[tokio::test]
async fn a_task_is_accepted_and_can_be_seen_at_once() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let payload = world.submit(&world.creator()?, Some("order-1"), &input("  a paper boat  ")).await?;
    assert_eq!(payload["version"], 1);
    assert_eq!(payload["replayed"], false);
    assert!(payload["refusal"].is_null());
    // 4 seconds at 25 units, a fifth more held than that.
    assert_eq!(payload["task"], json!({"state": "QUEUED", "hold": "120", "version": 1}));
    assert_eq!(world.count("SELECT count(*) FROM generation_requests WHERE prompt = 'a paper boat'").await?, 1);
    assert_eq!(
        world.count("SELECT count(*) FROM events WHERE actor = 'user:ada' AND body::text LIKE '%boat  %'").await?,
        0
    );
    Ok(())
}

/// K1: the same key with another body.
#[tokio::test]
async fn k1_a_key_with_another_body_is_refused() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let creator = world.creator()?;
    let first = world.submit(&creator, Some("k"), &input("a boat")).await?;
    let anywhere =
        json!({"prompt": "a boat", "model": "aivideo/paper-boat-1", "durationSeconds": 4, "otherProviders": true});
    let mut urgent = input("a boat");
    urgent["priority"] = json!(5);
    let longer = json!({"prompt": "a boat", "model": "aivideo/paper-boat-1", "durationSeconds": 5});
    let others = [input("a ship"), longer, anywhere, urgent];
    for other in others {
        let refused = world.submit(&creator, Some("k"), &other).await?;
        assert_eq!(refused["refusal"]["code"], "IDEMPOTENCY_KEY_REUSED");
        assert_eq!(refused["refusal"]["field"], "idempotencyKey");
        assert!(refused["taskId"].is_null() && refused["version"].is_null());
    }
    let again = world.submit(&creator, Some("k"), &input(" a boat ")).await?;
    assert_eq!(again["taskId"], first["taskId"]);
    assert_eq!(again["replayed"], true);
    assert_eq!((world.count(TASKS).await?, world.count(HOLDS).await?), (1, 1));
    Ok(())
}

/// K2: fifty identical requests at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn k2_fifty_at_once_are_one_task_and_one_hold() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let creator = world.creator()?;
    let body =
        json!({"query": crate::world::SUBMIT, "variables": {"input": input("a boat"), "key": "once"}}).to_string();
    let answers = join_all((0..50).map(|_| world.post(Some(&creator), &[], body.clone()))).await;
    let mut tasks = HashSet::new();
    let mut first_times = 0;
    for answer in answers {
        let answer = answer?;
        assert_eq!(answer.status, StatusCode::OK);
        let answer: Value = answer.json()?;
        assert!(answer["errors"].is_null(), "{answer}");
        let payload = &answer["data"]["submitGeneration"];
        tasks.insert(payload["taskId"].as_str().map(str::to_owned));
        first_times += usize::from(payload["replayed"] == false);
    }
    assert_eq!(tasks.len(), 1, "{tasks:?}");
    assert!(!tasks.contains(&None));
    assert_eq!(first_times, 1);
    assert_eq!((world.count(TASKS).await?, world.count(HOLDS).await?, world.count(KEYS).await?), (1, 1, 1));
    Ok(())
}

/// K3: a key belongs to a tenant and an operation.
#[tokio::test]
async fn k3_keys_of_tenants_and_operations_are_apart() -> Result<()> {
    let world = World::new().await?;
    let other = TenantId(Uuid::new_v4());
    world.grant(world.tenant, 1_000).await?;
    world.grant(other, 1_000).await?;
    let one = world.submitted(&world.creator()?, "order-1").await?;
    let two = world.submitted(&token(other, &[Role::Creator])?, "order-1").await?;
    assert_ne!(one, two);
    let cancel =
        "mutation($id: ID!) { cancelTask(taskId: $id, idempotencyKey: \"order-1\") { version refusal { code } } }";
    let canceled = world.ask(&world.creator()?, cancel, json!({"id": one})).await?;
    assert_eq!(canceled["data"]["cancelTask"], json!({"version": 2, "refusal": null}));
    let again = world.ask(&world.creator()?, cancel, json!({"id": one})).await?;
    assert_eq!(again["data"]["cancelTask"]["version"], 2);
    Ok(())
}

/// K4: a refusal leaves the key free.
#[tokio::test]
async fn k4_a_refusal_does_not_use_the_key_up() -> Result<()> {
    let world = World::new().await?;
    let creator = world.creator()?;
    for _ in 0..2 {
        let refused = world.submit(&creator, Some("k"), &input("a boat")).await?;
        assert_eq!(refused["refusal"]["code"], "INSUFFICIENT_CREDITS");
    }
    assert_eq!((world.count(KEYS).await?, world.count(TASKS).await?), (0, 0));
    world.grant(world.tenant, 1_000).await?;
    let accepted = world.submit(&creator, Some("k"), &input("a boat")).await?;
    assert_eq!(accepted["version"], 1, "{accepted}");
    Ok(())
}

/// K5: the shape of keys.
#[tokio::test]
async fn k5_bad_keys_are_refused_and_good_ones_are_compared_as_http_says() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 100_000).await?;
    let creator = world.creator()?;
    let (longest, too_long) = ("x".repeat(255), "x".repeat(256));
    let bad = [None, Some(""), Some("   "), Some(too_long.as_str()), Some("schlüssel"), Some("a\u{7}b"), Some("a b")];
    for key in bad {
        let refused = world.submit(&creator, key, &input("a boat")).await?;
        assert_eq!(refused["refusal"]["code"], "BAD_IDEMPOTENCY_KEY", "{key:?}");
    }
    assert_eq!((world.count(KEYS).await?, world.count(TASKS).await?), (0, 0), "nothing is written for a bad key");
    let one = world.submitted(&creator, "1").await?;
    let upper = world.submitted(&creator, "ABC").await?;
    let lower = world.submitted(&creator, "abc").await?;
    let long = world.submitted(&creator, &longest).await?;
    assert_eq!(HashSet::from([&one, &upper, &lower, &long]).len(), 4, "case counts");
    assert_eq!(world.submitted(&creator, "  abc ").await?, lower, "spaces around do not");
    let ask = async |headers: &[(&str, &str)], key: Option<&str>| -> Result<Value> {
        let variables = json!({"input": input("a paper boat in the rain"), "key": key});
        let body = json!({"query": crate::world::SUBMIT, "variables": variables}).to_string();
        Ok(world.post(Some(&creator), headers, body).await?.json()?["data"]["submitGeneration"].clone())
    };
    for name in ["Idempotency-Key", "idempotency-key", "IDEMPOTENCY-KEY"] {
        assert_eq!(ask(&[(name, " abc ")], None).await?["taskId"], lower.as_str());
    }
    assert_eq!(ask(&[("Idempotency-Key", "abc")], Some("abc")).await?["taskId"], lower.as_str());
    let refused = [
        ask(&[("Idempotency-Key", "abc")], Some("ABC")).await?,
        ask(&[("Idempotency-Key", "abc"), ("Idempotency-Key", "abd")], None).await?,
        ask(&[("Idempotency-Key", too_long.as_str())], None).await?,
    ];
    for payload in refused {
        assert_eq!(payload["refusal"]["code"], "BAD_IDEMPOTENCY_KEY");
    }
    Ok(())
}

/// O9: U+0000 can be stored nowhere.
#[tokio::test]
async fn o9_a_nul_in_the_prompt_is_refused_and_nothing_is_reserved() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let refused = world.submit(&world.creator()?, Some("k"), &input("a\u{0}b")).await?;
    assert_eq!(refused["refusal"]["code"], "INVALID_PROMPT");
    assert_eq!(refused["refusal"]["field"], "prompt");
    assert_eq!((world.count(TASKS).await?, world.count(HOLDS).await?, world.count(KEYS).await?), (0, 0, 0));
    let ask = "query($id: ID!) { task(id: $id) { id } }";
    assert_eq!(code(&world.ask(&world.creator()?, ask, json!({"id": "a\u{0}b"})).await?), "BAD_ID");
    Ok(())
}

#[tokio::test]
async fn input_out_of_range_is_refused_by_field() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let foreign = Uuid::new_v4();
    let cases = [
        (json!({"prompt": " "}), "INVALID_PROMPT", "prompt"),
        (json!({"prompt": "x".repeat(4_001)}), "INVALID_PROMPT", "prompt"),
        (json!({"model": "nobody/nothing"}), "UNKNOWN_MODEL", "model"),
        (json!({"durationSeconds": 0}), "INVALID_DURATION", "durationSeconds"),
        (json!({"durationSeconds": 11}), "INVALID_DURATION", "durationSeconds"),
        (json!({"durationSeconds": -1}), "INVALID_DURATION", "durationSeconds"),
        (json!({"priority": 101}), "INVALID_PRIORITY", "priority"),
        (json!({"priority": -40_000}), "INVALID_PRIORITY", "priority"),
        (json!({"inputAssetIds": [foreign]}), "INVALID_INPUT_ASSETS", "inputAssetIds"),
        (json!({"inputAssetIds": ["nonsense"]}), "INVALID_INPUT_ASSETS", "inputAssetIds"),
        (json!({"inputAssetIds": [foreign, foreign]}), "INVALID_INPUT_ASSETS", "inputAssetIds"),
    ];
    for (change, code, field) in cases {
        let mut input = input("a boat");
        for (name, value) in change.as_object().into_iter().flatten() {
            input[name] = value.clone();
        }
        let refused = world.submit(&world.creator()?, Some("k"), &input).await?;
        assert_eq!((&refused["refusal"]["code"], &refused["refusal"]["field"]), (&json!(code), &json!(field)));
    }
    assert_eq!(world.count(TASKS).await?, 0);
    Ok(())
}

/// What admission counts by, and what decides between the tasks of a tenant.
#[tokio::test]
async fn the_order_says_who_asked_and_how_urgent_it_is() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let mut urgent = input("a boat");
    urgent["priority"] = json!(-7);
    for (key, input) in [("one", input("a boat")), ("two", urgent)] {
        let answer = world.submit(&world.creator()?, Some(key), &input).await?;
        assert!(answer["refusal"].is_null(), "{answer}");
    }
    for priority in [0, -7] {
        let orders =
            format!("{TASKS} AND body->'order'->>'user' = 'ada' AND (body->'order'->>'priority')::int = {priority}");
        assert_eq!(world.count(&orders).await?, 1, "{priority}");
    }
    Ok(())
}

#[tokio::test]
async fn roles_decide_who_may_do_what() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let task = world.submitted(&world.creator()?, "k").await?;
    let auditor = token(world.tenant, &[Role::Auditor])?;
    let submit = json!({"input": input("a boat"), "key": "another"});
    assert_eq!(code(&world.ask(&auditor, crate::world::SUBMIT, submit).await?), "FORBIDDEN");
    let resolve = "mutation($id: ID!) { resolveTask(taskId: $id) { version refusal { code } } }";
    assert_eq!(code(&world.ask(&world.creator()?, resolve, json!({"id": task})).await?), "FORBIDDEN");
    let grant = "mutation($id: ID!) { grantCredits(tenantId: $id, amount: 5, key: \"x\") { refusal { code } } }";
    assert_eq!(code(&world.ask(&world.creator()?, grant, json!({"id": world.tenant})).await?), "FORBIDDEN");
    let body = json!({"query": "{ models { name } }"}).to_string();
    assert_eq!(code(&world.post(None, &[], body.clone()).await?.json()?), "UNAUTHENTICATED");
    let invalid = world.post(Some("not.a.token"), &[], body).await?;
    assert_eq!((invalid.status, code(&invalid.json()?)), (StatusCode::UNAUTHORIZED, "UNAUTHENTICATED"));
    // Only a task that a person was asked about is resolved by hand.
    let early = world.ask(&world.operator()?, resolve, json!({"id": task})).await?;
    assert_eq!(early["data"]["resolveTask"]["refusal"]["code"], "NOT_IN_REVIEW", "{early}");
    // An operator's command on somebody else's task is that tenant's fact.
    let cancel = "mutation($id: ID!) { cancelTask(taskId: $id) { version refusal { code } } }";
    let canceled = world.ask(&world.operator()?, cancel, json!({"id": task})).await?;
    assert_eq!(canceled["data"]["cancelTask"]["version"], 2, "{canceled}");
    assert_eq!(world.count("SELECT count(DISTINCT tenant_id) FROM events WHERE category = 'task'").await?, 1);
    let refused = world.ask(&world.operator()?, resolve, json!({"id": Uuid::new_v4()})).await?;
    assert_eq!(refused["data"]["resolveTask"]["refusal"]["code"], "NOT_FOUND");
    Ok(())
}

#[tokio::test]
async fn one_grant_per_key_and_never_of_another_amount() -> Result<()> {
    let world = World::new().await?;
    let operator = world.operator()?;
    let grant = "mutation($id: ID!, $amount: Credits!) {
        grantCredits(tenantId: $id, amount: $amount, key: \"invoice-7\") { version replayed refusal { code field } } }";
    let mut payloads = Vec::new();
    for amount in [json!("9007199254740993"), json!("9007199254740993"), json!(5), json!(0), json!("-1")] {
        let answer = world.ask(&operator, grant, json!({"id": world.tenant, "amount": amount})).await?;
        payloads.push(answer["data"]["grantCredits"].clone());
    }
    assert_eq!(payloads[0], json!({"version": "1", "replayed": false, "refusal": null}));
    assert_eq!(payloads[1], json!({"version": "1", "replayed": true, "refusal": null}));
    assert_eq!(payloads[2]["refusal"]["code"], "IDEMPOTENCY_KEY_REUSED");
    assert_eq!(payloads[3]["refusal"], json!({"code": "BAD_AMOUNT", "field": "amount"}));
    assert_eq!(payloads[4]["refusal"]["code"], "BAD_AMOUNT");
    let account = "query { account(atLeastVersion: \"1\") { available version entries { kind amount } } }";
    let answer = world.ask(&token(world.tenant, &[])?, account, json!({})).await?;
    assert_eq!(answer["data"]["account"]["available"], "9007199254740993", "every digit survives: {answer}");
    assert_eq!(answer["data"]["account"]["entries"][0]["amount"], "9007199254740993");
    Ok(())
}
