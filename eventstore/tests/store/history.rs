//! Time travel on a real PostgreSQL: any version, any time, what changed, and what is said where there is no answer.

use super::log::{EDITABLE, busy_account, fold, record, stored};
use super::support::{Anyhow, database};
use domain::id::{AccountId, AttemptId, TaskId};
use domain::process::StreamId;
use domain::stored::Stored;
use domain::task::Event;
use domain::testkit::strategies::usual_order;
use domain::time::Timestamp;
use eventstore::testkit::TestDatabase;
use eventstore::{Difference, History, Moment};
use serde_json::json;
use uuid::Uuid;

const TASK: TaskId = TaskId(Uuid::from_u128(1));

fn at(text: &str) -> Anyhow<Timestamp> {
    Ok(text.parse()?)
}

/// A task's four events, a second apart, from 12:00:01 on. The first one is of an old version.
async fn life(database: &TestDatabase) -> Anyhow<(StreamId, Vec<Stored>)> {
    let stream = StreamId::task(TASK);
    let mut events = stored([
        Event::Submitted { order: usual_order(TASK) },
        Event::SubmissionBegun { attempt_no: 1 },
        Event::Accepted {},
        Event::CancelRequested { by: "user:1".to_owned() },
    ])?;
    events[0].version = 1;
    let order = events[0].body["order"].as_object_mut().ok_or("an order is an object")?;
    order.remove("work");
    order.remove("retry_of");
    record(database.pool(), stream, 0, &events).await?;
    Ok((stream, events))
}

#[tokio::test]
async fn a_stream_is_shown_at_any_version() -> Anyhow {
    let database = database().await?;
    let (stream, events) = life(&database).await?;
    for version in 0..=4_usize {
        let past = database.store().past(stream, Moment::Version(i64::try_from(version)?)).await?;
        assert_eq!(past.folded, fold(stream, &events[..version])?);
        assert_eq!(past.newest, 4);
        assert_eq!(past.event.map_or(0, |it| it.version), i64::try_from(version)?);
    }
    let newest = database.store().past(stream, Moment::Newest).await?;
    assert_eq!(newest.folded.to_readable()?["state"], "CANCEL_RECONCILING");
    assert_eq!(newest.event.map(|it| it.name), Some("task.cancel_requested".to_owned()));
    let listed = database.store().stream_events(stream, 1, 2).await?;
    assert_eq!(listed.iter().map(|it| it.version).collect::<Vec<_>>(), [2, 3]);
    Ok(())
}

#[tokio::test]
async fn a_stream_is_shown_as_of_any_time() -> Anyhow {
    let database = database().await?;
    let (stream, events) = life(&database).await?;
    for (time, version) in [("12:00:01", 1), ("12:00:02.999999", 2), ("12:00:03", 3), ("23:00:00", 4)] {
        let past = database.store().past(stream, Moment::Time(at(&format!("2026-11-30T{time}Z"))?)).await?;
        assert_eq!(past.folded, fold(stream, &events[..version])?, "{time}");
    }
    let early = database.store().past(stream, Moment::Time(at("2026-11-30T12:00:00.999999Z")?)).await;
    let text = early.expect_err("it did not exist").to_string();
    assert!(text.contains("did not exist at 2026-11-30T12:00:00.999999Z"), "{text}");
    assert!(text.contains("recorded at 2026-11-30T12:00:01.000000Z"), "{text}");
    // A writer that waited for another one has an earlier time than the event before its own. The order of versions counts.
    database.sql(EDITABLE).await?;
    database.sql("UPDATE events SET recorded_at = '2026-11-30T12:00:01.5Z' WHERE version = 3").await?;
    let past = database.store().past(stream, Moment::Time(at("2026-11-30T12:00:01.7Z")?)).await?;
    assert_eq!(past.folded.version(), 1);
    Ok(())
}

