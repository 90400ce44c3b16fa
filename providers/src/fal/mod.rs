//! fal's queue API. There is no word for "failed": a job is completed, and whether it has an output shows in the status body or
//! only when the output is asked for. A job is addressed below its app, so the app is part of our name for it.

mod keys;
mod wire;

use crate::shared::{
    CallbackAddress, Callbacks, ConfigError, Connection, MAX_REPLY_BYTES, Reply, Service, created, is_job_id,
    not_readable, not_zero, plain_header, polled, request_fields, whole_seconds,
};
use domain::time::Timestamp;
use futures_util::future::BoxFuture;
use keys::PublishedKeys;
pub(crate) use keys::signed_text;
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use url::Url;
use uuid::Uuid;
use wire::Status;
use workers::catalogue::{Input, Model};
use workers::ports::{
    Callback, CallbackRefused, CancelAsked, CancelKind, Capabilities, ClientReference, CreateOrder, Created, Dedupe,
    FindOrder, Found, JobState, LookUp, Outage, Output, Polled, Progress, Provider, Throttle, Usage, WebhookScheme,
};

/// The real service.
const BASE_URL: &str = "https://queue.fal.run";

/// What fal can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    dedupe: Dedupe::None,
    reference: ClientReference::CallbackAddressCalled,
    // Its list shows finished requests only, and never our reference.
    look_up: LookUp::CallbackOnly,
    cancel: CancelKind::QueuedOnly,
    cancel_forgets: false,
    webhook: WebhookScheme::Ed25519,
    progress: Progress::QueuePosition,
    output: Output::Address,
    usage: Usage::Seconds,
    throttle: Throttle::Queues,
    min_poll_interval: Duration::ZERO,
    record_retention: None,
};

/// Settings of the adapter.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FalConfig {
    /// How the API is reached.
    #[serde(flatten)]
    pub connection: Connection,
    /// Where callbacks come in.
    #[serde(flatten)]
    pub callbacks: Callbacks,
    /// Where the keys are published that callbacks are signed with.
    #[serde(default = "default_jwks_url")]
    pub jwks_url: String,
    /// How long published keys are used without asking again, in seconds; a day at most.
    #[serde(default = "default_jwks_max_age_s")]
    pub jwks_max_age_s: u64,
    /// How far a callback's timestamp may be from our clock either way, in seconds.
    #[serde(default = "default_timestamp_tolerance_s")]
    pub timestamp_tolerance_s: u64,
    /// Our user id there. Where it is given, callbacks for anybody else are refused.
    #[serde(default)]
    pub user_id: Option<String>,
    /// Error types of a completed request that say: it was cancelled.
    #[serde(default = "default_cancelled_types")]
    pub cancelled_types: Vec<String>,
}

fn default_jwks_url() -> String {
    "https://rest.fal.ai/.well-known/jwks.json".to_owned()
}
const fn default_jwks_max_age_s() -> u64 {
    24 * 3600
}
const fn default_timestamp_tolerance_s() -> u64 {
    300
}
fn default_cancelled_types() -> Vec<String> {
    ["request_cancelled", "client_cancelled"].map(str::to_owned).to_vec()
}

/// The adapter. Holds the published keys for as long as they may be used.
pub struct Fal {
    config: FalConfig,
    service: Service,
    callbacks: CallbackAddress,
    keys: PublishedKeys,
}

impl Fal {
    /// Checks the configuration and builds the adapter. Nothing is sent.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting that is wrong, never its value.
    pub fn new(name: &str, config: FalConfig) -> Result<Self, ConfigError> {
        not_zero(&[
            ("jwks_max_age_s", config.jwks_max_age_s),
            ("timestamp_tolerance_s", config.timestamp_tolerance_s),
        ])?;
        let callbacks = CallbackAddress::with_key(name, &config.callbacks)?;
        let service = Service::new(name, &config.connection, BASE_URL, "Key", &[])?;
        let max_age = Duration::from_secs(config.jwks_max_age_s.min(default_jwks_max_age_s()));
        let keys = PublishedKeys::new(&config.jwks_url, max_age, &config.connection)?;
        Ok(Self { config, service, callbacks, keys })
    }

