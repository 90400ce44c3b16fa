//! Watching: snapshots, changes, going on after a break, slow and silent watchers, many at once; over server-sent events.

use crate::statements::Statements;
use crate::world::{SECRET, World, expires_in, token};
use anyhow::{Context, Result};
use api::{Claims, JwksConfig, Role, mint};
use axum::body::{Body, BodyDataStream};
use axum::http::{Request, StatusCode};
use domain::aggregate::Refusal;
use domain::id::{CausationId, CorrelationId, TaskId, TenantId};
use domain::process::{CaseKey, Turn};
use domain::task::Command;
use eventstore::Meta;
use futures_util::StreamExt;
use projections::live::{Begin, Feed, Item, Topic};
use projections::query::Viewer;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tower::ServiceExt;
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(20);
const UPDATES: &str = "subscription($ids: [ID!]!, $after: BigInt) {
    taskUpdates(taskIds: $ids, after: $after) { kind position event recordedAt task { taskId version state } } }";
const TENANT: &str = "subscription($after: BigInt) {
    tenantUpdates(after: $after) { kind position event task { taskId version state progressPercent attempts { state } } } }";

/// A stream of server-sent events.
pub struct Events {
    body: BodyDataStream,
    text: String,
}

impl Events {
    pub async fn open(world: &World, token: &str, query: &str, variables: Value) -> Result<Self> {
        let request = Request::post("/graphql")
            .header("content-type", "application/json")
            .header("accept", "text/event-stream")
            .header("authorization", format!("Bearer {token}"))
            .body(Body::from(json!({"query": query, "variables": variables}).to_string()))?;
        let response = world.router.clone().oneshot(request).await?;
        anyhow::ensure!(response.status() == StatusCode::OK, "{}", response.status());
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Ok(Self { body: response.into_body().into_data_stream(), text: String::new() })
    }

    /// The next event's name and data; `None` at the end. Comments do not count.
    pub async fn next(&mut self) -> Result<Option<(String, Value)>> {
        loop {
            while let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                let line = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                let Some(name) = line("event:") else { continue };
                let data = line("data:").unwrap_or_default();
                let data = if data.is_empty() { Value::Null } else { serde_json::from_str(data)? };
                return Ok(Some((name.to_owned(), data)));
            }
            match timeout(PATIENCE, self.body.next()).await.context("nothing came in time")? {
                Some(chunk) => self.text.push_str(std::str::from_utf8(&chunk?)?),
                None => return Ok(None),
            }
        }
    }

    /// The next update.
    async fn update(&mut self) -> Result<Value> {
        let (name, data) = self.next().await?.context("ended")?;
        anyhow::ensure!(name == "next" && data["errors"].is_null(), "{name}: {data}");
        let fields = data["data"].as_object().context("data")?;
        Ok(fields.values().next().context("a root field")?.clone())
    }

    /// Updates up to the first of this kind, that one included.
    async fn until(&mut self, kind: &str) -> Result<Vec<Value>> {
        let mut updates = vec![];
        loop {
            let update = self.update().await?;
            let found = update["kind"] == kind;
            updates.push(update);
            if found {
                return Ok(updates);
            }
        }
    }
}

