//! Volcengine Ark (Seedance), and BytePlus, which speaks alike. A second create call makes a second task, and no task shows our
//! reference: what was lost is found by the seed, which follows from the attempt and which the list shows again.

mod find;
mod wire;

use crate::shared::{
    CallbackAddress, Callbacks, ConfigError, Connection, MAX_REPLY_BYTES, NoReply, Reply, Service, body_digest,
    created, is_job_id, named_by_id, not_readable, not_zero, polled, request_fields,
};
use domain::id::AttemptId;
use domain::time::Timestamp;
use futures_util::future::BoxFuture;
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use url::Url;
use wire::Task;
use workers::catalogue::Model;
use workers::ports::{
    Callback, CallbackRefused, CancelAsked, CancelKind, Capabilities, ClientReference, CreateOrder, Created, Dedupe,
    FindOrder, Found, JobState, LookUp, Output, Polled, Progress, Provider, Throttle, Usage, WebhookScheme,
};

/// The real service.
const BASE_URL: &str = "https://ark.cn-beijing.volces.com/api/v3";

/// What Ark can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    dedupe: Dedupe::None,
    reference: ClientReference::CallbackAddressCalled,
    look_up: LookUp::ListByLikeness,
    cancel: CancelKind::QueuedOnly,
    cancel_forgets: false,
    webhook: WebhookScheme::AddressKey,
    progress: Progress::None,
    output: Output::Address,
    usage: Usage::Tokens,
    throttle: Throttle::Refuses,
    min_poll_interval: Duration::ZERO,
    record_retention: Some(Duration::from_secs(7 * 24 * 3600)),
};

/// Settings of the adapter. How long the list remembers and how it is ordered is not documented, so nothing rests on an order,
/// and the time is a setting.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArkConfig {
    /// How the API is reached.
    #[serde(flatten)]
    pub connection: Connection,
    /// Where callbacks come in.
    #[serde(flatten)]
    pub callbacks: Callbacks,
    /// Tasks on a page of the list, 1 to 500.
    #[serde(default = "default_find_page_size")]
    pub find_page_size: u32,
    /// Most pages that one look-up reads. Past it, "nothing found" is no longer an answer.
    #[serde(default = "default_find_max_pages")]
    pub find_max_pages: u32,
    /// How long the list shows a task, in seconds. A task older than that can not be said to be absent.
    #[serde(default = "default_list_retention_s")]
    pub list_retention_s: u64,
    /// How far the provider's clock may be from ours, in seconds.
    #[serde(default = "default_clock_slack_s")]
    pub clock_slack_s: u64,
}

const fn default_find_page_size() -> u32 {
    100
}
const fn default_find_max_pages() -> u32 {
    100
}
const fn default_list_retention_s() -> u64 {
    7 * 24 * 3600
}
const fn default_clock_slack_s() -> u64 {
    120
}

/// The adapter.
pub struct Ark {
    config: ArkConfig,
    service: Service,
    callbacks: CallbackAddress,
}

impl Ark {
    /// Checks the configuration and builds the adapter. Nothing is sent.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting that is wrong, never its value.
    pub fn new(name: &str, config: ArkConfig) -> Result<Self, ConfigError> {
        not_zero(&[
            ("find_page_size", config.find_page_size.into()),
            ("find_max_pages", config.find_max_pages.into()),
            ("list_retention_s", config.list_retention_s),
        ])?;
        if config.find_page_size > 500 {
            return Err(ConfigError::Value { setting: "find_page_size", why: "must be at most 500" });
        }
        let callbacks = CallbackAddress::with_key(name, &config.callbacks)?;
        let service = Service::new(name, &config.connection, BASE_URL, "Bearer", &[])?;
        Ok(Self { config, service, callbacks })
    }

    fn tasks(&self, id: Option<&str>) -> Url {
        let segments: Vec<&str> = ["contents", "generations", "tasks"].into_iter().chain(id).collect();
        self.service.at(&segments)
    }

