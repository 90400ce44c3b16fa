//! Replicate's HTTP API, spoken without an SDK: the official ones retry, and a retried create is a second bill.

mod callback;
mod cancel;
mod config;
mod create;
mod exchange;
mod find;
mod poll;
pub mod retry_after;
mod text;
mod wire;

pub use config::{ReplicateConfig, ReplicateConfigError};

use crate::signature::SigningKey;
use config::Addresses;
use domain::id::AttemptId;
use domain::time::Timestamp;
use exchange::Clients;
use futures_util::future::BoxFuture;
use workers::ports::{Callback, CallbackRefused, CancelAsked, CreateOrder, Created, Found, Polled, Provider};

/// The adapter. Cheap to share; holds two HTTP clients (one that never reuses a connection, for create) and no state of its own.
pub struct Replicate {
    config: ReplicateConfig,
    addresses: Addresses,
    clients: Clients,
    key: SigningKey,
}

impl Replicate {
    /// Checks the configuration and builds the adapter. Nothing is sent.
    ///
    /// # Errors
    /// [`ReplicateConfigError`] names the setting that is wrong, never its value.
    pub fn new(config: ReplicateConfig) -> Result<Self, ReplicateConfigError> {
        let addresses = Addresses::check(&config)?;
        let key = config.signing_key()?;
        let clients = Clients::build(&config)?;
        Ok(Self { config, addresses, clients, key })
    }

    /// The address that the provider calls when the attempt's job ends. It carries our reference: the create reply may be
    /// lost, this is not.
    #[must_use]
    pub fn callback_url(&self, attempt: AttemptId) -> String {
        self.addresses.callback(attempt).into()
    }
}

impl Provider for Replicate {
    fn name(&self) -> &'static str {
        "replicate"
    }

    fn create<'a>(&'a self, order: &'a CreateOrder) -> BoxFuture<'a, Created> {
        Box::pin(create::create(self, order))
    }

    fn find(&self, attempt: AttemptId) -> BoxFuture<'_, Found> {
        Box::pin(find::find(self, attempt))
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
        callback::read(&self.key, self.config.timestamp_tolerance(), header, query, body, now)
    }
}
