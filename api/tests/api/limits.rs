//! What is refused before anything is done: shapes, sizes, content types.

use crate::doubles::Reasons;
use crate::world::{SUBMIT, World, code, input};
use anyhow::{Context, Result};
use api::Readiness;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

async fn refused(world: &World, query: &str) -> Result<Value> {
    let started = Instant::now();
    let answer = world.ask(&world.creator()?, query, json!({})).await?;
    assert!(started.elapsed() < Duration::from_secs(1), "refused, but slowly");
    assert!(answer["data"].is_null(), "{answer}");
    Ok(answer)
}

/// G1: deep queries, whether or not the parser would take them.
#[tokio::test]
async fn g1_deep_and_dear_queries_are_refused() -> Result<()> {
    let world = World::new().await?;
    for depth in [30, 60, 200, 5_000] {
        let query = format!("{{ __schema {{ types {}{{ name }}{} }} }}", "{ ofType ".repeat(depth), " }".repeat(depth));
        let answer = refused(&world, &query).await?;
        let said = answer["errors"][0]["message"].as_str().context("a message")?;
        assert!(said.contains("deep") || said.contains("depth"), "{depth}: {answer}");
    }
    refused(&world, &"{".repeat(20_000)).await?;
    let cycle = "query { tasks { edges { node { ...A } } } } fragment A on Task { ...B } fragment B on Task { ...A }";
    refused(&world, cycle).await?;
    let wide = format!("{{ {} }}", (0..900).map(|n| format!("a{n}: models {{ name }} ")).collect::<String>());
    assert!(wide.len() < 64 * 1024);
    assert_eq!(code(&refused(&world, &wide).await?), "QUERY_REFUSED");
    let nested = "{ tasks(first: 100) { edges { node { attempts { id number state provider round polls percent version
                  orphans createdAt updatedAt } assets { id url kind bytes sha256 } history { body name } } } } }";
    refused(&world, nested).await?;
    refused(
        &world,
        &format!(
            "{{ {} }}",
            (0..300).map(|n| format!("a{n}: taskHistory(taskId: \"x\") {{ name }} ")).collect::<String>()
        ),
    )
    .await?;
    Ok(())
}

/// G1: fragments that spread each other are refused before anybody visits them all; what is in a fragment costs what it is.
#[tokio::test]
async fn g1_fragments_hide_nothing_and_multiply_nothing() -> Result<()> {
    let world = World::new().await?;
    let fragments =
        (1..30).map(|n| format!("fragment F{n} on Query {{ ...F{0} ...F{0} ...F{0} }} ", n + 1)).collect::<String>();
    let bomb = format!("{{ ...F1 }} {fragments} fragment F30 on Query {{ __typename }}");
    assert_eq!(code(&refused(&world, &bomb).await?), "QUERY_REFUSED");
    // Without a token it is refused as well, and the schema is not multiplied by itself.
    let lists = "{ __schema { types { interfaces { possibleTypes { interfaces { possibleTypes { name } } } } } } }";
    for query in [bomb.as_str(), lists] {
        let answer = world.post(None, &[], json!({"query": query}).to_string()).await?.json()?;
        assert_eq!(code(&answer), "QUERY_REFUSED", "{answer}");
    }
    let inside = "postings(first: 100) { edges { node { version kind businessKey amount charged createdAt } cursor } }";
    let many = (0..9).map(|n| format!("a{n}: node(id: $id) {{ ...F }} ")).collect::<String>();
    let hidden = format!("query($id: ID!) {{ {many} }} fragment F on Account {{ {inside} }}");
    let plain = format!("query($id: ID!) {{ {} }}", many.replace("...F", &format!("... on Account {{ {inside} }}")));
    let mut answers = vec![];
    for query in [&hidden, &plain] {
        let answer = world.ask(&world.creator()?, query, json!({"id": "x"})).await?;
        assert!(answer["data"].is_null(), "{answer}");
        answers.push(answer["errors"][0]["message"].clone());
    }
    assert_eq!(answers[0], answers[1], "a fragment with a name costs what one without costs");
    Ok(())
}

