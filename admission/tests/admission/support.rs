//! Slots to ask for, facts to count from, and both that count.

use crate::server::{Anyhow, Server};
use admission::{Admission, AdmissionConfig, Called, InFlight, InProcess, InRedis, Kind, Limits};
use domain::id::{AttemptId, TaskId, TenantId};
use domain::process::{Entry, Slot};
use futures_util::future::{BoxFuture, ready};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use uuid::Uuid;

pub fn tenant(number: u128) -> TenantId {
    TenantId(Uuid::from_u128(number))
}

/// A slot of a tenant's task, of the first round.
pub fn slot(of: u128, number: u128) -> Slot {
    let task = TaskId(Uuid::from_u128((of << 64) | number));
    Slot {
        attempt: AttemptId::of(task, 1),
        task,
        round: 1,
        tenant: tenant(of),
        user: "anna".to_owned(),
        model: "paper-boat".to_owned(),
        provider: "replicate".to_owned(),
        priority: 0,
    }
}

pub fn at_most(default: u32) -> Limits {
    Limits { default: Some(default), ..Limits::default() }
}

/// So many at a provider, and short times.
pub fn config(providers: u32) -> AdmissionConfig {
    AdmissionConfig {
        providers: at_most(providers),
        // A slow machine is not a Redis that is down.
        timeout_ms: 5_000,
        sweep_seconds: 1,
        ..AdmissionConfig::default()
    }
}

/// Attempts in flight, as a test says.
#[derive(Default)]
pub struct Facts(pub Mutex<Vec<Slot>>);

impl Facts {
    pub fn are(&self, slots: Vec<Slot>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = slots;
    }
}

impl InFlight for Facts {
    fn slots(&self) -> BoxFuture<'_, Result<Vec<Slot>, String>> {
        Box::pin(ready(Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())))
    }
}

/// Redis with counts that are whole, and nothing in them.
pub async fn in_redis(server: &Server, config: &AdmissionConfig) -> Anyhow<InRedis> {
    let prefix = format!("test-{}", Uuid::new_v4());
    let config = AdmissionConfig { kind: Kind::Redis, url: Some(server.url()), prefix, ..config.clone() };
    let redis = InRedis::new(&config)?;
    redis.sweep(&Facts::default()).await?;
    Ok(redis)
}

/// Both that count, with the same limits.
pub async fn both(server: &Server, config: &AdmissionConfig) -> Anyhow<Vec<(&'static str, Box<dyn Admission>)>> {
    Ok(vec![
        ("in process", Box::new(InProcess::new(config)) as Box<dyn Admission>),
        ("in Redis", Box::new(in_redis(server, config).await?)),
    ])
}

pub async fn granted(at: &dyn Admission, slot: &Slot) -> Anyhow<bool> {
    Ok(at.ask(slot).await?.entry == Entry::Granted)
}

pub fn names(called: &[Called]) -> Vec<AttemptId> {
    called.iter().map(|it| it.attempt).collect()
}

/// Tries until it is so; a test has half a minute.
pub async fn until(what: &str, mut so: impl AsyncFnMut() -> Anyhow<bool>) -> Anyhow {
    let began = Instant::now();
    while !so().await? {
        if began.elapsed() > Duration::from_secs(30) {
            return Err(format!("half a minute later it is still not so: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
