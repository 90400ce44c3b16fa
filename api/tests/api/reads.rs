//! Reading: pages, the wall between tenants, freshness, history, errors.

use crate::world::{World, code, input, token};
use anyhow::{Context, Result};
use api::Role;
use domain::id::TenantId;
use serde_json::{Value, json};
use std::collections::HashSet;
use uuid::Uuid;

const PAGE: &str = "query($first: Int, $after: String, $last: Int, $before: String) {
    tasks(first: $first, after: $after, last: $last, before: $before) {
        edges { cursor node { taskId } } pageInfo { hasNextPage hasPreviousPage startCursor endCursor }
    }
}";

/// Tasks of one instant, as a burst of submissions leaves them.
async fn burst(world: &World, tenant: TenantId, count: u32) -> Result<()> {
    let insert = format!(
        "INSERT INTO read_tasks (task_id, tenant_id, version, state, provider, model, duration_seconds, input_assets, hold,
                                 created_at, updated_at, position)
         SELECT gen_random_uuid(), '{tenant}', 1, 'QUEUED', 'replicate', 'm', 4, '{{}}', 100, now(), now(), n
           FROM generate_series(1, {count}) AS n"
    );
    Ok(world.db.sql(&insert).await?)
}

fn ids(page: &Value) -> Vec<String> {
    let edges = page["edges"].as_array().into_iter().flatten();
    edges.filter_map(|edge| edge["node"]["taskId"].as_str().map(str::to_owned)).collect()
}

/// G5: every row exactly once, though all have the same time.
#[tokio::test]
async fn g5_ties_are_neither_skipped_nor_repeated() -> Result<()> {
    let world = World::new().await?;
    burst(&world, world.tenant, 250).await?;
    burst(&world, TenantId(Uuid::new_v4()), 10).await?;
    let creator = world.creator()?;
    let mut forward = Vec::new();
    let mut after = Value::Null;
    loop {
        let answer = world.ask(&creator, PAGE, json!({"first": 7, "after": after})).await?;
        let page = &answer["data"]["tasks"];
        forward.extend(ids(page));
        assert_eq!(page["pageInfo"]["hasPreviousPage"], !after.is_null());
        if page["pageInfo"]["hasNextPage"] == false {
            break;
        }
        after = page["pageInfo"]["endCursor"].clone();
    }
    assert_eq!((forward.len(), forward.iter().collect::<HashSet<_>>().len()), (250, 250));
    let mut backward: Vec<String> = Vec::new();
    let mut before = Value::Null;
    loop {
        let answer = world.ask(&creator, PAGE, json!({"last": 100, "before": before})).await?;
        let page = &answer["data"]["tasks"];
        backward.splice(0..0, ids(page));
        if page["pageInfo"]["hasPreviousPage"] == false {
            break;
        }
        before = page["pageInfo"]["startCursor"].clone();
    }
    assert_eq!(forward, backward);
    let everything = world.ask(&token(world.tenant, &[Role::Auditor])?, PAGE, json!({"first": 100})).await?;
    assert_eq!(ids(&everything["data"]["tasks"]).len(), 100);
    Ok(())
}

