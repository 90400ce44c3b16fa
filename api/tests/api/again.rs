//! Orders that are made from others, batches, and how tasks stand.

use crate::live::step;
use crate::world::{World, input, token};
use anyhow::{Context, Result};
use api::Role;
use domain::id::{AssetId, AttemptId, TaskId, TenantId};
use domain::outcome::{Probe, StoredObject};
use domain::task::{Command, ErrorClass, Video};
use serde_json::{Value, json};
use uuid::Uuid;

const RETRY: &str = "mutation($id: ID!, $key: String) { retryTask(taskId: $id, idempotencyKey: $key) {
    taskId version replayed refusal { code message field } task { state hold model durationSeconds } } }";
const EXPORT: &str = "mutation($id: ID!, $height: Int!, $key: String) {
    exportTask(taskId: $id, input: {heightPx: $height}, idempotencyKey: $key) {
        taskId version replayed refusal { code message field } task { state hold provider durationSeconds } } }";
const STANDING: &str = "query($id: ID!, $version: Int) { task(id: $id, atLeastVersion: $version) {
    state actions statusReason nextStepAt canceledBy
    queue { ahead exact expectedWaitSeconds }
    credits { reserved held settled released refunded state } } }";

async fn standing(world: &World, token: &str, task: &str, version: i64) -> Result<Value> {
    let answer = world.ask(token, STANDING, json!({"id": task, "version": version})).await?;
    anyhow::ensure!(answer["errors"].is_null(), "{answer}");
    Ok(answer["data"]["task"].clone())
}

fn object(key: &str, content_type: &str) -> StoredObject {
    StoredObject { key: key.to_owned(), bytes: 7, sha256: "ab".repeat(32), content_type: content_type.to_owned() }
}

/// Takes a task to its video.
async fn succeeded(world: &World, task: &str) -> Result<i64> {
    let id: TaskId = task.parse()?;
    step(world, task, |turn| {
        turn.task(Command::BeginSubmission { attempt_no: 1 })?;
        turn.task(Command::Accept)?;
        turn.task(Command::BeginFetch)?;
        let asset = AssetId::of(AttemptId::of(id, 1), "video");
        turn.task(Command::StoreVideo(Video { asset, object: object("videos/1.mp4", "video/mp4") }))?;
        let probe = Probe {
            duration_millis: Some(3_200),
            width: 320,
            height: 240,
            video_codec: "h264".to_owned(),
            audio_codec: None,
            millihertz: None,
        };
        turn.task(Command::Finish {
            probe,
            thumbnail: object("videos/1.jpg", "image/jpeg"),
            charge: domain::money::Credits(100),
        })
    })
    .await
}

async fn failed(world: &World, task: &str, class: ErrorClass) -> Result<i64> {
    step(world, task, |turn| {
        turn.task(Command::BeginSubmission { attempt_no: 1 })?;
        turn.task(Command::Fail { class, code: "no".to_owned(), message: "the provider says no".to_owned() })
    })
    .await
}

#[tokio::test]
async fn a_task_that_failed_is_tried_again_as_a_new_one() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 10_000).await?;
    let creator = world.creator()?;
    let old = world.submitted(&creator, "k").await?;
    let retry = async |token: &str, id: &str, key: Option<&str>| -> Result<Value> {
        let answer = world.ask(token, RETRY, json!({"id": id, "key": key})).await?;
        anyhow::ensure!(answer["errors"].is_null(), "{answer}");
        Ok(answer["data"]["retryTask"].clone())
    };
    let refused = retry(&creator, &old, Some("again")).await?;
    assert_eq!((&refused["refusal"]["code"], &refused["taskId"]), (&json!("NOT_RETRYABLE"), &Value::Null));
    failed(&world, &old, ErrorClass::Provider).await?;
    assert_eq!(retry(&creator, &old, None).await?["refusal"]["code"], "BAD_IDEMPOTENCY_KEY");
    let stranger = token(TenantId(Uuid::new_v4()), &[Role::Creator])?;
    assert_eq!(retry(&stranger, &old, Some("again")).await?["refusal"]["code"], "NOT_FOUND");
    assert_eq!(retry(&creator, &Uuid::new_v4().to_string(), Some("again")).await?["refusal"]["code"], "NOT_FOUND");
    // The refusal above has not used the key up.
    let new = retry(&creator, &old, Some("again")).await?;
    assert_eq!(
        new["task"],
        json!({"state": "QUEUED", "hold": "120", "model": "aivideo/paper-boat-1", "durationSeconds": 4}),
        "{new}"
    );
    let replayed = retry(&creator, &old, Some("again")).await?;
    assert_eq!((&replayed["taskId"], &replayed["replayed"]), (&new["taskId"], &json!(true)));
    assert_ne!(new["taskId"], json!(old));
    let id = new["taskId"].as_str().context("a task")?;
    let same = "SELECT count(*) FROM generation_requests a JOIN generation_requests b USING (prompt) WHERE a.task_id <> b.task_id";
    assert_eq!(world.count(same).await?, 2, "the same request");
    let of = format!("SELECT count(*) FROM events WHERE stream_id = '{id}' AND body->'order'->>'retry_of' = '{old}'");
    assert_eq!(world.count(&of).await?, 1);
    // The same key for another task is another request.
    let other = world.submitted(&creator, "k2").await?;
    failed(&world, &other, ErrorClass::Provider).await?;
    assert_eq!(retry(&creator, &other, Some("again")).await?["refusal"]["code"], "IDEMPOTENCY_KEY_REUSED");
    // Refused content stays refused.
    let content = world.submitted(&creator, "k3").await?;
    failed(&world, &content, ErrorClass::Moderation).await?;
    assert_eq!(retry(&creator, &content, Some("content")).await?["refusal"]["code"], "NOT_RETRYABLE");
    Ok(())
}

