//! The adapter against the simulator, for every fault that can be asked for.

use crate::every_provider::LOSSES;
use crate::support::{Receiver, attempt, job_of, order, sim, sought, wait_for};
use serde_json::json;
use std::time::{Duration, Instant};
use workers::ports::{CancelAsked, Created, FaultClass, Found, JobState, Polled, Provider};

fn succeeded(state: &JobState) -> bool {
    matches!(state, JobState::Succeeded { .. })
}

#[tokio::test]
async fn a_job_without_faults() -> anyhow::Result<()> {
    let (_store, sim) = sim().await?;
    let receiver = Receiver::start(0).await?;
    let adapter = sim.adapter(&receiver.base_url)?;
    let attempt = attempt();
    sim.order("pause", json!({})).await?;
    let created = adapter.create(&order(attempt, "a cat [sim: run=600]")).await;
    let job = job_of(&created)?;
    assert_eq!(adapter.poll(job).await, Polled::State(JobState::Queued));
    sim.order("resume", json!({})).await?;
    wait_for(&adapter, job, |state| *state == JobState::Running { percent: None }).await?;
    assert_eq!(adapter.find(&sought(attempt)).await, Found::Job { job: job.to_owned() }, "running jobs are listed");
    let JobState::Succeeded { output_url, usage_millis } = wait_for(&adapter, job, succeeded).await? else {
        anyhow::bail!("it succeeded")
    };
    assert!(output_url.starts_with(&format!("{}/files/{job}.mp4?", sim.origin)), "{output_url}");
    assert!(usage_millis.is_some_and(|used| used >= 600), "{usage_millis:?}");

    let told = receiver.wait(1).await?;
    let (path, query) = &told[0].path_and_query;
    assert_eq!((path.as_str(), query.as_str()), ("/hooks/callbacks/replicate", format!("ref={attempt}").as_str()));
    let read =
        adapter.callback(&told[0].header(), query, &told[0].body, chrono::DateTime::from(std::time::SystemTime::now()));
    let read = read?;
    assert_eq!((read.attempt, read.job.as_str(), read.delivery), (attempt, job, format!("msg_{job}")));
    let counters = sim.look("counters").await?;
    let expected = json!({
        "accepted": 1, "by_ref": { attempt.to_string(): 1 }, "creates": { attempt.to_string(): 1 }, "max_per_ref": 1,
        "billed_seconds": { attempt.to_string(): 1 },
    });
    assert_eq!(counters, expected);
    Ok(())
}

#[tokio::test]
async fn replies_lost_before_and_after_acceptance() -> anyhow::Result<()> {
    let (_store, sim) = sim().await?;
    let adapter = sim.adapter("http://127.0.0.1:9")?;
    for (fault, accepted) in LOSSES {
        let attempt = attempt();
        let mut order = order(attempt, &format!("a cat [sim: callback=none {fault}]"));
        order.timeout = Duration::from_millis(1_500);
        let created = adapter.create(&order).await;
        assert!(matches!(created, Created::Unknown { .. }), "{fault}: {created:?}");
        assert_eq!(sim.creates(attempt).await?, 1, "{fault}: one call");
        assert_eq!(sim.accepted(attempt).await?, accepted, "{fault}");
        let found = adapter.find(&sought(attempt)).await;
        match (accepted, &found) {
            (0, Found::Absent) => {
                let again = adapter.create(&order).await;
                assert!(matches!(again, Created::Accepted { .. }), "{fault}: the second call: {again:?}");
            }
            (1, Found::Job { job }) => {
                wait_for(&adapter, job, succeeded).await?;
            }
            _ => anyhow::bail!("{fault}: {found:?}"),
        }
        assert_eq!(sim.accepted(attempt).await?, 1, "{fault}: one job in the end");
    }
    assert_eq!(sim.look("counters").await?["max_per_ref"], 1);
    Ok(())
}

#[tokio::test]
async fn the_oracle_sees_a_second_submission() -> anyhow::Result<()> {
    let (_store, sim) = sim().await?;
    let adapter = sim.adapter("http://127.0.0.1:9")?;
    let attempt = attempt();
    let order = order(attempt, "[sim: never callback=none]");
    adapter.create(&order).await;
    adapter.create(&order).await;
    assert_eq!(sim.look("counters").await?["max_per_ref"], 2);
    assert!(matches!(adapter.find(&sought(attempt)).await, Found::Ambiguous { jobs } if jobs.len() == 2));
    Ok(())
}