/// Something happens to a task, in one transaction.
pub async fn step<F>(world: &World, task: &str, commands: F) -> Result<i64>
where
    F: Fn(&mut Turn<'_>) -> Result<(), Refusal> + Send + Sync,
{
    let task: TaskId = task.parse()?;
    let correlation = Uuid::new_v4();
    let meta = Meta {
        tenant: world.tenant,
        correlation: CorrelationId(correlation),
        causation: CausationId(correlation),
        actor: "test".to_owned(),
        trace: correlation.simple().to_string(),
    };
    let request = eventstore::Request { meta, key: None, tenant_wall: true };
    Ok(world.db.store().execute(&request, CaseKey::task(task), None, commands).await?.version)
}

/// Takes a task to where it can be put off for ever.
pub async fn fetching(world: &World, task: &str) -> Result<i64> {
    step(world, task, |turn| {
        turn.task(Command::BeginSubmission { attempt_no: 1 })?;
        turn.task(Command::Accept)?;
        turn.task(Command::BeginFetch)
    })
    .await
}

/// So many changes in one transaction.
pub async fn put_off(world: &World, task: &str, times: u32) -> Result<i64> {
    step(world, task, |turn| {
        for _ in 0..times {
            let retry_at = turn.now;
            turn.task(Command::DelayFetch { retry_at, cause: "not yet".to_owned() })?;
        }
        Ok(())
    })
    .await
}

async fn fail(world: &World, task: &str) -> Result<i64> {
    step(world, task, |turn| {
        turn.task(Command::Fail {
            class: domain::task::ErrorClass::Provider,
            code: "broken".to_owned(),
            message: "it broke".to_owned(),
        })
    })
    .await
}

fn versions(updates: &[Value]) -> Vec<i64> {
    updates.iter().filter_map(|update| update["task"]["version"].as_i64()).collect()
}

fn kinds(updates: &[Value]) -> Vec<&str> {
    updates.iter().filter_map(|update| update["kind"].as_str()).collect()
}

async fn world_with_task() -> Result<(World, String, String)> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000_000).await?;
    let creator = world.creator()?;
    let task = world.submitted(&creator, "k").await?;
    shown(&world, &creator, &task, 1).await?;
    Ok((world, creator, task))
}

async fn shown(world: &World, token: &str, task: &str, version: i64) -> Result<()> {
    let query = "query($id: ID!, $version: Int) { task(id: $id, atLeastVersion: $version) { version } }";
    let answer = world.ask(token, query, json!({"id": task, "version": version})).await?;
    anyhow::ensure!(answer["data"]["task"].is_object(), "{answer}");
    Ok(())
}

/// G10: a snapshot, then every version in order, also of many in one transaction, to the end.
#[tokio::test]
async fn g10_a_snapshot_then_every_version_in_order_to_the_end() -> Result<()> {
    let (world, creator, task) = world_with_task().await?;
    let mut events = Events::open(&world, &creator, UPDATES, json!({"ids": [task]})).await?;
    let begun = events.until("CURRENT").await?;
    assert_eq!(kinds(&begun), ["SNAPSHOT", "CURRENT"]);
    assert_eq!((versions(&begun), &begun[0]["position"]), (vec![1], &Value::Null));
    fetching(&world, &task).await?;
    put_off(&world, &task, 40).await?;
    fail(&world, &task).await?;
    let mut told = vec![];
    while let Some((name, data)) = events.next().await? {
        if name == "complete" {
            break;
        }
        told.push(data["data"]["taskUpdates"].clone());
    }
    assert_eq!(versions(&told), (2..=45).collect::<Vec<_>>(), "none left out, none twice, none out of order");
    assert!(kinds(&told).iter().all(|kind| *kind == "CHANGE"));
    assert_eq!(told[0]["event"], "task.submission_begun");
    assert_eq!(told[0]["task"]["state"], "SUBMITTING", "the task as it was at that version");
    assert_eq!(told[43]["task"]["state"], "FAILED");
    assert_eq!(events.next().await?, None, "the stream ends after `complete`");
    // A query shows what was told.
    shown(&world, &creator, &task, 45).await?;
    assert_eq!(world.reader.live().subscribers(), 0);
    Ok(())
}

