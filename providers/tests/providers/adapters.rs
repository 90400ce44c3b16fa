//! The adapters, all configured alike, and the orders that the tests give them.

use crate::support::{CALLBACK_SECRET, TOKEN, WEBHOOK_SECRET};
use anyhow::Context;
use domain::id::{AttemptId, TaskId};
use providers::{ProviderConfig, Registry};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;
use workers::ports::{CreateOrder, FindOrder, GenerationRequest, Provider};

/// A registry with one provider of each kind, named like its kind.
pub struct Adapters(Registry);

impl Adapters {
    pub const KINDS: [&str; 5] = ["replicate", "runware", "fal", "ark", "runway"];

    /// All of them, at one server.
    pub fn at(origin: &str) -> anyhow::Result<Self> {
        let mut sections = BTreeMap::new();
        for kind in Self::KINDS {
            sections.insert(kind.to_owned(), section(kind, origin, "https://video.example")?);
        }
        Ok(Self(Registry::new(&sections)?))
    }

    /// One of them that is left alone when it fails.
    pub fn with_breaker(kind: &str, origin: &str, breaker: Value) -> anyhow::Result<Arc<dyn Provider>> {
        let mut settings = settings(kind, origin, "http://127.0.0.1:9")?;
        settings["breaker"] = breaker;
        let sections = BTreeMap::from([(kind.to_owned(), serde_json::from_value(settings)?)]);
        Self(Registry::new(&sections)?).of(kind)
    }

    /// One of them, whose callbacks come to an address.
    pub fn one(kind: &str, origin: &str, callback_base_url: &str) -> anyhow::Result<Arc<dyn Provider>> {
        let sections = BTreeMap::from([(kind.to_owned(), section(kind, origin, callback_base_url)?)]);
        Self(Registry::new(&sections)?).of(kind)
    }

    pub fn of(&self, kind: &str) -> anyhow::Result<Arc<dyn Provider>> {
        self.0.providers().remove(kind).with_context(|| format!("there is no {kind}"))
    }
}

/// The settings of a provider, as a configuration file has them.
fn section(kind: &str, origin: &str, callback_base_url: &str) -> anyhow::Result<ProviderConfig> {
    Ok(serde_json::from_value(settings(kind, origin, callback_base_url)?)?)
}

fn settings(kind: &str, origin: &str, callback_base_url: &str) -> anyhow::Result<Value> {
    let base = |path: &str| format!("{origin}{path}");
    let mut settings = json!({ "kind": kind, "token": TOKEN, "connect_timeout_ms": 1_000, "request_timeout_ms": 3_000,
                // Failures are asked for here, one after the other.
                "breaker": { "failure_percent": 101 } });
    let more = match kind {
        "replicate" => json!({
            "base_url": base("/v1"), "callback_base_url": callback_base_url, "webhook_secret": WEBHOOK_SECRET,
        }),
        "runware" => json!({
            "base_url": base("/v1"), "callback_base_url": callback_base_url, "callback_secret": CALLBACK_SECRET,
        }),
        "fal" => json!({
            "base_url": origin, "callback_base_url": callback_base_url, "callback_secret": CALLBACK_SECRET,
            "jwks_url": base("/.well-known/jwks.json"),
        }),
        "ark" => json!({
            "base_url": base("/api/v3"), "callback_base_url": callback_base_url, "callback_secret": CALLBACK_SECRET,
            "find_page_size": 2,
        }),
        "runway" => json!({ "base_url": origin }),
        other => anyhow::bail!("no settings for {other}"),
    };
    if let (Some(settings), Value::Object(more)) = (settings.as_object_mut(), more) {
        settings.extend(more);
    }
    Ok(settings)
}

/// A model name and parameters that each provider takes.
pub fn model_of(kind: &str) -> (&'static str, Value) {
    match kind {
        "runware" => ("klingai:5@3", json!({ "width": 1280, "height": 720 })),
        "fal" => ("acme/video/v1/text-to-video", json!({ "duration": "{seconds}" })),
        "ark" => ("doubao-seedance-1-0-pro", json!({ "resolution": "720p", "ratio": "16:9" })),
        "runway" => ("gen4.5", json!({ "ratio": "1280:720" })),
        _ => ("acme/video-1", json!({})),
    }
}

/// An attempt whose id is always the same.
pub fn attempt_of(number: u32) -> AttemptId {
    AttemptId::of(TaskId(Uuid::from_u128(7)), number)
}

/// An order for one second at a provider.
pub fn order_at(kind: &str, attempt: AttemptId, prompt: &str) -> CreateOrder {
    let (model, parameters) = model_of(kind);
    let request = GenerationRequest {
        model: model.to_owned(),
        parameters: parameters.as_object().cloned().unwrap_or_default(),
        accepts_seed: true,
        // Runway shows nothing of ours: its simulator tells jobs apart by the prompt.
        prompt: format!("{prompt} [ref {attempt}]"),
        duration_seconds: 1,
        image_url: None,
    };
    CreateOrder { attempt, request, timeout: Duration::from_secs(5) }
}

/// A look-up of an order that [`order_at`] makes, given just now.
pub fn sought_at(kind: &str, attempt: AttemptId) -> FindOrder {
    FindOrder {
        attempt,
        model: model_of(kind).0.to_owned(),
        accepts_seed: true,
        duration_seconds: 1,
        not_before: chrono::DateTime::from(std::time::SystemTime::now()) - chrono::TimeDelta::seconds(60),
        lost_at: chrono::DateTime::from_timestamp(1_790_000_000, 0).unwrap_or_default(),
    }
}

/// The order of a record.
pub fn order_of(record: &Value) -> CreateOrder {
    let asked = &record["order"];
    let request = GenerationRequest {
        model: asked["model"].as_str().unwrap_or_default().to_owned(),
        parameters: asked["parameters"].as_object().cloned().unwrap_or_default(),
        accepts_seed: true,
        prompt: "a \"cat\" on a mat".to_owned(),
        duration_seconds: 5,
        image_url: asked["image"].as_str().map(str::to_owned),
    };
    CreateOrder { attempt: attempt_of(1), request, timeout: Duration::from_secs(5) }
}

/// The look-up of a record's order.
pub fn sought_of(record: &Value) -> FindOrder {
    let CreateOrder { attempt, request, .. } = order_of(record);
    FindOrder {
        attempt,
        model: request.model,
        accepts_seed: record["order"]["accepts_seed"] != json!(false),
        duration_seconds: request.duration_seconds,
        not_before: chrono::DateTime::from_timestamp(1_790_000_000, 0).unwrap_or_default(),
        lost_at: chrono::DateTime::from_timestamp(1_790_000_060, 0).unwrap_or_default(),
    }
}
