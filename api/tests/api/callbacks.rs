//! Providers' callbacks.

use crate::world::{Answer, World};
use anyhow::Result;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use domain::id::{AttemptId, TaskId};

async fn call(world: &World, provider: &str, attempt: AttemptId, signed: Option<&str>, body: &str) -> Result<Answer> {
    let request = Request::post(format!("/callbacks/{provider}?ref={attempt}"));
    let request = signed.into_iter().fold(request, |request, word| request.header("X-Signed", word));
    world.call(request.body(Body::from(body.to_owned()))?).await
}

/// Writes the first event of an attempt, as the scheduler does before a provider hears of it.
async fn planned(world: &World, task: TaskId, attempt: AttemptId, provider: &str) -> Result<()> {
    world
        .db
        .sql(&format!(
            "INSERT INTO events (event_id, category, stream_id, version, name, schema_version, body, tenant_id, correlation_id,
                                 causation_id, actor, recorded_at)
             VALUES (gen_random_uuid(), 'attempt', '{attempt}', 1, 'attempt.planned', 1,
                     '{{\"task\": \"{task}\", \"number\": 1, \"provider\": \"{provider}\"}}', '{}', gen_random_uuid(),
                     gen_random_uuid(), 'cg.submit.v1', now())",
            world.tenant
        ))
        .await?;
    Ok(())
}

/// P2, after a database was put back to an earlier time: the provider calls back about an attempt that nobody knows. It is kept,
/// and applied once the attempt is there.
#[tokio::test]
async fn a_callback_of_an_unknown_attempt_is_kept_and_applied_when_it_turns_up() -> Result<()> {
    let world = World::new().await?;
    let task = TaskId(uuid::Uuid::new_v4());
    let attempt = AttemptId::of(task, 1);
    let store = world.db.store();
    for _ in 0..3 {
        let answer = call(&world, "replicate", attempt, Some("yes"), "d1 job-1").await?;
        assert_eq!(answer.status, StatusCode::ACCEPTED, "kept, however often it is sent");
    }
    assert_eq!((store.unmatched_callbacks().await?, store.match_callbacks(10).await?), (1, 0), "it waits");
    planned(&world, task, attempt, "replicate").await?;
    let (one, other) = tokio::join!(store.match_callbacks(10), store.match_callbacks(10));
    assert_eq!((one? + other?, store.unmatched_callbacks().await?), (1, 0), "whoever is first applies it");
    let messages = "SELECT count(*) FROM outbox_events WHERE event_type = 'provider.callback.received'";
    assert_eq!((world.count("SELECT count(*) FROM provider_callbacks").await?, world.count(messages).await?), (1, 1));
    assert_eq!(call(&world, "replicate", attempt, Some("yes"), "d1 job-1").await?.status, StatusCode::OK);
    assert_eq!(world.count(messages).await?, 1, "sent again it is the same");
    Ok(())
}

