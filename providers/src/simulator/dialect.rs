//! What differs between the simulated providers: paths, bodies, words, and how callbacks are signed.

use super::ark::Ark;
use super::fal::Fal;
use super::journal::Accepted;
use super::replicate::Replicate;
use super::runware::Runware;
use super::runway::Runway;
use super::script::{Refusal, Script};
use super::world::{Job, World};
use super::{SimulatorConfig, SimulatorError};
use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;
use std::str::FromStr;
use std::sync::Arc;

/// Whose API a simulator speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Replicate.
    #[default]
    Replicate,
    /// Runware.
    Runware,
    /// fal.
    Fal,
    /// Volcengine Ark.
    Ark,
    /// Runway.
    Runway,
}

impl Kind {
    /// Every kind, with its name.
    pub const ALL: [(&'static str, Self); 5] = [
        ("replicate", Self::Replicate),
        ("runware", Self::Runware),
        ("fal", Self::Fal),
        ("ark", Self::Ark),
        ("runway", Self::Runway),
    ];

    pub(super) fn dialect(self, config: &SimulatorConfig) -> Result<Box<dyn Dialect>, SimulatorError> {
        Ok(match self {
            Self::Replicate => Box::new(Replicate::new(config)?),
            Self::Runware => Box::new(Runware),
            Self::Fal => Box::new(Fal::new(config.token.expose())),
            Self::Ark => Box::new(Ark),
            Self::Runway => Box::new(Runway),
        })
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, kind)| kind).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().map(|(name, _)| *name).collect();
            format!("there is no simulator for {name}; there are {}", known.join(", "))
        })
    }
}

/// A callback, ready to be sent.
pub(super) struct Notice {
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

/// How one provider speaks.
pub(super) trait Dialect: Send + Sync {
    /// The API's routes.
    fn routes(&self) -> Router<Arc<World>>;
    /// Routes that need no token.
    fn open_routes(&self) -> Router<Arc<World>> {
        Router::new()
    }
    /// The keys that are published, where there are any.
    fn published_keys(&self) -> Value {
        Value::Null
    }
    /// Signs with another key from now on, where keys are published.
    fn rotate_key(&self) {}
    /// Whether a request shows the token.
    fn is_authentic(&self, headers: &HeaderMap, token: &str) -> bool {
        let given = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
        given.strip_prefix("Bearer ") == Some(token)
    }
    /// The answer to one that does not.
    fn unauthenticated(&self) -> Response;
    /// The answer to an accepted create call.
    fn accepted(&self, world: &World, job: &Job) -> (StatusCode, Value);
    /// The same, without the job's id.
    fn without_id(&self) -> Value;
    /// The answer to a create call that is refused.
    fn refused(&self, order: &Accepted, refusal: Refusal) -> Response;
    /// The answer to a create call that comes too soon after others.
    fn throttled(&self) -> Response;
    /// The answer to a request that can not be understood.
    fn bad(&self, said: &str) -> Response;
    /// The answer to a create call whose id was taken before, where the caller chooses ids.
    fn duplicate(&self, _order: &Accepted, _script: &Script) -> Response {
        self.bad("the id is taken")
    }
    /// The callback that tells about a job as it is now.
    fn notice(&self, world: &World, job: &Job) -> Notice;
}

/// Headers of a callback. Names and values are our own.
pub(super) fn headers<const N: usize>(pairs: [(&'static str, String); N]) -> HeaderMap {
    pairs.into_iter().filter_map(|(name, value)| Some((name.parse().ok()?, value.parse().ok()?))).collect()
}
