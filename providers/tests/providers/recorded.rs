//! Recorded exchanges: what each adapter sends, byte for byte where it counts, and how it reads what comes back. One file per
//! exchange, in `recorded/PROVIDER/`. `BLESS=1` writes down what is sent and what it comes to; the change is then seen in
//! review.

use crate::adapters::{Adapters, order_of, sought_of};
use crate::support::{Act, Raw};
use anyhow::Context;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use workers::ports::Provider;

/// Headers of a request that are part of the record. The token is the tests' own.
const HEADERS: [&str; 5] = ["authorization", "content-type", "accept", "x-runway-version", "x-fal-no-retry"];
/// Stands for the address of the server in the records.
const BASE: &str = "{base}";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/providers/recorded")
}

/// A recorded response as the server gives it.
fn act(response: &Value, base: &str) -> anyhow::Result<Act> {
    let status = response["status"].as_u64().context("a status")?;
    let body = match &response["body"] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string().replace(BASE, base),
    };
    let mut headers = String::new();
    for (name, value) in response["headers"].as_object().into_iter().flatten() {
        headers.push_str(&format!("{name}: {}\r\n", value.as_str().unwrap_or_default()));
    }
    Ok(Act::reply(&format!("{status} Recorded"), &headers, &body))
}

/// A request as it is recorded.
fn request(text: &str, base: &str) -> anyhow::Result<Value> {
    let (head, body) = text.split_once("\r\n\r\n").context("a head and a body")?;
    let mut lines = head.lines();
    let first = lines.next().and_then(|line| line.strip_suffix(" HTTP/1.1")).context("a first line")?;
    let mut headers = Map::new();
    for line in lines {
        let (name, value) = line.split_once(": ").context("a header")?;
        if HEADERS.contains(&name.to_lowercase().as_str()) {
            headers.insert(name.to_lowercase(), json!(value));
        }
    }
    let body = body.replace(base, BASE);
    let body = if body.is_empty() { Value::Null } else { serde_json::from_str(&body)? };
    Ok(json!({ "line": first, "headers": headers, "body": body }))
}

async fn play(provider: &dyn Provider, record: &Value) -> anyhow::Result<String> {
    let job = record["job"].as_str().unwrap_or_default();
    Ok(match record["operation"].as_str() {
        Some("create") => format!("{:?}", provider.create(&order_of(record)).await),
        Some("find") => format!("{:?}", provider.find(&sought_of(record)).await),
        Some("poll") => format!("{:?}", provider.poll(job).await),
        Some("cancel") => format!("{:?}", provider.cancel(job).await),
        other => anyhow::bail!("no such operation: {other:?}"),
    })
}

async fn check(file: &Path, kind: &str, bless: bool) -> anyhow::Result<BTreeSet<String>> {
    let mut record: Value = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    let exchanges = record["exchanges"].as_array().context("a list of exchanges")?.clone();
    // The server's address stands in some responses, so its port is needed before they are made.
    let raw = Raw::listen().await?;
    let acts: anyhow::Result<Vec<Act>> = exchanges.iter().map(|it| act(&it["response"], raw.origin())).collect();
    let raw = raw.serve(acts?);
    let provider = Adapters::at(raw.origin())?.of(kind)?;
    let came_to = play(provider.as_ref(), &record).await?.replace(raw.origin(), BASE);
    let sent = raw.requests();
    let mut faults = BTreeSet::new();
    if bless {
        for (number, text) in sent.iter().enumerate() {
            record["exchanges"][number]["request"] = request(text, raw.origin())?;
        }
        record["comes_to"] = json!(came_to);
        std::fs::write(file, format!("{record:#}\n"))?;
        return Ok(faults);
    }
    if sent.len() != exchanges.len() {
        faults.insert(format!("{}: {} requests, not {}", file.display(), sent.len(), exchanges.len()));
    }
    for (text, exchange) in sent.iter().zip(&exchanges) {
        let sent = request(text, raw.origin())?;
        if sent != exchange["request"] {
            faults.insert(format!("{}: sent\n{sent:#}\nnot\n{:#}", file.display(), exchange["request"]));
        }
    }
    if record["comes_to"] != json!(came_to) {
        faults.insert(format!("{}: comes to {came_to}, not {}", file.display(), record["comes_to"]));
    }
    Ok(faults)
}

#[tokio::test]
async fn every_recorded_exchange_is_what_is_sent_and_how_it_is_read() -> anyhow::Result<()> {
    let bless = std::env::var_os("BLESS").is_some();
    let (mut faults, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    for kind in std::fs::read_dir(folder())? {
        let kind = kind?;
        let name = kind.file_name().to_string_lossy().into_owned();
        for file in std::fs::read_dir(kind.path())? {
            let path = file?.path();
            faults.extend(check(&path, &name, bless).await.with_context(|| path.display().to_string())?);
        }
        kinds.insert(name);
    }
    assert!(faults.is_empty(), "{}", faults.into_iter().collect::<Vec<_>>().join("\n"));
    let known: BTreeSet<String> = Adapters::KINDS.iter().map(|it| (*it).to_owned()).collect();
    assert_eq!(kinds, known, "each provider has its records");
    Ok(())
}
