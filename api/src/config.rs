//! Settings of the API.

use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// How the API is served.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiConfig {
    /// Address to listen on.
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// Where clients and providers reach it: scheme, host and port.
    #[serde(default = "default_public_url")]
    pub public_url: String,
    /// Secret that tokens are signed with (HS256). At least 32 bytes, never printed. With `jwks` it may be left out, and should be.
    #[serde(default)]
    pub token_secret: String,
    /// Whoever gives out tokens that are signed with a private key of theirs.
    #[serde(default)]
    pub jwks: Option<JwksConfig>,
    /// Whether the schema may be asked for.
    #[serde(default = "yes")]
    pub introspection: bool,
    /// Whether GET /graphql serves the explorer.
    #[serde(default = "yes")]
    pub explorer: bool,
    /// Largest upload, in bytes.
    #[serde(default = "default_upload")]
    pub max_upload_bytes: u64,
    /// Largest GraphQL request, in bytes.
    #[serde(default = "default_body")]
    pub max_body_bytes: usize,
    /// How long a query that asks for "at least this version" waits for the read model, in milliseconds.
    #[serde(default = "default_patience")]
    pub freshness_wait_ms: u64,
    /// How long links to assets are good, in seconds.
    #[serde(default = "default_link_ttl")]
    pub link_ttl_seconds: u64,
    /// How long a WebSocket may stay open without `connection_init`, in milliseconds.
    #[serde(default = "default_init")]
    pub connection_init_ms: u64,
    /// Pause between the server's pings on a WebSocket, in milliseconds. A client that answers none of three is gone.
    #[serde(default = "default_ping")]
    pub ping_ms: u64,
    /// Origins of web pages that may call it, such as `http://localhost:5173`. None by default.
    #[serde(default)]
    pub allowed_origins: Vec<String>,
    /// Largest depth of a query.
    #[serde(default = "default_depth")]
    pub max_depth: usize,
    /// Largest complexity of a query: about the number of fields in its answer.
    #[serde(default = "default_complexity")]
    pub max_complexity: usize,
    /// A list of operations that clients may name by id: a JSON object of ids and texts.
    #[serde(default)]
    pub operations_file: Option<PathBuf>,
    /// Whether only listed operations are answered.
    #[serde(default)]
    pub only_listed_operations: bool,
    /// How many points of complexity each tenant may ask for in a second, of each process. No limit by default.
    #[serde(default)]
    pub points_per_second: Option<u32>,
    /// How many points may be asked for at once after a pause.
    #[serde(default = "default_burst")]
    pub points_burst: u32,
    /// How many subscriptions each tenant may have open, of each process.
    #[serde(default = "default_subscriptions")]
    pub max_subscriptions_per_tenant: usize,
    /// Price of each started second of an export, in minor units.
    #[serde(default = "default_export_price")]
    pub export_price_per_second: i64,
}

/// Whoever gives out tokens.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwksConfig {
    /// Where their public keys are: a JSON Web Key Set, by https, or by http on this machine.
    pub url: String,
    /// Their name, as tokens say it in `iss`.
    pub issuer: String,
    /// This service's name, as tokens say it in `aud`.
    pub audience: String,
    /// How often the keys are fetched, in seconds: a new key is published that long before it is used.
    #[serde(default = "default_refresh")]
    pub refresh_seconds: u64,
}

impl std::fmt::Debug for ApiConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiConfig")
            .field("listen", &self.listen)
            .field("public_url", &self.public_url)
            .field("token_secret", &"<secret>")
            .field("introspection", &self.introspection)
            .field("explorer", &self.explorer)
            .field("max_upload_bytes", &self.max_upload_bytes)
            .field("max_body_bytes", &self.max_body_bytes)
            .field("freshness_wait_ms", &self.freshness_wait_ms)
            .field("link_ttl_seconds", &self.link_ttl_seconds)
            .field("connection_init_ms", &self.connection_init_ms)
            .field("ping_ms", &self.ping_ms)
            .field("allowed_origins", &self.allowed_origins)
            .field("max_depth", &self.max_depth)
            .field("max_complexity", &self.max_complexity)
            .field("jwks", &self.jwks)
            .field("operations_file", &self.operations_file)
            .field("only_listed_operations", &self.only_listed_operations)
            .field("points_per_second", &self.points_per_second)
            .field("points_burst", &self.points_burst)
            .field("max_subscriptions_per_tenant", &self.max_subscriptions_per_tenant)
            .field("export_price_per_second", &self.export_price_per_second)
            .finish()
    }
}

impl ApiConfig {
    /// The defaults, with this secret.
    #[must_use]
    pub fn with_secret(token_secret: impl Into<String>) -> Self {
        Self {
            listen: default_listen(),
            public_url: default_public_url(),
            token_secret: token_secret.into(),
            introspection: true,
            explorer: true,
            max_upload_bytes: default_upload(),
            max_body_bytes: default_body(),
            freshness_wait_ms: default_patience(),
            link_ttl_seconds: default_link_ttl(),
            connection_init_ms: default_init(),
            ping_ms: default_ping(),
            allowed_origins: Vec::new(),
            max_depth: default_depth(),
            max_complexity: default_complexity(),
            jwks: None,
            operations_file: None,
            only_listed_operations: false,
            points_per_second: None,
            points_burst: default_burst(),
            max_subscriptions_per_tenant: default_subscriptions(),
            export_price_per_second: default_export_price(),
        }
    }
}

fn default_listen() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 8080))
}

fn default_public_url() -> String {
    "http://127.0.0.1:8080".to_owned()
}

const fn yes() -> bool {
    true
}

const fn default_upload() -> u64 {
    20 * 1024 * 1024
}

const fn default_body() -> usize {
    1024 * 1024
}

const fn default_patience() -> u64 {
    2_000
}

const fn default_link_ttl() -> u64 {
    3_600
}

const fn default_init() -> u64 {
    10_000
}

const fn default_ping() -> u64 {
    20_000
}

const fn default_depth() -> usize {
    12
}

const fn default_subscriptions() -> usize {
    2_000
}

const fn default_export_price() -> i64 {
    2
}

const fn default_complexity() -> usize {
    5_000
}

const fn default_burst() -> u32 {
    50_000
}

const fn default_refresh() -> u64 {
    300
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_hides_the_secret_and_unknown_settings_are_refused() {
        let config: ApiConfig =
            serde_json::from_str(r#"{"token_secret": "hush, hush, hush"}"#).expect("the rest has defaults");
        assert!(!format!("{config:?}").contains("hush"));
        assert_eq!(config.max_upload_bytes, 20_971_520);
        let unknown = serde_json::from_str::<ApiConfig>(r#"{"token_secret": "x", "lissten": "127.0.0.1:1"}"#);
        assert!(unknown.is_err_and(|error| error.to_string().contains("lissten")));
    }
}
