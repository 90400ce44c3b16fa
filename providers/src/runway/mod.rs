//! Runway's API. The create reply is the only place where a task's id stands: there is no list, no callback, no reference of
//! ours. An answer that is lost is a task that is lost, so an unclear submit is for a person.

mod wire;

use crate::shared::{
    ConfigError, Connection, MAX_REPLY_BYTES, NoReply, Reply, Service, created, is_job_id, named_by_id, not_readable,
    polled, request_fields,
};
use domain::time::Timestamp;
use futures_util::future::BoxFuture;
use reqwest::Method;
use reqwest::header::HeaderName;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use wire::Task;
use workers::catalogue::Model;
use workers::ports::{
    Callback, CallbackRefused, CancelAsked, CancelKind, Capabilities, ClientReference, CreateOrder, Created, Dedupe,
    FindOrder, Found, JobState, LookUp, Output, Polled, Progress, Provider, Throttle, Usage, WebhookScheme,
};

/// The real service.
const BASE_URL: &str = "https://api.dev.runwayml.com";

/// What Runway can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    dedupe: Dedupe::None,
    reference: ClientReference::None,
    look_up: LookUp::None,
    cancel: CancelKind::Unfinished,
    cancel_forgets: true,
    webhook: WebhookScheme::None,
    progress: Progress::Fraction,
    output: Output::RefreshableAddress,
    usage: Usage::None,
    throttle: Throttle::Both,
    min_poll_interval: Duration::from_secs(5),
    record_retention: None,
};

/// Settings of the adapter.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunwayConfig {
    /// How the API is reached.
    #[serde(flatten)]
    pub connection: Connection,
    /// The version of the API that is spoken: it goes with every request.
    #[serde(default = "default_api_version")]
    pub api_version: String,
}

fn default_api_version() -> String {
    "2024-11-06".to_owned()
}

/// The adapter.
pub struct Runway {
    service: Service,
}

impl Runway {
    /// Checks the configuration and builds the adapter. Nothing is sent.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting that is wrong, never its value.
    pub fn new(name: &str, config: &RunwayConfig) -> Result<Self, ConfigError> {
        let version = (HeaderName::from_static("x-runway-version"), config.api_version.as_str());
        Ok(Self { service: Service::new(name, &config.connection, BASE_URL, "Bearer", &[version])? })
    }

    async fn create_task(&self, order: &CreateOrder) -> Created {
        let path = if order.request.image_url.is_some() { "image_to_video" } else { "text_to_video" };
        let body = request_fields(
            &order.request,
            ("promptImage", |url| json!(url)),
            [
                ("model", json!(order.request.model)),
                ("promptText", json!(order.request.prompt)),
                ("duration", json!(order.request.duration_seconds)),
            ],
        );
        let request = self.service.create(self.service.at(&["v1", path])).json(&body);
        match self.service.send(request, order.timeout).await {
            Ok(reply) => created(&self.service, order, &reply, named_by_id, wire::refusal),
            Err(no) => no.into(),
        }
    }

    async fn task(&self, method: Method, id: &str) -> Result<Reply, NoReply> {
        self.service.ask(self.service.request(method, self.service.at(&["v1", "tasks", id])), MAX_REPLY_BYTES).await
    }

    /// The same call cancels what works and deletes what is over, with its output. So what is over is left alone.
    async fn cancel_task(&self, id: &str) -> CancelAsked {
        if !is_job_id(id) {
            return CancelAsked::NotFound;
        }
        let Ok(reply) = self.task(Method::GET, id).await else { return CancelAsked::Unknown };
        if is_unknown(&reply) {
            // An earlier cancel, whose answer was lost.
            return CancelAsked::Gone;
        }
        let Some(task) = reply.json::<Task>().filter(|_| reply.status.is_success()) else {
            return CancelAsked::Unknown;
        };
        if task.has_ended() {
            return CancelAsked::AlreadyEnded;
        }
        match self.task(Method::DELETE, id).await {
            Ok(reply) if reply.status.is_success() || is_unknown(&reply) => CancelAsked::Gone,
            _ => CancelAsked::Unknown,
        }
    }
}

fn is_unknown(reply: &Reply) -> bool {
    reply.status.as_u16() == 404 && wire::refusal(reply).is_some()
}

impl Provider for Runway {
    fn name(&self) -> &str {
        &self.service.name
    }

    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn check_model(&self, _name: &str, model: &Model) -> Result<(), String> {
        if model.parameters.get("ratio").is_some_and(Value::is_string) {
            return Ok(());
        }
        Err("Runway wants a size: give the model parameters such as { ratio = \"1280:720\" }".to_owned())
    }

    fn create<'a>(&'a self, order: &'a CreateOrder) -> BoxFuture<'a, Created> {
        Box::pin(self.create_task(order))
    }

    fn find<'a>(&'a self, _order: &'a FindOrder) -> BoxFuture<'a, Found> {
        Box::pin(std::future::ready(Found::Impossible))
    }

    fn poll<'a>(&'a self, job: &'a str) -> BoxFuture<'a, Polled> {
        Box::pin(async move {
            if !is_job_id(job) {
                return Polled::State(JobState::NotFound);
            }
            let state = |reply: &Reply| {
                let task: Task = reply.json().ok_or_else(not_readable)?;
                if task.id != job {
                    return Err("the answer is about another job".to_owned());
                }
                Ok(task.state(&self.service))
            };
            polled(self.task(Method::GET, job).await, state, is_unknown)
        })
    }

    fn cancel<'a>(&'a self, job: &'a str) -> BoxFuture<'a, CancelAsked> {
        Box::pin(self.cancel_task(job))
    }

    /// There are none, so whoever calls is not believed.
    fn callback(
        &self,
        _header: &dyn Fn(&str) -> Option<String>,
        _query: &str,
        _body: &[u8],
        _now: Timestamp,
    ) -> Result<Callback, CallbackRefused> {
        Err(CallbackRefused::Unsigned)
    }
}
