//! Subscriptions over a real WebSocket.

use crate::live::{fetching, put_off};
use crate::world::{SECRET, Server, World, expires_in, token};
use anyhow::{Context, Result, bail};
use api::{Claims, Role, mint};
use domain::id::TenantId;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Message, http::HeaderValue};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};
use uuid::Uuid;

const FOLLOW: &str =
    "subscription($id: ID!, $from: Int) { taskStatus(taskId: $id, fromVersion: $from) { state version } }";
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Client {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl Client {
    async fn connect(server: &Server) -> Result<Self> {
        let mut request = format!("ws://{}/graphql/ws", server.address).into_client_request()?;
        request.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static("graphql-transport-ws"));
        let (socket, response) = connect_async(request).await?;
        let protocol = response.headers().get("sec-websocket-protocol").context("a protocol")?;
        assert_eq!(protocol, "graphql-transport-ws");
        Ok(Self { socket })
    }

    async fn init(server: &Server, token: &str) -> Result<Self> {
        let mut client = Self::connect(server).await?;
        client
            .send(json!({"type": "connection_init", "payload": {"authorization": format!("Bearer {token}")}}))
            .await?;
        let answer = client.next().await?.context("an answer to connection_init")?;
        assert_eq!(answer["type"], "connection_ack", "{answer}");
        Ok(client)
    }

    /// The first thing that a subscription says, in the form of an answer to a query; without a token, what comes of that.
    pub async fn first(server: &Server, token: Option<&str>, query: &str, variables: Value) -> Result<Value> {
        let mut client = Self::connect(server).await?;
        let payload = token.map(|token| json!({"authorization": format!("Bearer {token}")}));
        client.send(json!({"type": "connection_init", "payload": payload})).await?;
        if client.next().await?.is_none_or(|answer| answer["type"] != "connection_ack") {
            return Ok(json!({"errors": [{"extensions": {"code": "UNAUTHENTICATED"}}]}));
        }
        let payload = json!({"query": query, "variables": variables});
        client.send(json!({"id": "1", "type": "subscribe", "payload": payload})).await?;
        let message = client.next().await?.context("closed")?;
        Ok(if message["type"] == "error" { json!({"errors": message["payload"]}) } else { message["payload"].clone() })
    }

    async fn send(&mut self, message: Value) -> Result<()> {
        Ok(self.socket.send(Message::text(message.to_string())).await?)
    }

    async fn follow(&mut self, id: &str, from: Option<i64>) -> Result<()> {
        let payload = json!({"query": FOLLOW, "variables": {"id": id, "from": from}});
        self.send(json!({"id": "1", "type": "subscribe", "payload": payload})).await
    }

    /// The next message of the protocol; `None` when the server closes.
    async fn next(&mut self) -> Result<Option<Value>> {
        loop {
            match timeout(PATIENCE, self.socket.next()).await.context("nothing came in time")? {
                Some(Ok(Message::Text(text))) => return Ok(Some(serde_json::from_str(&text)?)),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Ok(None),
                Some(Ok(other)) => bail!("unexpected: {other:?}"),
            }
        }
    }

    async fn state(&mut self) -> Result<Value> {
        let message = self.next().await?.context("closed")?;
        assert_eq!(message["type"], "next", "{message}");
        Ok(message["payload"]["data"]["taskStatus"].clone())
    }
}

#[tokio::test]
async fn a_subscriber_sees_the_state_then_each_change_then_the_end() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let server = world.serve().await?;
    let creator = world.creator()?;
    let task = world.submitted(&creator, "k").await?;
    let mut client = Client::init(&server, &creator).await?;
    client.follow(&task, None).await?;
    assert_eq!(client.state().await?, json!({"state": "QUEUED", "version": 1}));
    let mut knows = Client::init(&server, &creator).await?;
    knows.follow(&task, Some(1)).await?;
    let cancel = "mutation($id: ID!) { cancelTask(taskId: $id) { version } }";
    world.ask(&creator, cancel, json!({"id": task})).await?;
    for follower in [&mut client, &mut knows] {
        assert_eq!(follower.state().await?, json!({"state": "CANCELED", "version": 2}));
        assert_eq!(follower.next().await?.context("closed")?["type"], "complete");
    }
    // Whoever comes late sees the end too.
    client.follow(&task, None).await?;
    assert_eq!(client.state().await?, json!({"state": "CANCELED", "version": 2}));
    assert_eq!(client.next().await?.context("closed")?["type"], "complete");
    Ok(())
}

