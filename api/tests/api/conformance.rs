//! The API as clients written by others see it: the audits of GraphQL over HTTP, from the package `graphql-http`. They run in Node;
//! `./dev test` installs it, and the packages that `conformance/package-lock.json` pins.

use crate::world::World;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;
use tokio::process::Command;

const HOW: &str = "`./dev test` installs Node and the packages; by hand: install Node 18 or newer with npm, then \
                   `npm ci --prefix api/tests/conformance`";

/// What a script of `conformance/` prints, line by line.
async fn run(script: &str, arguments: &[String]) -> Result<Vec<Value>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    ensure!(folder.join("node_modules/graphql-http").is_dir(), "the packages of {folder:?} are missing. {HOW}");
    let node = Command::new("node").arg(folder.join(script)).args(arguments).kill_on_drop(true).output().await;
    let output = node.with_context(|| format!("node can not be started. {HOW}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{script} ended with {}: {said}", output.status);
    let lines = String::from_utf8(output.stdout)?;
    lines.lines().map(|line| serde_json::from_str(line).with_context(|| format!("{script} said: {line}"))).collect()
}

/// What must, what should and what may be: all of it.
#[tokio::test]
async fn graphql_over_http_is_spoken_as_specified() -> Result<()> {
    let world = World::new().await?;
    let server = world.serve().await?;
    let audits = run("audit.mjs", &[format!("http://{}/graphql", server.address)]).await?;
    assert!(audits.len() >= 60, "only {} audits ran", audits.len());
    let failed: Vec<&Value> = audits.iter().filter(|audit| audit["status"] != "ok").collect();
    println!("{} audits, {} passed", audits.len(), audits.len() - failed.len());
    assert!(failed.is_empty(), "{failed:#?}");
    Ok(())
}

/// A frontend's libraries: urql and graphql-ws query, mutate and subscribe, and find their way back after the connection is lost.
#[tokio::test]
async fn a_frontend_finds_its_way_back() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let server = world.serve().await?;
    let said = run("client.mjs", &[server.address.to_string(), world.creator()?]).await?;
    let seen =
        |what: &str| said.iter().filter(|line| line["what"] == what).map(|line| &line["seen"]).collect::<Vec<_>>();
    let submitted = seen("submitted");
    assert!(submitted.len() == 1 && submitted[0]["version"] == 1 && submitted[0]["refusal"].is_null(), "{said:?}");
    let read = seen("read");
    assert_eq!([&read[0]["state"], &read[1]["state"]], ["QUEUED", "CANCELED"], "{said:?}");
    assert_eq!(read[0]["hold"], "120", "credits are text");
    assert_eq!(seen("connected").len(), 2, "it was connected again: {said:?}");
    let steps: Vec<&str> = seen("followed").iter().filter_map(|step| step["state"].as_str()).collect();
    assert_eq!(steps, ["QUEUED", "QUEUED", "CANCELED"]);
    Ok(())
}
