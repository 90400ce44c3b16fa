//! The simulator itself: real files, lists, pause, and what it remembers after a kill.

use crate::support::{Sim, attempt, job_of, order, sim, sought, wait_for};
use serde_json::{Value, json};
use std::time::Duration;
use workers::ports::{Created, Found, JobState, Polled, Provider};

async fn output(adapter: &providers::replicate::Replicate, job: &str) -> anyhow::Result<String> {
    match wait_for(adapter, job, |state| matches!(state, JobState::Succeeded { .. })).await? {
        JobState::Succeeded { output_url, .. } => Ok(output_url),
        other => anyhow::bail!("{other:?}"),
    }
}

#[tokio::test]
async fn the_output_is_a_real_mp4_of_the_length_asked_for() -> anyhow::Result<()> {
    let (store, sim) = sim().await?;
    let adapter = sim.adapter("http://127.0.0.1:9")?;
    let mut order = order(attempt(), "a cat [sim: callback=none]");
    order.request.duration_seconds = 2;
    let created = adapter.create(&order).await;
    let url = output(&adapter, job_of(&created)?).await?;
    let response = sim.http.get(&url).send().await?.error_for_status()?;
    assert_eq!(response.headers()["content-type"], "video/mp4");
    let bytes = response.bytes().await?;
    let file = store.path().join("got.mp4");
    tokio::fs::write(&file, &bytes).await?;
    let probe = tokio::process::Command::new("ffprobe")
        .args(["-v", "error", "-of", "json", "-show_format", "-show_streams"])
        .arg(&file)
        .output()
        .await?;
    let probe: Value = serde_json::from_slice(&probe.stdout)?;
    let (video, audio) = (&probe["streams"][0], &probe["streams"][1]);
    assert_eq!(
        (&video["codec_name"], &video["pix_fmt"], &audio["codec_name"]),
        (&json!("h264"), &json!("yuv420p"), &json!("aac"))
    );
    assert_eq!((&video["width"], &video["height"]), (&json!(320), &json!(240)));
    let seconds: f64 = probe["format"]["duration"].as_str().unwrap_or_default().parse()?;
    assert!((1.9..2.2).contains(&seconds), "{seconds}");
    let find = |word: &[u8]| bytes.windows(4).position(|window| window == word);
    assert!(find(b"moov") < find(b"mdat"), "the index comes first");

    let forged = sim.http.get(url.replace("key=", "key=0")).send().await?;
    assert_eq!(forged.status(), 403);
    Ok(())
}

#[tokio::test]
async fn downloads_cut_short_and_addresses_that_expire() -> anyhow::Result<()> {
    let (_store, sim) = sim().await?;
    let adapter = sim.adapter("http://127.0.0.1:9")?;
    let created = adapter.create(&order(attempt(), "a cat [sim: cut=1 expire=1 callback=none]")).await;
    let job = job_of(&created)?;
    let expired = output(&adapter, job).await?;
    assert_eq!(output(&adapter, job).await?, expired, "looking again does not use the address up");
    for _ in 0..2 {
        assert_eq!(sim.http.get(&expired).send().await?.status(), 403);
    }
    let fresh = output(&adapter, job).await?;
    assert_ne!(fresh, expired);

    assert_eq!(sim.http.head(&fresh).send().await?.status(), 200);
    let cut = sim.http.get(&fresh).send().await?;
    assert!(cut.content_length().is_some_and(|length| length > 1_000));
    assert!(cut.bytes().await.is_err(), "the first download ends early");
    let whole = sim.http.get(&fresh).send().await?;
    let length = whole.content_length();
    assert_eq!(length, Some(whole.bytes().await?.len() as u64));
    Ok(())
}