/// G10: versions never go back, none is left out, and the last one is always told.
#[tokio::test]
async fn g10_versions_never_go_back_and_the_last_one_arrives() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let server = world.serve().await?;
    let creator = world.creator()?;
    let task = world.submitted(&creator, "k").await?;
    let mut client = Client::init(&server, &creator).await?;
    client.follow(&task, None).await?;
    assert_eq!(client.state().await?["version"], 1);
    fetching(&world, &task).await?;
    put_off(&world, &task, 30).await?;
    let cancel = "mutation($id: ID!) { cancelTask(taskId: $id) { version refusal { code } } }";
    let refused = world.ask(&creator, cancel, json!({"id": task})).await?;
    assert!(refused["data"]["cancelTask"]["refusal"].is_object(), "the provider has finished: {refused}");
    for version in 2..=34 {
        assert_eq!(client.state().await?["version"], version);
    }
    Ok(())
}

#[tokio::test]
async fn strangers_and_unknown_tasks_are_answered_alike() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let server = world.serve().await?;
    let task = world.submitted(&world.creator()?, "k").await?;
    let mut stranger = Client::init(&server, &token(TenantId(Uuid::new_v4()), &[Role::Creator])?).await?;
    for id in [task, Uuid::new_v4().to_string()] {
        stranger.follow(&id, None).await?;
        let message = stranger.next().await?.context("closed")?;
        let text = message.to_string();
        assert!(text.contains("NOT_FOUND") && !text.contains("QUEUED"), "{text}");
        while stranger.next().await?.context("closed")?["type"] != "complete" {}
    }
    Ok(())
}

/// G8: a subscription does not outlive its token.
#[tokio::test]
async fn g8_a_subscription_ends_with_its_token() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let server = world.serve().await?;
    let task = world.submitted(&world.creator()?, "k").await?;
    let claims = Claims { sub: "ada".into(), tenant: world.tenant, roles: vec![], exp: expires_in(2)? };
    let mut client = Client::init(&server, &mint(SECRET, &claims)?).await?;
    client.follow(&task, None).await?;
    assert_eq!(client.state().await?["state"], "QUEUED");
    let message = client.next().await?.context("closed")?;
    assert!(message.to_string().contains("UNAUTHENTICATED"), "{message}");
    assert_eq!(client.next().await?.context("closed")?["type"], "complete");
    Ok(())
}

#[tokio::test]
async fn connections_without_a_token_are_closed() -> Result<()> {
    let world = World::with(|config| config.connection_init_ms = 300).await?;
    let server = world.serve().await?;
    let mut silent = Client::connect(&server).await?;
    assert_eq!(silent.next().await?, None, "no connection_init: closed");
    for payload in [json!({}), json!({"authorization": "Bearer nonsense"}), Value::Null] {
        let mut client = Client::connect(&server).await?;
        client.send(json!({"type": "connection_init", "payload": payload})).await?;
        let mut acknowledged = false;
        while let Some(message) = client.next().await? {
            acknowledged |= message["type"] == "connection_ack";
        }
        assert!(!acknowledged);
    }
    Ok(())
}

/// G9: the server pings, so idle connections live and half-open ones do not.
#[tokio::test]
async fn g9_the_server_pings_and_closes_when_nothing_answers() -> Result<()> {
    let world = World::with(|config| config.ping_ms = 100).await?;
    let server = world.serve().await?;
    let mut client = Client::init(&server, &world.creator()?).await?;
    let mut pings = 0;
    while pings < 6 {
        if let Some(Ok(Message::Ping(_))) = timeout(PATIENCE, client.socket.next()).await? {
            pings += 1;
        }
    }
    client.send(json!({"type": "ping"})).await?;
    assert_eq!(client.next().await?.context("a client that answers stays connected")?["type"], "pong");
    // A client that reads nothing answers nothing.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let ended = timeout(PATIENCE, async { while let Some(Ok(_)) = client.socket.next().await {} }).await;
    assert!(ended.is_ok(), "closed in bounded time");
    Ok(())
}
