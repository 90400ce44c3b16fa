//! What auditors ask: the past, replays, statements, exports, proofs, and that their looks are recorded.

use crate::live::{fetching, put_off, step};
use crate::statements::Statements;
use crate::world::{Answer, World, audit_key, code};
use anyhow::{Context, Result};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use domain::task::{Command, ErrorClass};
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tower::ServiceExt;

async fn get(world: &World, token: Option<&str>, path: &str) -> Result<Answer> {
    let mut request = Request::get(path);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    world.call(request.body(Body::empty())?).await
}

fn lines(answer: &Answer) -> Result<Vec<Value>> {
    std::str::from_utf8(&answer.body)?.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

async fn ended_task(world: &World) -> Result<(String, i64)> {
    let creator = world.creator()?;
    let task = world.submitted(&creator, "k").await?;
    fetching(world, &task).await?;
    put_off(world, &task, 3).await?;
    let version = step(world, &task, |turn| {
        let (code, message) = ("broken".to_owned(), "it broke".to_owned());
        turn.task(Command::Fail { class: ErrorClass::Provider, code, message })
    })
    .await?;
    let shown = "query($id: ID!, $version: Int) { task(id: $id, atLeastVersion: $version) { version } }";
    let answer = world.ask(&creator, shown, json!({"id": task, "version": version})).await?;
    anyhow::ensure!(answer["data"]["task"].is_object(), "{answer}");
    Ok((task, version))
}

#[tokio::test]
async fn the_past_is_shown_event_by_event_and_as_it_was() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let (task, version) = ended_task(&world).await?;
    let auditor = world.auditor()?;
    let ask = async |query: &str| world.ask(&auditor, query, json!({"id": task})).await;
    let events = ask("query($id: ID!) { streamEvents(kind: TASK, id: $id) {
        version name actor correlationId causationId storedVersion storedBody currentVersion currentBody recordedAt } }").await?;
    let events = events["data"]["streamEvents"].as_array().context("events")?.clone();
    assert_eq!(events.len(), usize::try_from(version)?);
    assert_eq!((&events[0]["name"], &events[0]["actor"]), (&json!("task.submitted"), &json!("user:ada")));
    assert_eq!(events[0]["storedBody"], events[0]["currentBody"], "this build wrote it");
    let page = ask("query($id: ID!) { streamEvents(kind: TASK, id: $id, first: 2, after: \"3\") { version } }").await?;
    assert_eq!(page["data"]["streamEvents"], json!([{"version": "4"}, {"version": "5"}]));
    let state = ask("query($id: ID!) { streamState(kind: TASK, id: $id, version: \"2\") { version newestVersion state event { name } } }").await?;
    let state = &state["data"]["streamState"];
    assert_eq!((&state["version"], &state["newestVersion"]), (&json!("2"), &json!(version.to_string())));
    assert_eq!(state["event"]["name"], "task.submission_begun");
    assert!(state["state"].to_string().contains("attempt_no"), "{state}");
    let at = events[2]["recordedAt"].as_str().context("a time")?;
    let query = format!("query($id: ID!) {{ streamState(kind: TASK, id: $id, at: \"{at}\") {{ version }} }}");
    assert_eq!(ask(&query).await?["data"]["streamState"]["version"], events[3]["version"], "one transaction, one time");
    let differences =
        ask("query($id: ID!) { streamDifferences(kind: TASK, id: $id, from: \"4\", to: \"5\") { path before after } }")
            .await?;
    assert!(differences["data"]["streamDifferences"].as_array().is_some_and(|it| !it.is_empty()), "{differences}");
    for (query, expected) in [
        ("query($id: ID!) { streamState(kind: TASK, id: $id, version: \"99\") { version } }", "BAD_VERSION"),
        (
            "query($id: ID!) { streamState(kind: TASK, id: $id, at: \"2001-01-01T00:00:00Z\") { version } }",
            "BAD_VERSION",
        ),
        (
            "query($id: ID!) { streamState(kind: TASK, id: $id, version: \"1\", at: \"2001-01-01T00:00:00Z\") { version } }",
            "BAD_VERSION",
        ),
        ("query($id: ID!) { streamEvents(kind: TASK, id: $id, first: 0) { version } }", "BAD_PAGE"),
    ] {
        assert_eq!(code(&ask(query).await?), expected, "{query}");
    }
    let nothing = ask("query($id: ID!) { streamState(kind: ATTEMPT, id: $id) { version } }").await?;
    assert_eq!(nothing["data"]["streamState"], Value::Null, "{nothing}");
    Ok(())
}

