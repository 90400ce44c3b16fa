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

#[tokio::test]
async fn a_callback_is_believed_when_signed_and_answered_when_durable() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let task: TaskId = world.submitted(&world.creator()?, "k").await?.parse()?;
    let attempt = AttemptId::of(task, 1);
    let unknown = call(&world, "replicate", attempt, Some("yes"), "d1 job-1").await?;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND, "an attempt that was never made");
    world
        .db
        .sql(&format!(
            "INSERT INTO events (event_id, category, stream_id, version, name, schema_version, body, tenant_id, correlation_id,
                                 causation_id, actor, recorded_at)
             VALUES (gen_random_uuid(), 'attempt', '{attempt}', 1, 'attempt.planned', 1,
                     '{{\"task\": \"{task}\", \"number\": 1, \"provider\": \"replicate\"}}', '{}', gen_random_uuid(),
                     gen_random_uuid(), 'cg.submit.v1', now())",
            world.tenant
        ))
        .await?;
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
