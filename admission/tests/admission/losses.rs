//! Redis loses what it knew, or goes away.

use crate::server::{Anyhow, Server};
use crate::support::{Facts, config, granted, in_redis, names, slot, until};
use admission::{Admission, AdmissionConfig, AdmissionError};
use domain::process::Slot;

/// R1: Redis is emptied while slots are held: nothing is granted by half counts; then they are made again from the facts.
#[tokio::test]
async fn r1_counts_are_made_again_from_the_facts_after_a_flush() -> Anyhow {
    let server = Server::start()?;
    let redis = in_redis(&server, &config(4)).await?;
    for number in 1..=4 {
        assert!(granted(&redis, &slot(1, number)).await?);
    }
    server.say(&["FLUSHALL"])?;
    assert!(matches!(redis.ask(&slot(1, 5)).await, Err(AdmissionError::Lost)), "by half counts nothing is granted");
    assert!(matches!(redis.tick().await, Err(AdmissionError::Lost)));
    assert!(redis.count().await?.lost);
    let facts = Facts::default();
    facts.are((1..=3).map(|number| slot(1, number)).collect());
    let swept = redis.sweep(&facts).await?.ok_or("nobody else is at it")?;
    assert_eq!(swept.in_flight, 3);
    assert!(granted(&redis, &slot(1, 5)).await?, "three run, and one more may");
    assert!(!granted(&redis, &slot(1, 6)).await?);
    assert_eq!(redis.count().await?.providers, [("replicate".to_owned(), 4)]);
    Ok(())
}

/// Two processes meet lost counts: one makes them again.
#[tokio::test]
async fn one_process_at_a_time_counts_anew() -> Anyhow {
    let server = Server::start()?;
    let redis = in_redis(&server, &config(4)).await?;
    server.say(&["FLUSHALL"])?;
    let facts = Facts::default();
    facts.are(vec![slot(1, 1)]);
    let (one, other) = tokio::join!(redis.sweep(&facts), redis.sweep(&facts));
    let done = [one?, other?].iter().filter(|it| it.is_some()).count();
    assert!(done >= 1);
    assert_eq!(redis.count().await?.held, 1);
    // And then not again right away.
    assert!(redis.sweep(&facts).await?.is_some(), "the first one after a loss is not held up by the one before it");
    assert!(redis.sweep(&facts).await?.is_none(), "a moment later there is no need");
    Ok(())
}

/// Redis is emptied while somebody counts anew: what they had told it is told again.
#[tokio::test]
async fn a_loss_while_counting_anew_is_noticed() -> Anyhow {
    struct Emptied<'a>(&'a Server, std::sync::atomic::AtomicU32);
    impl admission::InFlight for Emptied<'_> {
        fn slots(&self) -> futures_util::future::BoxFuture<'_, Result<Vec<Slot>, String>> {
            Box::pin(async move {
                if self.1.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0 {
                    self.0.say(&["FLUSHALL"]).map_err(|error| error.to_string())?;
                }
                Ok(vec![slot(1, 1), slot(1, 2)])
            })
        }
    }
    let server = Server::start()?;
    let redis = in_redis(&server, &config(2)).await?;
    server.say(&["FLUSHALL"])?;
    let facts = Emptied(&server, std::sync::atomic::AtomicU32::new(0));
    assert!(redis.sweep(&facts).await?.is_some());
    assert_eq!(facts.1.load(std::sync::atomic::Ordering::SeqCst), 2, "it began again");
    assert!(!granted(&redis, &slot(1, 3)).await?, "both count");
    Ok(())
}

/// R2: the word that a slot is free is lost ten times: no capacity is lost for good.
#[tokio::test]
async fn r2_slots_that_nobody_gave_back_are_found_by_the_comparison() -> Anyhow {
    let server = Server::start()?;
    // A slot is old enough to be known to the facts after a fifth of its lease.
    let redis = in_redis(&server, &AdmissionConfig { lease_seconds: 10, ..config(10) }).await?;
    for number in 1..=10 {
        assert!(granted(&redis, &slot(1, number)).await?);
    }
    assert!(!granted(&redis, &slot(1, 11)).await?);
    let facts = Facts::default();
    facts.are(vec![slot(1, 1)]);
    let (mut freed, mut called) = (0, vec![]);
    until("nine slots of attempts that are over are free", async || {
        if let Some(swept) = redis.sweep(&facts).await? {
            freed += swept.freed;
            called.extend(swept.called);
        }
        Ok(freed >= 9)
    })
    .await?;
    assert_eq!(names(&called), [slot(1, 11).attempt], "and who waited is called");
    assert_eq!(freed, 9, "the one that runs keeps its slot");
    Ok(())
}

/// A slot that was granted a moment ago, for a submit that is not recorded yet, is left alone.
#[tokio::test]
async fn a_fresh_slot_is_not_taken_for_a_lost_one() -> Anyhow {
    let server = Server::start()?;
    let redis = in_redis(&server, &config(2)).await?;
    server.say(&["FLUSHALL"])?;
    redis.sweep(&Facts::default()).await?;
    assert!(granted(&redis, &slot(1, 1)).await?);
    let swept = redis.sweep(&Facts::default()).await?.ok_or("nobody else is at it")?;
    assert_eq!((swept.freed, redis.count().await?.held), (0, 1));
    Ok(())
}

/// What runs counts, also beyond a limit: it was submitted while Redis was away.
#[tokio::test]
async fn what_runs_counts_beyond_the_limit_and_nothing_begins_until_there_is_room() -> Anyhow {
    let server = Server::start()?;
    let redis = in_redis(&server, &config(2)).await?;
    for number in 1..=4 {
        redis.keep(&slot(1, number)).await?;
    }
    assert!(!granted(&redis, &slot(1, 5)).await?);
    for number in 1..=2 {
        assert!(redis.give_back(slot(1, number).attempt, 1).await?.is_empty(), "four and then three run: too many");
    }
    assert_eq!(names(&redis.give_back(slot(1, 3).attempt, 1).await?), [slot(1, 5).attempt]);
    Ok(())
}