    async fn submit(&self, order: &CreateOrder) -> Created {
        let Some(model) = App::of_model(&order.request.model) else {
            return Created::NotSent { cause: "the model is not named owner/app".to_owned() };
        };
        let body = request_fields(
            &order.request,
            ("image_url", |url| json!(url)),
            [("prompt", json!(order.request.prompt)), ("duration", json!(order.request.duration_seconds))],
        );
        let segments: Vec<&str> = order.request.model.split('/').collect();
        let mut url = self.service.at(&segments);
        let callback = self.callbacks.of(order.attempt, &model.0);
        url.query_pairs_mut().append_pair("fal_webhook", callback.as_str());
        let request = self.service.create(url).json(&body);
        let accepted = |reply: &Reply| wire::accepted(reply).map(|id| model.job(&id));
        let nobodys = Uuid::nil().to_string();
        let status = self.address(&Job { app: &model.0, id: &nobodys }, Some("status"));
        let harmless = self.service.request(Method::GET, status);
        match self.service.send(request, harmless, order.timeout).await {
            Ok(reply) => created(&self.service, order, &reply, accepted, wire::refusal),
            Err(no) => no.into(),
        }
    }

    fn address(&self, job: &Job<'_>, last: Option<&str>) -> Url {
        let segments: Vec<&str> = job.app.split('/').chain(["requests", job.id]).chain(last).collect();
        self.service.at(&segments)
    }

    async fn status(&self, job: &str) -> Polled {
        let Some(job) = Job::parse(job) else { return Polled::State(JobState::NotFound) };
        let request = self.service.request(Method::GET, self.address(&job, Some("status")));
        let reply = self.service.ask(request, MAX_REPLY_BYTES).await;
        let mut done = None;
        let state = |reply: &Reply| {
            let status: Status = reply.json().ok_or_else(not_readable)?;
            let state = status.state(&self.service, &self.config.cancelled_types);
            done = status.finished();
            Ok(state)
        };
        let polled = polled(reply, state, |reply| wire::refusal(reply).is_some());
        match done {
            Some(usage_millis) => self.output(&job, usage_millis).await,
            None => polled,
        }
    }

    /// The output of a completed job, which may turn out to be none.
    async fn output(&self, job: &Job<'_>, usage_millis: Option<u64>) -> Polled {
        let request = self.service.request(Method::GET, self.address(job, None));
        let reply = self.service.ask(request, MAX_REPLY_BYTES).await;
        if let Ok(reply) = &reply
            && let Some(fault) = wire::failed_output(reply, &self.service)
        {
            return Polled::State(JobState::Failed(fault));
        }
        let state = |reply: &Reply| wire::output(reply, usage_millis);
        polled(reply, state, |reply| wire::refusal(reply).is_some())
    }

    async fn ask_to_cancel(&self, job: &str) -> CancelAsked {
        let Some(job) = Job::parse(job) else { return CancelAsked::NotFound };
        let request = self.service.request(Method::PUT, self.address(&job, Some("cancel")));
        let Ok(reply) = self.service.ask(request, MAX_REPLY_BYTES).await else { return CancelAsked::Unknown };
        match (reply.status.as_u16(), reply.json::<Value>().is_some()) {
            (200..=299, _) => CancelAsked::Requested,
            (400, true) => CancelAsked::AlreadyEnded,
            (404, true) => CancelAsked::NotFound,
            _ => CancelAsked::Unknown,
        }
    }
}

/// The first two parts of a model's name, below which its requests are addressed.
struct App(String);