/// Whoever connects again goes on from where they were: by position, or by version.
#[tokio::test]
async fn after_a_break_it_goes_on_without_a_gap_or_a_repeat() -> Result<()> {
    let (world, creator, task) = world_with_task().await?;
    let mut events = Events::open(&world, &creator, UPDATES, json!({"ids": [task]})).await?;
    events.until("CURRENT").await?;
    fetching(&world, &task).await?;
    let last = [events.update().await?, events.update().await?];
    assert_eq!(versions(&last), [2, 3]);
    drop(events);
    put_off(&world, &task, 10).await?;
    shown(&world, &creator, &task, 14).await?;
    let after = json!({"ids": [task], "after": last[1]["position"]});
    let mut events = Events::open(&world, &creator, UPDATES, after.clone()).await?;
    let missed = events.until("CURRENT").await?;
    assert_eq!(versions(&missed), (4..=14).collect::<Vec<_>>());
    fail(&world, &task).await?;
    assert_eq!(versions(&[events.update().await?]), [15]);
    assert_eq!(events.next().await?.context("an event")?.0, "complete");
    // Who knew the end already is told that there is nothing more.
    let status = "subscription($id: ID!, $from: Int) { taskStatus(taskId: $id, fromVersion: $from) { version } }";
    for (from, expected) in [(12, vec![13, 14, 15]), (15, vec![]), (99, vec![])] {
        let mut events = Events::open(&world, &creator, status, json!({"id": task, "from": from})).await?;
        let mut told = vec![];
        while let Some((name, data)) = events.next().await? {
            if name == "next" {
                told.push(data["data"]["taskStatus"]["version"].as_i64().context("a version")?);
            }
        }
        assert_eq!(told, expected, "from {from}");
    }
    // The same for a tenant; and a position that the log has not come to is no place to go on from.
    for (query, variables) in [(TENANT, json!({"after": last[1]["position"]})), (UPDATES, after)] {
        let told = Events::open(&world, &creator, query, variables).await?.until("CURRENT").await?;
        assert_eq!(versions(&told), (4..=15).collect::<Vec<_>>());
    }
    let told = Events::open(&world, &creator, TENANT, json!({"after": "999999999"})).await?.until("CURRENT").await?;
    assert_eq!(kinds(&told), ["RESYNC", "CURRENT"]);
    Ok(())
}

/// G10: whoever subscribes between a change and its commit, or its being shown, misses nothing.
#[tokio::test]
async fn g10_whoever_begins_while_things_happen_sees_each_version_once() -> Result<()> {
    let (world, creator, task) = world_with_task().await?;
    fetching(&world, &task).await?;
    let happens = async {
        for _ in 0..60 {
            put_off(&world, &task, 2).await?;
        }
        fail(&world, &task).await
    };
    let watch = async {
        let mut watchers = tokio::task::JoinSet::new();
        for _ in 0..25 {
            let mut events = Events::open(&world, &creator, UPDATES, json!({"ids": [task]})).await?;
            watchers.spawn(async move {
                let mut told = vec![];
                while let Some((name, data)) = events.next().await? {
                    if name == "next" {
                        told.push(data["data"]["taskUpdates"].clone());
                    }
                }
                anyhow::Ok(told)
            });
            tokio::task::yield_now().await;
            let pause = world.count("SELECT count(*) FROM events").await?;
            assert!(pause > 0);
        }
        anyhow::Ok(watchers.join_all().await)
    };
    let (last, watchers) = tokio::join!(happens, watch);
    let (last, mut begun) = (last?, BTreeSet::new());
    for told in watchers? {
        let seen = versions(&told?);
        let first = *seen.first().context("a snapshot")?;
        begun.insert(first);
        assert_eq!(seen, (first..=last).collect::<Vec<_>>(), "from {first}");
    }
    println!("25 watchers began at {} different versions, and each saw all up to {last}", begun.len());
    Ok(())
}