#[tokio::test]
async fn a_finished_video_is_exported_as_a_task_of_its_own() -> Result<()> {
    let world = World::with(|config| config.export_price_per_second = 10).await?;
    world.grant(world.tenant, 10_000).await?;
    let creator = world.creator()?;
    let source = world.submitted(&creator, "k").await?;
    let export = async |height: i64, key: &str| -> Result<Value> {
        let answer = world.ask(&creator, EXPORT, json!({"id": source, "height": height, "key": key})).await?;
        anyhow::ensure!(answer["errors"].is_null(), "{answer}");
        Ok(answer["data"]["exportTask"].clone())
    };
    assert_eq!(export(240, "e").await?["refusal"]["code"], "NOT_EXPORTABLE");
    let version = succeeded(&world, &source).await?;
    for height in [0, -2, 143, 241, 2_162] {
        assert_eq!(export(height, "e").await?["refusal"]["code"], "BAD_EXPORT", "{height}");
    }
    let made = export(240, "e").await?;
    // 3.2 s are four started seconds, of which 120 % are held.
    assert_eq!(
        made["task"],
        json!({"state": "QUEUED", "hold": "48", "provider": "export", "durationSeconds": 4}),
        "{made}"
    );
    assert_eq!(export(240, "e").await?["replayed"], true);
    assert_eq!(export(480, "e").await?["refusal"]["code"], "IDEMPOTENCY_KEY_REUSED");
    let id = made["taskId"].as_str().context("a task")?;
    let of = format!(
        "SELECT count(*) FROM events WHERE stream_id = '{id}' AND body->'order'->'work'->>'source' = '{source}'
            AND body->'order'->'work'->>'source_key' = 'videos/1.mp4'"
    );
    assert_eq!(world.count(&of).await?, 1);
    let render = format!("SELECT count(*) FROM outbox_events WHERE aggregate_id = '{id}' AND topic LIKE '%render%'");
    assert_eq!(world.count(&render).await?, 1, "it is to be rendered");
    let stands = standing(&world, &creator, &source, version).await?;
    assert_eq!(stands["actions"], json!(["EXPORT", "DOWNLOAD"]));
    Ok(())
}

