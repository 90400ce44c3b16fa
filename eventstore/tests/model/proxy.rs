//! A TCP proxy in front of PostgreSQL that counts the calls that go through it, and breaks the connection at the one it is told.
//!
//! A call is what the server carries out before the client goes on: a simple query, or the messages up to a `Sync` that execute a
//! statement. Three kinds are not counted, because they come at no fixed place: preparing a statement, which a connection does once
//! and which carries nothing out; the pool's own tests of a connection (a `Sync` alone); and the wake-ups beside the business.

use super::Anyhow;
use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, BufWriter};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Where the connection breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The call never reaches the server.
    Before,
    /// The server has carried it out, and its answer is lost.
    After,
}

#[derive(Debug, Default)]
struct Plan {
    calls: usize,
    cut: Option<(usize, Cut)>,
}

/// It lives as long as this value.
pub struct Proxy {
    pub port: u16,
    plan: Arc<Mutex<Plan>>,
    _connections: JoinSet<()>,
}

impl Proxy {
    /// Listens on a free port.
    pub async fn start(server: (String, u16)) -> Anyhow<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let plan = Arc::new(Mutex::new(Plan::default()));
        let mut connections = JoinSet::new();
        connections.spawn(accept(listener, server, Arc::clone(&plan)));
        Ok(Self { port, plan, _connections: connections })
    }

    /// Counts from the beginning. `cut` says at which call, from 1, the connection breaks.
    pub fn plan(&self, cut: Option<(usize, Cut)>) {
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = Plan { calls: 0, cut };
    }

    /// How many calls there were since.
    pub fn calls(&self) -> usize {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).calls
    }
}

async fn accept(listener: TcpListener, server: (String, u16), plan: Arc<Mutex<Plan>>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        connections.spawn(carry(client, server.clone(), Arc::clone(&plan)));
    }
}

/// Carries one connection until one side closes it, or the plan says so. Dropping both sockets is the break.
async fn carry(client: TcpStream, server: (String, u16), plan: Arc<Mutex<Plan>>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let lost = AtomicBool::new(false);
    // Either ends by an error or by a closed socket; both mean the same here.
    tokio::select! {
        _ = questions(from_client, to_server, &plan, &lost) => {}
        _ = answers(from_server, to_client, &lost) => {}
    }
}

async fn questions(
    client: OwnedReadHalf,
    server: OwnedWriteHalf,
    plan: &Mutex<Plan>,
    lost: &AtomicBool,
) -> io::Result<()> {
    let (mut client, mut server) = (BufReader::new(client), BufWriter::new(server));
    // The first message has no kind.
    let mut call = Vec::new();
    read_rest(&mut client, &mut call).await?;
    server.write_all(&call).await?;
    server.flush().await?;
    let mut wake_ups = HashSet::new();
    loop {
        call.clear();
        let (mut counts, mut is_wake_up) = (false, false);
        let end = loop {
            let start = call.len();
            let kind = client.read_u8().await?;
            call.push(kind);
            read_rest(&mut client, &mut call).await?;
            let body = &call[start + 5..];
            match kind {
                b'P' => {
                    let mut words = body.split(|byte| *byte == 0);
                    let name = words.next().unwrap_or_default().to_vec();
                    if words.next().is_some_and(|text| text.starts_with(b"/* eventstore.notify */")) {
                        is_wake_up = wake_ups.insert(name) || is_wake_up;
                    }
                }
                b'B' => is_wake_up |= body.split(|byte| *byte == 0).nth(1).is_some_and(|it| wake_ups.contains(it)),
                _ => {}
            }
            counts |= matches!(kind, b'E' | b'Q');
            if matches!(kind, b'S' | b'Q' | b'H' | b'X' | b'p') {
                break kind;
            }
        };
        if counts && !is_wake_up && matches!(end, b'S' | b'Q') {
            match next_call(plan) {
                Some(Cut::Before) => return Ok(()),
                Some(Cut::After) => lost.store(true, Ordering::SeqCst),
                None => {}
            }
        }
        server.write_all(&call).await?;
        server.flush().await?;
    }
}

/// Counts a call, and says whether it is the one.
fn next_call(plan: &Mutex<Plan>) -> Option<Cut> {
    let mut plan = plan.lock().unwrap_or_else(PoisonError::into_inner);
    plan.calls += 1;
    plan.cut.filter(|(number, _)| *number == plan.calls).map(|(_, cut)| cut)
}

async fn answers(server: OwnedReadHalf, client: OwnedWriteHalf, lost: &AtomicBool) -> io::Result<()> {
    let (mut server, mut client) = (BufReader::new(server), BufWriter::new(client));
    let mut frame = Vec::new();
    loop {
        if server.buffer().is_empty() {
            client.flush().await?;
        }
        if server.fill_buf().await?.is_empty() {
            return Ok(());
        }
        frame.clear();
        frame.push(server.read_u8().await?);
        read_rest(&mut server, &mut frame).await?;
        if !lost.load(Ordering::SeqCst) {
            client.write_all(&frame).await?;
        } else if frame[0] == b'Z' {
            // Ready for the next: the call has been carried out.
            return Ok(());
        }
    }
}

/// The length and what follows.
async fn read_rest(from: &mut BufReader<OwnedReadHalf>, into: &mut Vec<u8>) -> io::Result<()> {
    let length = from.read_u32().await?;
    into.extend_from_slice(&length.to_be_bytes());
    let start = into.len();
    into.resize(start + (length as usize).saturating_sub(4), 0);
    from.read_exact(&mut into[start..]).await?;
    Ok(())
}
