//! A provider's API as an adapter calls it: its address, its credential, its clients, and the faults it tells.

use super::breaker::{Breaker, Gate};
use super::exchange::{Clients, NoReply, Reply, TOO_MANY, breakdown, exchange};
use super::settings::{ConfigError, Connection, below};
use super::text;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use url::Url;
use workers::ports::{FaultClass, Outage, ProviderFault};

/// See the module. Cheap to share; keeps no state between calls but idle connections and whether the provider fails.
pub(crate) struct Service {
    pub(crate) name: String,
    connection: Connection,
    base: Url,
    clients: Clients,
    breaker: Breaker,
    room: Semaphore,
}

impl Service {
    /// Checks the settings and builds the clients. `scheme` is the word before the token in the `Authorization` header.
    pub(crate) fn new(
        name: &str,
        connection: &Connection,
        default_base: &str,
        scheme: &str,
        more: &[(HeaderName, &str)],
    ) -> Result<Self, ConfigError> {
        let base = connection.base(default_base)?;
        let token = connection.token.expose();
        if token.is_empty() {
            return Err(ConfigError::Token);
        }
        let mut credential = HeaderValue::try_from(format!("{scheme} {token}")).map_err(|_| ConfigError::Token)?;
        credential.set_sensitive(true);
        let mut headers: HeaderMap =
            [(AUTHORIZATION, credential), (ACCEPT, HeaderValue::from_static("application/json"))].into_iter().collect();
        for (header, value) in more {
            let why = "can not stand in a header";
            let value =
                HeaderValue::try_from(*value).map_err(|_| ConfigError::Value { setting: "api_version", why })?;
            headers.insert(header, value);
        }
        let clients = Clients::build(&headers, connection.connect_timeout())?;
        let breaker = Breaker::new(name, connection.breaker.clone());
        let room = Semaphore::new(usize::try_from(connection.max_requests).unwrap_or(Semaphore::MAX_PERMITS));
        Ok(Self { name: name.to_owned(), connection: connection.clone(), base, clients, breaker, room })
    }

    /// An address below the API's root.
    pub(crate) fn at(&self, segments: &[&str]) -> Url {
        below(&self.base, segments)
    }

    /// Whether an address that the provider gave is at the provider itself: our token goes with a request there.
    pub(crate) fn is_ours(&self, url: &Url) -> bool {
        url.origin() == self.base.origin() && url.username().is_empty() && url.password().is_none()
    }

    /// A create request: over a connection of its own, so that nothing below can send it again.
    pub(crate) fn create(&self, url: Url) -> RequestBuilder {
        self.clients.create.post(url)
    }

    /// Any other request.
    pub(crate) fn request(&self, method: Method, url: Url) -> RequestBuilder {
        self.clients.other.request(method, url)
    }

    /// Sends a create request once, if the provider is not known to fail. `harmless` is a request that changes nothing there,
    /// whatever it is answered: it goes first where nobody knows whether the provider answers again.
    pub(crate) async fn send(
        &self,
        request: RequestBuilder,
        harmless: RequestBuilder,
        timeout: Duration,
    ) -> Result<Reply, NoReply> {
        let begun = Instant::now();
        let permit = match self.breaker.gate(begun) {
            Gate::Pass(permit) => permit,
            Gate::Shut(left) => return Err(NoReply::LeftAlone(left)),
            Gate::Look(look) => {
                // What comes of a create call that fails nobody knows.
                let patience = self.connection.request_timeout().min(timeout / 2);
                let seen = self.exchange(harmless, patience, super::MAX_REPLY_BYTES).await;
                look.settle(breakdown(&seen), Instant::now());
                match self.breaker.gate(Instant::now()) {
                    Gate::Pass(permit) => permit,
                    Gate::Shut(left) => return Err(NoReply::LeftAlone(left)),
                    Gate::Look(_) => return Err(NoReply::LeftAlone(Duration::from_secs(1))),
                }
            }
        };
        let exchanged = self.exchange(request, timeout.saturating_sub(begun.elapsed()), super::MAX_REPLY_BYTES).await;
        permit.settle(breakdown(&exchanged), Instant::now());
        exchanged
    }

    /// Sends any other request once, in the time that the settings give, if the provider is not known to fail.
    pub(crate) async fn ask(&self, request: RequestBuilder, max_bytes: usize) -> Result<Reply, NoReply> {
        let permit = match self.breaker.gate(Instant::now()) {
            Gate::Pass(permit) | Gate::Look(permit) => permit,
            Gate::Shut(left) => return Err(NoReply::LeftAlone(left)),
        };
        let exchanged = self.exchange(request, self.connection.request_timeout(), max_bytes).await;
        permit.settle(breakdown(&exchanged), Instant::now());
        exchanged
    }

    /// One exchange, once there is room for it. Waiting for room is part of its time.
    async fn exchange(&self, request: RequestBuilder, timeout: Duration, max_bytes: usize) -> Result<Reply, NoReply> {
        let begun = Instant::now();
        let Ok(Ok(_room)) = tokio::time::timeout(timeout, self.room.acquire()).await else {
            return Err(NoReply::NotSent(TOO_MANY));
        };
        exchange(request, timeout.saturating_sub(begun.elapsed()), max_bytes).await
    }

    /// Since when and until when the provider is left alone, while it is.
    pub(crate) fn outage(&self) -> Option<Outage> {
        self.breaker.outage()
    }

    /// What the provider said, as a fault. `private` must not show in it, and neither does the token.
    pub(crate) fn fault(&self, class: FaultClass, code: &str, said: &str, private: &[&str]) -> ProviderFault {
        let private: Vec<&str> = private.iter().copied().chain([self.connection.token.expose()]).collect();
        let message = text::message(said, &private);
        let class =
            if self.is_moderation(code) || self.is_moderation(&message) { FaultClass::Moderation } else { class };
        ProviderFault { class, code: text::code(code), message }
    }

    fn is_moderation(&self, said: &str) -> bool {
        // Codes are written with underscores where sentences have blanks.
        let said = said.to_lowercase().replace('_', " ");
        self.connection.moderation_markers.iter().any(|it| !it.is_empty() && said.contains(&it.to_lowercase()))
    }
}