impl App {
    fn of_model(model: &str) -> Option<Self> {
        let is_plain = |part: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
            !part.is_empty() && part.bytes().all(allowed) && part.bytes().any(|byte| byte != b'.')
        };
        let parts: Vec<&str> = model.split('/').collect();
        let [owner, app, ..] = parts.as_slice() else { return None };
        parts.iter().all(|part| is_plain(part)).then(|| Self(format!("{owner}/{app}")))
    }

    fn job(&self, id: &str) -> String {
        format!("{}/requests/{id}", self.0)
    }
}

/// Our name for a job, taken apart.
struct Job<'a> {
    app: &'a str,
    id: &'a str,
}

impl<'a> Job<'a> {
    fn parse(job: &'a str) -> Option<Self> {
        let (app, id) = job.split_once("/requests/")?;
        let is_whole = App::of_model(app).is_some_and(|it| it.0 == app);
        (is_whole && is_job_id(id)).then_some(Self { app, id })
    }
}

impl Provider for Fal {
    fn name(&self) -> &str {
        &self.service.name
    }

    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn outage(&self) -> Option<Outage> {
        self.service.outage()
    }

    fn check_model(&self, name: &str, model: &Model) -> Result<(), String> {
        for input in [Input::Text, Input::Image] {
            let at_provider = model.at_provider(name, input);
            if App::of_model(at_provider).is_none() {
                return Err(format!(
                    "provider_model {at_provider:?} must be owner/app or owner/app/path, as fal writes it"
                ));
            }
        }
        Ok(())
    }

    fn create<'a>(&'a self, order: &'a CreateOrder) -> BoxFuture<'a, Created> {
        Box::pin(self.submit(order))
    }

    fn find<'a>(&'a self, _order: &'a FindOrder) -> BoxFuture<'a, Found> {
        let cause = "only a callback can tell whether there is a job".to_owned();
        Box::pin(std::future::ready(Found::Inconclusive { cause }))
    }

    fn poll<'a>(&'a self, job: &'a str) -> BoxFuture<'a, Polled> {
        Box::pin(self.status(job))
    }

    fn cancel<'a>(&'a self, job: &'a str) -> BoxFuture<'a, CancelAsked> {
        Box::pin(self.ask_to_cancel(job))
    }

    fn renew_keys(&self, changed: bool) -> BoxFuture<'_, ()> {
        Box::pin(self.keys.renew(changed))
    }

    /// The signature says that fal sent it, to whomever; only the key in the address says that it is about a job of ours.
    fn callback(
        &self,
        header: &dyn Fn(&str) -> Option<String>,
        query: &str,
        body: &[u8],
        now: Timestamp,
    ) -> Result<Callback, CallbackRefused> {
        let required = |name: &str| plain_header(header, name).ok_or(CallbackRefused::Unsigned);
        let request = required("x-fal-webhook-request-id")?;
        let user = required("x-fal-webhook-user-id")?;
        let timestamp = required("x-fal-webhook-timestamp")?;
        let signature = required("x-fal-webhook-signature")?;
        let seconds = whole_seconds(&timestamp).ok_or(CallbackRefused::Unsigned)?;
        let named = self.callbacks.read(query)?;
        if !self.keys.are_known() {
            return Err(CallbackRefused::NoKeys);
        }
        if !self.keys.have_signed(&signed_text(&request, &user, &timestamp, body), &signature)
            || self.config.user_id.as_ref().is_some_and(|ours| *ours != user)
        {
            return Err(CallbackRefused::Forged);
        }
        if now.timestamp().abs_diff(seconds) > self.config.timestamp_tolerance_s {
            return Err(CallbackRefused::Stale);
        }
        let told: wire::Told = serde_json::from_slice(body).map_err(|_| CallbackRefused::Unreadable)?;
        let app = App::of_model(&named.note).ok_or(CallbackRefused::Unreadable)?;
        if !is_job_id(&told.request_id) || !is_job_id(&request) {
            return Err(CallbackRefused::Unreadable);
        }
        let delivery = format!("{request}:{}", if told.status == "OK" { "ok" } else { "error" });
        Ok(Callback { delivery, attempt: named.attempt, job: app.job(&told.request_id) })
    }
}
