//! `aivideo submit`: upload, submit, follow, and say where the video is.

use super::http::Client;
use super::live::{Snapshot, follow};
use crate::cli::SubmitArgs;
use anyhow::Context;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const SUBMIT: &str = "mutation ($input: GenerationInput!, $key: String!) {
    submitGeneration(input: $input, idempotencyKey: $key) { taskId version refusal { code message field } }
}";

const RESULT: &str = "query ($id: ID!, $version: Int) {
    task(id: $id, atLeastVersion: $version) {
        state hold charge
        error { class code message }
        video { url assetId bytes sha256 contentType durationMillis width height videoCodec }
        thumbnail { url }
    }
}";

/// Submits, follows and reports. The exit code says whether there is a video.
///
/// # Errors
/// A sentence for the terminal.
pub async fn submit(client: &Client, args: &SubmitArgs, key: &str) -> anyhow::Result<()> {
    let assets = match &args.image {
        Some(image) => {
            let asset = client.upload(image).await?;
            println!("uploaded   {} as asset {asset}", image.display());
            vec![asset]
        }
        None => vec![],
    };
    let model = match &args.model {
        Some(model) => model.clone(),
        None => default_model(client).await?,
    };
    let input = json!({
        "prompt": args.prompt, "model": model, "durationSeconds": args.seconds, "inputAssetIds": assets,
    });
    let data = client.run(SUBMIT, json!({ "input": input, "key": key })).await?;
    let payload = &data["submitGeneration"];
    if !payload["refusal"].is_null() {
        let refusal = &payload["refusal"];
        anyhow::bail!("refused ({}): {}", plain(&refusal["code"]), plain(&refusal["message"]));
    }
    let task = payload["taskId"].as_str().context("the API did not name the task")?.to_owned();
    println!("submitted  task {task}");
    let end = watch(client, &task, Duration::from_secs(args.wait_seconds)).await?;
    report(client, &task, &end, args).await
}

async fn default_model(client: &Client) -> anyhow::Result<String> {
    let data = client.run("{ models { name } }", Value::Null).await?;
    let name = data["models"][0]["name"].as_str();
    name.map(str::to_owned).context("the catalogue has no model: configure one in [catalogue]")
}

async fn watch(client: &Client, task: &str, patience: Duration) -> anyhow::Result<Snapshot> {
    let start = Instant::now();
    let mut shown = None;
    let show = |it: &Snapshot| {
        // Not every version is news for people.
        let news = Some((it.state().to_owned(), it.0["progressPercent"].as_i64()));
        if std::mem::replace(&mut shown, news.clone()) == news {
            return;
        }
        let percent = it.0["progressPercent"].as_i64().map(|percent| format!("  {percent} %")).unwrap_or_default();
        println!("{:>7.1} s  {}{percent}", start.elapsed().as_secs_f64(), it.state());
    };
    tokio::time::timeout(patience, follow(client, task, show))
        .await
        .with_context(|| format!("still running after {} s; task {task} goes on without us", patience.as_secs()))?
        .map_err(Into::into)
}

async fn report(client: &Client, task: &str, end: &Snapshot, args: &SubmitArgs) -> anyhow::Result<()> {
    let data = client.run(RESULT, json!({ "id": task, "version": end.version() })).await?;
    let it = &data["task"];
    if end.state() != "SUCCEEDED" {
        let error = &it["error"];
        anyhow::bail!("task {task} ended as {}: {} {}", end.state(), plain(&error["code"]), plain(&error["message"]));
    }
    let video = &it["video"];
    println!(
        "video      {} x {}, {} ms, {}, {} bytes, sha256 {}",
        plain(&video["width"]),
        plain(&video["height"]),
        plain(&video["durationMillis"]),
        plain(&video["videoCodec"]),
        plain(&video["bytes"]),
        plain(&video["sha256"]),
    );
    println!("cost       {} of {} held credits", plain(&it["charge"]), plain(&it["hold"]));
    println!("asset      {}", plain(&video["assetId"]));
    println!("thumbnail  {}", plain(&it["thumbnail"]["url"]));
    println!("watch it   {}", plain(&video["url"]));
    if let Some(output) = &args.output {
        client.download(video["url"].as_str().unwrap_or_default(), output).await?;
        println!("saved      {}", output.display());
    }
    Ok(())
}

/// A JSON value without quotes; empty for null.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
