//! Requests over HTTP.

use serde_json::{Value, json};
use std::path::Path;

/// A client with a token.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    token: String,
}

/// Why a request did not work, as a sentence for the terminal.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// No answer.
    #[error("the API at {base} does not answer; is it running? `./dev status` tells")]
    Unreachable {
        /// The address.
        base: String,
    },
    /// An answer that is not what the API answers.
    #[error("the API answered {status}: {text}")]
    Answer {
        /// HTTP status.
        status: u16,
        /// Its text, cut.
        text: String,
    },
    /// GraphQL errors.
    #[error("{0}")]
    GraphQl(String),
    /// A local file.
    #[error("{path}: {cause}")]
    File {
        /// The file.
        path: String,
        /// Why.
        cause: std::io::Error,
    },
}

impl Client {
    /// A client of the API at `base`.
    #[must_use]
    pub fn new(base: &str, token: &str) -> Self {
        Self { http: reqwest::Client::new(), base: base.trim_end_matches('/').to_owned(), token: token.to_owned() }
    }

    /// The API's address.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The token.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    fn unreachable(&self) -> Fault {
        Fault::Unreachable { base: self.base.clone() }
    }

    /// Runs an operation and returns its `data`.
    ///
    /// # Errors
    /// [`Fault`]: unreachable, not a GraphQL answer, or GraphQL errors (their messages).
    pub async fn run(&self, query: &str, variables: Value) -> Result<Value, Fault> {
        let request = self.http.post(format!("{}/graphql", self.base)).bearer_auth(&self.token);
        let response = request.json(&json!({ "query": query, "variables": variables })).send().await;
        let body = self.json(response).await?;
        if let Some(errors) = body["errors"].as_array().filter(|errors| !errors.is_empty()) {
            let texts: Vec<&str> = errors.iter().filter_map(|error| error["message"].as_str()).collect();
            return Err(Fault::GraphQl(texts.join("; ")));
        }
        Ok(body["data"].clone())
    }

    /// Uploads an image and returns its asset id.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn upload(&self, image: &Path) -> Result<String, Fault> {
        let fault = |cause| Fault::File { path: image.display().to_string(), cause };
        let bytes = tokio::fs::read(image).await.map_err(fault)?;
        let request = self.http.post(format!("{}/uploads", self.base)).bearer_auth(&self.token);
        let request = request.header("content-type", content_type(image)).body(bytes);
        let body = self.json(request.send().await).await?;
        Ok(body["assetId"].as_str().unwrap_or_default().to_owned())
    }

    /// Downloads a link to a file.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn download(&self, url: &str, to: &Path) -> Result<(), Fault> {
        let response = self.http.get(url).send().await.map_err(|_| self.unreachable())?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(Fault::Answer { status, text: "the video can not be read".to_owned() });
        }
        let bytes = response.bytes().await.map_err(|_| self.unreachable())?;
        let fault = |cause| Fault::File { path: to.display().to_string(), cause };
        tokio::fs::write(to, bytes).await.map_err(fault)
    }

    async fn json(&self, response: Result<reqwest::Response, reqwest::Error>) -> Result<Value, Fault> {
        let response = response.map_err(|_| self.unreachable())?;
        let status = response.status().as_u16();
        let text = response.text().await.map_err(|_| self.unreachable())?;
        serde_json::from_str(&text)
            .ok()
            .filter(|_| (200..300).contains(&status))
            .ok_or_else(|| Fault::Answer { status, text: text.chars().take(300).collect() })
    }
}

fn content_type(image: &Path) -> &'static str {
    match image.extension().and_then(|it| it.to_str()).map(str::to_ascii_lowercase).as_deref() {
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("webp") => "image/webp",
        Some("gif") => "image/gif",
        _ => "image/png",
    }
}
