//! A listener whose connections a handler can cut, to lose a reply as a network does.

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// The handle by which a handler cuts the connection it answers on.
#[derive(Clone, Debug)]
pub(super) struct Wire(Arc<AtomicBool>);

impl Wire {
    /// Nothing more is written; the connection closes as soon as the server tries.
    pub(super) fn cut(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Connected<IncomingStream<'_, Doorway>> for Wire {
    fn connect_info(stream: IncomingStream<'_, Doorway>) -> Self {
        stream.io().wire.clone()
    }
}

/// Accepts TCP connections and wraps each.
pub(super) struct Doorway(pub(super) TcpListener);

impl Listener for Doorway {
    type Io = Line;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            match self.0.accept().await {
                Ok((stream, address)) => {
                    return (Line { stream, wire: Wire(Arc::default()) }, address);
                }
                // Out of file descriptors, for instance: the listener stays usable.
                Err(error) => {
                    tracing::warn!(kind = ?error.kind(), "the simulator could not accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

/// A connection that fails to write once it was cut.
pub(super) struct Line {
    stream: TcpStream,
    wire: Wire,
}

impl Line {
    fn whole(self: Pin<&mut Self>) -> io::Result<Pin<&mut TcpStream>> {
        let this = self.get_mut();
        if this.wire.0.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(Pin::new(&mut this.stream))
    }
}

impl AsyncRead for Line {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Line {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.whole() {
            Ok(stream) => stream.poll_write(cx, bytes),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.whole() {
            Ok(stream) => stream.poll_flush(cx),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.whole() {
            Ok(stream) => stream.poll_shutdown(cx),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}