/// G2: a request is charged for what it asks, not for being one.
#[tokio::test]
async fn g2_aliases_do_not_multiply_mutations() -> Result<()> {
    let world = World::new().await?;
    let cancel =
        |n: usize| format!("c{n}: cancelTask(taskId: \"00000000-0000-0000-0000-000000000000\") {{ version }} ");
    let eleven = format!("mutation {{ {} }}", (0..11).map(cancel).collect::<String>());
    assert_eq!(code(&refused(&world, &eleven).await?), "QUERY_REFUSED");
    let ten = format!("mutation {{ {} }}", (0..10).map(cancel).collect::<String>());
    assert!(world.ask(&world.creator()?, &ten, json!({})).await?["errors"].is_null());
    // In fragments they count as well.
    for hidden in ["mutation { ... on Mutation { MANY } }", "mutation { ...F } fragment F on Mutation { MANY }"] {
        let many = hidden.replace("MANY", &(0..11).map(cancel).collect::<String>());
        assert_eq!(code(&refused(&world, &many).await?), "QUERY_REFUSED");
    }
    Ok(())
}

/// G3: no batches, no mutation by GET, no body that a web form could send.
#[tokio::test]
async fn g3_one_request_as_json_by_post() -> Result<()> {
    let world = World::new().await?;
    let creator = world.creator()?;
    let one = json!({"query": "{ models { name } }"});
    for batch in
        [json!([one]), Value::Array(vec![one.clone(); 11]), Value::Array(vec![one.clone(); 500]), json!("x"), json!({})]
    {
        let answer = world.post(Some(&creator), &[], batch.to_string()).await?;
        assert_eq!((answer.status, code(&answer.json()?)), (StatusCode::BAD_REQUEST, "BAD_REQUEST"), "{batch}");
    }
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""] {
        let request = Request::post("/graphql")
            .header("content-type", content_type)
            .header("authorization", format!("Bearer {creator}"))
            .body(Body::from(one.to_string()))?;
        assert_eq!(world.call(request).await?.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{content_type}");
    }
    for unsafe_by_get in
        ["mutation{cancelTask(taskId:%22x%22){version}}", "subscription{taskStatus(taskId:%22x%22){id}}"]
    {
        let by_get = format!("/graphql?query={unsafe_by_get}").replace('{', "%7B").replace('}', "%7D");
        let request = Request::get(by_get).header("authorization", format!("Bearer {creator}")).body(Body::empty())?;
        let answer = world.call(request).await?;
        assert_eq!((answer.status, code(&answer.json()?)), (StatusCode::METHOD_NOT_ALLOWED, "BAD_REQUEST"));
        assert_eq!(answer.headers.get("allow").and_then(|it| it.to_str().ok()), Some("POST"));
    }
    // O10: 1.4 million characters are 4.2 million bytes.
    let wide = json!({"query": "{ models { name } }", "variables": {"x": "\u{4e2d}".repeat(1_400_000)}}).to_string();
    assert_eq!(world.post(Some(&creator), &[], wide).await?.status, StatusCode::PAYLOAD_TOO_LARGE);
    let large = json!({"query": "{ models { name } }", "variables": {"x": "x".repeat(1 << 20)}}).to_string();
    assert_eq!(world.post(Some(&creator), &[], large).await?.status, StatusCode::PAYLOAD_TOO_LARGE);
    Ok(())
}

