//! Runware's HTTP API. One address takes everything: a list of tasks goes in, a list of answers and a list of errors come out.
//!
//! The caller chooses the job's id, and a second task with that id is refused. So a create call can be sent again with the
//! same id, and the refusal is the look-up: nothing is made twice, whatever became of the first answer.

mod wire;

use crate::shared::{
    CallbackAddress, Callbacks, ConfigError, Connection, MAX_REPLY_BYTES, NoReply, Reply, Service, body_digest,
    not_readable, request_fields, text,
};
use chrono::{DateTime, TimeDelta, Utc};
use domain::id::AttemptId;
use domain::time::Timestamp;
use futures_util::future::BoxFuture;
use reqwest::{Method, RequestBuilder};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use wire::Answers;
use workers::catalogue::Model;
use workers::ports::{
    Callback, CallbackRefused, CancelAsked, CancelKind, Capabilities, ClientReference, CreateOrder, Created, Dedupe,
    FindOrder, Found, JobState, LookUp, Outage, Output, Polled, Progress, Provider, Throttle, Usage, WebhookScheme,
};

/// The real service.
const BASE_URL: &str = "https://api.runware.ai/v1";

/// What Runware can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    dedupe: Dedupe::RefusesDuplicate,
    reference: ClientReference::JobId,
    look_up: LookUp::ByReference,
    cancel: CancelKind::None,
    cancel_forgets: false,
    webhook: WebhookScheme::AddressKey,
    progress: Progress::None,
    output: Output::Address,
    usage: Usage::Money,
    throttle: Throttle::Refuses,
    min_poll_interval: Duration::ZERO,
    record_retention: None,
};

/// Settings of the adapter. The codes are settings, for the service is putting its codes in order.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunwareConfig {
    /// How the API is reached.
    #[serde(flatten)]
    pub connection: Connection,
    /// Where callbacks come in.
    #[serde(flatten)]
    pub callbacks: Callbacks,
    /// Codes that say: there already is a task with this id.
    #[serde(default = "default_duplicate_codes")]
    pub duplicate_codes: Vec<String>,
    /// Codes that say: there is no task with this id.
    #[serde(default = "default_unknown_codes")]
    pub unknown_codes: Vec<String>,
    /// Codes that say: the account may not do this.
    #[serde(default = "default_account_codes")]
    pub account_codes: Vec<String>,
    /// Codes that say: too much at once.
    #[serde(default = "default_throttle_codes")]
    pub throttle_codes: Vec<String>,
    /// Codes that say that the service itself is in trouble: whether it did what it was asked is then unknown.
    #[serde(default = "default_trouble_codes")]
    pub trouble_codes: Vec<String>,
    /// How long a task that was taken may not show when it is asked for, in seconds: until then "there is none" is no answer.
    #[serde(default = "default_shows_after_s")]
    pub shows_after_s: u64,
}

fn default_duplicate_codes() -> Vec<String> {
    vec!["conflictTaskUUID".to_owned()]
}
fn default_unknown_codes() -> Vec<String> {
    ["taskNotFound", "unknownTaskUUID"].map(str::to_owned).to_vec()
}
fn default_account_codes() -> Vec<String> {
    ["invalidApiKey", "missingApiKey", "insufficientCredits"].map(str::to_owned).to_vec()
}

fn default_throttle_codes() -> Vec<String> {
    ["rateLimitExceeded", "tooManyRequests", "concurrencyLimitExceeded"].map(str::to_owned).to_vec()
}
fn default_trouble_codes() -> Vec<String> {
    ["internalServerError", "serverError", "serviceUnavailable", "gatewayTimeout", "timeoutProvider"]
        .map(str::to_owned)
        .to_vec()
}
const fn default_shows_after_s() -> u64 {
    120
}

impl RunwareConfig {
    /// The settings that have no default, and defaults for the rest.
    #[must_use]
    pub fn new(connection: Connection, callbacks: Callbacks) -> Self {
        Self {
            connection,
            callbacks,
            duplicate_codes: default_duplicate_codes(),
            unknown_codes: default_unknown_codes(),
            account_codes: default_account_codes(),
            throttle_codes: default_throttle_codes(),
            trouble_codes: default_trouble_codes(),
            shows_after_s: default_shows_after_s(),
        }
    }
}

