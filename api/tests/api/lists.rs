//! Lists: filters, orders, counts, and pages that stay where they are while others write.

use crate::world::{World, code, token};
use anyhow::{Context, Result};
use api::Role;
use domain::id::{AccountId, TenantId};
use serde_json::{Value, json};
use std::collections::HashSet;
use uuid::Uuid;

const LIST: &str =
    "query($first: Int, $after: String, $last: Int, $before: String, $filter: TaskFilter, $order: TaskOrder) {
    tasks(first: $first, after: $after, last: $last, before: $before, filter: $filter, orderBy: $order) {
        totalCount { value exact }
        edges { node { taskId state model createdAt error { class } } }
        pageInfo { hasNextPage hasPreviousPage startCursor endCursor }
    }
}";

/// Tasks number `from` to `to`, a second apart from each other by threes: three share an instant.
async fn tasks(world: &World, tenant: TenantId, from: u32, to: u32) -> Result<()> {
    let insert = format!(
        "INSERT INTO read_tasks (task_id, tenant_id, version, state, provider, model, duration_seconds, input_assets, hold,
                                 error_class, created_at, updated_at, position)
         SELECT gen_random_uuid(), '{tenant}', 1,
                CASE WHEN n % 4 = 0 THEN 'FAILED' WHEN n % 4 = 1 THEN 'SUCCEEDED' ELSE 'QUEUED' END,
                CASE WHEN n % 2 = 0 THEN 'replicate' ELSE 'runway' END, 'model-' || n % 3, 4, '{{}}', 100,
                CASE WHEN n % 8 = 0 THEN 'moderation' WHEN n % 4 = 0 THEN 'timeout' END,
                '2026-01-01T00:00:00Z'::timestamptz + n / 3 * interval '1 second', now(), n
           FROM generate_series({from}, {to}) AS n"
    );
    Ok(world.db.sql(&insert).await?)
}

fn nodes(answer: &Value) -> Vec<Value> {
    let edges = answer["data"]["tasks"]["edges"].as_array().into_iter().flatten();
    edges.map(|edge| edge["node"].clone()).collect()
}

fn ids(answer: &Value) -> Vec<String> {
    nodes(answer).iter().filter_map(|node| node["taskId"].as_str().map(str::to_owned)).collect()
}

#[tokio::test]
async fn filters_narrow_and_the_count_agrees() -> Result<()> {
    let world = World::new().await?;
    tasks(&world, world.tenant, 1, 48).await?;
    tasks(&world, TenantId(Uuid::new_v4()), 1, 48).await?;
    let creator = world.creator()?;
    let cases = [
        (json!({}), 48),
        (json!({"states": null}), 48),
        (json!({"states": ["FAILED"]}), 12),
        (json!({"states": ["FAILED", "SUCCEEDED"]}), 24),
        (json!({"states": []}), 0),
        (json!({"providers": ["runway"]}), 24),
        (json!({"providers": ["nobody"]}), 0),
        (json!({"models": ["model-1", "model-2"], "states": ["FAILED"]}), 8),
        (json!({"errorClasses": ["moderation"]}), 6),
        (json!({"errorClasses": ["moderation", "timeout"]}), 12),
        (json!({"createdFrom": "2026-01-01T00:00:10Z"}), 19),
        (json!({"createdBefore": "2026-01-01T00:00:10Z"}), 29),
        (json!({"createdFrom": "2026-01-01T08:00:10+08:00", "createdBefore": "2026-01-01T00:00:11Z"}), 3),
    ];
    for (filter, expected) in cases {
        let answer = world.ask(&creator, LIST, json!({"first": 100, "filter": filter})).await?;
        assert_eq!(nodes(&answer).len(), expected, "{filter}: {answer}");
        let counted = json!({"value": expected, "exact": true});
        assert_eq!(answer["data"]["tasks"]["totalCount"], counted, "{filter}");
    }
    let failed = world.ask(&creator, LIST, json!({"filter": {"errorClasses": ["timeout"]}})).await?;
    assert!(nodes(&failed).iter().all(|node| node["error"]["class"] == "timeout" && node["state"] == "FAILED"));
    let auditor = token(world.tenant, &[Role::Auditor])?;
    let all = world.ask(&auditor, LIST, json!({"first": 1})).await?;
    assert_eq!(all["data"]["tasks"]["totalCount"]["value"], 96);
    let older = "{ tasks(state: FAILED, first: 100) { edges { cursor } totalCount { value } } }";
    let answer = world.ask(&creator, older, json!({})).await?;
    assert_eq!(answer["data"]["tasks"]["totalCount"]["value"], 12, "the older argument does what it did");
    Ok(())
}