#[tokio::test]
async fn tools_can_ask_for_the_schema_unless_it_is_switched_off() -> Result<()> {
    // As graphql-js sends it: nine levels of ofType.
    let of_type = (0..9).fold(String::new(), |inner, _| format!("ofType {{ kind name {inner} }}"));
    let query = format!(
        "query IntrospectionQuery {{ __schema {{ queryType {{ name }} types {{ kind name fields(includeDeprecated: true) {{
           name args {{ name type {{ kind name {of_type} }} }} type {{ kind name {of_type} }} }} }} }} }}"
    );
    let body = json!({"query": query}).to_string();
    let world = World::new().await?;
    let answer = world.post(None, &[], body.clone()).await?.json()?;
    let types = answer["data"]["__schema"]["types"].as_array().with_context(|| format!("{answer}"))?;
    assert!(types.iter().any(|it| it["name"] == "SubmitGenerationPayload"));
    let mixed = "{ __schema { types { name } } tasks { edges { cursor } } }";
    assert_eq!(code(&world.post(None, &[], json!({"query": mixed}).to_string()).await?.json()?), "UNAUTHENTICATED");
    let closed = World::with(|config| {
        config.introspection = false;
        config.explorer = false;
    })
    .await?;
    assert!(closed.post(None, &[], body).await?.json()?["data"]["__schema"].is_null());
    let page = closed.call(Request::get("/graphql").body(Body::empty())?).await?;
    assert_eq!(page.status, StatusCode::NOT_FOUND);
    Ok(())
}

#[tokio::test]
async fn the_explorer_needs_no_network() -> Result<()> {
    let world = World::new().await?;
    let page = world.call(Request::get("/graphql").body(Body::empty())?).await?;
    let text = String::from_utf8(page.body.to_vec())?;
    assert!(!text.contains("http://") && !text.contains("https://"), "nothing is loaded from elsewhere");
    assert!(page.headers.contains_key("content-security-policy"));
    let graphiql = world.call(Request::get("/graphql/graphiql").body(Body::empty())?).await?;
    assert_eq!(graphiql.status, StatusCode::OK);
    Ok(())
}

#[tokio::test]
async fn health_and_correlation() -> Result<()> {
    let world = World::new().await?;
    let live = world.call(Request::get("/live").header("x-request-id", "<script>").body(Body::empty())?).await?;
    assert_eq!(live.status, StatusCode::OK);
    let id = live.headers.get("x-request-id").context("every answer names its id")?.to_str()?;
    assert!(id.parse::<uuid::Uuid>().is_ok(), "an id that is none is replaced: {id}");
    assert!(!live.headers.contains_key("access-control-allow-origin"), "off by default");
    let ready = world.call(Request::get("/ready").body(Body::empty())?).await?;
    assert_eq!((ready.status, ready.json()?), (StatusCode::OK, json!({"ready": true, "reasons": []})));
    assert_eq!(Reasons(vec!["no broker".into()]).reasons().await, ["no broker"]);
    Ok(())
}

/// Q2: a database that ends sessions, or is not there, is no fault to report but one to wait for; and what was told to be
/// tried again may be, with the same key.
#[tokio::test]
async fn a_fault_that_passes_is_told_from_one_that_does_not() -> Result<()> {
    let world = World::new().await?;
    let creator = world.creator()?;
    world.grant(world.tenant, 1_000_000).await?;
    for (state, expected) in [("57P01", "UNAVAILABLE"), ("25P03", "UNAVAILABLE"), ("XX000", "INTERNAL")] {
        world
            .db
            .sql(&format!(
                "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
                     $$ BEGIN RAISE EXCEPTION 'fail' USING ERRCODE = '{state}'; END $$;
                 CREATE TRIGGER fail BEFORE INSERT ON events FOR EACH STATEMENT EXECUTE FUNCTION fail();"
            ))
            .await?;
        let variables = json!({"input": input("a boat"), "key": "one"});
        let answer = world.ask(&creator, SUBMIT, variables.clone()).await?;
        assert_eq!(code(&answer), expected, "{state}: {answer}");
        assert!(answer["errors"][0]["extensions"]["correlationId"].is_string(), "{answer}");
        world.db.sql("DROP FUNCTION fail CASCADE").await?;
    }
    assert_eq!(world.count("SELECT count(*) FROM events WHERE category = 'task'").await?, 0);
    world.submitted(&creator, "one").await?;
    world.db.pool().close().await;
    assert_eq!(code(&world.ask(&creator, "{ tasks { edges { cursor } } }", json!({})).await?), "UNAVAILABLE");
    Ok(())
}