/// The adapter.
pub struct Runware {
    config: RunwareConfig,
    service: Service,
    callbacks: CallbackAddress,
}

impl Runware {
    /// Checks the configuration and builds the adapter. Nothing is sent.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting that is wrong, never its value.
    pub fn new(name: &str, config: RunwareConfig) -> Result<Self, ConfigError> {
        let callbacks = CallbackAddress::with_key(name, &config.callbacks)?;
        let service = Service::new(name, &config.connection, BASE_URL, "Bearer", &[])?;
        Ok(Self { config, service, callbacks })
    }

    /// The id of the attempt's task. The service wants random ids (version 4), ours are derived (version 5): only the version is
    /// changed, so two attempts never share one.
    fn task_id(attempt: AttemptId) -> String {
        uuid::Builder::from_bytes(attempt.0.into_bytes()).with_version(uuid::Version::Random).into_uuid().to_string()
    }

    async fn create_task(&self, order: &CreateOrder) -> Created {
        let task = Self::task_id(order.attempt);
        let webhook = self.callbacks.of(order.attempt, "");
        let body = request_fields(
            &order.request,
            ("frameImages", |url| json!([{ "inputImage": url, "frame": "first" }])),
            [
                ("taskType", json!("videoInference")),
                ("taskUUID", json!(task)),
                ("model", json!(order.request.model)),
                ("positivePrompt", json!(order.request.prompt)),
                ("duration", json!(order.request.duration_seconds)),
                ("deliveryMethod", json!("async")),
                ("includeCost", json!(true)),
                ("webhookURL", json!(webhook.as_str())),
            ],
        );
        let request = self.service.create(self.service.at(&[])).json(&[body]);
        match self.service.send(request, self.asked(&task), order.timeout).await {
            Ok(reply) => self.created(order, task, &reply),
            Err(no) => no.into(),
        }
    }

    /// The codes count, not the HTTP status: which status goes with which code is not documented.
    fn created(&self, order: &CreateOrder, task: String, reply: &Reply) -> Created {
        let status = reply.status.as_u16();
        let unclear = |cause: String| Created::Unknown { cause };
        let Some(answers) = reply.json::<Answers>() else {
            return unclear(format!("http {status} without a list of answers"));
        };
        if reply.status.is_success() && answers.answer(&task).is_some() {
            return Created::Accepted { job: task };
        }
        let Some(error) = answers.error(&task) else {
            return unclear(format!("http {status} without an answer about the task"));
        };
        let is_in = |codes: &[String]| codes.iter().any(|it| it == error.code());
        if is_in(&self.config.duplicate_codes) {
            return Created::DuplicateOf { job: task };
        }
        if status >= 500 || is_in(&self.config.trouble_codes) {
            return unclear(format!("http {status} with trouble of the service's own"));
        }
        if status == 429 || is_in(&self.config.throttle_codes) {
            return Created::Throttled { retry_after: reply.retry_after(None) };
        }
        let image = order.request.image_url.as_deref().unwrap_or_default();
        let private = [order.request.prompt.as_str(), image];
        Created::Rejected(error.fault(&self.service, &self.config.account_codes, &private))
    }

    /// A request that asks about a task, and changes nothing.
    fn asked(&self, task: &str) -> RequestBuilder {
        let body = json!([{ "taskType": "getResponse", "taskUUID": task }]);
        self.service.request(Method::POST, self.service.at(&[])).json(&body)
    }

    async fn response(&self, task: &str) -> Result<Reply, NoReply> {
        self.service.ask(self.asked(task), MAX_REPLY_BYTES).await
    }

    async fn find_task(&self, order: &FindOrder) -> Found {
        let task = Self::task_id(order.attempt);
        let reply = match self.response(&task).await {
            Ok(reply) => reply,
            Err(no) => return Found::Inconclusive { cause: no.cause() },
        };
        let inconclusive =
            |cause: &str| Found::Inconclusive { cause: format!("http {}{cause}", reply.status.as_u16()) };
        match self.state(&task, &reply) {
            // It may still be on its way.
            Ok(JobState::NotFound) if self.may_not_show_yet(order, &reply) => inconclusive(", and it may not show yet"),
            Ok(JobState::NotFound) => Found::Absent,
            // Also where it has failed: it was taken.
            Ok(_) => Found::Job { job: task },
            Err(_) => inconclusive(" without an answer about the task"),
        }
    }