#[tokio::test]
async fn what_changed_is_told_value_by_value() -> Anyhow {
    let database = database().await?;
    let (stream, _) = life(&database).await?;
    let found = database.store().differences(stream, 2, 3).await?;
    let state = |before: &str, after: &str| Difference {
        path: "/state".to_owned(),
        before: Some(json!(before)),
        after: Some(json!(after)),
    };
    assert_eq!(found, [state("SUBMITTING", "PROVIDER_RUNNING")]);
    assert_eq!(database.store().differences(stream, 3, 2).await?, [state("PROVIDER_RUNNING", "SUBMITTING")]);
    assert_eq!(database.store().differences(stream, 3, 3).await?, []);
    let born = database.store().differences(stream, 0, 1).await?;
    assert!(born.contains(&state("ABSENT", "QUEUED")), "{born:?}");
    let order = born.iter().find(|it| it.path == "/order").ok_or("the order is new")?;
    assert_eq!((order.before.as_ref(), order.after.as_ref().map(|it| &it["hold"])), (None, Some(&json!(120))));
    assert_eq!(born.len(), 2);

    let account = StreamId::account(AccountId(Uuid::from_u128(7)));
    let events = stored(busy_account(7, 700))?;
    record(database.pool(), account, 0, &events).await?;
    let found = database.store().differences(account, 1_200, 1_202).await?;
    let paths: Vec<&str> = found.iter().map(|it| it.path.as_str()).collect();
    assert_eq!(found.len(), 3, "{paths:?}");
    assert!(paths.contains(&"/available") && paths.contains(&"/charged"), "{paths:?}");
    let third = found.iter().find(|it| it.path.starts_with("/holds/")).ok_or("a hold is new")?;
    assert_eq!(third.after, Some(json!({"state": "SETTLED", "charged": 100, "refunded": 0})));
    Ok(())
}

#[tokio::test]
async fn what_does_not_exist_is_answered_with_what_does() -> Anyhow {
    let database = database().await?;
    let store = database.store();
    let (stream, _) = life(&database).await?;
    for version in [-1, 5, i64::MAX] {
        let text = store.past(stream, Moment::Version(version)).await.expect_err("no such version").to_string();
        assert_eq!(
            text,
            format!("task {TASK} has no version {version}: it has 1 to 4, and 0 is before the first event")
        );
        assert_eq!(store.differences(stream, 1, version).await.expect_err("no such version").to_string(), text);
    }
    let text =
        store.past(StreamId::attempt(AttemptId(TASK.0)), Moment::Newest).await.expect_err("no attempt").to_string();
    assert_eq!(text, format!("nothing is recorded of attempt {TASK}; the id is that of a task"));
    let nobody = Uuid::from_u128(404);
    let text = store.past(StreamId::task(TaskId(nobody)), Moment::Newest).await.expect_err("nothing").to_string();
    assert_eq!(text, format!("nothing is recorded of task {nobody}"));
    Ok(())
}

#[tokio::test]
async fn an_event_that_can_not_be_folded_is_named_and_what_is_before_it_is_shown() -> Anyhow {
    let database = database().await?;
    let (store, (stream, events)) = (database.store(), life(&database).await?);
    database.sql(EDITABLE).await?;
    let edits = [
        ("name = 'task.exploded'", "task.exploded"),
        ("name = 'task.video_stored'", "task.video_stored"),
        ("name = 'task.succeeded', schema_version = 9", "task.succeeded"),
        ("name = 'task.failed', schema_version = 1, body = '{}'", "task.failed"),
    ];
    for (edit, name) in edits {
        database.sql(&format!("UPDATE events SET {edit} WHERE version = 3")).await?;
        let text = store.past(stream, Moment::Newest).await.expect_err("it can not be folded").to_string();
        assert!(text.contains(&stream.to_string()) && text.contains("version 3") && text.contains(name), "{text}");
        let before = store.past(stream, Moment::Version(2)).await?;
        assert_eq!(before.folded, fold(stream, &events[..2])?);
    }
    database.sql("DELETE FROM events WHERE version = 3").await?;
    let text = store.past(stream, Moment::Newest).await.expect_err("there is a hole").to_string();
    assert!(text.contains("version 3 was expected"), "{text}");
    assert_eq!(store.stream_events(stream, 0, 10).await?.len(), 3, "they can be listed all the same");
    Ok(())
}
