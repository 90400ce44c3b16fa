//! `GET /graphql/ws`: subscriptions by the protocol graphql-transport-ws.
//!
//! The token comes in `connection_init`. The server closes a connection that does not send one in time, pings, and closes one
//! whose client answers none of three pings.

use crate::auth::Authority;
use crate::graphql::Call;
use crate::idempotency::HeaderKey;
use crate::router::Shared;
use async_graphql::{Data, Error, ErrorExtensions};
use async_graphql_axum::{GraphQLProtocol, GraphQLWebSocket};
use axum::Error as SocketError;
use axum::extract::State;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use domain::id::CorrelationId;
use futures_util::stream::BoxStream;
use futures_util::{SinkExt, StreamExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};

/// Largest message from a client, in bytes.
const MAX_MESSAGE: usize = 256 * 1024;
/// Messages that wait for a slow client; then its subscriptions wait.
const OUTGOING: usize = 32;
/// How many pings in a row may stay without any answer.
const MAX_UNANSWERED: u32 = 3;

pub(crate) async fn upgrade(
    State(shared): State<Arc<Shared>>,
    axum::Extension(correlation): axum::Extension<CorrelationId>,
    protocol: GraphQLProtocol,
    upgrade: WebSocketUpgrade,
) -> Response {
    upgrade
        .protocols(["graphql-transport-ws"])
        .max_message_size(MAX_MESSAGE)
        .max_frame_size(MAX_MESSAGE)
        .on_upgrade(move |socket| serve(socket, shared, protocol, correlation))
}

/// What the two halves of a connection know of each other.
#[derive(Default)]
struct Life {
    initialized: AtomicBool,
    unanswered: AtomicU32,
}

async fn serve(socket: WebSocket, shared: Arc<Shared>, protocol: GraphQLProtocol, correlation: CorrelationId) {
    let config = &shared.state.config;
    let (init, ping) = (Duration::from_millis(config.connection_init_ms), Duration::from_millis(config.ping_ms));
    let life = Arc::new(Life::default());
    let (mut sink, stream) = socket.split();
    let (outgoing, mut queue) = mpsc::channel::<Message>(OUTGOING);
    let graphql = GraphQLWebSocket::new_with_pair(
        outgoing_sink(outgoing),
        incoming(stream.boxed(), Arc::clone(&life)),
        shared.executor.clone(),
        protocol,
    )
    .on_connection_init({
        let (shared, life) = (Arc::clone(&shared), Arc::clone(&life));
        move |payload| async move { admit(&shared, &life, &payload, correlation) }
    })
    .serve();
    let pump = async {
        let mut pings = interval_at(Instant::now() + ping, ping);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let message = tokio::select! {
                message = queue.recv() => message,
                _ = pings.tick() => {
                    let gone = life.unanswered.fetch_add(1, Ordering::Relaxed) >= MAX_UNANSWERED;
                    (!gone).then(|| Message::Ping(Default::default()))
                }
            };
            let Some(message) = message else { break };
            // Whoever reads nothing is gone, for all that can be told.
            if !matches!(timeout(ping * MAX_UNANSWERED, sink.send(message)).await, Ok(Ok(()))) {
                return;
            }
        }
        timeout(ping, sink.close()).await.ok();
    };
    let late = async {
        sleep(init).await;
        if life.initialized.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    // `graphql` drops the queue's sender when it ends, so `pump` sends what is left, the closing message last. When `pump` ends, nothing
    // can be told any more.
    let told = async {
        graphql.await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = told => {}
        () = pump => {}
        () = late => {}
    }
}

type Incoming = BoxStream<'static, Result<Message, SocketError>>;

fn incoming(stream: Incoming, life: Arc<Life>) -> Incoming {
    // Anything that arrives shows that the client is there.
    stream.inspect(move |_| life.unanswered.store(0, Ordering::Relaxed)).boxed()
}

fn outgoing_sink(sender: mpsc::Sender<Message>) -> impl futures_util::Sink<Message, Error = ()> {
    futures_util::sink::unfold(sender, |sender, message| async move {
        sender.send(message).await.map_err(|_| ())?;
        Ok(sender)
    })
}

/// Checks the payload of `connection_init`: `{"authorization": "Bearer …"}`.
fn admit(
    shared: &Shared,
    life: &Life,
    payload: &serde_json::Value,
    correlation: CorrelationId,
) -> async_graphql::Result<Data> {
    let given = ["authorization", "Authorization"].iter().find_map(|name| payload.get(name)?.as_str());
    let given = given.unwrap_or_default();
    let caller = shared.keys.verify_bearer(given).map_err(|bad| {
        Error::new(bad.to_string()).extend_with(|_, extensions| extensions.set("code", "UNAUTHENTICATED"))
    })?;
    life.initialized.store(true, Ordering::Relaxed);
    let mut data = Data::default();
    let authority = Some(Authority::new(&shared.keys, given));
    data.insert(Call { caller: Some(caller), authority, correlation, key: HeaderKey::Absent });
    Ok(data)
}