    fn may_not_show_yet(&self, order: &FindOrder, reply: &Reply) -> bool {
        let age = DateTime::<Utc>::from(reply.now()) - order.lost_at;
        age < TimeDelta::seconds(i64::try_from(self.config.shows_after_s).unwrap_or(i64::MAX / 1_000))
    }

    /// What an answer says of a task, by its codes alone. What is no word about the task itself says nothing: that we ask too often, or
    /// that our key is not taken, fails no task that works.
    fn state(&self, task: &str, reply: &Reply) -> Result<JobState, String> {
        let status = reply.status.as_u16();
        let silent = || if reply.status.is_success() { not_readable() } else { format!("http {status}") };
        let answers: Answers = reply.json().filter(|_| status < 500 && status != 429).ok_or_else(silent)?;
        if let Some(answer) = answers.answer(task).filter(|_| reply.status.is_success()) {
            return Ok(answer.state(&self.service));
        }
        let error = answers.error(task).ok_or("the answer is not about the task")?;
        let is_in = |codes: &[String]| codes.iter().any(|it| it == error.code());
        let config = &self.config;
        if is_in(&config.unknown_codes) {
            return Ok(JobState::NotFound);
        }
        let about_us = [&config.account_codes, &config.throttle_codes, &config.trouble_codes];
        if !error.is_failure_of(task) || about_us.into_iter().any(|codes| is_in(codes)) {
            return Err(format!("http {status}, {}", text::code(error.code())));
        }
        Ok(JobState::Failed(error.failure(&self.service)))
    }
}

impl Provider for Runware {
    fn name(&self) -> &str {
        &self.service.name
    }

    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn outage(&self) -> Option<Outage> {
        self.service.outage()
    }

    fn check_model(&self, _name: &str, model: &Model) -> Result<(), String> {
        let has = |field: &str| model.parameters.get(field).is_some_and(Value::is_u64);
        if has("width") && has("height") {
            return Ok(());
        }
        Err("Runware wants a size: give the model parameters such as { width = 1280, height = 720 }".to_owned())
    }

    fn create<'a>(&'a self, order: &'a CreateOrder) -> BoxFuture<'a, Created> {
        Box::pin(self.create_task(order))
    }

    fn find<'a>(&'a self, order: &'a FindOrder) -> BoxFuture<'a, Found> {
        Box::pin(self.find_task(order))
    }

    fn poll<'a>(&'a self, job: &'a str) -> BoxFuture<'a, Polled> {
        Box::pin(async move {
            let reply = match self.response(job).await {
                Ok(reply) => reply,
                Err(no) => return no.into(),
            };
            match self.state(job, &reply) {
                Ok(state) => Polled::State(state),
                Err(cause) => Polled::Unavailable { cause, retry_after: reply.retry_after(None) },
            }
        })
    }

    fn cancel<'a>(&'a self, _job: &'a str) -> BoxFuture<'a, CancelAsked> {
        Box::pin(std::future::ready(CancelAsked::NotPossible))
    }

    fn callback(
        &self,
        _header: &dyn Fn(&str) -> Option<String>,
        query: &str,
        body: &[u8],
        _now: Timestamp,
    ) -> Result<Callback, CallbackRefused> {
        let named = self.callbacks.read(query)?;
        let job = Self::task_id(named.attempt);
        let told: Value = serde_json::from_slice(body).map_err(|_| CallbackRefused::Unreadable)?;
        if !wire::is_about(&told, &job) {
            return Err(CallbackRefused::Unreadable);
        }
        Ok(Callback { delivery: body_digest(body), attempt: named.attempt, job })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::id::TaskId;
    use uuid::Uuid;

    #[test]
    fn a_task_id_is_a_random_one_to_look_at_and_always_the_same() {
        let attempt = |number| AttemptId::of(TaskId(Uuid::from_u128(7)), number);
        let id: Uuid = Runware::task_id(attempt(1)).parse().expect("a UUID");
        assert_eq!(id.get_version_num(), 4);
        assert_eq!(Runware::task_id(attempt(1)), id.to_string());
        assert_ne!(Runware::task_id(attempt(2)), id.to_string());
        assert_eq!(id.as_u128() ^ attempt(1).0.as_u128(), 1 << 76, "version 5 has become version 4, and nothing else");
    }
}
