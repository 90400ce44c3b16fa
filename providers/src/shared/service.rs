//! A provider's API as an adapter calls it: its address, its credential, its clients, and the faults it tells.

use super::exchange::{Clients, NoReply, Reply, exchange};
use super::settings::{ConfigError, Connection, below};
use super::text;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder};
use std::time::Duration;
use url::Url;
use workers::ports::{FaultClass, ProviderFault};

/// See the module. Cheap to share; keeps no state between calls but idle connections.
pub(crate) struct Service {
    pub(crate) name: String,
    connection: Connection,
    base: Url,
    clients: Clients,
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
        Ok(Self { name: name.to_owned(), connection: connection.clone(), base, clients })
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

    /// Sends a create request once.
    pub(crate) async fn send(&self, request: RequestBuilder, timeout: Duration) -> Result<Reply, NoReply> {
        exchange(request, timeout, super::MAX_REPLY_BYTES).await
    }

    /// Sends any other request once, in the time that the settings give.
    pub(crate) async fn ask(&self, request: RequestBuilder, max_bytes: usize) -> Result<Reply, NoReply> {
        exchange(request, self.connection.request_timeout(), max_bytes).await
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
