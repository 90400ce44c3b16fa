//! What may be asked, and how much of it: listed operations, and budgets.

use crate::subscribe::Client;
use crate::world::{World, code, token};
use anyhow::{Context, Result};
use api::Role;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use domain::id::TenantId;
use serde_json::{Value, json};
use std::io::Write;
use tempfile::NamedTempFile;
use uuid::Uuid;

const MODELS: &str = "{ models { name } }";
const FOLLOW: &str = "subscription($id: ID!) { taskStatus(taskId: $id) { state } }";

fn list() -> Result<NamedTempFile> {
    let mut file = NamedTempFile::new()?;
    write!(file, "{}", json!({"models": MODELS, "follow": FOLLOW}))?;
    Ok(file)
}

fn hashed(id: &str) -> Value {
    json!({"persistedQuery": {"version": 1, "sha256Hash": id}})
}

#[tokio::test]
async fn in_production_only_listed_operations_are_answered() -> Result<()> {
    let file = list()?;
    let world = World::with(|config| {
        config.operations_file = Some(file.path().to_owned());
        config.only_listed_operations = true;
    })
    .await?;
    let creator = world.creator()?;
    let cases = [
        (json!({"documentId": "models"}), None),
        (json!({"extensions": hashed("models")}), None),
        (json!({"query": MODELS}), None),
        (json!({"query": MODELS, "extensions": hashed("models")}), None),
        (json!({"documentId": "other"}), Some("PERSISTED_QUERY_NOT_FOUND")),
        (json!({"query": MODELS, "documentId": "other"}), Some("PERSISTED_QUERY_NOT_FOUND")),
        (json!({"query": "{ models { provider } }", "documentId": "models"}), Some("PERSISTED_QUERY_MISMATCH")),
        (json!({"query": "{ models { provider } }"}), Some("OPERATION_NOT_LISTED")),
        (json!({"query": "{ __schema { types { name } } }"}), Some("OPERATION_NOT_LISTED")),
        (json!({"query": "{ __typename }"}), Some("OPERATION_NOT_LISTED")),
    ];
    for (request, refused) in cases {
        let answer = world.post(Some(&creator), &[], request.to_string()).await?.json()?;
        match refused {
            Some(expected) => assert_eq!(code(&answer), expected, "{request}: {answer}"),
            None => assert_eq!(answer["data"]["models"][0]["name"], "aivideo/paper-boat-1", "{request}: {answer}"),
        }
    }
    let by_get = Request::get("/graphql?documentId=models").header("authorization", format!("Bearer {creator}"));
    let answer = world.call(by_get.body(Body::empty())?).await?;
    assert_eq!((answer.status, answer.json()?["data"].is_object()), (StatusCode::OK, true));
    let server = world.serve().await?;
    let id = json!({"id": Uuid::new_v4()});
    let listed = Client::first(&server, Some(&creator), FOLLOW, id.clone()).await?;
    assert_eq!(code(&listed), "NOT_FOUND", "it was carried out: {listed}");
    let unlisted = "subscription($id: ID!) { taskStatus(taskId: $id) { state version } }";
    assert_eq!(code(&Client::first(&server, Some(&creator), unlisted, id).await?), "OPERATION_NOT_LISTED");
    Ok(())
}

#[tokio::test]
async fn a_listed_operation_needs_no_text_and_others_are_answered_all_the_same() -> Result<()> {
    let file = list()?;
    let world = World::with(|config| config.operations_file = Some(file.path().to_owned())).await?;
    let creator = world.creator()?;
    for request in [json!({"documentId": "models"}), json!({"query": "{ models { provider } }"})] {
        let answer = world.post(Some(&creator), &[], request.to_string()).await?.json()?;
        assert!(answer["data"]["models"].is_array(), "{answer}");
    }
    let refused =
        World::with(|config| config.only_listed_operations = true).await.err().context("it does not start")?;
    assert!(refused.to_string().contains("api.operations_file"), "{refused}");
    Ok(())
}

/// G2: what counts is what is asked for, not in how many requests.
#[tokio::test]
async fn g2_a_tenant_has_a_budget_of_what_its_requests_cost() -> Result<()> {
    let world = World::with(|config| {
        config.points_per_second = Some(1);
        config.points_burst = 1_000;
    })
    .await?;
    let creator = world.creator()?;
    let cancel = |n: usize| format!("c{n}: cancelTask(taskId: \"{}\") {{ version }} ", Uuid::nil());
    let nine = json!({"query": format!("mutation {{ {} }}", (0..9).map(cancel).collect::<String>())}).to_string();
    let first = world.post(Some(&creator), &[], nine.clone()).await?;
    assert_eq!((first.status, first.json()?["errors"].is_null()), (StatusCode::OK, true));
    let second = world.post(Some(&creator), &[], nine.clone()).await?;
    let answer = second.json()?;
    assert_eq!((second.status, code(&answer)), (StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED"));
    let seconds = answer["errors"][0]["extensions"]["retryAfterSeconds"].as_u64().context("how long to wait")?;
    assert!((700..=1_000).contains(&seconds), "{seconds}");
    let header = second.headers.get("retry-after").and_then(|it| it.to_str().ok());
    assert_eq!(header, Some(seconds.to_string().as_str()));
    // Somebody else of the same tenant has the same budget, another tenant one of its own.
    let colleague = token(world.tenant, &[Role::Creator, Role::Auditor])?;
    assert_eq!(code(&world.post(Some(&colleague), &[], nine.clone()).await?.json()?), "RATE_LIMITED");
    let stranger = token(TenantId(Uuid::new_v4()), &[Role::Creator])?;
    assert_eq!(world.post(Some(&stranger), &[], nine).await?.status, StatusCode::OK);
    let cheap = json!({"query": MODELS}).to_string();
    assert_eq!(world.post(Some(&creator), &[], cheap).await?.status, StatusCode::OK, "what is left is left");
    Ok(())
}