/// G6: page arguments that make no sense are typed errors; their siblings are answered.
#[tokio::test]
async fn g6_bad_page_arguments_are_typed_errors() -> Result<()> {
    let world = World::new().await?;
    let foreign = TenantId(Uuid::new_v4());
    burst(&world, world.tenant, 3).await?;
    burst(&world, foreign, 3).await?;
    let creator = world.creator()?;
    let good = "dDE6MTox";
    let bad = [
        (json!({"first": 0}), "BAD_PAGE"),
        (json!({"first": -1}), "BAD_PAGE"),
        (json!({"first": 101}), "BAD_PAGE"),
        (json!({"first": 1_000_000}), "BAD_PAGE"),
        (json!({"last": 0}), "BAD_PAGE"),
        (json!({"first": 1, "last": 1}), "BAD_PAGE"),
        (json!({"last": 1, "after": good}), "BAD_PAGE"),
        (json!({"first": 1, "before": good}), "BAD_PAGE"),
        (json!({"after": ""}), "BAD_CURSOR"),
        (json!({"after": "garbage"}), "BAD_CURSOR"),
        (json!({"after": good}), "BAD_CURSOR"),
    ];
    for (arguments, expected) in bad {
        assert_eq!(code(&world.ask(&creator, PAGE, arguments.clone()).await?), expected, "{arguments}");
    }
    for fine in [json!({}), json!({"first": null}), json!({"first": 100}), json!({"last": 100})] {
        assert_eq!(ids(&world.ask(&creator, PAGE, fine).await?["data"]["tasks"]).len(), 3);
    }
    // Somebody else's cursor is a place, and shows nothing of theirs.
    let theirs = world.ask(&token(foreign, &[])?, PAGE, json!({"last": 1})).await?;
    let cursor = theirs["data"]["tasks"]["edges"][0]["cursor"].clone();
    let answer = world.ask(&creator, PAGE, json!({"first": 100, "before": null, "after": cursor})).await?;
    let foreign_ids: HashSet<String> = ids(&theirs["data"]["tasks"]).into_iter().collect();
    assert!(ids(&answer["data"]["tasks"]).iter().all(|id| !foreign_ids.contains(id)));
    let siblings = "{ models { name } tasks(first: 0) { pageInfo { hasNextPage } } }";
    let answer = world.ask(&creator, siblings, json!({})).await?;
    assert_eq!(code(&answer), "BAD_PAGE");
    assert_eq!(answer["data"], json!({"models": [{"name": "aivideo/paper-boat-1"}], "tasks": null}));
    Ok(())
}

#[tokio::test]
async fn nothing_of_one_tenant_is_seen_or_changed_by_another() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let task = world.submitted(&world.creator()?, "k").await?;
    let stranger = token(TenantId(Uuid::new_v4()), &[Role::Creator])?;
    let look = "query($id: ID!, $tenant: ID!) {
        task(id: $id) { id } fresh: task(id: $id, atLeastVersion: 1) { id } taskHistory(taskId: $id) { name }
        account(tenantId: $tenant) { available } tasks { edges { node { id } } } }";
    let variables = json!({"id": task, "tenant": world.tenant});
    let seen = world.ask(&stranger, look, variables.clone()).await?;
    let nothing = json!({"task": null, "fresh": null, "taskHistory": null, "account": null, "tasks": {"edges": []}});
    assert_eq!(seen, json!({"data": nothing}));
    let own = world.ask(&world.creator()?, look, variables.clone()).await?;
    let global = own["data"]["fresh"]["id"].as_str().context("the owner sees it")?.to_owned();
    let cancel = "mutation($id: ID!) { cancelTask(taskId: $id) { version refusal { code } } }";
    let refused = world.ask(&stranger, cancel, json!({"id": global})).await?;
    assert_eq!(refused["data"]["cancelTask"], json!({"version": null, "refusal": {"code": "NOT_FOUND"}}));
    let node = "query($id: ID!) { node(id: $id) { id ... on Task { state } } }";
    assert!(world.ask(&stranger, node, json!({"id": global})).await?["data"]["node"].is_null());
    for reader in [token(TenantId(Uuid::new_v4()), &[Role::Auditor])?, world.operator()?] {
        let seen = world.ask(&reader, node, json!({"id": global})).await?;
        assert_eq!(seen["data"]["node"]["state"], "QUEUED", "auditors and operators see all");
    }
    Ok(())
}

