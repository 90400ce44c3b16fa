//! A provider that fails is left alone, looked at with something harmless, and asked again.

use crate::adapters::{Adapters, order_at, sought_at};
use crate::support::{Act, Raw, Sim, attempt, order};
use providers::simulator::Kind;
use serde_json::json;
use std::time::{Duration, Instant, SystemTime};
use workers::ports::{CancelAsked, CancelKind, Created, Found, LookUp, Polled, Provider};

/// Sleeps until the provider may be looked at again.
async fn until_it_is_looked_at(provider: &dyn Provider) {
    let until = provider.outage().map(|outage| outage.until);
    let left = until.and_then(|until| until.duration_since(SystemTime::now()).ok()).unwrap_or_default();
    tokio::time::sleep(left + Duration::from_millis(5)).await;
}

#[tokio::test]
async fn while_it_is_left_alone_nothing_is_sent_and_every_call_says_so() -> anyhow::Result<()> {
    for (kind, speaks) in Kind::ALL {
        let store = tempfile::tempdir()?;
        let sim = Sim::of(speaks, store.path()).await?;
        let breaker = json!({ "min_calls": 5, "open_ms": 600, "open_cap_ms": 600 });
        let provider = Adapters::with_breaker(kind, &sim.origin, breaker)?;
        let job = match provider.create(&order_at(kind, attempt(), "a cat [sim: never callback=none]")).await {
            Created::Accepted { job } => job,
            other => anyhow::bail!("{kind}: {other:?}"),
        };
        sim.order("down", json!({ "for_ms": 60_000 })).await?;
        for _ in 0..4 {
            let polled = provider.poll(&job).await;
            assert!(matches!(polled, Polled::Unavailable { retry_after: None, .. }), "{kind}: {polled:?}");
        }
        let outage = provider.outage().expect("it fails");
        assert_eq!(outage.cause, "it answers 5xx", "{kind}");
        let began = Instant::now();
        let polled = provider.poll(&job).await;
        let left = |it: &Duration| *it <= Duration::from_millis(600) && !it.is_zero();
        assert!(matches!(&polled, Polled::Unavailable { retry_after: Some(it), .. } if left(it)), "{kind}: {polled:?}");
        let not_made = attempt();
        let created = provider.create(&order_at(kind, not_made, "a cat")).await;
        assert!(matches!(&created, Created::Unavailable { retry_after } if left(retry_after)), "{kind}: {created:?}");
        if !matches!(provider.capabilities().look_up, LookUp::None | LookUp::CallbackOnly) {
            let found = provider.find(&sought_at(kind, not_made)).await;
            assert!(matches!(found, Found::Inconclusive { .. }), "{kind}: {found:?}");
        }
        if provider.capabilities().cancel != CancelKind::None {
            assert_eq!(provider.cancel(&job).await, CancelAsked::Unknown, "{kind}");
        }
        assert!(began.elapsed() < Duration::from_millis(600), "{kind}: nobody was waited for");

        // Its time is over, and it still fails: what goes out is harmless.
        until_it_is_looked_at(provider.as_ref()).await;
        let created = provider.create(&order_at(kind, not_made, "a cat")).await;
        assert!(matches!(created, Created::Unavailable { .. }), "{kind}: {created:?}");
        assert_eq!(provider.outage().map(|it| it.since), Some(outage.since), "{kind}: it is the same outage");
        sim.order("down", json!({ "for_ms": 0 })).await?;
        assert_eq!(sim.creates(not_made).await?, 0, "{kind}: no create call was sent");

        until_it_is_looked_at(provider.as_ref()).await;
        let created = provider.create(&order_at(kind, not_made, "a cat [sim: never callback=none]")).await;
        assert!(matches!(created, Created::Accepted { .. }), "{kind}: {created:?}");
        assert_eq!((sim.accepted(not_made).await?, provider.outage()), (1, None), "{kind}");
    }
    Ok(())
}

/// Refusals, throttling and jobs that nobody knows are answers: a provider that gives them is there.
#[tokio::test]
async fn what_a_provider_says_no_to_is_no_failure_of_its() -> anyhow::Result<()> {
    let problem = r#"{"title":"no","detail":"no","status":STATUS}"#;
    for status in ["400 Bad Request", "402 Payment Required", "404 Not Found", "422 x", "429 Too Many Requests"] {
        let body = problem.replace("STATUS", &status[..3]);
        let raw = Raw::start(vec![Act::reply(status, "content-type: application/problem+json\r\n", &body)]).await?;
        let provider = Adapters::with_breaker("replicate", raw.origin(), json!({ "min_calls": 2 }))?;
        for _ in 0..8 {
            provider.create(&order(attempt(), "a cat")).await;
            provider.poll("job1").await;
        }
        assert_eq!(provider.outage(), None, "{status}");
    }
    Ok(())
}

/// Nobody listens, nobody answers, the connection breaks: each of them counts.
#[tokio::test]
async fn every_way_not_to_answer_counts() -> anyhow::Result<()> {
    let quick = json!({ "min_calls": 3, "open_ms": 60_000 });
    let nobody = "http://127.0.0.1:9".to_owned();
    let reset = Raw::start(vec![Act::Reset]).await?;
    let error = Raw::start(vec![Act::reply("503 Service Unavailable", "", "busy")]).await?;
    for (origin, cause) in [
        (nobody.as_str(), "connection refused"),
        (reset.origin(), "the connection ended before the answer"),
        (error.origin(), "it answers 5xx"),
    ] {
        let provider = Adapters::with_breaker("replicate", origin, quick.clone())?;
        for _ in 0..3 {
            assert_eq!(provider.outage(), None);
            provider.poll("job1").await;
        }
        assert_eq!(provider.outage().map(|it| it.cause).as_deref(), Some(cause));
    }
    Ok(())
}
