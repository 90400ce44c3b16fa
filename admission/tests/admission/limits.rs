//! Never above a limit; who waits is called; leases, rounds and rates.

use crate::server::{Anyhow, Server};
use crate::support::{Facts, at_most, both, config, granted, in_redis, names, slot, until};
use admission::{Admission, AdmissionConfig, Limits, Rate, Rates};
use domain::process::{Entry, Slot, Why};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

fn why(entry: Entry) -> Option<Why> {
    match entry {
        Entry::Granted => None,
        Entry::Wait { why, .. } => Some(why),
    }
}

#[tokio::test]
async fn each_of_the_four_counts_has_its_limit() -> Anyhow {
    let server = Server::start()?;
    let only = |name: &str, most: u32| Limits { default: Some(9), by: BTreeMap::from([(name.to_owned(), most)]) };
    let tenant = slot(1, 1).tenant;
    let cases = [
        (AdmissionConfig { providers: only("replicate", 2), ..config(9) }, Why::Provider),
        (AdmissionConfig { models: only("paper-boat", 2), ..config(9) }, Why::Model),
        (AdmissionConfig { tenants: only(&tenant.to_string(), 2), ..config(9) }, Why::Tenant),
        (AdmissionConfig { users: only(&format!("{tenant}/anna"), 2), ..config(9) }, Why::User),
    ];
    for (config, expected) in cases {
        for (name, at) in both(&server, &config).await? {
            assert!(granted(&*at, &slot(1, 1)).await? && granted(&*at, &slot(1, 2)).await?, "{name} {expected:?}");
            let third = at.ask(&slot(1, 3)).await?;
            assert_eq!(why(third.entry), Some(expected), "{name}");
            let other = match expected {
                Why::Provider => Slot { provider: "fal".to_owned(), ..slot(2, 4) },
                Why::Model => Slot { model: "kite".to_owned(), ..slot(2, 4) },
                Why::Tenant => slot(2, 4),
                _ => Slot { user: "bert".to_owned(), ..slot(1, 4) },
            };
            assert!(granted(&*at, &other).await?, "{name}: what {expected:?} limits does not limit others");
        }
    }
    Ok(())
}