#[tokio::test]
async fn refusals_and_failures() -> anyhow::Result<()> {
    let (_store, sim) = sim().await?;
    let adapter = sim.adapter("http://127.0.0.1:9")?;
    for (word, class) in [
        ("refuse=422", FaultClass::BadRequest),
        ("refuse=400", FaultClass::BadRequest),
        ("refuse=402", FaultClass::Account),
        ("refuse=moderation", FaultClass::Moderation),
        ("no-such-word", FaultClass::BadRequest),
    ] {
        let attempt = attempt();
        let created = adapter.create(&order(attempt, &format!("a cat [sim: {word}]"))).await;
        assert!(matches!(&created, Created::Rejected(fault) if fault.class == class), "{word}: {created:?}");
        assert_eq!(sim.accepted(attempt).await?, 0, "{word}");
        assert_eq!(adapter.find(&sought(attempt)).await, Found::Absent, "{word}");
    }
    for (word, class, code) in
        [("fail=internal", FaultClass::Internal, "E6716"), ("fail=moderation", FaultClass::Moderation, "E005")]
    {
        let created = adapter.create(&order(attempt(), &format!("a cat [sim: callback=none {word}]"))).await;
        let state = wait_for(&adapter, job_of(&created)?, |state| matches!(state, JobState::Failed(_))).await?;
        assert!(
            matches!(&state, JobState::Failed(fault) if fault.class == class && fault.code == code),
            "{word}: {state:?}"
        );
    }
    let mut config = crate::support::config(&format!("{}/v1", sim.origin), "http://127.0.0.1:9");
    config.connection.token = "another".into();
    let stranger = providers::replicate::Replicate::new("replicate", config)?;
    let created = stranger.create(&order(attempt(), "a cat")).await;
    assert!(matches!(&created, Created::Rejected(fault) if fault.class == FaultClass::Account), "{created:?}");
    assert_eq!(stranger.find(&sought(attempt())).await, Found::Inconclusive { cause: "http 401".to_owned() });
    Ok(())
}

#[tokio::test]
async fn throttled_twice_then_accepted() -> anyhow::Result<()> {
    let (_store, sim) = sim().await?;
    let adapter = sim.adapter("http://127.0.0.1:9")?;
    let attempt = attempt();
    let order = order(attempt, "a cat [sim: throttle=2 callback=none]");
    let throttled = Created::Throttled { retry_after: Some(Duration::from_secs(1)) };
    assert_eq!(adapter.create(&order).await, throttled);
    assert_eq!(adapter.create(&order).await, throttled);
    assert_eq!(adapter.find(&sought(attempt)).await, Found::Absent);
    assert!(matches!(adapter.create(&order).await, Created::Accepted { .. }));
    assert_eq!((sim.creates(attempt).await?, sim.accepted(attempt).await?), (3, 1));
    Ok(())
}

#[tokio::test]
async fn callbacks_early_duplicate_late_none_and_refused() -> anyhow::Result<()> {
    let (_store, sim) = sim().await?;

    let receiver = Receiver::start(0).await?;
    let adapter = sim.adapter(&receiver.base_url)?;
    let created = adapter.create(&order(attempt(), "[sim: callback=early callback=duplicate]")).await;
    let answered = Instant::now();
    let job = job_of(&created)?;
    let told = receiver.wait(3).await?;
    assert!(told.iter().all(|told| told.at < answered), "told before the create call was answered");
    let ids: Vec<_> = told.iter().map(|told| told.header()("webhook-id")).collect();
    assert_eq!(ids, vec![Some(format!("msg_{job}")); 3], "the same delivery three times");
    assert!(succeeded(&wait_for(&adapter, job, |_| true).await?));

    let receiver = Receiver::start(2).await?;
    let adapter = sim.adapter(&receiver.base_url)?;
    adapter.create(&order(attempt(), "a cat")).await;
    let told = receiver.wait(3).await?;
    assert_eq!(told[0].header()("webhook-id"), told[2].header()("webhook-id"), "sent again until it is taken");

    let receiver = Receiver::start(0).await?;
    let adapter = sim.adapter(&receiver.base_url)?;
    let created = adapter.create(&order(attempt(), "a cat [sim: callback=late:1500]")).await;
    wait_for(&adapter, job_of(&created)?, succeeded).await?;
    assert!(receiver.told().is_empty(), "not yet");
    receiver.wait(1).await?;

    let created = adapter.create(&order(attempt(), "a cat [sim: callback=none]")).await;
    wait_for(&adapter, job_of(&created)?, succeeded).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(receiver.told().len(), 1, "the job without a callback told nothing");
    Ok(())
}

