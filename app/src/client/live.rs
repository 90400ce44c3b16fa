//! Live progress over graphql-transport-ws. When the connection breaks, it is opened again from the version seen last.

use super::http::{Client, Fault};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::time::Duration;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

/// A state of a task, as the subscription shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot(pub Value);

impl Snapshot {
    /// The state's name.
    #[must_use]
    pub fn state(&self) -> &str {
        self.0["state"].as_str().unwrap_or("?")
    }

    /// The version; 0 if it is missing.
    #[must_use]
    pub fn version(&self) -> i64 {
        let version = &self.0["version"];
        version.as_i64().or_else(|| version.as_str().and_then(|text| text.parse().ok())).unwrap_or(0)
    }

    /// Whether the task stays in this state, or waits for a person.
    #[must_use]
    pub fn is_end(&self) -> bool {
        matches!(self.state(), "SUCCEEDED" | "FAILED" | "CANCELED" | "CANCELED_WITH_OUTPUT" | "MANUAL_REVIEW")
    }
}

const SUBSCRIPTION: &str = "subscription ($id: ID!, $from: Int) {
    taskStatus(taskId: $id, fromVersion: $from) { state version progressPercent attemptNo error { class code message } }
}";

/// Follows a task to its end and shows each new state to `show`.
///
/// # Errors
/// [`Fault`] when the API can not be reached for a minute, or refuses.
pub async fn follow(client: &Client, task: &str, mut show: impl FnMut(&Snapshot)) -> Result<Snapshot, Fault> {
    let mut last: Option<Snapshot> = None;
    let mut failures = 0;
    loop {
        let seen = last.as_ref().map(Snapshot::version);
        match stream(client, task, seen, &mut last, &mut show).await {
            Ok(()) => failures = 0,
            Err(fault @ Fault::GraphQl(_)) => return Err(fault),
            Err(fault) => {
                failures += 1;
                if failures > 60 {
                    return Err(fault);
                }
            }
        }
        if let Some(end) = last.as_ref().filter(|it| it.is_end()) {
            return Ok(end.clone());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn stream(
    client: &Client,
    task: &str,
    from: Option<i64>,
    last: &mut Option<Snapshot>,
    show: &mut impl FnMut(&Snapshot),
) -> Result<(), Fault> {
    let unreachable = || Fault::Unreachable { base: client.base().to_owned() };
    let url = format!("{}/graphql/ws", client.base().replacen("http", "ws", 1));
    let mut request = url.into_client_request().map_err(|_| unreachable())?;
    let protocol = "graphql-transport-ws".parse().map_err(|_| unreachable())?;
    request.headers_mut().insert("Sec-WebSocket-Protocol", protocol);
    let (mut socket, _) = tokio_tungstenite::connect_async(request).await.map_err(|_| unreachable())?;
    let init =
        json!({ "type": "connection_init", "payload": { "authorization": format!("Bearer {}", client.token()) } });
    socket.send(text(&init)).await.map_err(|_| unreachable())?;
    while let Some(frame) = socket.next().await {
        let Message::Text(frame) = frame.map_err(|_| unreachable())? else { continue };
        let message: Value = serde_json::from_str(&frame).unwrap_or(Value::Null);
        match message["type"].as_str() {
            Some("connection_ack") => {
                let payload = json!({ "query": SUBSCRIPTION, "variables": { "id": task, "from": from } });
                let subscribe = json!({ "type": "subscribe", "id": "1", "payload": payload });
                socket.send(text(&subscribe)).await.map_err(|_| unreachable())?;
            }
            Some("ping") => socket.send(text(&json!({ "type": "pong" }))).await.map_err(|_| unreachable())?,
            Some("next") => {
                if let Some(errors) = message["payload"]["errors"].as_array().filter(|it| !it.is_empty()) {
                    return Err(Fault::GraphQl(errors[0]["message"].as_str().unwrap_or("refused").to_owned()));
                }
                let snapshot = Snapshot(message["payload"]["data"]["taskStatus"].clone());
                if last.as_ref() != Some(&snapshot) {
                    show(&snapshot);
                    *last = Some(snapshot);
                }
            }
            Some("error") => {
                let cause = message["payload"][0]["message"].as_str().unwrap_or("refused");
                return Err(Fault::GraphQl(cause.to_owned()));
            }
            Some("complete") => return Ok(()),
            _ => {}
        }
    }
    Ok(())
}

fn text(value: &Value) -> Message {
    Message::text(value.to_string())
}