#[tokio::test]
async fn a_filter_that_can_not_be_meant_is_refused() -> Result<()> {
    let world = World::new().await?;
    let creator = world.creator()?;
    let cases =
        [json!({"errorClasses": ["bad luck"]}), json!({"models": ["a\u{0}b"]}), json!({"models": vec!["x"; 101]})];
    for filter in cases {
        assert_eq!(code(&world.ask(&creator, LIST, json!({"filter": filter})).await?), "BAD_FILTER", "{filter}");
    }
    let both = "{ tasks(state: FAILED, filter: {states: [QUEUED]}) { edges { cursor } } }";
    assert_eq!(code(&world.ask(&creator, both, json!({})).await?), "BAD_FILTER");
    for unreadable in [json!({"states": ["DONE"]}), json!({"createdFrom": "2026-01-31"}), json!({"createdFrom": 7})] {
        let answer = world.ask(&creator, LIST, json!({"filter": unreadable})).await?;
        assert!(answer["data"].is_null() && answer["errors"].is_array(), "refused before anything runs: {answer}");
    }
    Ok(())
}

/// G12: one rule for instants, in literals as in variables.
#[tokio::test]
async fn g12_an_instant_is_read_alike_in_literals_and_variables() -> Result<()> {
    let world = World::new().await?;
    tasks(&world, world.tenant, 1, 48).await?;
    let creator = world.creator()?;
    let variable = "query($from: DateTime) { tasks(filter: {createdFrom: $from}) { totalCount { value } } }";
    let forms = [
        ("2026-01-01T00:00:10Z", Some(19)),
        ("2026-01-01T08:00:10+08:00", Some(19)),
        ("2026-01-01T00:00:10.000000999Z", Some(19)),
        ("2026-01-01T00:00:10", None),
        ("2026-13-01T00:00:10Z", None),
        ("10000-01-01T00:00:00Z", None),
    ];
    for (form, expected) in forms {
        let literal = format!("{{ tasks(filter: {{createdFrom: \"{form}\"}}) {{ totalCount {{ value }} }} }}");
        let literal = world.ask(&creator, &literal, json!({})).await?;
        let variable = world.ask(&creator, variable, json!({"from": form})).await?;
        for answer in [literal, variable] {
            let value = &answer["data"]["tasks"]["totalCount"]["value"];
            assert_eq!(value.as_u64(), expected, "{form}: {answer}");
        }
    }
    Ok(())
}

/// G12: one rule for ids.
#[tokio::test]
async fn g12_an_id_is_read_alike_in_literals_and_variables() -> Result<()> {
    let world = World::new().await?;
    tasks(&world, world.tenant, 1, 1).await?;
    let creator = world.creator()?;
    let list = world.ask(&creator, "{ tasks { edges { node { id taskId } } } }", json!({})).await?;
    let node = &list["data"]["tasks"]["edges"][0]["node"];
    let uuid = node["taskId"].as_str().context("a task")?;
    let forms = [
        (node["id"].clone(), None),
        (json!(uuid), None),
        (json!(uuid.to_uppercase()), None),
        (json!(7), Some("BAD_ID")),
        (json!(4_294_967_296_i64), Some("BAD_ID")),
        (json!("7"), Some("BAD_ID")),
        (json!(uuid.replace('-', "")), Some("BAD_ID")),
        (json!(""), Some("BAD_ID")),
        (json!(7.5), Some("no error code")),
        (json!(true), Some("no error code")),
    ];
    for (form, refused) in forms {
        let literal = world.ask(&creator, &format!("{{ task(id: {form}) {{ taskId }} }}"), json!({})).await?;
        let variable = "query($id: ID!) { task(id: $id) { taskId } }";
        let variable = world.ask(&creator, variable, json!({"id": form})).await?;
        for answer in [literal, variable] {
            match refused {
                Some(expected) => assert!(answer["errors"].is_array() && code(&answer) == expected, "{form}: {answer}"),
                None => assert_eq!(answer["data"]["task"]["taskId"], uuid, "{form}: {answer}"),
            }
        }
    }
    Ok(())
}

/// All pages of a walk, while newer tasks come into the list and others change. Those that were there before, in order.
async fn walk(world: &World, order: &str, forward: bool) -> Result<Vec<String>> {
    let creator = world.creator()?;
    let (mut seen, mut place, mut added) = (Vec::new(), Value::Null, 1_000);
    loop {
        let size = if forward { "first" } else { "last" };
        let from = if forward { "after" } else { "before" };
        let filter = json!({"providers": ["replicate", "runway"]});
        let variables = json!({size: 7, from: place, "order": order, "filter": filter});
        let answer = world.ask(&creator, LIST, variables).await?;
        let info = &answer["data"]["tasks"]["pageInfo"];
        let page = ids(&answer);
        if forward {
            seen.extend(page);
        } else {
            seen.splice(0..0, page);
        }
        let (more, next) = if forward { ("hasNextPage", "endCursor") } else { ("hasPreviousPage", "startCursor") };
        if info[more] == false {
            let distinct: HashSet<&String> = seen.iter().collect();
            assert_eq!(distinct.len(), seen.len(), "none comes twice, {order} {forward}");
            let before = world
                .ask(
                    &creator,
                    LIST,
                    json!({"first": 100, "order": order, "filter": {
                "createdBefore": "2026-01-01T00:01:00Z"}}),
                )
                .await?;
            let before: HashSet<String> = ids(&before).into_iter().collect();
            assert_eq!(before.len(), 100);
            seen.retain(|task| before.contains(task));
            return Ok(seen);
        }
        place = info[next].clone();
        // They belong to the list: where it goes to newer ones, some of them are walked through.
        tasks(world, world.tenant, added, added + 2).await?;
        world.db.sql("UPDATE read_tasks SET version = version + 1, updated_at = now()").await?;
        added += 3;
    }
}