#[tokio::test]
async fn a_callback_tells_the_job_of_a_lost_reply() -> anyhow::Result<()> {
    let (_store, sim) = sim().await?;
    let receiver = Receiver::start(0).await?;
    let adapter = sim.adapter(&receiver.base_url)?;
    let attempt = attempt();
    let created = adapter.create(&order(attempt, "a cat [sim: drop=after callback=early]")).await;
    assert!(matches!(created, Created::Unknown { .. }), "{created:?}");
    let told = receiver.wait(1).await?;
    let (now, query) = (chrono::DateTime::from(std::time::SystemTime::now()), &told[0].path_and_query.1);
    let read = adapter.callback(&told[0].header(), query, &told[0].body, now)?;
    assert_eq!(read.attempt, attempt);
    assert!(matches!(adapter.poll(&read.job).await, Polled::State(JobState::Succeeded { .. })));
    Ok(())
}

#[tokio::test]
async fn unknown_words_unknown_jobs_and_jobs_without_end() -> anyhow::Result<()> {
    let (_store, sim) = sim().await?;
    let adapter = sim.adapter("http://127.0.0.1:9")?;
    let created = adapter.create(&order(attempt(), "a cat [sim: status=weird run=1000 callback=none]")).await;
    let job = job_of(&created)?;
    let weird = JobState::Unrecognised { raw: "migrating".to_owned() };
    wait_for(&adapter, job, |state| *state == weird).await?;
    wait_for(&adapter, job, succeeded).await?;

    let created = adapter.create(&order(attempt(), "a cat [sim: never run=1 callback=none]")).await;
    let job = job_of(&created)?;
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(adapter.poll(job).await, Polled::State(JobState::Running { percent: None }));
    assert_eq!(adapter.cancel(job).await, CancelAsked::Requested);
    assert_eq!(adapter.poll(job).await, Polled::State(JobState::Canceled));

    for job in ["nosuchjob", "../predictions", ""] {
        assert_eq!(adapter.poll(job).await, Polled::State(JobState::NotFound), "{job}");
        assert_eq!(adapter.cancel(job).await, CancelAsked::NotFound, "{job}");
    }
    Ok(())
}

#[tokio::test]
async fn cancels_that_fail_come_late_or_are_ignored() -> anyhow::Result<()> {
    let (_store, sim) = sim().await?;
    let adapter = sim.adapter("http://127.0.0.1:9")?;
    let created = adapter.create(&order(attempt(), "a cat [sim: never cancel=fail:2 callback=none]")).await;
    let job = job_of(&created)?;
    assert_eq!(adapter.cancel(job).await, CancelAsked::Unknown);
    assert_eq!(adapter.cancel(job).await, CancelAsked::Unknown);
    assert_eq!(adapter.cancel(job).await, CancelAsked::Requested);

    let created = adapter.create(&order(attempt(), "a cat [sim: run=500 cancel=late callback=none]")).await;
    let job = job_of(&created)?;
    assert_eq!(adapter.cancel(job).await, CancelAsked::Requested);
    wait_for(&adapter, job, succeeded).await?;
    assert_eq!(adapter.cancel(job).await, CancelAsked::AlreadyEnded);
    Ok(())
}

#[tokio::test]
async fn a_job_that_the_list_shows_late() -> anyhow::Result<()> {
    let (_store, sim) = sim().await?;
    let adapter = sim.adapter("http://127.0.0.1:9")?;
    let attempt = attempt();
    let created = adapter.create(&order(attempt, "a cat [sim: list=late:1500 drop=after callback=none]")).await;
    assert!(matches!(created, Created::Unknown { .. }));
    assert_eq!(adapter.find(&sought(attempt)).await, Found::Absent, "why the caller waits before it believes this");
    tokio::time::sleep(Duration::from_millis(1_600)).await;
    assert!(matches!(adapter.find(&sought(attempt)).await, Found::Job { .. }));
    Ok(())
}

#[tokio::test]
async fn while_it_is_down_nothing_is_known() -> anyhow::Result<()> {
    let (_store, sim) = sim().await?;
    let adapter = sim.adapter("http://127.0.0.1:9")?;
    let created = adapter.create(&order(attempt(), "a cat [sim: never callback=none]")).await;
    let job = job_of(&created)?.to_owned();
    wait_for(&adapter, &job, |state| matches!(state, JobState::Running { .. })).await?;
    sim.order("down", json!({ "for_ms": 60_000 })).await?;
    assert_eq!(adapter.create(&order(attempt(), "a cat")).await, Created::Unknown { cause: "http 503".to_owned() });
    assert_eq!(adapter.poll(&job).await, Polled::Unavailable { cause: "http 503".to_owned(), retry_after: None });
    assert_eq!(adapter.find(&sought(attempt())).await, Found::Inconclusive { cause: "http 503".to_owned() });
    assert_eq!(adapter.cancel(&job).await, CancelAsked::Unknown);
    sim.order("down", json!({ "for_ms": 0 })).await?;
    assert_eq!(adapter.poll(&job).await, Polled::State(JobState::Running { percent: None }));
    Ok(())
}