/// An event that an older build stored is shown as it is, and as this build reads it.
#[tokio::test]
async fn an_older_form_is_shown_beside_the_current_one() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let (task, _) = ended_task(&world).await?;
    let older = format!(
        "ALTER TABLE events DISABLE TRIGGER events_append_only;
         UPDATE events SET schema_version = 1, body = jsonb_set(body, '{{order}}', (body->'order') - 'work' - 'retry_of')
          WHERE stream_id = '{task}' AND version = 1;"
    );
    world.db.sql(&older).await?;
    let query = "query($id: ID!) { streamEvents(kind: TASK, id: $id, first: 1) { storedVersion storedBody currentVersion currentBody } }";
    let answer = world.ask(&world.auditor()?, query, json!({"id": task})).await?;
    let event = &answer["data"]["streamEvents"][0];
    assert_eq!((&event["storedVersion"], &event["currentVersion"]), (&json!(1), &json!(3)), "{answer}");
    assert!(event["storedBody"]["order"].get("work").is_none());
    assert_eq!(event["currentBody"]["order"]["work"], json!({"kind": "generate"}));
    Ok(())
}

#[tokio::test]
async fn a_replay_says_that_it_is_equal_or_where_it_is_not() -> Result<()> {
    let mut world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let (task, version) = ended_task(&world).await?;
    let auditor = world.auditor()?;
    world.stop_projecting().await;
    let ask = async |world: &World| -> Result<Value> {
        let query = "query($id: ID!) { replayTask(taskId: $id) { equal events rows fault
            deviations { table key column replayed shown } } }";
        Ok(world.ask(&auditor, query, json!({"id": task})).await?["data"]["replayTask"].clone())
    };
    let equal = ask(&world).await?;
    assert_eq!(equal, json!({"equal": true, "events": version, "rows": 1, "fault": null, "deviations": []}));
    world.db.sql(&format!("UPDATE read_tasks SET state = 'SUCCEEDED', hold = 7 WHERE task_id = '{task}'")).await?;
    let edited = ask(&world).await?;
    assert_eq!(edited["equal"], false);
    assert_eq!(
        edited["deviations"],
        json!([
            {"table": "read_tasks", "key": task, "column": "hold", "replayed": 120, "shown": 7},
            {"table": "read_tasks", "key": task, "column": "state", "replayed": "FAILED", "shown": "SUCCEEDED"},
        ])
    );
    world.db.sql(&format!("DELETE FROM read_tasks WHERE task_id = '{task}'")).await?;
    let missing = ask(&world).await?;
    assert_eq!((&missing["deviations"][0]["column"], &missing["deviations"][0]["shown"]), (&Value::Null, &Value::Null));
    Ok(())
}

#[tokio::test]
async fn a_statement_adds_up_or_says_that_it_does_not() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    ended_task(&world).await?;
    let auditor = world.auditor()?;
    let ask = async |from: &str, before: &str| -> Result<Value> {
        let query = "query($tenant: ID!, $from: DateTime!, $before: DateTime!) {
            accountStatement(tenantId: $tenant, from: $from, before: $before) {
                opening turnover closing addsUp postings kinds { kind postings amount } entries { version kind amount } } }";
        let answer =
            world.ask(&auditor, query, json!({"tenant": world.tenant, "from": from, "before": before})).await?;
        anyhow::ensure!(answer["errors"].is_null(), "{answer}");
        Ok(answer["data"]["accountStatement"].clone())
    };
    let (start, end) = ("2001-01-01T00:00:00Z", "2200-01-01T00:00:00Z");
    let whole = ask(start, end).await?;
    assert_eq!(
        (&whole["opening"], &whole["closing"], &whole["addsUp"]),
        (&json!("0"), &json!("880"), &json!(true)),
        "{whole}"
    );
    assert_eq!(whole["entries"].as_array().map(Vec::len), Some(2));
    // Any time in between is the end of one statement and the beginning of the next.
    let query =
        "query($tenant: ID!) { account(tenantId: $tenant) { postings(first: 1) { edges { node { createdAt } } } } }";
    let newest = world.ask(&auditor, query, json!({"tenant": world.tenant})).await?;
    let middle =
        newest["data"]["account"]["postings"]["edges"][0]["node"]["createdAt"].as_str().context("a time")?.to_owned();
    let (before, after) = (ask(start, &middle).await?, ask(&middle, end).await?);
    assert_eq!((&before["closing"], &after["opening"]), (&json!("1000"), &json!("1000")));
    assert_eq!((&after["closing"], &after["turnover"]), (&json!("880"), &json!("-120")));
    assert!(before["addsUp"] == true && after["addsUp"] == true);
    world.db.sql("UPDATE read_account_entries SET amount = amount + 1 WHERE kind = 'hold'").await?;
    assert_eq!(ask(start, end).await?["addsUp"], false);
    Ok(())
}