#[tokio::test]
async fn every_row_comes_once_in_both_orders_and_directions() -> Result<()> {
    let world = World::new().await?;
    tasks(&world, world.tenant, 1, 100).await?;
    let newest_first = walk(&world, "NEWEST_FIRST", true).await?;
    assert_eq!((newest_first.len(), newest_first.iter().collect::<HashSet<_>>().len()), (100, 100));
    assert_eq!(walk(&world, "NEWEST_FIRST", false).await?, newest_first);
    let oldest_first = walk(&world, "OLDEST_FIRST", true).await?;
    assert!(oldest_first.iter().eq(newest_first.iter().rev()));
    assert_eq!(walk(&world, "OLDEST_FIRST", false).await?, oldest_first);
    Ok(())
}

#[tokio::test]
async fn a_count_says_when_it_stopped() -> Result<()> {
    let world = World::new().await?;
    tasks(&world, world.tenant, 1, 10_000).await?;
    let creator = world.creator()?;
    let count = "query($filter: TaskFilter) { tasks(first: 1, filter: $filter) { totalCount { value exact } } }";
    let counted = async |filter: Value| -> Result<Value> {
        let answer = world.ask(&creator, count, json!({"filter": filter})).await?;
        Ok(answer["data"]["tasks"]["totalCount"].clone())
    };
    assert_eq!(counted(json!({})).await?, json!({"value": 10_000, "exact": true}));
    tasks(&world, world.tenant, 10_001, 10_001).await?;
    assert_eq!(counted(json!({})).await?, json!({"value": 10_000, "exact": false}));
    let failed = counted(json!({"states": ["FAILED"]})).await?;
    assert_eq!(failed, json!({"value": 2_500, "exact": false}));
    let range = json!({"createdFrom": "2026-01-01T00:30:00Z", "states": ["FAILED"]});
    assert_eq!(counted(range).await?["exact"], true, "a time range is looked at whole");
    Ok(())
}

#[tokio::test]
async fn postings_have_pages_in_both_directions() -> Result<()> {
    let world = World::new().await?;
    let account = AccountId::of(world.tenant);
    world
        .db
        .sql(&format!(
            "INSERT INTO read_account_entries (account_id, version, kind, business_key, amount, created_at, position)
             SELECT '{account}', n, 'grant', 'key-' || n, n, now(), n FROM generate_series(1, 25) AS n"
        ))
        .await?;
    let ask = "query($first: Int, $after: String, $last: Int, $before: String) { account {
        postings(first: $first, after: $after, last: $last, before: $before) {
            edges { cursor node { version amount } } pageInfo { hasNextPage hasPreviousPage startCursor endCursor } }
        entries(first: 2, before: \"10\") { version } } }";
    let creator = world.creator()?;
    let mut versions: Vec<i64> = Vec::new();
    let mut after = Value::Null;
    for page in 0..3 {
        let answer = world.ask(&creator, ask, json!({"first": 10, "after": after})).await?;
        let postings = &answer["data"]["account"]["postings"];
        let edges = postings["edges"].as_array().with_context(|| format!("{answer}"))?;
        versions.extend(edges.iter().filter_map(|edge| edge["node"]["version"].as_str()?.parse::<i64>().ok()));
        assert_eq!(postings["pageInfo"]["hasNextPage"], page < 2);
        after = postings["pageInfo"]["endCursor"].clone();
        assert_eq!(answer["data"]["account"]["entries"], json!([{"version": "9"}, {"version": "8"}]));
    }
    assert!(versions.iter().copied().eq((1..=25).rev()), "{versions:?}");
    let answer = world.ask(&creator, ask, json!({"last": 3, "before": after})).await?;
    let edges = &answer["data"]["account"]["postings"]["edges"];
    assert_eq!([&edges[0]["node"]["version"], &edges[2]["node"]["version"]], ["4", "2"]);
    let list = "query($after: String) { tasks(first: 1, after: $after) { edges { cursor } } }";
    let foreign = world.ask(&creator, list, json!({"after": after})).await?;
    assert_eq!(code(&foreign), "BAD_CURSOR", "a cursor of another list");
    Ok(())
}