#[tokio::test]
async fn a_batch_says_of_each_what_came_of_it_and_is_done_once() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 300).await?;
    let creator = world.creator()?;
    let batch = "mutation($inputs: [GenerationInput!]!, $key: String) {
        submitGenerations(inputs: $inputs, idempotencyKey: $key) {
            refusal { code field } results { taskId replayed refusal { code field } } } }";
    let ask = async |inputs: Vec<Value>, key: Option<&str>| -> Result<Value> {
        let answer = world.ask(&creator, batch, json!({"inputs": inputs, "key": key})).await?;
        anyhow::ensure!(answer["errors"].is_null(), "{answer}");
        Ok(answer["data"]["submitGenerations"].clone())
    };
    let mut wrong = input("a boat");
    wrong["model"] = "no such model".into();
    // Two holds of 120 leave not enough for a third.
    let inputs = vec![input("one"), wrong, input("two"), input("three")];
    let first = ask(inputs.clone(), Some("batch")).await?;
    let codes = |answer: &Value| -> Vec<Value> {
        answer["results"].as_array().into_iter().flatten().map(|it| it["refusal"]["code"].clone()).collect()
    };
    assert_eq!(
        codes(&first),
        [Value::Null, json!("UNKNOWN_MODEL"), Value::Null, json!("INSUFFICIENT_CREDITS")],
        "{first}"
    );
    world.grant_again(world.tenant, 1_000).await?;
    let again = ask(inputs.clone(), Some("batch")).await?;
    assert_eq!(
        codes(&again),
        [Value::Null, json!("UNKNOWN_MODEL"), Value::Null, Value::Null],
        "what was refused is tried again"
    );
    for number in [0, 2] {
        let (before, after) = (&first["results"][number], &again["results"][number]);
        assert_eq!((&after["taskId"], &after["replayed"]), (&before["taskId"], &json!(true)));
    }
    assert_eq!(world.count("SELECT count(*) FROM events WHERE name = 'task.submitted'").await?, 3);
    let mut other = inputs.clone();
    other.swap(0, 2);
    assert_eq!(codes(&ask(other, Some("batch")).await?)[0], "IDEMPOTENCY_KEY_REUSED");
    // A batch's keys are not a single one's.
    assert!(
        world.submit(&creator, Some("batch/0"), &input("one")).await?["refusal"]["code"] != "IDEMPOTENCY_KEY_REUSED"
    );
    assert_eq!(ask(vec![], Some("empty")).await?["refusal"], json!({"code": "BAD_BATCH", "field": "inputs"}));
    for key in [None, Some("x".repeat(251))] {
        assert_eq!(ask(inputs.clone(), key.as_deref()).await?["refusal"]["code"], "BAD_IDEMPOTENCY_KEY");
    }
    let eleven = world.ask(&creator, batch, json!({"inputs": vec![input("x"); 11], "key": "many"})).await?;
    assert_eq!(eleven["data"]["submitGenerations"]["refusal"]["code"], "BAD_BATCH", "{eleven}");
    Ok(())
}

/// The header does for every mutation what the argument does.
#[tokio::test]
async fn a_key_in_the_header_is_a_key() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 10_000).await?;
    let creator = world.creator()?;
    let old = world.submitted(&creator, "k").await?;
    failed(&world, &old, ErrorClass::Provider).await?;
    let ask = async |argument: Option<&str>| -> Result<Value> {
        let body = json!({"query": RETRY, "variables": {"id": old, "key": argument}}).to_string();
        Ok(world.post(Some(&creator), &[("idempotency-key", " again ")], body).await?.json()?["data"]["retryTask"]
            .clone())
    };
    let first = ask(None).await?;
    assert!(first["taskId"].is_string(), "{first}");
    assert_eq!(ask(Some("again")).await?["taskId"], first["taskId"]);
    assert_eq!(ask(Some("AGAIN")).await?["refusal"]["code"], "BAD_IDEMPOTENCY_KEY");
    Ok(())
}

#[tokio::test]
async fn a_task_says_how_it_stands_and_what_can_be_done_next() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 10_000).await?;
    let creator = world.creator()?;
    let mut tasks = vec![];
    for key in ["a", "b", "c"] {
        tasks.push(world.submitted(&creator, key).await?);
    }
    let last = standing(&world, &creator, &tasks[2], 1).await?;
    assert_eq!(
        last["queue"],
        json!({"ahead": 2, "exact": true, "expectedWaitSeconds": null}),
        "nobody has been served yet"
    );
    assert_eq!(last["actions"], json!(["CANCEL"]));
    assert_eq!(last["credits"]["held"], last["credits"]["reserved"]);
    assert_eq!(last["credits"]["state"], "OPEN");
    assert!(
        last["nextStepAt"].is_string() && last["statusReason"].as_str().is_some_and(|it| it.contains("in line")),
        "{last}"
    );
    let version = failed(&world, &tasks[0], ErrorClass::Provider).await?;
    let first = standing(&world, &creator, &tasks[0], version).await?;
    assert_eq!((&first["actions"], &first["queue"]), (&json!(["RETRY"]), &Value::Null));
    assert_eq!(first["statusReason"], "the provider says no");
    assert_eq!(standing(&world, &creator, &tasks[2], 1).await?["queue"]["ahead"], 1);
    let cancel = "mutation($id: ID!) { cancelTask(taskId: $id) { version } }";
    world.ask(&creator, cancel, json!({"id": tasks[1]})).await?;
    let canceled = standing(&world, &creator, &tasks[1], 2).await?;
    assert_eq!((&canceled["canceledBy"], &canceled["actions"]), (&json!("user:ada"), &json!(["RETRY"])));
    // What can be done depends on who asks.
    for (who, expected) in
        [(token(world.tenant, &[])?, json!([])), (world.auditor()?, json!([])), (world.operator()?, json!(["CANCEL"]))]
    {
        assert_eq!(standing(&world, &who, &tasks[2], 1).await?["actions"], expected);
    }
    Ok(())
}
