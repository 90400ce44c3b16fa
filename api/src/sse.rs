//! Answers as server-sent events, in the "distinct connections mode" of the protocol GraphQL over SSE
//! (https://github.com/enisdenjo/graphql-sse/blob/master/PROTOCOL.md): one request, one stream. Each answer is an event `next`, the end is
//! `complete`.
//!
//! A client that is gone is noticed by what can not be sent to it: a comment goes out at every ping, and whoever takes nothing for
//! as long as three of them is given up, with all that was kept for it.

use crate::executor::Guarded;
use async_graphql::{Executor, Request};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

/// Events that wait for a slow client; then its subscription waits.
const OUTGOING: usize = 32;
/// Pings for which a client may take nothing.
const MAX_UNTAKEN: u32 = 3;

/// The answers to a request, as they come.
pub(crate) fn answers(executor: &Guarded, request: Request, ping: Duration) -> Response {
    let (outgoing, taken) = mpsc::channel(OUTGOING);
    let mut work = JoinSet::new();
    work.spawn(send(executor.clone(), request, ping, outgoing));
    // The work ends when the connection does, which drops the stream.
    let events = stream::unfold((taken, work), async |(mut taken, work)| {
        let event: Event = taken.recv().await?;
        Some((Ok::<_, Infallible>(event), (taken, work)))
    });
    let headers = [
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        // Proxies that know this pass each event on as it comes.
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, Sse::new(events)).into_response()
}

async fn send(executor: Guarded, request: Request, ping: Duration, outgoing: mpsc::Sender<Event>) {
    let mut answers = executor.execute_stream(request, None);
    let mut pings = interval_at(Instant::now() + ping, ping);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let (event, is_last) = tokio::select! {
            answer = answers.next() => match answer {
                Some(answer) => (Event::default().event("next").data(serde_json::json!(answer).to_string()), false),
                None => (Event::default().event("complete").data(""), true),
            },
            _ = pings.tick() => (Event::default().comment("ping"), false),
        };
        let sent = timeout(ping * MAX_UNTAKEN, outgoing.send(event)).await;
        if is_last || !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
}