/// A provider's word counts for its own jobs only, also where it knows the name of another's attempt.
#[tokio::test]
async fn a_callback_about_another_providers_attempt_is_refused() -> Result<()> {
    let world = World::new().await?;
    let task = TaskId(uuid::Uuid::new_v4());
    let attempt = AttemptId::of(task, 1);
    planned(&world, task, attempt, "runway").await?;
    assert_eq!(call(&world, "replicate", attempt, Some("yes"), "d1 job-1").await?.status, StatusCode::NOT_FOUND);
    let kept = "SELECT (SELECT count(*) FROM provider_callbacks) + (SELECT count(*) FROM unmatched_callbacks)";
    assert_eq!(world.count(kept).await?, 0);
    // Kept before the attempt was known, it is dropped when it is.
    let second = AttemptId::of(task, 2);
    assert_eq!(call(&world, "replicate", second, Some("yes"), "d2 job-2").await?.status, StatusCode::ACCEPTED);
    planned(&world, task, second, "runway").await?;
    assert_eq!(world.db.store().match_callbacks(10).await?, 0);
    assert_eq!(world.count(kept).await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_callback_is_believed_when_signed_and_answered_when_durable() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let task: TaskId = world.submitted(&world.creator()?, "k").await?.parse()?;
    let attempt = AttemptId::of(task, 1);
    planned(&world, task, attempt, "replicate").await?;
    let kept = "SELECT count(*) FROM provider_callbacks";
    let messages = "SELECT count(*) FROM outbox_events WHERE event_type LIKE '%allback%'";
    for _ in 0..3 {
        assert_eq!(call(&world, "replicate", attempt, Some("yes"), "d1 job-1").await?.status, StatusCode::OK);
    }
    assert_eq!((world.count(kept).await?, world.count(messages).await?), (1, 1), "however often it is sent");
    let long_job = format!("d2 {}", "j".repeat(1025));
    let refused = [
        ("replicate", None, "d2 job-1", StatusCode::UNAUTHORIZED),
        ("replicate", Some("no"), "d2 job-1", StatusCode::UNAUTHORIZED),
        ("replicate", Some("yes"), "nonsense", StatusCode::BAD_REQUEST),
        ("replicate", Some("yes"), "d2 job\0", StatusCode::BAD_REQUEST),
        ("replicate", Some("yes"), long_job.as_str(), StatusCode::BAD_REQUEST),
        ("nobody", Some("yes"), "d2 job-1", StatusCode::NOT_FOUND),
    ];
    for (provider, signed, body, expected) in refused {
        assert_eq!(call(&world, provider, attempt, signed, body).await?.status, expected, "{provider} {body:?}");
    }
    let large = "x".repeat(256 * 1024 + 1);
    let answer = call(&world, "replicate", attempt, Some("yes"), &large).await?;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(world.count(kept).await?, 1);
    Ok(())
}

/// W5: what could not be recorded is not answered with success, and the provider's next try is taken.
#[tokio::test]
async fn a_callback_that_could_not_be_recorded_is_asked_for_again() -> Result<()> {
    let world = World::new().await?;
    world.db.sql("ALTER TABLE events RENAME TO events_away").await?;
    let attempt = AttemptId::of(TaskId(uuid::Uuid::new_v4()), 1);
    let answer = call(&world, "replicate", attempt, Some("yes"), "d1 job-1").await?;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.headers.contains_key("retry-after"));
    assert!(!String::from_utf8_lossy(&answer.body).contains("events"), "{:?}", answer.body);
    Ok(())
}

/// What can not be recorded in time is answered before the provider gives up waiting, and nothing of it is left half done.
#[tokio::test]
async fn a_callback_is_answered_in_time() -> Result<()> {
    let world = World::new().await?;
    let task = TaskId(uuid::Uuid::new_v4());
    let attempt = AttemptId::of(task, 1);
    planned(&world, task, attempt, "replicate").await?;
    let held = "SELECT count(*) FROM pg_locks
                 WHERE relation = 'provider_callbacks'::regclass AND mode = 'AccessExclusiveLock' AND granted";
    let holding =
        world.db.sql("BEGIN; LOCK TABLE provider_callbacks IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(9); ROLLBACK");
    let calling = async {
        while world.count(held).await? == 0 {
            tokio::task::yield_now().await;
        }
        let answer = call(&world, "replicate", attempt, Some("yes"), "d1 job-1").await?;
        let still_held = world.count(held).await? == 1;
        anyhow::Ok((answer, still_held))
    };
    let (over, answered) = tokio::join!(holding, calling);
    over?;
    let (answer, still_held) = answered?;
    assert_eq!((answer.status, still_held), (StatusCode::SERVICE_UNAVAILABLE, true), "before the table was free");
    assert!(answer.headers.contains_key("retry-after"));
    assert_eq!(call(&world, "replicate", attempt, Some("yes"), "d1 job-1").await?.status, StatusCode::OK);
    assert_eq!(world.count("SELECT count(*) FROM provider_callbacks").await?, 1, "the provider's next try is taken");
    Ok(())
}