/// G10: a watcher that is too slow costs a bounded queue, is told, and gets the state as it is.
#[tokio::test]
async fn g10_a_slow_watcher_is_told_to_begin_anew_and_gets_the_final_state() -> Result<()> {
    let (world, creator, task) = world_with_task().await?;
    let version = fetching(&world, &task).await?;
    shown(&world, &creator, &task, version).await?;
    let topic = Topic::Tasks(BTreeSet::from([task.parse()?]));
    let mut slow = Feed::open(&world.reader, Viewer::of(world.tenant), topic.clone(), Begin::Now);
    let mut quick = Feed::open(&world.reader, Viewer::of(world.tenant), topic, Begin::Now);
    for feed in [&mut slow, &mut quick] {
        assert!(matches!(feed.next().await?, Some(Item::Snapshot(_))));
        assert!(matches!(feed.next().await?, Some(Item::Current(_))));
    }
    let mut last = version;
    for _ in 0..20 {
        let begun = last;
        last = put_off(&world, &task, 50).await?;
        for expected in begun + 1..=last {
            let Some(Item::Change(change)) = timeout(PATIENCE, quick.next()).await?? else {
                anyhow::bail!("a change was expected");
            };
            assert_eq!(change.row.version, expected, "a quick one misses nothing");
        }
    }
    assert!(matches!(slow.next().await?, Some(Item::Resync)));
    let Some(Item::Snapshot(row)) = slow.next().await? else { anyhow::bail!("a snapshot was expected") };
    assert_eq!(row.version, last);
    assert!(matches!(slow.next().await?, Some(Item::Current(_))));
    let last = fail(&world, &task).await?;
    let Some(Item::Change(change)) = timeout(PATIENCE, slow.next()).await?? else {
        anyhow::bail!("a change was expected");
    };
    assert_eq!((change.row.version, change.row.state.as_str()), (last, "FAILED"));
    assert!(slow.next().await?.is_none());
    Ok(())
}

/// Statements by their names while `changes` changes are told to `watchers` watchers of a tenant.
async fn statements_for(
    world: &World,
    creator: &str,
    task: &str,
    watchers: usize,
    changes: u32,
) -> Result<Vec<String>> {
    let mut open = vec![];
    for _ in 0..watchers {
        let mut events = Events::open(world, creator, TENANT, json!({})).await?;
        events.until("CURRENT").await?;
        open.push(events);
    }
    assert_eq!(world.reader.live().subscribers(), watchers);
    let said = Statements::default();
    let guard = tracing::subscriber::set_default(said.clone());
    for _ in 0..changes {
        let version = put_off(world, task, 1).await?;
        for events in &mut open {
            assert_eq!(events.update().await?["task"]["version"], version);
        }
    }
    drop(guard);
    // The checkpoint is looked at now and then, whatever happens; the rest is what the changes cost.
    let ours = |statement: &String| {
        (statement.contains("live.") && !statement.contains("live.checkpoint")) || statement.contains("projections.")
    };
    Ok(said.take().into_iter().filter(ours).collect())
}

