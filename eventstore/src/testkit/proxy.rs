//! A TCP proxy in front of PostgreSQL that resets connections somewhere in their bytes: between two messages, in the middle of
//! one, before the server has read a statement or after it has carried it out.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// When a connection is reset.
#[derive(Clone, Copy, Debug)]
pub enum Reset {
    /// After so many bytes, both ways together: it may be in the middle of a message.
    Byte(u64),
    /// Instead of the server's answer of this number, from 0: what was asked is carried out, and nobody hears of it.
    Answer(u64),
}

type Plan = dyn Fn() -> Reset + Send + Sync;

/// See the module. It lives as long as this value, and its connections with it.
pub struct FaultProxy {
    port: u16,
    resets: Arc<AtomicU64>,
    _connections: JoinSet<()>,
}

impl FaultProxy {
    /// Listens on a free port of the loopback and carries connections to `server`. `plan` is asked at each new connection.
    ///
    /// # Errors
    /// The machine gives no port.
    pub async fn start(server: (String, u16), plan: impl Fn() -> Reset + Send + Sync + 'static) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let resets = Arc::new(AtomicU64::new(0));
        let mut connections = JoinSet::new();
        connections.spawn(accept(listener, server, Arc::new(plan), Arc::clone(&resets)));
        Ok(Self { port, resets, _connections: connections })
    }

    /// Where it listens.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// How many connections it has reset.
    #[must_use]
    pub fn resets(&self) -> u64 {
        self.resets.load(Ordering::SeqCst)
    }
}

async fn accept(listener: TcpListener, server: (String, u16), plan: Arc<Plan>, resets: Arc<AtomicU64>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(carry(client, server.clone(), plan(), Arc::clone(&resets)));
    }
}

async fn carry(client: TcpStream, server: (String, u16), reset: Reset, resets: Arc<AtomicU64>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    // Without lingering, closing the socket is a reset: what is on its way is lost, as on a cut cable.
    let ready = [&client, &server].iter().all(|it| it.set_nodelay(true).is_ok() && it.set_zero_linger().is_ok());
    if !ready {
        return;
    }
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    // Either way ends by an error or by a closed socket, too; that is the end of the connection, and no reset of ours.
    let is_reset = match reset {
        Reset::Byte(number) => {
            let left = AtomicI64::new(i64::try_from(number).unwrap_or(i64::MAX));
            tokio::select! {
                it = bytes(from_client, to_server, &left) => it,
                it = bytes(from_server, to_client, &left) => it,
            }
        }
        Reset::Answer(number) => tokio::select! {
            it = tokio::io::copy(&mut from_client, &mut to_server) => it.map(|_| false),
            it = answers(from_server, to_client, number) => it,
        },
    };
    resets.fetch_add(u64::from(is_reset.unwrap_or(false)), Ordering::SeqCst);
}

/// Copies until one side closes or no byte is left to be copied; says whether it was that.
async fn bytes(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, left: &AtomicI64) -> io::Result<bool> {
    let mut buffer = vec![0; 8 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        let taken = i64::try_from(count).unwrap_or(i64::MAX);
        let before = left.fetch_sub(taken, Ordering::SeqCst);
        to.write_all(&buffer[..usize::try_from(before.clamp(0, taken)).unwrap_or(0)]).await?;
        if count == 0 || before <= taken {
            return Ok(count > 0);
        }
    }
}

/// Copies until one side closes or as many answers have passed; says whether it was that. What comes at once is one answer.
async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, number: u64) -> io::Result<bool> {
    let mut buffer = vec![0; 8 * 1024];
    for _ in 0..number {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(false);
        }
        to.write_all(&buffer[..count]).await?;
    }
    Ok(from.read(&mut buffer).await? > 0)
}