#[tokio::test]
async fn a_killed_simulator_remembers_what_it_accepted() -> anyhow::Result<()> {
    let (store, sim) = sim().await?;
    let adapter = sim.adapter("http://127.0.0.1:9")?;
    let (done, lost) = (attempt(), attempt());
    let created = adapter.create(&order(done, "a cat [sim: callback=none]")).await;
    let job = job_of(&created)?;
    output(&adapter, job).await?;
    let unclear = adapter.create(&order(lost, "a dog [sim: run=300 drop=after callback=none]")).await;
    assert!(matches!(unclear, Created::Unknown { .. }));
    let counters = sim.look("counters").await?;
    sim.kill().await;
    // A kill in the middle of a line.
    let journal = store.path().join("simulator.jsonl");
    let mut text = tokio::fs::read_to_string(&journal).await?;
    text.push_str(r#"{"event":"accepted","id":"half"#);
    tokio::fs::write(&journal, text).await?;

    let sim = Sim::start(store.path()).await?;
    assert_eq!(sim.look("counters").await?, counters);
    let adapter = sim.adapter("http://127.0.0.1:9")?;
    assert!(output(&adapter, job).await?.starts_with(&sim.origin), "the ended job is still ended");
    let Found::Job { job } = adapter.find(&sought(lost)).await else { anyhow::bail!("the lost job is found") };
    output(&adapter, &job).await?;
    let created = adapter.create(&order(attempt(), "a cow [sim: never callback=none]")).await;
    let running = job_of(&created)?;
    sim.stop().await?;

    let sim = Sim::start(store.path()).await?;
    let counters = sim.look("counters").await?;
    assert_eq!(
        (&counters["accepted"], &counters["max_per_ref"]),
        (&json!(3), &json!(1)),
        "the cut line spoilt nothing"
    );
    let adapter = sim.adapter("http://127.0.0.1:9")?;
    wait_for(&adapter, running, |state| matches!(state, JobState::Running { .. })).await?;
    Ok(())
}

#[tokio::test]
async fn the_list_is_paged_newest_first() -> anyhow::Result<()> {
    let (_store, sim) = sim().await?;
    let adapter = sim.adapter("http://127.0.0.1:9")?;
    let first = attempt();
    let oldest = adapter.create(&order(first, "[sim: never callback=none]")).await;
    let mut newest = String::new();
    for _ in 0..204 {
        newest = job_of(&adapter.create(&order(attempt(), "[sim: never callback=none]")).await)?.to_owned();
    }
    let get = |url: String| sim.http.get(url).bearer_auth(crate::support::TOKEN).send();
    let mut url = Some(format!("{}/v1/predictions", sim.origin));
    let mut sizes = Vec::new();
    while let Some(next) = url {
        let page: Value = serde_json::from_str(&get(next).await?.text().await?)?;
        if sizes.is_empty() {
            assert_eq!(page["results"][0]["id"], newest.as_str());
        }
        sizes.push(page["results"].as_array().map_or(0, Vec::len));
        url = page["next"].as_str().map(str::to_owned);
    }
    assert_eq!(sizes, [100, 100, 5]);
    assert_eq!(
        adapter.find(&sought(first)).await,
        Found::Job { job: job_of(&oldest)?.to_owned() },
        "it is on the third page"
    );
    assert_eq!(adapter.find(&sought(attempt())).await, Found::Absent);
    Ok(())
}

#[tokio::test]
async fn a_pause_holds_jobs_and_resume_lets_them_go() -> anyhow::Result<()> {
    let (_store, sim) = sim().await?;
    let adapter = sim.adapter("http://127.0.0.1:9")?;
    let created = adapter.create(&order(attempt(), "a cat [sim: run=300 callback=none]")).await;
    let job = job_of(&created)?;
    wait_for(&adapter, job, |state| matches!(state, JobState::Running { .. })).await?;
    sim.order("pause", json!({})).await?;
    tokio::time::sleep(Duration::from_millis(1_300)).await;
    assert_eq!(adapter.poll(job).await, Polled::State(JobState::Running { percent: None }));
    sim.order("resume", json!({})).await?;
    output(&adapter, job).await?;
    Ok(())
}

#[tokio::test]
async fn the_jobs_table_shows_tags_and_never_prompts() -> anyhow::Result<()> {
    let (_store, sim) = sim().await?;
    let adapter = sim.adapter("http://127.0.0.1:9")?;
    let attempt = attempt();
    let created = adapter.create(&order(attempt, "a secret cat [sim: run=10 callback=none]")).await;
    let job = job_of(&created)?;
    output(&adapter, job).await?;
    let mut jobs = sim.look("jobs").await?;
    assert!(jobs[0]["created_at"].is_string());
    jobs[0]["created_at"] = Value::Null;
    let expected = json!([{
        "id": job, "client_ref": attempt.to_string(), "tag": "run=10 callback=none", "state": "succeeded",
        "created_at": null, "billed": true, "cancels": 0, "downloads": 0,
    }]);
    assert_eq!(jobs, expected);
    Ok(())
}

#[tokio::test]
async fn stopping_does_not_wait_for_a_connection_that_hangs() -> anyhow::Result<()> {
    let (_store, sim) = sim().await?;
    let adapter = sim.adapter("http://127.0.0.1:9")?;
    let order = order(attempt(), "[sim: hang=after:60 callback=none]");
    let (created, stopped) = tokio::join!(adapter.create(&order), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        tokio::time::timeout(Duration::from_secs(4), sim.stop()).await
    });
    stopped??;
    assert!(matches!(created, Created::Unknown { .. }), "{created:?}");
    Ok(())
}