#[tokio::test]
async fn the_log_and_the_ledgers_are_exported_whole_and_go_on_where_they_broke_off() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    ended_task(&world).await?;
    let auditor = world.auditor()?;
    let all = world.count("SELECT count(*) FROM events").await?;
    let whole = get(&world, Some(&auditor), "/audit/events").await?;
    assert_eq!((whole.status, &whole.headers["content-type"]), (StatusCode::OK, &"application/x-ndjson".parse()?));
    let mut events = lines(&whole)?;
    let end = events.pop().context("an end")?;
    assert_eq!((events.len() as i64, &end["end"]["rows"]), (all, &json!(all)));
    let log_end = whole.headers["x-log-end"].to_str()?.to_owned();
    assert_eq!(end["end"]["after"], json!(log_end));
    // Taken up again after any row, it is the rest of the same.
    for row in [0, 3, events.len() - 1] {
        let path = format!("/audit/events?after={}&end={log_end}", events[row]["position"]);
        let mut rest = lines(&get(&world, Some(&auditor), &path).await?)?;
        rest.pop();
        assert_eq!(rest, events[row + 1..]);
    }
    let table = get(&world, Some(&auditor), "/audit/events?format=csv&category=task").await?;
    let text = String::from_utf8(table.body.to_vec())?;
    assert!(text.starts_with("position,recorded_at,category,"), "{text}");
    assert_eq!(
        text.matches("\r\n").count() as i64,
        1 + world.count("SELECT count(*) FROM events WHERE category = 'task'").await?
    );
    assert!(text.contains("\"{\"\"order\"\":"), "JSON is quoted: {text}");
    let postings = lines(&get(&world, Some(&auditor), &format!("/audit/postings?tenant={}", world.tenant)).await?)?;
    assert_eq!(postings.len(), 3);
    let sum: i64 = postings.iter().filter_map(|row| row["amount"].as_i64()).sum();
    assert_eq!(sum, 880);
    let after = format!("/audit/postings?after={}/{}", world.tenant, postings[0]["version"]);
    assert_eq!(lines(&get(&world, Some(&auditor), &after).await?)?[0], postings[1]);
    for (token, path, status) in [
        (None, "/audit/events", StatusCode::UNAUTHORIZED),
        (Some(world.creator()?), "/audit/events", StatusCode::FORBIDDEN),
        (Some(auditor.clone()), "/audit/nothing", StatusCode::NOT_FOUND),
        (Some(auditor.clone()), "/audit/events?format=xml", StatusCode::BAD_REQUEST),
        (Some(auditor.clone()), "/audit/events?after=x", StatusCode::BAD_REQUEST),
        (Some(auditor.clone()), "/audit/events?colour=red", StatusCode::BAD_REQUEST),
        (Some(auditor.clone()), "/audit/events?category=x", StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(get(&world, token.as_deref(), path).await?.status, status, "{path}");
    }
    Ok(())
}

/// A part is read when it is asked for, and not before: what is in memory is one part, however many there are.
#[tokio::test]
async fn half_a_million_rows_are_never_in_memory_together() -> Result<()> {
    let world = World::new().await?;
    world
        .db
        .sql(
            "INSERT INTO read_account_entries (account_id, version, kind, business_key, amount, created_at, position)
             SELECT '00000000-0000-0000-0000-00000000000a', n, 'grant', 'key ' || n, 1, now(), n FROM generate_series(1, 500000) AS n",
        )
        .await?;
    let said = Statements::default();
    let guard = tracing::subscriber::set_default(said.clone());
    let request =
        Request::get("/audit/postings?format=csv").header("authorization", format!("Bearer {}", world.auditor()?));
    let response = world.router.clone().oneshot(request.body(Body::empty())?).await?;
    let mut parts = response.into_body().into_data_stream();
    let (mut bytes, mut rows, mut longest, mut read) = (0, 0, 0, 0);
    while let Some(part) = parts.next().await {
        let part = part?;
        read += said.take().iter().filter(|statement| statement.contains("export.ledger")).count();
        bytes += part.len();
        longest = longest.max(part.len());
        rows += part.iter().filter(|byte| **byte == b'\n').count();
        assert!(read <= rows / 1_000 + 1, "{read} parts were read for {rows} lines");
    }
    drop(guard);
    println!("{rows} lines, {bytes} bytes, read in {read} parts of at most {longest} bytes");
    assert_eq!(rows, 500_001);
    assert!(longest < 1 << 20);
    Ok(())
}

