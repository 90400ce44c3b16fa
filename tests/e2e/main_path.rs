//! The main job: from a mutation to a finished, paid-for video.

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tests::{Stack, User};
use tokio::process::Command;

/// `./dev submit` shows the way from QUEUED to SUCCEEDED and says where the video is; the file plays; ffprobe agrees with the
/// asset record; the hold is settled; the history tells it all.
pub async fn finished_video(stack: &Stack) -> anyhow::Result<()> {
    let video = stack.state().join("boat.mp4");
    let output = video.to_string_lossy().into_owned();
    let said =
        stack.dev(&["submit", "--prompt", "a paper boat on a stream", "--seconds", "2", "--output", &output]).await?;
    for word in ["QUEUED", "SUCCEEDED", "watch it", "saved"] {
        ensure!(said.contains(word), "./dev submit did not say {word}:\n{said}");
    }
    let task =
        said.lines().find_map(|line| line.strip_prefix("submitted  task ")).context("no task id")?.trim().to_owned();
    let user = demo_user(stack)?;
    let it = user.task(&task).await?;
    probe_agrees(stack, &video, &it["video"]).await?;
    let charge = number(&it["charge"])?;
    ensure!(charge == 50, "two seconds at 25 credits cost {charge}");
    ensure!(number(&it["hold"])? == 60, "the hold is {}", it["hold"]);
    settled(stack, &task, 50, 10).await?;
    thumbnail_is_a_picture(&it).await?;
    history_is_whole(&user, &task).await
}

/// An input image is uploaded first; events and messages name it by id only; the provider is given a link that works.
pub async fn with_an_image(stack: &Stack) -> anyhow::Result<()> {
    let image = stack.state().join("boat.png");
    picture(stack, &image).await?;
    let path = image.to_string_lossy().into_owned();
    let said = stack.dev(&["submit", "--prompt", "the boat sails", "--image", &path, "--seconds", "1"]).await?;
    ensure!(said.contains("uploaded") && said.contains("SUCCEEDED"), "{said}");
    let asset =
        said.split("as asset ").nth(1).and_then(|rest| rest.split_whitespace().next()).context("no asset id")?;
    let (bytes, kind): (i64, String) =
        sqlx::query_as("SELECT bytes, content_type FROM uploads WHERE asset_id::text = $1")
            .bind(asset)
            .fetch_one(stack.pool())
            .await?;
    ensure!(
        bytes == i64::try_from(std::fs::metadata(&image)?.len())? && kind == "image/png",
        "{bytes} bytes of {kind}"
    );
    let leaks: i64 = sqlx::query_scalar(
        "SELECT (SELECT count(*) FROM events WHERE body::text LIKE '%the boat sails%')
              + (SELECT count(*) FROM outbox_events WHERE payload::text LIKE '%the boat sails%')",
    )
    .fetch_one(stack.pool())
    .await?;
    ensure!(leaks == 0, "the prompt stands in {leaks} events or messages");
    Ok(())
}

/// G13: a query that asks to be at least as new as the mutation is; the subscription's versions never go back.
pub async fn read_your_writes(stack: &Stack) -> anyhow::Result<()> {
    let user = User::new(stack, 1_000_000).await?;
    try_join_all((0..10).map(|lane| a_hundred_reads_of_own_writes(&user, lane))).await?;
    let task = user.submit("a boat that is watched").await?;
    let mut versions = vec![];
    let end = app::client::follow(&user.client, &task, |it| versions.push(it.version())).await?;
    ensure!(end.state() == "SUCCEEDED", "it ended as {}", end.state());
    ensure!(versions.is_sorted() && versions.len() > 2, "versions went {versions:?}");
    user.until_all_ended(stack, 1001, Duration::from_secs(120)).await?;
    Ok(())
}

async fn a_hundred_reads_of_own_writes(user: &User, lane: usize) -> anyhow::Result<()> {
    for round in 0..100 {
        let payload = user.submit_once("[sim: refuse=422] no boat", &format!("round-{lane}-{round}")).await?;
        let reached = number(&payload["version"])?;
        // Under load the answer may be that it can not be shown yet: never an older picture without a word.
        let seen = user.task_at(&payload["taskId"], reached).await?;
        ensure!(number(&seen["version"])? >= reached, "round {round}: asked for {reached}, saw {seen}");
    }
    Ok(())
}

fn demo_user(stack: &Stack) -> anyhow::Result<User> {
    let token = tests::user::token(stack, app::demo::TENANT, &["creator", "auditor"])?;
    let base = stack.setting("AIVIDEO_API__PUBLIC_URL")?;
    Ok(User::with_token(app::demo::TENANT, base, token))
}