#[tokio::test]
async fn a_version_that_can_not_be_shown_yet_is_said_so() -> Result<()> {
    let mut world = World::with(|config| config.freshness_wait_ms = 150).await?;
    world.grant(world.tenant, 1_000).await?;
    let creator = world.creator()?;
    let account = "query { account(atLeastVersion: 1) { available } }";
    // On a busy machine the projector may take longer than a query waits here.
    while code(&world.ask(&creator, account, json!({})).await?) == "READ_MODEL_BEHIND" {}
    assert_eq!(world.ask(&creator, account, json!({})).await?["data"]["account"]["available"], "1000");
    world.stop_projecting().await;
    let payload = world.submit(&creator, Some("k"), &crate::world::input("a boat")).await?;
    assert!(payload["task"].is_null() && payload["version"] == 1, "accepted, though it can not be shown: {payload}");
    let ask = "query($id: ID!) { task(id: $id, atLeastVersion: 1) { id } }";
    let answer = world.ask(&creator, ask, json!({"id": payload["taskId"]})).await?;
    assert_eq!(code(&answer), "READ_MODEL_BEHIND");
    assert_eq!(answer["errors"][0]["extensions"]["shownVersion"], 0);
    let unknown = world.ask(&creator, ask, json!({"id": Uuid::new_v4()})).await?;
    assert_eq!(unknown, json!({"data": {"task": null}}), "nobody waits for what does not exist");
    let behind = "query { account(atLeastVersion: 2) { available } }";
    assert_eq!(code(&world.ask(&creator, behind, json!({})).await?), "READ_MODEL_BEHIND");
    Ok(())
}

#[tokio::test]
async fn the_history_of_a_task_is_whole_and_in_order() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let creator = world.creator()?;
    let task = world.submitted(&creator, "k").await?;
    let other = world.submitted(&creator, "another").await?;
    assert_ne!(task, other);
    let cancel = "mutation($id: ID!) { cancelTask(taskId: $id) { task { state finishedAt } } }";
    let canceled = world.ask(&creator, cancel, json!({"id": task})).await?;
    assert_eq!(canceled["data"]["cancelTask"]["task"]["state"], "CANCELED");
    let ask = "query($id: ID!, $after: BigInt, $first: Int) { taskHistory(taskId: $id, after: $after, first: $first) {
        position stream version name actor correlationId causationId recordedAt body } }";
    let answer = world.ask(&creator, ask, json!({"id": task})).await?;
    let events = answer["data"]["taskHistory"].as_array().with_context(|| format!("{answer}"))?.clone();
    let names: HashSet<&str> = events.iter().filter_map(|event| event["name"].as_str()).collect();
    assert_eq!(names, HashSet::from(["account.held", "task.submitted", "task.canceled"]));
    let positions: Vec<i64> = events.iter().filter_map(|event| event["position"].as_str()?.parse().ok()).collect();
    assert!(positions.len() == 3 && positions.is_sorted(), "{positions:?}");
    assert!(events.iter().all(|event| event["actor"] == "user:ada"));
    let rest = world.ask(&creator, ask, json!({"id": task, "after": events[0]["position"], "first": 1})).await?;
    assert_eq!(rest["data"]["taskHistory"][0], events[1]);
    assert_eq!(code(&world.ask(&creator, ask, json!({"id": task, "first": 0})).await?), "BAD_PAGE");
    Ok(())
}

#[tokio::test]
async fn attempts_and_assets_of_a_page_are_read_in_one_go() -> Result<()> {
    let world = World::new().await?;
    burst(&world, world.tenant, 20).await?;
    world
        .db
        .sql(
            "INSERT INTO read_attempts (attempt_id, task_id, tenant_id, version, number, provider, state, percent, created_at,
                                        updated_at, position)
             SELECT gen_random_uuid(), task_id, tenant_id, 1, 1, 'replicate', 'RUNNING', 40, now(), now(), 1 FROM read_tasks;
             INSERT INTO read_assets (asset_id, task_id, tenant_id, kind, object_key, bytes, sha256, content_type, created_at,
                                      position)
             SELECT gen_random_uuid(), task_id, tenant_id, kind, 'k/' || kind, 7, 'ab', 'video/mp4', now(), 1
               FROM read_tasks, unnest(ARRAY['video', 'thumbnail']) AS kind;
             UPDATE read_tasks SET attempt_no = 1;",
        )
        .await?;
    let ask = "{ tasks(first: 20) { edges { node { progressPercent attempts { number state } video { url bytes kind }
                 thumbnail { kind } assets { id } } } } }";
    let answer = world.ask(&world.creator()?, ask, json!({})).await?;
    let edges = answer["data"]["tasks"]["edges"].as_array().with_context(|| format!("{answer}"))?;
    assert_eq!(edges.len(), 20);
    for edge in edges {
        let node = &edge["node"];
        assert_eq!(node["progressPercent"], 40);
        assert_eq!(node["attempts"], json!([{"number": 1, "state": "RUNNING"}]));
        let url = "http://objects.test/k/video?ttl=3600";
        assert_eq!(node["video"], json!({"url": url, "bytes": "7", "kind": "VIDEO"}));
        assert_eq!(node["thumbnail"]["kind"], "THUMBNAIL");
        assert_eq!(node["assets"].as_array().map(Vec::len), Some(2));
    }
    Ok(())
}