/// M1, M2: a message may be delivered again while it is handled: the same attempt has one slot, however often it asks.
#[tokio::test]
async fn m1_a_repeated_question_takes_one_slot() -> Anyhow {
    let server = Server::start()?;
    for (name, at) in both(&server, &config(2)).await? {
        for _ in 0..5 {
            assert!(granted(&*at, &slot(1, 1)).await?, "{name}");
        }
        assert_eq!(at.count().await?.held, 1, "{name}");
        for _ in 0..3 {
            at.ask(&slot(1, 2)).await?;
            at.ask(&slot(1, 3)).await?;
        }
        let count = at.count().await?;
        assert_eq!((count.held, count.waiting), (2, 1), "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn sixty_four_at_once_never_exceed_a_limit() -> Anyhow {
    let server = Server::start()?;
    let config = AdmissionConfig { tenants: at_most(3), users: at_most(2), ..config(5) };
    let redis = Arc::new(in_redis(&server, &config).await?);
    let mut askers = JoinSet::new();
    for number in 0..64_u128 {
        let redis = Arc::clone(&redis);
        askers.spawn(async move {
            let user = format!("user-{}", number % 2);
            let slot = Slot { user, ..slot(number % 4, number) };
            let mut had = 0;
            // Each has it a few times, and says how many of its tenant there were meanwhile.
            for round in 1..=4 {
                let slot = Slot { round, ..slot.clone() };
                let began = Instant::now();
                while !granted(&*redis, &slot).await? {
                    if began.elapsed() > Duration::from_secs(60) {
                        return Err(format!("task {number} never had its turn").into());
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                let count = redis.count().await?;
                if count.held > 5 {
                    return Err(format!("{count:?}: more than five at the provider").into());
                }
                had += 1;
                redis.give_back(slot.attempt, round).await?;
            }
            Anyhow::Ok(had)
        });
    }
    let mut had = 0;
    while let Some(asker) = askers.join_next().await {
        had += asker??;
    }
    assert_eq!(had, 64 * 4, "everybody had their turns");
    let count = redis.count().await?;
    assert_eq!((count.held, count.waiting), (0, 0), "nothing is left behind");
    Ok(())
}

#[tokio::test]
async fn who_waits_is_called_and_has_the_slot() -> Anyhow {
    let server = Server::start()?;
    for (name, at) in both(&server, &config(1)).await? {
        assert!(granted(&*at, &slot(1, 1)).await?);
        assert!(!granted(&*at, &slot(1, 2)).await?);
        assert!(!granted(&*at, &slot(2, 3)).await?);
        let called = at.give_back(slot(1, 1).attempt, 1).await?;
        assert_eq!(names(&called), [slot(2, 3).attempt], "{name}: the tenant that had nothing yet");
        assert_eq!(why(at.ask(&slot(3, 4)).await?.entry), Some(Why::Provider), "{name}: it is kept for who was called");
        assert!(granted(&*at, &slot(2, 3)).await?, "{name}");
        assert!(at.give_back(slot(1, 1).attempt, 1).await?.is_empty(), "{name}: said before");
        assert_eq!(at.count().await?.held, 1, "{name}");
    }
    Ok(())
}

/// S2: cancelled while it waits, or when it has just been called: the turn goes to the next.
#[tokio::test]
async fn s2_a_cancelled_task_leaves_the_line() -> Anyhow {
    let server = Server::start()?;
    for (name, at) in both(&server, &config(1)).await? {
        for number in 1..=4 {
            granted(&*at, &slot(1, number)).await?;
        }
        at.withdraw(slot(1, 2).attempt).await?;
        assert_eq!(names(&at.give_back(slot(1, 1).attempt, 1).await?), [slot(1, 3).attempt], "{name}");
        assert_eq!(
            names(&at.withdraw(slot(1, 3).attempt).await?),
            [slot(1, 4).attempt],
            "{name}: called, and cancelled"
        );
        assert!(granted(&*at, &slot(1, 4)).await?);
        at.withdraw(slot(1, 4).attempt).await?;
        assert_eq!(at.count().await?.held, 1, "{name}: who runs does not lose its slot by that");
    }
    Ok(())
}

/// S4: two attempts of one task are two jobs, and two slots.
#[tokio::test]
async fn s4_each_attempt_has_a_slot_of_its_own() -> Anyhow {
    let server = Server::start()?;
    for (name, at) in both(&server, &config(2)).await? {
        let first = slot(1, 1);
        let second = Slot { attempt: domain::id::AttemptId::of(first.task, 2), ..first.clone() };
        assert!(granted(&*at, &first).await? && granted(&*at, &second).await?);
        assert!(!granted(&*at, &slot(1, 2)).await?, "{name}");
        at.give_back(second.attempt, 1).await?;
        assert!(granted(&*at, &slot(1, 2)).await?, "{name}");
        assert_eq!(at.count().await?.held, 2, "{name}: the first still holds its own");
    }
    Ok(())
}

/// L6, L7: the provider takes it and fails later: the slot is back. Tried again, it asks anew.
#[tokio::test]
async fn l7_a_round_that_is_over_stays_over_and_the_next_asks_anew() -> Anyhow {
    let server = Server::start()?;
    for (name, at) in both(&server, &config(1)).await? {
        let (first, second) = (slot(1, 1), Slot { round: 2, ..slot(1, 1) });
        assert!(granted(&*at, &first).await?);
        at.give_back(first.attempt, 1).await?;
        at.keep(&first).await?;
        assert!(!granted(&*at, &first).await?, "{name}: late words about a round that is over hold nothing");
        assert_eq!(at.count().await?.held, 0, "{name}");
        assert!(granted(&*at, &second).await?, "{name}");
        at.give_back(first.attempt, 1).await?;
        assert_eq!(at.count().await?.held, 1, "{name}: the fence: an old round does not free the slot of a new one");
        at.give_back(first.attempt, 2).await?;
        assert_eq!(at.count().await?.held, 0, "{name}");
    }
    Ok(())
}

/// A wait whose round has ended meanwhile does not take the next round out of the line.
#[tokio::test]
async fn a_late_end_does_not_take_a_newer_round_out_of_the_line() -> Anyhow {
    let server = Server::start()?;
    for (name, at) in both(&server, &config(1)).await? {
        let again = Slot { round: 2, ..slot(1, 1) };
        assert!(granted(&*at, &slot(2, 9)).await?);
        assert!(!granted(&*at, &again).await?);
        at.give_back(again.attempt, 1).await?;
        assert_eq!(names(&at.give_back(slot(2, 9).attempt, 1).await?), [again.attempt], "{name}");
    }
    Ok(())
}

/// R1: whoever holds slots is killed: they are free again when the lease ends. Who says that it goes on keeps them.
#[tokio::test]
async fn r1_a_dead_holder_lets_go_when_its_lease_ends() -> Anyhow {
    let server = Server::start()?;
    let config = AdmissionConfig { lease_seconds: 3, ..config(4) };
    for (name, at) in both(&server, &config).await? {
        for number in 1..=4 {
            assert!(granted(&*at, &slot(1, number)).await?);
        }
        assert!(!granted(&*at, &slot(1, 5)).await?);
        until("the lease of the dead ones ends", async || {
            at.keep(&slot(1, 1)).await?;
            at.tick().await?;
            Ok(at.count().await?.held < 4)
        })
        .await?;
        // One that lives, and the one that waited and was called.
        until("three have let go", async || {
            at.keep(&slot(1, 1)).await?;
            at.tick().await?;
            let count = at.count().await?;
            Ok(count.held - count.called <= 1)
        })
        .await?;
        assert!(granted(&*at, &slot(1, 5)).await?, "{name}");
        assert!(granted(&*at, &slot(1, 6)).await? && granted(&*at, &slot(1, 7)).await?, "{name}");
        assert!(!granted(&*at, &slot(1, 8)).await?, "{name}: the living one counts");
    }
    Ok(())
}

/// M4: the word that its turn has come is lost: it is called again, and in the end others have the slot.
#[tokio::test]
async fn m4_a_call_that_is_lost_is_made_again_and_not_for_ever() -> Anyhow {
    let server = Server::start()?;
    let config = AdmissionConfig { call_seconds: 1, missed_calls: 3, ..config(1) };
    for (name, at) in both(&server, &config).await? {
        assert!(granted(&*at, &slot(1, 1)).await?);
        assert!(!granted(&*at, &slot(1, 2)).await?);
        assert!(!granted(&*at, &slot(2, 3)).await?);
        let mut calls = at.give_back(slot(1, 1).attempt, 1).await?;
        until("the one that never comes is out", async || {
            calls.extend(at.tick().await?);
            Ok(at.count().await?.waiting == 0)
        })
        .await?;
        let (deaf, other) = (slot(1, 2).attempt, slot(2, 3).attempt);
        let times = |of| names(&calls).iter().filter(|it| **it == of).count();
        assert_eq!((times(deaf), times(other)), (3, 3), "{name}: both stayed away, each was called three times");
        assert!(granted(&*at, &slot(1, 2)).await?, "{name}: when it comes after all, it has its slot");
    }
    Ok(())
}

#[tokio::test]
async fn rates_let_so_many_begin_and_the_rest_are_called_with_time() -> Anyhow {
    let server = Server::start()?;
    let rate = |requests, seconds| Rates { default: Some(Rate { requests, seconds }), ..Rates::default() };
    let cases = [
        (AdmissionConfig { provider_rate: rate(3, 3), providers: Limits::default(), ..config(9) }, Why::ProviderRate),
        (AdmissionConfig { tenant_rate: rate(3, 3), providers: Limits::default(), ..config(9) }, Why::TenantRate),
    ];
    for (config, expected) in cases {
        for (name, at) in both(&server, &config).await? {
            for number in 1..=3 {
                assert!(granted(&*at, &slot(1, number)).await?, "{name}");
            }
            assert_eq!(why(at.ask(&slot(1, 4)).await?.entry), Some(expected), "{name}");
            let mut called = vec![];
            until("a token is there again", async || {
                called.extend(at.tick().await?);
                Ok(!called.is_empty())
            })
            .await?;
            assert_eq!(names(&called), [slot(1, 4).attempt], "{name}");
            assert!(granted(&*at, &slot(1, 4)).await?, "{name}");
        }
    }
    Ok(())
}

/// R2: a limit can not be known at the moment of the release (it left the configuration): the slot is back all the same.
#[tokio::test]
async fn r2_a_slot_is_given_back_without_a_look_at_its_limit() -> Anyhow {
    let server = Server::start()?;
    let url = Some(server.url());
    let with = AdmissionConfig { kind: admission::Kind::Redis, url, prefix: "r2".to_owned(), ..config(1) };
    let without = AdmissionConfig { providers: Limits::default(), models: at_most(0), ..with.clone() };
    let (knows, knows_not) = (admission::InRedis::new(&with)?, admission::InRedis::new(&without)?);
    knows.sweep(&Facts::default()).await?;
    for round in 1..=10 {
        assert!(granted(&knows, &Slot { round, ..slot(1, 1) }).await?, "round {round}");
        assert!(!granted(&knows, &slot(1, 2)).await?);
        knows.withdraw(slot(1, 2).attempt).await?;
        knows_not.give_back(slot(1, 1).attempt, round).await?;
        assert_eq!(knows.count().await?.held, 0, "round {round}");
    }
    Ok(())
}

/// A limit that changes counts at once, for those who wait as well.
#[tokio::test]
async fn a_changed_limit_counts_at_once() -> Anyhow {
    let server = Server::start()?;
    let url = Some(server.url());
    let narrow = AdmissionConfig { kind: admission::Kind::Redis, url, prefix: "change".to_owned(), ..config(1) };
    let wide = AdmissionConfig { providers: at_most(3), ..narrow.clone() };
    let (narrow, wide) = (admission::InRedis::new(&narrow)?, admission::InRedis::new(&wide)?);
    narrow.sweep(&Facts::default()).await?;
    for number in 1..=4 {
        narrow.ask(&slot(1, number)).await?;
    }
    assert_eq!(narrow.count().await?.held, 1);
    assert_eq!(names(&wide.tick().await?), [slot(1, 2).attempt, slot(1, 3).attempt]);
    assert!(narrow.tick().await?.is_empty());
    Ok(())
}
