//! What the transfer tests share: a server that answers byte by byte as told, a scripted resolver, and a store in a folder.

pub mod s3;
pub mod server;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use media::{Lookup, Objects, ObjectsConfig, Secret};
use sha2::{Digest, Sha256};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use workers::ports::{ObjectStore, TransferLimits};

/// One megabyte in ten seconds.
pub const LIMITS: TransferLimits = TransferLimits { max_bytes: 1 << 20, deadline: Duration::from_secs(10) };

/// The same, with another deadline.
pub fn within(deadline: Duration) -> TransferLimits {
    TransferLimits { deadline, ..LIMITS }
}

/// A resolver that gives the same answer to every name and counts the questions.
pub struct Scripted {
    answer: Vec<IpAddr>,
    asked: AtomicUsize,
}

impl Scripted {
    pub fn new(answer: &[&str]) -> anyhow::Result<Arc<Self>> {
        let answer = answer.iter().map(|address| address.parse()).collect::<Result<_, _>>()?;
        Ok(Arc::new(Self { answer, asked: AtomicUsize::new(0) }))
    }

    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Lookup for Scripted {
    fn lookup(&self, _host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let answer = self.answer.clone();
        Box::pin(async move { Ok(answer) })
    }
}

/// A folder store and its folder.
pub struct Store {
    pub objects: Objects,
    pub folder: tempfile::TempDir,
}

impl Store {
    /// A store whose downloads may reach `allowed`.
    pub fn new(allowed: &[String]) -> anyhow::Result<Self> {
        Self::open(allowed, None)
    }

    /// The same with a scripted resolver.
    pub fn resolving(allowed: &[String], lookup: Arc<Scripted>) -> anyhow::Result<Self> {
        Self::open(allowed, Some(lookup))
    }

    fn open(allowed: &[String], lookup: Option<Arc<Scripted>>) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let secret = Secret::new("a secret of the tests only");
        let mut config = ObjectsConfig::folder(folder.path(), secret, "http://127.0.0.1:1");
        config.allow_hosts = allowed.to_vec();
        config.idle_timeout_seconds = 1;
        let objects = match lookup {
            Some(lookup) => Objects::with_lookup(&config, lookup)?,
            None => Objects::new(&config)?,
        };
        Ok(Self { objects, folder })
    }

    /// Every file of the folder, temporary ones included.
    pub fn files(&self) -> anyhow::Result<Vec<PathBuf>> {
        files(self.folder.path())
    }
}

fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    Ok(found)
}

/// Content as a stream of pieces of up to 64 KiB.
pub fn pieces(content: &[u8]) -> BoxStream<'static, io::Result<bytes::Bytes>> {
    let pieces: Vec<_> = content.chunks(64 << 10).map(|piece| Ok(bytes::Bytes::copy_from_slice(piece))).collect();
    stream::iter(pieces).boxed()
}

/// All bytes of an object or a range of it, and the size of the whole.
pub async fn read_all(objects: &Objects, key: &str, range: Option<(u64, u64)>) -> anyhow::Result<(u64, Vec<u8>)> {
    let (size, content) = objects.read(key, range).await?;
    let content = content.try_fold(Vec::new(), |mut all, piece| async move {
        all.extend_from_slice(&piece);
        Ok(all)
    });
    Ok((size, content.await?))
}

/// SHA-256 as it is recorded.
pub fn sha256(content: &[u8]) -> String {
    hex::encode(Sha256::digest(content))
}

/// Bytes that do not repeat within a part, beginning as an MP4 does.
pub fn video_like(length: usize) -> Vec<u8> {
    let mut content = b"\0\0\0\x20ftypisom".to_vec();
    content.extend(
        (0..length as u64).flat_map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 13).to_le_bytes()).take(length),
    );
    content.truncate(length);
    content
}
