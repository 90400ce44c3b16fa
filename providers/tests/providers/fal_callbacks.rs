//! fal's callbacks: which are believed, and what becomes of them when the keys change.

use crate::adapters::{Adapters, order_at};
use crate::support::{Receiver, Sim, Told, attempt, job_of};
use chrono::{DateTime, TimeDelta, Utc};
use providers::simulator::Kind;
use serde_json::json;
use std::sync::Arc;
use tempfile::TempDir;
use workers::ports::{Callback, CallbackRefused, Provider};

struct Stage {
    _store: TempDir,
    sim: Sim,
    receiver: Receiver,
    provider: Arc<dyn Provider>,
}

impl Stage {
    async fn new() -> anyhow::Result<Self> {
        let store = tempfile::tempdir()?;
        let sim = Sim::of(Kind::Fal, store.path()).await?;
        let receiver = Receiver::start(0).await?;
        let provider = Adapters::one("fal", &sim.origin, &receiver.base_url)?;
        Ok(Self { _store: store, sim, receiver, provider })
    }

    /// A job that is done, and its callback: the last of so many.
    async fn told(&self, count: usize) -> anyhow::Result<(String, Told)> {
        let created = self.provider.create(&order_at("fal", attempt(), "a cat [sim: run=1]")).await;
        let told = self.receiver.wait(count).await?.pop().expect("one came");
        Ok((job_of(&created)?.to_owned(), told))
    }

    fn read(&self, told: &Told, now: DateTime<Utc>) -> Result<Callback, CallbackRefused> {
        self.provider.callback(&told.header(), &told.path_and_query.1, &told.body, now)
    }
}

fn now() -> DateTime<Utc> {
    DateTime::from(std::time::SystemTime::now())
}

#[tokio::test]
async fn a_callback_is_believed_as_it_came_and_in_no_other_way() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (job, told) = stage.told(1).await?;
    assert_eq!(
        stage.read(&told, now()),
        Err(CallbackRefused::NoKeys),
        "without keys nothing is believed, nor refused for good"
    );
    stage.provider.renew_keys(false).await;
    let read = stage.read(&told, now())?;
    assert_eq!(read.job, job, "the same name as in the create reply");
    assert!(read.delivery.ends_with(":ok"), "{}", read.delivery);

    for (seconds, expected) in
        [(299, None), (-299, None), (302, Some(CallbackRefused::Stale)), (-302, Some(CallbackRefused::Stale))]
    {
        assert_eq!(stage.read(&told, now() + TimeDelta::seconds(seconds)).err(), expected, "{seconds}");
    }
    let mut spoilt = told.clone();
    spoilt.body.push(b' ');
    assert_eq!(stage.read(&spoilt, now()), Err(CallbackRefused::Forged), "other bytes");
    for name in ["x-fal-webhook-user-id", "x-fal-webhook-request-id", "x-fal-webhook-timestamp"] {
        let mut moved = told.clone();
        moved.headers.insert(name, "1790000000".parse()?);
        assert_eq!(stage.read(&moved, now()), Err(CallbackRefused::Forged), "{name}");
        moved.headers.remove(name);
        assert_eq!(stage.read(&moved, now()), Err(CallbackRefused::Unsigned), "{name}");
    }
    let mut unsigned = told.clone();
    unsigned.headers.insert("x-fal-webhook-signature", "00".repeat(64).parse()?);
    assert_eq!(stage.read(&unsigned, now()), Err(CallbackRefused::Forged));
    Ok(())
}

/// The keys sign for every customer: a stranger's callback has a right signature, and no key of ours in its address.
#[tokio::test]
async fn a_right_signature_at_another_address_is_not_believed() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let ((_, first), (_, second)) = (stage.told(1).await?, stage.told(2).await?);
    stage.provider.renew_keys(false).await;
    assert!(stage.read(&first, now()).is_ok() && stage.read(&second, now()).is_ok());
    let mut other = first.clone();
    other.path_and_query.1 = format!("ref={}&note=acme%2Fvideo", attempt());
    assert_eq!(stage.read(&other, now()), Err(CallbackRefused::Unsigned), "no key");
    other.path_and_query.1 = first.path_and_query.1.replace("acme%2Fvideo", "acme%2Fother");
    assert_ne!(other.path_and_query.1, first.path_and_query.1);
    assert_eq!(stage.read(&other, now()), Err(CallbackRefused::Forged), "the key covers the app");
    Ok(())
}

#[tokio::test]
async fn the_next_key_is_known_before_it_signs() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.provider.renew_keys(false).await;
    stage.sim.order("rotate_key", json!({})).await?;
    let (_, told) = stage.told(1).await?;
    assert!(stage.read(&told, now()).is_ok());
    stage.sim.order("rotate_key", json!({})).await?;
    let (_, later) = stage.told(2).await?;
    assert_eq!(
        stage.read(&later, now()),
        Err(CallbackRefused::Forged),
        "it was not published when the keys were fetched"
    );
    // Asked for at once after the last time, they are not fetched: a flood of forgeries must not become a flood of requests.
    stage.provider.renew_keys(true).await;
    assert_eq!(stage.read(&later, now()), Err(CallbackRefused::Forged));
    let fresh = Adapters::one("fal", &stage.sim.origin, &stage.receiver.base_url)?;
    fresh.renew_keys(true).await;
    assert!(fresh.callback(&later.header(), &later.path_and_query.1, &later.body, now()).is_ok());
    Ok(())
}