#[tokio::test]
async fn a_thousand_watchers_cost_as_many_statements_as_one() -> Result<()> {
    let (world, creator, task) = world_with_task().await?;
    let version = fetching(&world, &task).await?;
    shown(&world, &creator, &task, version).await?;
    let one = statements_for(&world, &creator, &task, 1, 10).await?;
    let thousand = statements_for(&world, &creator, &task, 1_000, 10).await?;
    println!("10 changes: {} statements for 1 watcher, {} for 1,000", one.len(), thousand.len());
    assert!(!one.is_empty() && one.len() <= 30, "{one:#?}");
    assert!(thousand.len() <= one.len() + 5, "{thousand:#?}");
    let left = Instant::now();
    while world.reader.live().subscribers() > 0 {
        anyhow::ensure!(left.elapsed() < PATIENCE, "watchers that are gone are still kept");
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// A watcher sees what is its tenant's and nothing else.
#[tokio::test]
async fn a_watcher_sees_its_own_tenant_only() -> Result<()> {
    let (world, creator, task) = world_with_task().await?;
    let other = TenantId(Uuid::new_v4());
    world.grant(other, 1_000).await?;
    let stranger = token(other, &[Role::Creator])?;
    let mut own = Events::open(&world, &creator, TENANT, json!({})).await?;
    let mut others = Events::open(&world, &stranger, TENANT, json!({})).await?;
    assert_eq!(versions(&own.until("CURRENT").await?), [1]);
    assert_eq!(kinds(&others.until("CURRENT").await?), ["CURRENT"]);
    fetching(&world, &task).await?;
    let theirs = world.submitted(&stranger, "k").await?;
    let update = others.update().await?;
    assert_eq!((&update["task"]["taskId"], &update["event"]), (&json!(theirs), &json!("task.submitted")));
    assert_eq!(own.update().await?["task"]["taskId"], json!(task));
    let mut refused = Events::open(&world, &stranger, UPDATES, json!({"ids": [theirs, task]})).await?;
    assert!(refused.next().await?.context("an event")?.1.to_string().contains("NOT_FOUND"));
    Ok(())
}

/// G8: a key that its issuer takes back ends what was opened with it; a token that is over does too.
#[tokio::test]
async fn g8_a_subscription_ends_when_its_key_is_taken_back() -> Result<()> {
    let world = World::with(|config| {
        let (issuer, audience) = ("https://login.example".to_owned(), "aivideo".to_owned());
        config.jwks = Some(JwksConfig { url: String::new(), issuer, audience, refresh_seconds: 60 });
    })
    .await?;
    let key = jsonwebtoken::EncodingKey::from_ed_der(include_bytes!("../keys/ed25519.der"));
    let publish = |id: &str| -> Result<String> {
        let mut jwk =
            serde_json::to_value(jsonwebtoken::jwk::Jwk::from_encoding_key(&key, jsonwebtoken::Algorithm::EdDSA)?)?;
        jwk["kid"] = id.into();
        Ok(json!({"keys": [jwk]}).to_string())
    };
    world.keys.replace(&publish("today")?)?;
    let header =
        jsonwebtoken::Header { kid: Some("today".into()), ..jsonwebtoken::Header::new(jsonwebtoken::Algorithm::EdDSA) };
    let said = json!({"sub": "ada", "tenant": world.tenant, "roles": ["creator"], "exp": expires_in(600)?,
        "iss": "https://login.example", "aud": "aivideo"});
    let token = jsonwebtoken::encode(&header, &said, &key)?;
    let mut events = Events::open(&world, &token, TENANT, json!({})).await?;
    events.until("CURRENT").await?;
    let short = Claims { sub: "ada".into(), tenant: world.tenant, roles: vec![], exp: expires_in(2)? };
    let mut over = Events::open(&world, &mint(SECRET, &short)?, TENANT, json!({})).await?;
    over.until("CURRENT").await?;
    world.keys.replace(&publish("tomorrow")?)?;
    for events in [&mut events, &mut over] {
        let (name, data) = events.next().await?.context("an event")?;
        assert!(name == "next" && data.to_string().contains("UNAUTHENTICATED"), "{data}");
        assert_eq!(events.next().await?.context("an event")?.0, "complete");
    }
    Ok(())
}

/// Server-sent events: what is not a subscription, what is refused, and what comes by GET.
#[tokio::test]
async fn answers_are_streamed_as_the_protocol_has_it() -> Result<()> {
    let (world, creator, task) = world_with_task().await?;
    let mut query = Events::open(&world, &creator, "{ models { name } }", json!({})).await?;
    let (name, data) = query.next().await?.context("an event")?;
    assert!(name == "next" && data["data"]["models"].is_array(), "{data}");
    assert_eq!(query.next().await?, Some(("complete".to_owned(), Value::Null)));
    assert_eq!(query.next().await?, None);
    let mut invalid = Events::open(&world, &creator, "{ nothing }", json!({})).await?;
    assert!(invalid.next().await?.context("an event")?.1["errors"].is_array());
    assert_eq!(invalid.next().await?.context("an event")?.0, "complete");
    let ask = |method: &str, query: &str, token: Option<&str>| {
        let mut request =
            Request::builder().header("accept", "text/event-stream").header("content-type", "application/json");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if method == "GET" {
            let query: String = url_encoded(query);
            return request.uri(format!("/graphql?query={query}")).body(Body::empty());
        }
        request.method("POST").uri("/graphql").body(Body::from(json!({"query": query}).to_string()))
    };
    let answer = world.call(ask("POST", "{ models { name } }", Some("nonsense"))?).await?;
    assert_eq!(
        (answer.status, &answer.json()?["errors"][0]["extensions"]["code"]),
        (StatusCode::UNAUTHORIZED, &json!("UNAUTHENTICATED"))
    );
    let follow = format!("subscription {{ taskStatus(taskId: \"{task}\") {{ version }} }}");
    let response = world.router.clone().oneshot(ask("GET", &follow, Some(&creator))?).await?;
    let mut events = Events { body: response.into_body().into_data_stream(), text: String::new() };
    assert_eq!(events.next().await?.context("an event")?.1, json!({"data": {"taskStatus": {"version": 1}}}));
    let cancel = format!("mutation {{ cancelTask(taskId: \"{task}\") {{ version }} }}");
    assert_eq!(world.call(ask("GET", &cancel, Some(&creator))?).await?.status, StatusCode::METHOD_NOT_ALLOWED);
    // The server says that it is there, and ends what it has begun when it stops.
    Ok(())
}

fn url_encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// A server that stops says so, rather than end as if everything were told.
#[tokio::test]
async fn a_server_that_stops_says_so() -> Result<()> {
    let (mut world, creator, _) = world_with_task().await?;
    let mut events = Events::open(&world, &creator, TENANT, json!({})).await?;
    events.until("CURRENT").await?;
    world.stop_projecting().await;
    assert!(events.next().await?.context("an event")?.1.to_string().contains("UNAVAILABLE"));
    assert_eq!(events.next().await?.context("an event")?.0, "complete");
    assert_eq!(world.reader.live().subscribers(), 0);
    Ok(())
}

/// From COMMIT to the watcher, one change after the other, and under load.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_told_soon() -> Result<()> {
    let (world, creator, task) = world_with_task().await?;
    let version = fetching(&world, &task).await?;
    shown(&world, &creator, &task, version).await?;
    let mut events = Events::open(&world, &creator, TENANT, json!({})).await?;
    events.until("CURRENT").await?;
    let mut took = vec![];
    for _ in 0..100 {
        let version = put_off(&world, &task, 1).await?;
        let committed = Instant::now();
        assert_eq!(events.update().await?["task"]["version"], version);
        took.push(committed.elapsed());
    }
    took.sort();
    println!("one by one: median {:?}, p99 {:?}", took[50], took[98]);
    let (writers, each) = (8, 100);
    let mut tasks = vec![];
    for number in 0..writers {
        let task = world.submitted(&creator, &format!("load {number}")).await?;
        fetching(&world, &task).await?;
        tasks.push(task);
    }
    let load = async {
        let begun = Instant::now();
        let write = async |task: &String| -> Result<Vec<((String, i64), Instant)>> {
            let mut committed = vec![];
            for _ in 0..each {
                let version = put_off(&world, task, 1).await?;
                committed.push(((task.clone(), version), Instant::now()));
            }
            Ok(committed)
        };
        let written = futures_util::future::try_join_all(tasks.iter().map(write)).await?;
        anyhow::Ok((written.concat(), begun.elapsed()))
    };
    let watch = async {
        let mut told = std::collections::HashMap::new();
        // Three versions of each come from taking it to where the load begins, and one from submitting it.
        while told.len() < writers * (each + 4) {
            let update = events.update().await?;
            let task = update["task"]["taskId"].as_str().context("a task")?.to_owned();
            told.insert((task, update["task"]["version"].as_i64().context("a version")?), Instant::now());
        }
        anyhow::Ok(told)
    };
    let (load, told) = tokio::join!(load, watch);
    let ((committed, lasted), told) = (load?, told?);
    let mut took: Vec<Duration> =
        committed.iter().map(|(change, at)| told[change].saturating_duration_since(*at)).collect();
    took.sort();
    let rate = committed.len() as f64 / lasted.as_secs_f64();
    println!("{rate:.0} changes a second: median {:?}, p99 {:?}", took[took.len() / 2], took[took.len() * 99 / 100]);
    // Other tests run beside it: this finds what hangs, and the line above says how long it takes.
    assert!(took[took.len() / 2] < Duration::from_secs(5));
    Ok(())
}