    async fn create_task(&self, order: &CreateOrder) -> Created {
        let mut content = vec![json!({ "type": "text", "text": order.request.prompt })];
        if let Some(url) = &order.request.image_url {
            content.push(json!({ "type": "image_url", "image_url": { "url": url }, "role": "first_frame" }));
        }
        let callback = self.callbacks.of(order.attempt, "");
        let mut body = request_fields(
            &order.request,
            // It is part of the content.
            ("content", |_| Value::Null),
            [
                ("model", json!(order.request.model)),
                ("content", json!(content)),
                ("duration", json!(order.request.duration_seconds)),
                ("callback_url", json!(callback.as_str())),
            ],
        );
        if order.request.accepts_seed {
            body.insert("seed".to_owned(), json!(seed(order.attempt)));
        }
        let request = self.service.create(self.tasks(None)).json(&body);
        match self.service.send(request, order.timeout).await {
            Ok(reply) => created(&self.service, order, &reply, named_by_id, wire::refusal),
            Err(no) => no.into(),
        }
    }

    async fn task(&self, id: &str) -> Result<Reply, NoReply> {
        let request = self.service.request(Method::GET, self.tasks(Some(id)));
        self.service.ask(request, MAX_REPLY_BYTES).await
    }

    /// The same call cancels what waits and removes the record of what is over, as the server sees fit. So it is made only for
    /// what has just been seen waiting.
    async fn cancel_task(&self, id: &str) -> CancelAsked {
        if !is_job_id(id) {
            return CancelAsked::NotFound;
        }
        let Ok(reply) = self.task(id).await else { return CancelAsked::Unknown };
        if reply.status.as_u16() == 404 && wire::refusal(&reply).is_some() {
            return CancelAsked::NotFound;
        }
        let Some(task) = reply.json::<Task>().filter(|_| reply.status.is_success()) else {
            return CancelAsked::Unknown;
        };
        match task.state(&self.service) {
            JobState::Queued => {}
            JobState::Running { .. } | JobState::Unrecognised { .. } | JobState::NotFound => {
                return CancelAsked::NotPossible;
            }
            JobState::Succeeded { .. } | JobState::Failed(_) | JobState::Canceled => return CancelAsked::AlreadyEnded,
        }
        let request = self.service.request(Method::DELETE, self.tasks(Some(id)));
        let Ok(reply) = self.service.ask(request, MAX_REPLY_BYTES).await else { return CancelAsked::Unknown };
        match (reply.status.as_u16(), wire::refusal(&reply).is_some()) {
            (200..=299, _) => CancelAsked::Requested,
            (404, true) => CancelAsked::NotFound,
            // It has started meanwhile.
            (400 | 403 | 409 | 422, true) => CancelAsked::NotPossible,
            _ => CancelAsked::Unknown,
        }
    }
}

/// The seed by which an attempt's task is known again: 31 bits of the attempt's id, which is a digest.
const fn seed(attempt: AttemptId) -> u32 {
    let (high, _) = attempt.0.as_u64_pair();
    (high >> 33) as u32
}

impl Provider for Ark {
    fn name(&self) -> &str {
        &self.service.name
    }

    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn check_model(&self, _name: &str, model: &Model) -> Result<(), String> {
        if model.accepts_seed && model.parameters.contains_key("seed") {
            return Err("parameters.seed would be overwritten: lost tasks are known by their seed".to_owned());
        }
        Ok(())
    }

    fn create<'a>(&'a self, order: &'a CreateOrder) -> BoxFuture<'a, Created> {
        Box::pin(self.create_task(order))
    }

    fn find<'a>(&'a self, order: &'a FindOrder) -> BoxFuture<'a, Found> {
        Box::pin(find::find(self, order))
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
            polled(self.task(job).await, state, |reply| wire::refusal(reply).is_some())
        })
    }

    fn cancel<'a>(&'a self, job: &'a str) -> BoxFuture<'a, CancelAsked> {
        Box::pin(self.cancel_task(job))
    }

    fn callback(
        &self,
        _header: &dyn Fn(&str) -> Option<String>,
        query: &str,
        body: &[u8],
        _now: Timestamp,
    ) -> Result<Callback, CallbackRefused> {
        let named = self.callbacks.read(query)?;
        let told: Task = serde_json::from_slice(body).map_err(|_| CallbackRefused::Unreadable)?;
        if !is_job_id(&told.id) {
            return Err(CallbackRefused::Unreadable);
        }
        Ok(Callback { delivery: body_digest(body), attempt: named.attempt, job: told.id })
    }
}