async fn probe_agrees(stack: &Stack, file: &Path, record: &Value) -> anyhow::Result<()> {
    let ffprobe = stack.setting("AIVIDEO_MEDIA__FFPROBE")?;
    let output = Command::new(ffprobe)
        .args(["-v", "error", "-print_format", "json", "-show_format", "-show_streams"])
        .arg(file)
        .output()
        .await?;
    ensure!(output.status.success(), "ffprobe does not play it: {}", String::from_utf8_lossy(&output.stderr));
    let probe: Value = serde_json::from_slice(&output.stdout)?;
    let streams = probe["streams"].as_array().context("no streams")?;
    let video = streams.iter().find(|it| it["codec_type"] == "video").context("no video stream")?;
    ensure!(number(&record["width"])? == number(&video["width"])?, "width: {} and {}", record["width"], video["width"]);
    ensure!(number(&record["height"])? == number(&video["height"])?, "height: {record}");
    ensure!(record["videoCodec"] == video["codec_name"], "codec: {record}");
    ensure!(number(&record["bytes"])? == i64::try_from(std::fs::metadata(file)?.len())?, "bytes: {record}");
    let seconds: f64 = probe["format"]["duration"].as_str().context("no duration")?.parse()?;
    let millis = number(&record["durationMillis"])?;
    ensure!((seconds * 1000.0 - millis as f64).abs() < 100.0, "{seconds} s and {millis} ms");
    let sum = Command::new("sha256sum").arg(file).output().await?;
    let sum = String::from_utf8_lossy(&sum.stdout);
    ensure!(sum.split_whitespace().next() == record["sha256"].as_str(), "{sum} and {}", record["sha256"]);
    Ok(())
}

async fn settled(stack: &Stack, task: &str, charged: i64, released: i64) -> anyhow::Result<()> {
    tests::stack::eventually(Duration::from_secs(20), async || {
        let hold: (String, i64, i64) =
            sqlx::query_as("SELECT state, settled, released FROM read_holds WHERE task_id::text = $1")
                .bind(task)
                .fetch_one(stack.pool())
                .await?;
        ensure!(hold == ("SETTLED".to_owned(), charged, released), "the hold is {hold:?}");
        Ok(())
    })
    .await
}

async fn thumbnail_is_a_picture(task: &Value) -> anyhow::Result<()> {
    let url = task["thumbnail"]["url"].as_str().context("no thumbnail")?;
    let response = reqwest::get(url).await?;
    ensure!(response.status().is_success(), "the thumbnail's link says {}", response.status());
    let bytes = response.bytes().await?;
    ensure!(bytes.starts_with(&[0xff, 0xd8, 0xff]), "the thumbnail is no JPEG");
    Ok(())
}

async fn history_is_whole(user: &User, task: &str) -> anyhow::Result<()> {
    let query = "query ($id: ID!) { taskHistory(taskId: $id) { name stream version } }";
    let data = user.client.run(query, json!({ "id": task })).await?;
    let events = data["taskHistory"].as_array().context("no history")?;
    let names: Vec<&str> = events.iter().filter_map(|it| it["name"].as_str()).collect();
    for wanted in [
        "account.held",
        "task.submitted",
        "task.submission_begun",
        "attempt.planned",
        "attempt.submission_begun",
        "attempt.accepted",
        "task.accepted",
        "attempt.succeeded",
        "task.fetch_begun",
        "task.video_stored",
        "task.succeeded",
        "account.settled",
    ] {
        ensure!(names.contains(&wanted), "the history lacks {wanted}: {names:?}");
    }
    Ok(())
}

async fn picture(stack: &Stack, to: &Path) -> anyhow::Result<()> {
    let ffmpeg = stack.setting("AIVIDEO_MEDIA__FFMPEG")?;
    let status = Command::new(ffmpeg)
        .args(["-v", "error", "-y", "-f", "lavfi", "-i", "testsrc=size=64x64:rate=1", "-frames:v", "1"])
        .arg(to)
        .stdin(Stdio::null())
        .status()
        .await?;
    ensure!(status.success(), "ffmpeg made no picture");
    Ok(())
}

/// A number that travels as a number or, for 64 bits, as a string.
pub fn number(value: &Value) -> anyhow::Result<i64> {
    value
        .as_i64()
        .or_else(|| value.as_str().and_then(|text| text.parse().ok()))
        .with_context(|| format!("{value} is not a number"))
}
