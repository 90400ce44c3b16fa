//! Redis goes away and comes back: the process has an answer all the time.

use crate::server::{Anyhow, Server};
use crate::support::{Facts, config, slot, until};
use admission::{AdmissionConfig, Desk, Kind, WhenDown};
use domain::process::{Entry, SlotNote, Why};
use std::time::{Duration, Instant};

async fn desk(server: &Server, when_down: WhenDown) -> Anyhow<Desk> {
    let config =
        AdmissionConfig { kind: Kind::Redis, url: Some(server.url()), when_down, timeout_ms: 1_000, ..config(2) };
    let desk = Desk::new(&config)?;
    desk.sweep(&Facts::default()).await?;
    Ok(desk)
}

fn over(number: u128) -> SlotNote {
    SlotNote::Over { attempt: slot(1, number).attempt, round: 1 }
}

#[tokio::test]
async fn killed_with_admit_the_process_counts_for_itself() -> Anyhow {
    let mut server = Server::start()?;
    let desk = desk(&server, WhenDown::Admit).await?;
    assert_eq!(desk.ask(&slot(1, 1)).await.entry, Entry::Granted);
    server.kill();
    assert_eq!(desk.ask(&slot(1, 2)).await.entry, Entry::Granted, "the limit is two, and one is known to run");
    let third = desk.ask(&slot(1, 3)).await;
    assert!(matches!(third.entry, Entry::Wait { why: Why::Provider, .. }), "{third:?}");
    assert!(desk.count().await.is_err(), "status says that Redis is down");
    let began = Instant::now();
    for _ in 0..100 {
        desk.ask(&slot(1, 3)).await;
    }
    assert!(began.elapsed() < Duration::from_secs(5), "not every question waits for Redis: {:?}", began.elapsed());
    let called = desk.note(&over(1)).await;
    assert_eq!(called.len(), 1, "its own line is served as well");
    assert_eq!(desk.ask(&slot(1, 3)).await.entry, Entry::Granted);
    assert!(matches!(desk.ask(&slot(1, 4)).await.entry, Entry::Wait { .. }));

    server.come_back()?;
    // Empty: what runs is told from the facts, and who waited here is called, to stand in line there.
    let facts = Facts::default();
    facts.are(vec![slot(1, 2), slot(1, 3)]);
    until("it is found again and counted anew", async || {
        Ok(desk.sweep(&facts).await.is_ok_and(|it| it.is_some()) && desk.count().await.is_ok_and(|it| it.held == 2))
    })
    .await?;
    let called = desk.tick().await;
    assert_eq!(called.iter().map(|it| it.attempt).collect::<Vec<_>>(), [slot(1, 4).attempt]);
    assert!(matches!(desk.ask(&slot(1, 4)).await.entry, Entry::Wait { why: Why::Provider, .. }));
    assert_eq!(desk.count().await?.waiting, 1);
    Ok(())
}

#[tokio::test]
async fn killed_with_wait_nothing_is_granted_until_it_is_back() -> Anyhow {
    let mut server = Server::start()?;
    let desk = desk(&server, WhenDown::Wait).await?;
    server.kill();
    for number in 1..=3 {
        let asked = desk.ask(&slot(1, number)).await;
        assert!(matches!(asked.entry, Entry::Wait { why: Why::Down, .. }), "{asked:?}");
    }
    server.come_back()?;
    let facts = Facts::default();
    until("it is back, with its counts", async || {
        desk.sweep(&facts).await.ok();
        Ok(desk.ask(&slot(1, 1)).await.entry == Entry::Granted)
    })
    .await
}

/// Whoever asks while somebody counts anew waits for that, and no longer than a moment.
#[tokio::test]
async fn a_question_waits_for_counts_that_are_being_made() -> Anyhow {
    let server = Server::start()?;
    let desk = desk(&server, WhenDown::Admit).await?;
    server.say(&["FLUSHALL"])?;
    let facts = Facts::default();
    facts.are(vec![slot(1, 1), slot(1, 2)]);
    let recount = async {
        desk.recount_wanted().await;
        desk.sweep(&facts).await
    };
    let question = slot(1, 3);
    let (asked, swept) = tokio::join!(desk.ask(&question), recount);
    assert!(swept?.is_some());
    assert!(matches!(asked.entry, Entry::Wait { why: Why::Provider, .. }), "by the new counts: {asked:?}");
    server.say(&["FLUSHALL"])?;
    let asked = desk.ask(&question).await;
    assert!(matches!(asked.entry, Entry::Wait { why: Why::Down, .. }), "nobody counts: {asked:?}");
    Ok(())
}

#[tokio::test]
async fn without_limits_nobody_is_asked() -> Anyhow {
    let nowhere = AdmissionConfig {
        kind: Kind::Redis,
        url: Some("redis://127.0.0.1:1/0".to_owned()),
        ..AdmissionConfig::default()
    };
    let desk = Desk::new(&nowhere)?;
    assert!(desk.is_open());
    assert_eq!(desk.ask(&slot(1, 1)).await.entry, Entry::Granted);
    Ok(())
}
