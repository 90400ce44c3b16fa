//! No statement per row: a page of a hundred tasks with everything in it takes as many statements as a page of one.

use crate::contract::Contract;
use crate::world::{World, token};
use anyhow::{Context, Result};
use api::Role;
use domain::id::TenantId;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::sync::Once;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use uuid::Uuid;

thread_local! {
    /// The statements that this thread has sent, while somebody writes them down.
    static SENT: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Writes down the statements that a thread sends, as sqlx tells them. For the whole process and for good: one that came and went
/// with its test would miss events whose place in the code another thread, where nobody listens, reaches first just then.
struct Statements;

impl Statements {
    /// What this thread sends while `work` is done. All of it must be done on this thread.
    async fn sent_by<T>(work: impl Future<Output = T>) -> (Vec<String>, T) {
        static LISTENING: Once = Once::new();
        LISTENING.call_once(|| tracing::subscriber::set_global_default(Self).expect("nobody else listens"));
        SENT.set(Some(vec![]));
        let done = work.await;
        (SENT.take().unwrap_or_default(), done)
    }
}

struct Summary(String);

impl Visit for Summary {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "summary" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Statements {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "sqlx::query"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        SENT.with_borrow_mut(|sent| {
            let Some(sent) = sent else { return };
            let mut summary = Summary(String::new());
            event.record(&mut summary);
            sent.push(summary.0);
        });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The statements that a page takes, and how many tasks it shows.
async fn page(world: &World, query: &str, first: u32) -> Result<(Vec<String>, Value)> {
    let creator = world.creator()?;
    let (statements, answer) = Statements::sent_by(world.ask(&creator, query, json!({"first": first}))).await;
    let answer = answer?;
    assert!(answer["errors"].is_null(), "{answer}");
    Ok((statements, answer["data"].clone()))
}

#[tokio::test]
async fn a_hundred_rows_take_as_many_statements_as_one() -> Result<()> {
    let mut world = World::with(|config| config.max_complexity = 1_000_000).await?;
    world.grant(world.tenant, 1_000_000).await?;
    let creator = world.creator()?;
    let mut last = String::new();
    for number in 0..100 {
        last = world.submitted(&creator, &format!("key-{number}")).await?;
    }
    let shown = "query($id: ID!) { task(id: $id, atLeastVersion: 1) { id } }";
    assert!(world.ask(&creator, shown, json!({"id": last})).await?["data"]["task"].is_object());
    world.stop_projecting().await;
    world
        .db
        .sql(
            "INSERT INTO read_attempts (attempt_id, task_id, tenant_id, version, number, provider, state, created_at, updated_at,
                                        position)
             SELECT gen_random_uuid(), task_id, tenant_id, 1, n, 'replicate', 'RUNNING', now(), now(), 1
               FROM read_tasks, generate_series(1, 3) AS n;
             INSERT INTO read_assets (asset_id, task_id, tenant_id, kind, object_key, bytes, sha256, content_type, created_at,
                                      position)
             SELECT gen_random_uuid(), task_id, tenant_id, kind, 'k/' || kind, 7, 'ab', 'video/mp4', now(), 1
               FROM read_tasks, unnest(ARRAY['video', 'thumbnail']) AS kind;",
        )
        .await?;
    let everything = Contract::read(&api::schema_sdl())?.everything_of("TaskConnection", &[]);
    let query = format!("query($first: Int) {{ tasks(first: $first) {everything} }}");
    let (one, answer) = page(&world, &query, 1).await?;
    let node = &answer["tasks"]["edges"][0]["node"];
    let parts = [("attempts", 3), ("assets", 2), ("history", 2)];
    for (part, length) in parts {
        assert_eq!(node[part].as_array().map(Vec::len), Some(length), "{part}: {node}");
    }
    let (hundred, answer) = page(&world, &query, 100).await?;
    let edges = answer["tasks"]["edges"].as_array().context("a page")?;
    assert!(
        edges.len() == 100
            && edges.iter().all(|edge| edge["node"]["history"].as_array().is_some_and(|it| it.len() == 2))
    );
    assert!(!one.is_empty() && one.len() <= 10, "{one:#?}");
    assert_eq!(one.len(), hundred.len(), "{hundred:#?}");
    println!("{} statements for 1 task and for 100", one.len());
    Ok(())
}

/// G7: what one request read is not shown to the next, nor to somebody else.
#[tokio::test]
async fn g7_nothing_is_kept_from_one_request_to_the_next() -> Result<()> {
    let mut world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let creator = world.creator()?;
    let task = world.submitted(&creator, "k").await?;
    let shown = "query($id: ID!) { task(id: $id, atLeastVersion: 1) { id } }";
    assert!(world.ask(&creator, shown, json!({"id": task})).await?["data"]["task"].is_object());
    world.stop_projecting().await;
    let insert = format!(
        "INSERT INTO read_assets (asset_id, task_id, tenant_id, kind, object_key, bytes, sha256, content_type, created_at, position)
         VALUES (gen_random_uuid(), '{task}', '{}', 'video', 'k', 7, 'ab', 'video/mp4', now(), 1)",
        world.tenant
    );
    world.db.sql(&insert).await?;
    let ask = "query($id: ID!) { task(id: $id) { video { id bytes } } }";
    let owner = world.ask(&creator, ask, json!({"id": task})).await?;
    let video = &owner["data"]["task"]["video"];
    assert_eq!(video["bytes"], "7");
    let stranger = token(TenantId(Uuid::new_v4()), &[Role::Creator])?;
    let node = "query($id: ID!) { node(id: $id) { ... on Asset { bytes } } }";
    assert_eq!(world.ask(&stranger, node, json!({"id": video["id"]})).await?["data"], json!({"node": null}));
    world.db.sql("UPDATE read_assets SET bytes = 8").await?;
    let again = world.ask(&creator, ask, json!({"id": task})).await?;
    assert_eq!(again["data"]["task"]["video"]["bytes"], "8");
    Ok(())
}
