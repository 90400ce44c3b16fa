//! All processes together, in Redis: one script, one round trip a question.

use crate::config::{AdmissionConfig, Rules};
use crate::port::{Admission, AdmissionError, Asked, Called, Count, InFlight, Swept};
use domain::id::AttemptId;
use domain::process::{Entry, Slot, Why};
use futures_util::future::BoxFuture;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, RedisError, Script};
use serde::Serialize;
use serde_json::json;
use std::time::Duration;
use uuid::Uuid;

const SCRIPT: &str = include_str!("admission.lua");
/// How many attempts are told in one question: Redis serves nobody else meanwhile.
const CHUNK: usize = 200;
/// How often a comparison begins anew where Redis lost what it was told.
const SWEEPS: u32 = 3;

/// Counts in Redis. Cheap to clone; clones share one connection, which is made anew when it breaks.
#[derive(Clone)]
pub struct InRedis {
    connection: ConnectionManager,
    script: Script,
    key: String,
    rules: String,
    timeout: Duration,
    sweep_ms: u64,
}

/// Why Redis can not be used at all.
#[derive(Debug, thiserror::Error)]
pub enum RedisConfigError {
    /// The address can not be read. It is not shown: it may hold a password.
    #[error("admission.url can not be read: it has the form redis://[user:password@]host:port/database")]
    Url,
    /// The client refuses its settings.
    #[error("the client of Redis can not be made")]
    Client(#[source] RedisError),
}

impl InRedis {
    /// Connects when it is first asked something, and again whenever the connection broke.
    ///
    /// # Errors
    /// [`RedisConfigError`].
    pub fn new(config: &AdmissionConfig) -> Result<Self, RedisConfigError> {
        let url = config.url.as_deref().ok_or(RedisConfigError::Url)?;
        let client = Client::open(url).map_err(|_| RedisConfigError::Url)?;
        let timeout = Duration::from_millis(config.timeout_ms);
        let settings = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(Some(timeout))
            // Whoever asks has a time limit, and asks again: no use in trying on behind their back.
            .set_number_of_retries(1)
            .set_min_delay(Duration::from_millis(20));
        let connection = ConnectionManager::new_lazy_with_config(client, settings).map_err(RedisConfigError::Client)?;
        let rules = serde_json::to_string(&Rules::of(config)).unwrap_or_default();
        Ok(Self {
            connection,
            script: Script::new(SCRIPT),
            key: format!("{{{}:admission}}:", config.prefix),
            rules,
            timeout,
            sweep_ms: config.sweep_seconds.saturating_mul(900),
        })
    }

    async fn run(&self, op: &'static str, argument: &impl Serialize) -> Result<Vec<String>, AdmissionError> {
        let unavailable = |source| AdmissionError::Unavailable { what: op, source };
        let argument = serde_json::to_string(argument).map_err(|_| unavailable(None))?;
        let mut connection = self.connection.clone();
        let mut invocation = self.script.key(&self.key);
        invocation.arg(op).arg(&self.rules).arg(argument);
        let asked = invocation.invoke_async::<Vec<String>>(&mut connection);
        let answer = tokio::time::timeout(self.timeout, asked).await.map_err(|_| unavailable(None))?;
        let words = answer.map_err(|error| unavailable(Some(error)))?;
        match words.first().map(String::as_str) {
            Some("lost") => Err(AdmissionError::Lost),
            Some(_) => Ok(words),
            None => Err(unavailable(None)),
        }
    }

    async fn sweep_once(&self, facts: &dyn InFlight) -> Result<Option<Option<Swept>>, AdmissionError> {
        let mark = Uuid::new_v4().to_string();
        let begun = self.run("sweep_begin", &json!({ "mark": mark, "ms": self.sweep_ms })).await?;
        if begun.first().map(String::as_str) != Some("yes") {
            return Ok(Some(None));
        }
        let started: u64 = number(&begun, 1);
        // Only now: what is over by then is remembered, and what begins afterwards has asked here.
        let slots = facts.slots().await.map_err(AdmissionError::Facts)?;
        for chunk in slots.chunks(CHUNK) {
            self.run("sweep_hold", &json!({ "mark": mark, "slots": chunk })).await?;
        }
        let done = self.run("sweep_end", &json!({ "mark": mark, "started": started })).await?;
        if done.first().map(String::as_str) != Some("done") {
            return Ok(None);
        }
        Ok(Some(Some(Swept { in_flight: slots.len(), freed: number(&done, 1), called: called(&done) })))
    }
}

fn number(words: &[String], at: usize) -> u64 {
    words.get(at).and_then(|it| it.parse().ok()).unwrap_or(0)
}

/// Those who were called: behind the word and the two after it.
fn called(words: &[String]) -> Vec<Called> {
    words
        .iter()
        .skip(3)
        .filter_map(|it| serde_json::from_str::<Slot>(it).ok())
        .map(|slot| Called::from(&slot))
        .collect()
}

impl Admission for InRedis {
    fn ask<'a>(&'a self, slot: &'a Slot) -> BoxFuture<'a, Result<Asked, AdmissionError>> {
        Box::pin(async move {
            let words = self.run("ask", slot).await?;
            let entry = match words.first().map(String::as_str) {
                Some("granted") => Entry::Granted,
                _ => Entry::Wait {
                    after: Duration::from_millis(number(&words, 1)),
                    why: words.get(2).and_then(|it| Why::parse(it)).unwrap_or(Why::Turn),
                },
            };
            Ok(Asked { entry, called: called(&words) })
        })
    }

    fn keep<'a>(&'a self, slot: &'a Slot) -> BoxFuture<'a, Result<(), AdmissionError>> {
        Box::pin(async move { self.run("keep", slot).await.map(drop) })
    }

    fn give_back(&self, attempt: AttemptId, round: u32) -> BoxFuture<'_, Result<Vec<Called>, AdmissionError>> {
        Box::pin(async move {
            let words = self.run("give_back", &json!({ "attempt": attempt, "round": round })).await?;
            Ok(called(&words))
        })
    }

    fn withdraw(&self, attempt: AttemptId) -> BoxFuture<'_, Result<Vec<Called>, AdmissionError>> {
        Box::pin(async move { Ok(called(&self.run("withdraw", &json!({ "attempt": attempt })).await?)) })
    }

    fn tick(&self) -> BoxFuture<'_, Result<Vec<Called>, AdmissionError>> {
        Box::pin(async move { Ok(called(&self.run("tick", &json!({})).await?)) })
    }

    fn sweep<'a>(&'a self, facts: &'a dyn InFlight) -> BoxFuture<'a, Result<Option<Swept>, AdmissionError>> {
        Box::pin(async move {
            for _ in 0..SWEEPS {
                if let Some(swept) = self.sweep_once(facts).await? {
                    return Ok(swept);
                }
            }
            Err(AdmissionError::Lost)
        })
    }

    fn count(&self) -> BoxFuture<'_, Result<Count, AdmissionError>> {
        Box::pin(async move {
            let words = self.run("count", &json!({})).await?;
            let providers = words.get(5..).unwrap_or_default().chunks_exact(2);
            Ok(Count {
                held: number(&words, 1),
                called: number(&words, 2),
                waiting: number(&words, 3),
                providers: providers.map(|pair| (pair[0].clone(), number(pair, 1))).collect(),
                lost: number(&words, 4) == 0,
            })
        })
    }
}
