//! Whose turn it is.

use crate::server::{Anyhow, Server};
use crate::support::{both, config, granted, in_redis, slot, tenant};
use admission::{Admission, AdmissionConfig, Called};
use domain::id::AttemptId;
use domain::process::Slot;
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

/// Serves so many turns, one at a time: whoever is called comes, and is done at once.
async fn serve(at: &dyn Admission, first: &Slot, turns: usize) -> Anyhow<Vec<Called>> {
    let mut served = vec![];
    let mut called = at.give_back(first.attempt, first.round).await?;
    while served.len() < turns {
        let Some(next) = called.pop() else { break };
        served.push(next);
        called.extend(at.give_back(next.attempt, 1).await?);
    }
    Ok(served)
}

/// A tenant with 10,000 tasks in line does not starve one with 3 that comes last.
#[tokio::test]
async fn ten_thousand_do_not_starve_three() -> Anyhow {
    const MANY: u128 = 10_000;
    let server = Server::start()?;
    let redis = in_redis(&server, &config(1)).await?;
    let runs = slot(9, 0);
    assert!(granted(&redis, &runs).await?);
    let began = Instant::now();
    for number in 0..MANY {
        assert!(!granted(&redis, &slot(1, number)).await?);
    }
    let lined_up = began.elapsed();
    for number in 0..3 {
        assert!(!granted(&redis, &slot(2, number)).await?);
    }
    let began = Instant::now();
    let served = serve(&redis, &runs, 8).await?;
    let turn = began.elapsed() / 8;
    let few: Vec<AttemptId> = (0..3).map(|number| slot(2, number).attempt).collect();
    let places: Vec<usize> =
        few.iter().filter_map(|it| served.iter().position(|called| called.attempt == *it)).collect();
    assert_eq!(places.len(), 3, "all three were served among the first eight");
    assert!(places.iter().zip(0..).all(|(place, number)| *place <= 2 * number + 1), "at every other turn: {places:?}");
    println!("10,000 tasks in line after {lined_up:?}; a turn takes {turn:?}; the three had turns {places:?}");
    let count = redis.count().await?;
    assert_eq!(count.waiting, u64::try_from(MANY)? + 3 - 8, "{count:?}");
    Ok(())
}

#[tokio::test]
async fn turns_are_shared_by_weight() -> Anyhow {
    let server = Server::start()?;
    let weights = BTreeMap::from([(tenant(1).to_string(), 3.0)]);
    for (name, at) in both(&server, &AdmissionConfig { weights, ..config(1) }).await? {
        let runs = slot(9, 0);
        assert!(granted(&*at, &runs).await?);
        let mut owner = HashMap::new();
        for (of, number) in (1..=3).flat_map(|of| (0..40).map(move |number| (of, number))) {
            at.ask(&slot(of, number)).await?;
            owner.insert(slot(of, number).attempt, of);
        }
        let served = serve(&*at, &runs, 50).await?;
        let share = |of| served.iter().filter(|it| owner[&it.attempt] == of).count();
        assert_eq!((share(1), share(2), share(3)), (30, 10, 10), "{name}");
    }
    Ok(())
}

/// Priority is a matter within a tenant: it moves nobody else's turn.
#[tokio::test]
async fn within_a_tenant_priority_goes_before_age() -> Anyhow {
    let server = Server::start()?;
    for (name, at) in both(&server, &config(1)).await? {
        let runs = slot(9, 0);
        assert!(granted(&*at, &runs).await?);
        for (number, priority) in [(0, 0), (1, -5), (2, 100), (3, 0)] {
            at.ask(&Slot { priority, ..slot(1, number) }).await?;
        }
        // Of another user with another model, all in the same order.
        let other = Slot { priority: 50, user: "bert".to_owned(), model: "kite".to_owned(), ..slot(1, 4) };
        at.ask(&other).await?;
        at.ask(&slot(2, 0)).await?;
        let served: Vec<AttemptId> = serve(&*at, &runs, 6).await?.iter().map(|it| it.attempt).collect();
        let own: Vec<AttemptId> = served.iter().copied().filter(|it| *it != slot(2, 0).attempt).collect();
        let expected: Vec<AttemptId> = [2, 4, 0, 3, 1].map(|number| slot(1, number).attempt).to_vec();
        assert_eq!(own, expected, "{name}");
        assert!(served.iter().position(|it| *it == slot(2, 0).attempt) <= Some(1), "{name}: {served:?}");
    }
    Ok(())
}

/// Nobody saves up turns: who was away comes in where the others are.
#[tokio::test]
async fn who_was_away_has_no_turns_saved_up() -> Anyhow {
    let server = Server::start()?;
    for (name, at) in both(&server, &config(1)).await? {
        let runs = slot(9, 0);
        assert!(granted(&*at, &runs).await?);
        for number in 0..30 {
            at.ask(&slot(1, number)).await?;
        }
        let served = serve(&*at, &runs, 20).await?;
        let last = served.last().copied().ok_or("nobody was served")?;
        // The one after it holds the slot by now.
        for number in 0..30 {
            at.ask(&slot(2, number)).await?;
        }
        let holds = slot(1, 20);
        assert!(granted(&*at, &holds).await?, "{name}: {last:?}");
        let served = serve(&*at, &holds, 8).await?;
        let newcomers = served.iter().filter(|it| (0..30).any(|number| slot(2, number).attempt == it.attempt)).count();
        assert!((3..=5).contains(&newcomers), "{name}: {newcomers} of 8 turns");
    }
    Ok(())
}