/// G4: what goes wrong inside stays inside. G11: one bad row does not empty the page.
#[tokio::test]
async fn g4_errors_name_a_correlation_id_and_nothing_of_the_database() -> Result<()> {
    let world = World::new().await?;
    burst(&world, world.tenant, 3).await?;
    let creator = world.creator()?;
    world.db.sql("UPDATE read_tasks SET state = 'UNHEARD_OF' WHERE position = 1").await?;
    let ask = "{ tasks { edges { node { state } } } }";
    let answer = world.ask(&creator, ask, json!({})).await?;
    let nodes = answer["data"]["tasks"]["edges"].as_array().with_context(|| format!("{answer}"))?;
    assert_eq!(nodes.iter().filter(|edge| edge["node"].is_null()).count(), 1);
    assert_eq!(answer["errors"].as_array().map(Vec::len), Some(1));
    world.db.sql("ALTER TABLE read_tasks RENAME COLUMN state TO condition").await?;
    let id = Uuid::new_v4().to_string();
    let body = json!({"query": ask}).to_string();
    let answer = world.post(Some(&creator), &[("x-request-id", id.as_str())], body).await?;
    assert_eq!(answer.headers.get("x-request-id").and_then(|it| it.to_str().ok()), Some(id.as_str()));
    let text = String::from_utf8_lossy(&answer.body).to_lowercase();
    assert_eq!(answer.json()?["errors"][0]["extensions"], json!({"code": "INTERNAL", "correlationId": id}));
    for leaked in ["select", "does not exist", "read_tasks", "sql", "postgres", "condition"] {
        assert!(!text.contains(leaked), "{leaked} in {text}");
    }
    Ok(())
}

/// E4: a hundred tasks; the reply to the mutation, the query, the page and the row of the log say the same instant, to the microsecond.
#[tokio::test]
async fn e4_an_instant_is_the_same_in_every_answer() -> Result<()> {
    let world = World::new().await?;
    let creator = world.creator()?;
    world.grant(world.tenant, 100_000_000).await?;
    let submit = "mutation($input: GenerationInput!, $key: String) {
        submitGeneration(input: $input, idempotencyKey: $key) { taskId task { taskId createdAt updatedAt } } }";
    let query = "query($id: ID!) { task(id: $id, atLeastVersion: 1) { taskId createdAt updatedAt } }";
    let mut replies = 0;
    for number in 0..100 {
        let variables = json!({"input": input("a boat"), "key": format!("key-{number}")});
        let answer = world.ask(&creator, submit, variables).await?;
        let told = &answer["data"]["submitGeneration"];
        let read = world.ask(&creator, query, json!({"id": told["taskId"]})).await?;
        let read = &read["data"]["task"];
        if !told["task"].is_null() {
            replies += 1;
            assert_eq!(&told["task"], read);
        }
        let (task, at) = (&read["taskId"], read["createdAt"].as_str().context("an instant")?);
        assert_eq!(read["updatedAt"].as_str(), Some(at));
        let same =
            format!("SELECT count(*) FROM events WHERE stream_id::text = '{}' AND recorded_at = '{at}'", task_id(task));
        assert_eq!(world.count(&same).await?, 1, "{read}");
    }
    assert!(replies > 0, "no reply showed its task");
    let page = "{ tasks(first: 100) { edges { cursor node { taskId createdAt } } } }";
    let page = world.ask(&creator, page, json!({})).await?;
    let edges = page["data"]["tasks"]["edges"].as_array().context("a page")?;
    let seen: HashSet<String> = edges.iter().map(|edge| edge["node"]["createdAt"].to_string()).collect();
    assert_eq!((edges.len(), seen.len()), (100, 100));
    Ok(())
}

fn task_id(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
