//! The provider simulator's own view: the oracle for "never submitted twice".

use crate::stack::Stack;
use anyhow::Context;
use serde_json::Value;
use std::collections::BTreeMap;

/// The simulator of a stack.
pub struct Simulator {
    control: String,
    http: reqwest::Client,
}

/// What it counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters {
    /// Accepted jobs by client reference (attempt id).
    pub accepted: BTreeMap<String, u64>,
    /// Create requests by client reference, refused and lost ones included.
    pub creates: BTreeMap<String, u64>,
    /// The most jobs that ever ran at the same time.
    pub most_at_once: u64,
}

impl Simulator {
    /// Of a stack.
    ///
    /// # Errors
    /// The stack has no simulator.
    pub fn of(stack: &Stack) -> anyhow::Result<Self> {
        let base = stack.setting("AIVIDEO_PROVIDERS__REPLICATE__BASE_URL")?;
        let control = base.trim_end_matches("/v1").to_owned();
        Ok(Self { control, http: reqwest::Client::new() })
    }

    /// What it counted so far; counters survive a kill of the simulator.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn counters(&self) -> anyhow::Result<Counters> {
        let body: Value = self.http.get(format!("{}/_sim/counters", self.control)).send().await?.json().await?;
        let most_at_once = body["most_at_once"].as_u64().context("the simulator does not count what runs at once")?;
        Ok(Counters { accepted: numbers(&body["by_ref"])?, creates: numbers(&body["creates"])?, most_at_once })
    }
}

fn numbers(object: &Value) -> anyhow::Result<BTreeMap<String, u64>> {
    let object = object.as_object().context("the simulator's counters have another shape")?;
    object.iter().map(|(key, value)| Ok((key.clone(), value.as_u64().context("a counter is not a number")?))).collect()
}