#[tokio::test]
async fn a_proof_is_what_the_check_takes() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let (task, version) = ended_task(&world).await?;
    let auditor = world.auditor()?;
    let path = format!("/audit/proof?task={task}");
    let unsealed = get(&world, Some(&auditor), &path).await?;
    assert_eq!((unsealed.status, &unsealed.json()?["error"]["code"]), (StatusCode::CONFLICT, &json!("NO_PROOF")));
    crate::world::seal(&world).await?;
    let proof = get(&world, Some(&auditor), &path).await?;
    assert_eq!(proof.status, StatusCode::OK, "{:?}", proof.body);
    let keys = [audit_key().public()];
    let checked = eventstore::audit::bundle::check(&proof.body[..], &keys)?;
    assert!(checked.flaws.is_empty() && checked.events >= u64::try_from(version)?, "{checked:?}");
    let mut forged = proof.body.to_vec();
    let place = forged.windows(6).position(|it| it == b"broken").context("the event")?;
    forged[place] = b'B';
    assert!(!eventstore::audit::bundle::check(&forged[..], &keys)?.flaws.is_empty());
    let nobody = get(&world, Some(&auditor), "/audit/proof?task=00000000-0000-0000-0000-000000000009").await?;
    assert_eq!(nobody.status, StatusCode::NOT_FOUND);
    Ok(())
}

/// Each look of somebody who may look at everything is a record that nobody can change; without it there is no answer.
#[tokio::test]
async fn every_look_of_an_auditor_is_recorded_first() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let (task, _) = ended_task(&world).await?;
    let auditor = world.auditor()?;
    world.ask(&auditor, "query($id: ID!) { task(id: $id) { state history { name } } }", json!({"id": task})).await?;
    get(&world, Some(&auditor), "/audit/events?after=1").await?;
    let query = "query($subject: String) { auditAccesses(subject: $subject) { actor what subject correlationId at } }";
    let own = world.ask(&auditor, query, json!({"subject": task})).await?;
    let looks = own["data"]["auditAccesses"].as_array().context("looks")?.clone();
    assert_eq!((looks.len(), &looks[0]["actor"], &looks[0]["what"]), (1, &json!("user:ada"), &json!("task")), "{own}");
    let all = world.ask(&auditor, query, json!({})).await?;
    let mut by_what = BTreeMap::new();
    for look in all["data"]["auditAccesses"].as_array().context("looks")? {
        *by_what.entry(look["what"].as_str().unwrap_or_default().to_owned()).or_insert(0) += 1;
    }
    assert_eq!(
        by_what.into_iter().collect::<Vec<_>>(),
        [("GET /audit/events".to_owned(), 1), ("auditAccesses".to_owned(), 2), ("task".to_owned(), 1)]
    );
    for change in
        ["UPDATE audit_accesses SET actor = 'user:eve'", "DELETE FROM audit_accesses", "TRUNCATE audit_accesses"]
    {
        assert!(world.db.sql(change).await.is_err(), "{change}");
    }
    // An owner's look is no look of an auditor's; and where nothing can be recorded, nothing is shown.
    let before = world.count("SELECT count(*) FROM audit_accesses").await?;
    world.ask(&world.creator()?, "query($id: ID!) { task(id: $id) { state } }", json!({"id": task})).await?;
    assert_eq!(world.count("SELECT count(*) FROM audit_accesses").await?, before);
    world.db.sql("ALTER TABLE audit_accesses RENAME TO gone").await?;
    let refused = world.ask(&auditor, "query($id: ID!) { task(id: $id) { state } }", json!({"id": task})).await?;
    assert_eq!((code(&refused), &refused["data"]["task"]), ("INTERNAL", &Value::Null));
    assert_eq!(get(&world, Some(&auditor), "/audit/events").await?.status, StatusCode::SERVICE_UNAVAILABLE);
    Ok(())
}
