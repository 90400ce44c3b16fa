//! Look-ups against a raw server: when "absent" may be said, and when not.

use crate::support::{Act, Raw, attempt, config, sought};
use domain::id::AttemptId;
use providers::replicate::{Replicate, ReplicateConfig};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};
use workers::ports::{Found, Provider};

fn job(id: &str, attempt: AttemptId, age: Duration) -> Value {
    let created = chrono::DateTime::<chrono::Utc>::from(SystemTime::now() - age);
    json!({
        "id": id, "status": "processing", "created_at": created.to_rfc3339(),
        "webhook": format!("https://video.example/callbacks/replicate?ref={attempt}"),
    })
}

fn page(jobs: &[Value], next: Option<&str>) -> Act {
    Act::reply("200 OK", "", &json!({ "next": next, "previous": null, "results": jobs }).to_string())
}

async fn found(
    acts: Vec<Act>,
    attempt: AttemptId,
    change: impl FnOnce(&mut ReplicateConfig),
) -> anyhow::Result<(Found, usize)> {
    let raw = Raw::start(acts).await?;
    let mut config = config(&raw.base_url, "https://video.example");
    change(&mut config);
    let found = Replicate::new("replicate", config)?.find(&sought(attempt)).await;
    Ok((found, raw.requests().len()))
}

const NEXT: Option<&str> = Some("?cursor=2");
const NOW: Duration = Duration::ZERO;

#[tokio::test]
async fn the_whole_list_decides() -> anyhow::Result<()> {
    let (ours, other) = (attempt(), attempt());
    let one = || page(&[job("a", other, NOW), job("b", other, NOW)], NEXT);
    let with = |id: &str| page(&[job(id, ours, NOW)], None);

    let (found_none, pages) = found(vec![one(), page(&[job("c", other, NOW)], None)], ours, |_| {}).await?;
    assert_eq!((found_none, pages), (Found::Absent, 2));
    let (found_one, _) = found(vec![one(), with("mine")], ours, |_| {}).await?;
    assert_eq!(found_one, Found::Job { job: "mine".to_owned() });
    let first = page(&[job("m1", ours, NOW)], NEXT);
    let (found_two, _) = found(vec![first, with("m2")], ours, |_| {}).await?;
    assert_eq!(found_two, Found::Ambiguous { jobs: vec!["m1".to_owned(), "m2".to_owned()] });
    // New jobs push old ones onto the next page while it is read.
    let first = page(&[job("m1", ours, NOW)], NEXT);
    let (found_again, _) = found(vec![first, with("m1")], ours, |_| {}).await?;
    assert_eq!(found_again, Found::Job { job: "m1".to_owned() });
    Ok(())
}

#[tokio::test]
async fn reading_ends_where_the_window_ends() -> anyhow::Result<()> {
    let old = page(&[job("a", attempt(), Duration::from_secs(7_300))], NEXT);
    let (found_none, pages) = found(vec![old], attempt(), |config| config.find_window_s = 7_200).await?;
    assert_eq!((found_none, pages), (Found::Absent, 1));
    Ok(())
}

#[tokio::test]
async fn what_was_not_read_is_not_absent() -> anyhow::Result<()> {
    let ours = attempt();
    let endless = || page(&[job("a", attempt(), NOW)], NEXT);
    let (cut, pages) = found(vec![endless()], ours, |config| config.find_max_pages = 3).await?;
    assert!(matches!(cut, Found::Inconclusive { .. }), "the page limit: {cut:?}");
    assert_eq!(pages, 3);

    let failures = [
        Act::reply("500 X", "", "{}"),
        Act::reply("401 X", "", r#"{"detail":"no"}"#),
        Act::reply("200 OK", "", "<html>"),
        Act::reply("200 OK", "", r#"{"next":null}"#),
        Act::Reset,
    ];
    for failure in failures {
        let (failed, _) = found(vec![endless(), failure], ours, |_| {}).await?;
        assert!(matches!(failed, Found::Inconclusive { .. }), "{failed:?}");
    }

    let removed = json!({ "id": "x", "status": "succeeded", "data_removed": true, "webhook": null });
    let (unclear, _) = found(vec![page(&[removed], None)], ours, |_| {}).await?;
    assert!(matches!(unclear, Found::Inconclusive { .. }), "whose job was that: {unclear:?}");
    Ok(())
}

#[tokio::test]
async fn the_token_does_not_follow_a_page_address_elsewhere() -> anyhow::Result<()> {
    let elsewhere = Raw::start(vec![page(&[], None)]).await?;
    let foreign = [
        format!("{}/predictions?cursor=2", elsewhere.base_url),
        "/v1/account".to_owned(),
        "ftp://x/v1/predictions".to_owned(),
    ];
    for next in foreign {
        let (refused, pages) = found(vec![page(&[], Some(&next))], attempt(), |_| {}).await?;
        assert!(matches!(refused, Found::Inconclusive { .. }), "{next}: {refused:?}");
        assert_eq!(pages, 1, "{next}");
    }
    assert!(elsewhere.requests().is_empty());
    Ok(())
}
