//! A server that sends exactly the bytes it was told, with the pauses it was told, and counts who came.

#![expect(clippy::disallowed_methods, reason = "a test ends what it starts, and sees how it ended")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A piece of an answer.
#[derive(Clone)]
pub enum Step {
    Send(Vec<u8>),
    Wait(Duration),
    /// The same bytes until the other side goes away, with a pause between.
    Repeat(Vec<u8>, Duration),
}

/// Sends one answer to everybody and then closes the connection.
pub struct Server {
    address: SocketAddr,
    hits: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Server {
    pub async fn start(steps: Vec<Step>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (hits, requests) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (counter, log) = (Arc::clone(&hits), Arc::clone(&requests));
        let task = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(answer(connection, steps.clone(), Arc::clone(&log)));
            }
        });
        Ok(Self { address, hits, requests, task })
    }

    /// Answers with a text.
    pub async fn saying(text: impl Into<Vec<u8>>) -> anyhow::Result<Self> {
        Self::start(vec![Step::Send(text.into())]).await
    }

    /// Answers with a 200, a content length and a body.
    pub async fn serving(body: &[u8]) -> anyhow::Result<Self> {
        let mut text = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
        text.extend_from_slice(body);
        Self::saying(text).await
    }

    /// Answers with a redirect.
    pub async fn redirecting(to: &str) -> anyhow::Result<Self> {
        Self::saying(format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n")).await
    }

    pub fn url(&self) -> String {
        format!("http://{}/out.mp4?token=confidential", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// As it is written in the list of allowed hosts.
    pub fn pair(&self) -> String {
        self.address.to_string()
    }

    pub fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }

    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().map(|log| log.clone()).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(mut connection: TcpStream, steps: Vec<Step>, log: Arc<Mutex<Vec<String>>>) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(connection.read_u8().await?);
    }
    if let Ok(mut log) = log.lock() {
        log.push(String::from_utf8_lossy(&request).to_lowercase());
    }
    for step in steps {
        match step {
            Step::Send(bytes) => connection.write_all(&bytes).await?,
            Step::Wait(pause) => tokio::time::sleep(pause).await,
            Step::Repeat(bytes, pause) => loop {
                connection.write_all(&bytes).await?;
                tokio::time::sleep(pause).await;
            },
        }
    }
    connection.shutdown().await
}
