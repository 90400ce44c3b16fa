//! Fetches the public keys of whoever gives out tokens, again and again.

use super::{Parts, Supervisor, patiently};
use anyhow::{Context, ensure};
use api::{JwksConfig, KeySet};
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// The largest key set that is read, in bytes.
const MAX_SET: u64 = 1024 * 1024;
/// How long fetching it may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process that never had the keys believes nobody, and is not ready; later on it goes on with those that it has.
pub(super) fn start(
    supervisor: &mut Supervisor,
    parts: &Parts,
    config: JwksConfig,
    keys: KeySet,
) -> anyhow::Result<()> {
    let url = address(&config.url)?;
    let client = reqwest::Client::builder()
        .timeout(PATIENCE)
        // Whoever can change where the keys come from can let in whom they like.
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .context("no client for api.jwks.url")?;
    let (stop, health) = (parts.stop.clone(), Arc::clone(&parts.health));
    let pause = Duration::from_secs(config.refresh_seconds.max(1));
    health.not_ready("keys", "those who give out tokens have not told their keys yet");
    supervisor.watch("token keys", async move {
        if patiently("the key set", &stop, || fetch(&client, &url, &keys)).await.is_none() {
            return Ok(());
        }
        health.ready("keys");
        while stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
            if let Err(error) = fetch(&client, &url, &keys).await {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "the key set could not be fetched; the keys from before stay"
                );
            }
        }
        Ok(())
    });
    Ok(())
}

/// Keys that come over the network come by https.
fn address(text: &str) -> anyhow::Result<Url> {
    let url = Url::parse(text).with_context(|| format!("api.jwks.url: {text:?} is no address"))?;
    let here = url.host_str().is_some_and(|host| ["localhost", "127.0.0.1", "[::1]"].contains(&host));
    ensure!(
        url.scheme() == "https" || (url.scheme() == "http" && here),
        "api.jwks.url: {text:?} is not an https address; http is taken on this machine only"
    );
    Ok(url)
}

async fn fetch(client: &reqwest::Client, url: &Url, keys: &KeySet) -> anyhow::Result<usize> {
    let mut response = client.get(url.clone()).send().await?;
    ensure!(response.status().is_success(), "{url} answered {}", response.status());
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        body.extend_from_slice(&chunk);
        ensure!(body.len() as u64 <= MAX_SET, "{url} answered with more than {MAX_SET} bytes");
    }
    let text = String::from_utf8(body).with_context(|| format!("{url} did not answer with text"))?;
    keys.replace(&text).with_context(|| format!("{url} answered with something else"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::response::Redirect;
    use axum::routing::get;
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;

    const SET: &str = r#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "one", "use": "sig",
                          "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

    #[test]
    fn keys_come_by_https() {
        for good in ["https://login.example/keys", "http://127.0.0.1:8000/keys", "http://localhost/keys"] {
            assert!(address(good).is_ok(), "{good}");
        }
        for bad in ["http://login.example/keys", "ftp://localhost/keys", "login.example", "http://127.0.0.1.example/"] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_key_set_is_fetched_and_nothing_else_is_taken() -> anyhow::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let base = format!("http://{}", listener.local_addr()?);
        let long = format!("{{\"keys\": [], \"filler\": \"{}\"}}", "x".repeat(2 * 1024 * 1024));
        let router = Router::new()
            .route("/keys", get(async || SET))
            .route("/moved", get(async || Redirect::temporary("/keys")))
            .route("/long", get(async || long))
            .route("/other", get(async || "<html>"));
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await });
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
        let keys = KeySet::default();
        let at = |path: &str| address(&format!("{base}{path}"));
        assert_eq!(fetch(&client, &at("/keys")?, &keys).await?, 1);
        for path in ["/moved", "/long", "/other", "/nothing"] {
            let refused = fetch(&client, &at(path)?, &keys).await.err().context(path)?;
            assert!(refused.to_string().contains(path), "{refused:#}");
        }
        Ok(())
    }
}
