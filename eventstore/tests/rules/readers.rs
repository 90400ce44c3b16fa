//! How a group of other programs' readers shares the log, run from the text of `docs/event-store.md`.

use super::Anyhow;
use super::follow::{documented, granted, query, readers};
use eventstore::testkit::TestDatabase;
use sqlx::{PgPool, Row};
use std::time::Duration;
use uuid::Uuid;

/// A partition as the documented claim answers it.
type Held = (i32, i64, i64);

async fn claim(log: &PgPool, member: Uuid) -> Anyhow<Vec<Held>> {
    let rows = query(&documented("readers-claim")?).bind(member).fetch_all(log).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
}

/// One documented batch of a partition. `crash`: it dies before its commit. Says how many events it read.
async fn batch(log: &PgPool, (partition, token, position): Held, crash: bool) -> Anyhow<usize> {
    let up_to: i64 = query(&documented("readers-up-to")?).fetch_one(log).await?.get(0);
    let mut tx = log.begin().await?;
    let read = documented("readers-read")?;
    let events = query(&read).bind(partition).bind(position).bind(up_to).fetch_all(&mut *tx).await?;
    for event in &events {
        let body: serde_json::Value = event.get("body");
        query(&documented("readers-apply")?)
            .bind(event.get::<Uuid, _>("stream_id"))
            .bind(body["amount"].as_i64().ok_or("a grant has an amount")?)
            .execute(&mut *tx)
            .await?;
    }
    let to = if events.len() == 1000 { events[999].get("position") } else { up_to.max(position) };
    let moved = documented("readers-move")?;
    query(&moved).bind(partition).bind(token).bind(position).bind(to).execute(&mut *tx).await?;
    if crash {
        tx.rollback().await?
    } else {
        tx.commit().await?
    }
    Ok(events.len())
}

/// A member that dies before a commit now and then, and comes back.
async fn member(log: PgPool, own: PgPool, total: i64) -> Anyhow {
    let id = Uuid::new_v4();
    for turn in 0..2_000 {
        let counted: i64 = sqlx::query_scalar("SELECT coalesce(sum(credits), 0)::bigint / 7 FROM spending.spent")
            .fetch_one(&own)
            .await?;
        if counted >= total {
            query(&documented("readers-leave")?).bind(id).execute(&log).await?;
            return Ok(());
        }
        for held in claim(&log, id).await? {
            batch(&log, held, turn % 3 == 0).await?;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Err("the group does not get to the end".into())
}

async fn set_up(database: &TestDatabase) -> Anyhow<PgPool> {
    database.sql(&documented("readers-setup")?).await?;
    let log = readers(database).await?;
    for _ in 0..2 {
        query(&documented("readers-make")?).execute(&log).await?;
    }
    Ok(log)
}

#[tokio::test]
async fn the_documented_group_counts_each_event_once() -> Anyhow {
    const WRITERS: usize = 3;
    const EACH: usize = 25;
    let database = TestDatabase::create().await?;
    set_up(&database).await?;
    let total = i64::try_from(WRITERS * EACH)?;
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..WRITERS {
        let store = database.store().clone();
        running.spawn(async move {
            for _ in 0..EACH {
                granted(&store, 7).await?;
            }
            Anyhow::Ok(())
        });
        running.spawn(member(readers(&database).await?, database.owner().clone(), total));
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    assert_eq!(database.count("SELECT sum(credits)::bigint FROM spending.spent").await?, 7 * total);
    let alone = Uuid::new_v4();
    let held = claim(&readers(&database).await?, alone).await?;
    assert_eq!(held.len(), 8, "all that left have given back what they had");
    for it in held {
        assert_eq!(batch(database.owner(), it, false).await?, 0, "everything is read");
    }
    Ok(())
}

#[tokio::test]
async fn who_lost_a_partition_can_not_move_its_checkpoint() -> Anyhow {
    let database = TestDatabase::create().await?;
    let log = set_up(&database).await?;
    granted(database.store(), 7).await?;
    let (one, other) = (Uuid::new_v4(), Uuid::new_v4());
    let before = claim(&log, one).await?;
    // The other one's share comes when the first has given it back.
    assert_eq!((before.len(), claim(&log, other).await?.len()), (8, 0));
    let (kept, theirs) = (claim(&log, one).await?, claim(&log, other).await?);
    assert_eq!((kept.len(), theirs.len()), (4, 4));
    for lost in before.iter().filter(|it| !kept.contains(it)) {
        let error = batch(&log, *lost, false).await.expect_err("it is another member's");
        let code = error.downcast_ref::<sqlx::Error>().and_then(|it| it.as_database_error()).and_then(|it| it.code());
        assert_eq!(code.as_deref(), Some("LR001"), "{error}");
        assert!(error.to_string().contains("is not this member's any more"), "{error}");
    }
    // Also not its own a second time from the same place, nor to where nothing was given out.
    batch(&log, kept[0], false).await?;
    assert!(batch(&log, kept[0], false).await.is_err(), "the checkpoint is elsewhere by now");
    let (partition, token, position) = kept[1];
    let beyond = documented("readers-move")?;
    let error = query(&beyond).bind(partition).bind(token).bind(position).bind(99_i64).execute(&log).await;
    assert!(error.is_err_and(|it| it.to_string().contains("the last position of the log is 1")));
    let error = query("SELECT drop_reader_group('spending')").execute(&log).await.expect_err("they read");
    assert!(error.to_string().contains("has 2 members that read: stop them first"), "{error}");
    for member in [one, other] {
        query(&documented("readers-leave")?).bind(member).execute(&log).await?;
    }
    query("SELECT drop_reader_group('spending')").execute(&log).await?;
    assert_eq!(database.count("SELECT count(*) FROM reader_group_partitions").await?, 0);
    Ok(())
}
