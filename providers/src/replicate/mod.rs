//! Replicate's HTTP API, spoken without an SDK: the official ones retry, and a retried create is a second bill.

mod callback;
mod cancel;
mod config;
mod create;
mod find;
mod poll;
mod wire;

pub use config::ReplicateConfig;

use crate::shared::{CallbackAddress, ConfigError, Service, SigningKey};
use domain::id::AttemptId;
use domain::time::Timestamp;
use futures_util::future::BoxFuture;
use std::time::Duration;
use url::Url;
use workers::catalogue::{Input, Model};
use workers::ports::{
    Callback, CallbackRefused, CancelAsked, CancelKind, Capabilities, ClientReference, CreateOrder, Created, Dedupe,
    FindOrder, Found, LookUp, Outage, Output, Polled, Progress, Provider, Throttle, Usage, WebhookScheme,
};

/// What Replicate can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    dedupe: Dedupe::None,
    reference: ClientReference::CallbackAddressShown,
    look_up: LookUp::ListByReference,
    cancel: CancelKind::Unfinished,
    cancel_forgets: false,
    webhook: WebhookScheme::Hmac,
    progress: Progress::None,
    output: Output::RefreshableAddress,
    usage: Usage::Seconds,
    throttle: Throttle::Refuses,
    min_poll_interval: Duration::ZERO,
    // The record stays; the output of a job made by API goes after an hour.
    record_retention: None,
};

/// The adapter. Cheap to share; holds two HTTP clients (one that never reuses a connection, for create) and no state of its own.
pub struct Replicate {
    config: ReplicateConfig,
    service: Service,
    callbacks: CallbackAddress,
    keys: Vec<SigningKey>,
}

impl Replicate {
    /// Checks the configuration and builds the adapter. Nothing is sent.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting that is wrong, never its value.
    pub fn new(name: &str, config: ReplicateConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let keys = config.signing_keys()?;
        let callbacks = CallbackAddress::signed_elsewhere(name, &config.callback_base_url)?;
        let service = Service::new(name, &config.connection, config::BASE_URL, "Bearer", &[])?;
        Ok(Self { config, service, callbacks, keys })
    }

    /// The address that the provider calls when the attempt's job ends. It carries our reference: the create reply may be
    /// lost, this is not.
    #[must_use]
    pub fn callback_url(&self, attempt: AttemptId) -> String {
        self.callbacks.of(attempt, "").into()
    }

    /// Takes a page address that the provider gave only if it is the list at the provider itself: the token goes with it.
    fn page(&self, next: &str) -> Option<Url> {
        let list = self.service.at(&["predictions"]);
        let url = list.join(next).ok()?;
        (self.service.is_ours(&url) && url.path() == list.path()).then_some(url)
    }
}

impl Provider for Replicate {
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
            if create::model_path(at_provider).is_none() {
                return Err(format!("provider_model {at_provider:?} must be owner/name, as Replicate writes models"));
            }
        }
        Ok(())
    }

    fn create<'a>(&'a self, order: &'a CreateOrder) -> BoxFuture<'a, Created> {
        Box::pin(create::create(self, order))
    }

    fn find<'a>(&'a self, order: &'a FindOrder) -> BoxFuture<'a, Found> {
        Box::pin(find::find(self, order.attempt))
    }

    fn poll<'a>(&'a self, job: &'a str) -> BoxFuture<'a, Polled> {
        Box::pin(poll::poll(self, job))
    }

    fn cancel<'a>(&'a self, job: &'a str) -> BoxFuture<'a, CancelAsked> {
        Box::pin(cancel::cancel(self, job))
    }

    fn callback(
        &self,
        header: &dyn Fn(&str) -> Option<String>,
        query: &str,
        body: &[u8],
        now: Timestamp,
    ) -> Result<Callback, CallbackRefused> {
        callback::read(&self.keys, self.config.timestamp_tolerance(), header, query, body, now)
    }
}
