//! The object store: a local folder or an S3-compatible bucket behind one port.

use crate::config::{ObjectsConfig, S3Config, StoreKind};
use crate::fetch::Fetcher;
use crate::guard::{Lookup, SystemLookup};
use crate::keys::check_key;
use crate::links::{Links, MIN_SECRET};
use crate::upload::{Measure, Upload, store_error};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::local::LocalFileSystem;
use object_store::path::Path as StorePath;
use object_store::signer::Signer;
use object_store::{ClientOptions, GetOptions, ObjectStoreExt, RetryConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout_at};
use workers::ports::{ObjectStore, StoredObject, TransferError, TransferLimits};

/// The longest that S3 lets a signed URL live.
const MAX_LINK_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

/// Why the object store can not be opened. Never names a secret.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// A setting is missing or unusable.
    #[error("objects: {0}")]
    Setting(&'static str),
    /// The folder can not be made or opened.
    #[error("objects: the folder {path:?} can not be used: {kind}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the operating system said.
        kind: std::io::ErrorKind,
    },
}

/// Implements [`ObjectStore`] over a folder or a bucket.
pub struct Objects {
    backend: Backend,
    fetcher: Fetcher,
}

enum Backend {
    Folder { store: Arc<LocalFileSystem>, root: PathBuf, links: Links },
    S3(Arc<AmazonS3>),
}

impl Objects {
    /// Opens the store that the settings name. Contacts nothing: a wrong bucket shows at first use.
    ///
    /// # Errors
    /// [`ObjectsError`] for settings that can not work.
    pub fn new(config: &ObjectsConfig) -> Result<Self, ObjectsError> {
        Self::with_lookup(config, Arc::new(SystemLookup))
    }

    /// As [`Objects::new`], with another way for downloads to resolve host names.
    ///
    /// # Errors
    /// [`ObjectsError`] for settings that can not work.
    pub fn with_lookup(config: &ObjectsConfig, lookup: Arc<dyn Lookup>) -> Result<Self, ObjectsError> {
        let backend = match config.kind {
            StoreKind::Folder => folder_backend(config)?,
            StoreKind::S3 => {
                let s3 = config.s3.as_ref().ok_or(ObjectsError::Setting("kind is \"s3\" but there is no [s3]"))?;
                Backend::S3(Arc::new(bucket(s3)?))
            }
        };
        let fetcher =
            Fetcher::new(config, lookup).map_err(|_| ObjectsError::Setting("the HTTP client can not start"))?;
        Ok(Self { backend, fetcher })
    }

    /// What checks the signed links that the API serves itself: `None` where the store serves its own.
    #[must_use]
    pub fn links(&self) -> Option<&Links> {
        match &self.backend {
            Backend::Folder { links, .. } => Some(links),
            Backend::S3(_) => None,
        }
    }

    /// Removes temporary files of uploads that were not finished, which only a killed process leaves behind, when nothing was
    /// written to them for `age`. Says how many. A bucket does this by its rule for unfinished multipart uploads.
    ///
    /// # Errors
    /// [`TransferError::Transient`] when the folder can not be read.
    pub async fn remove_abandoned(&self, age: Duration) -> Result<u64, TransferError> {
        let Backend::Folder { root, .. } = &self.backend else {
            return Ok(0);
        };
        let root = root.clone();
        let swept = tokio::task::spawn_blocking(move || remove_abandoned(&root, age)).await;
        swept
            .ok()
            .and_then(Result::ok)
            .ok_or_else(|| TransferError::Transient("the folder can not be swept".to_owned()))
    }

    fn store(&self) -> &dyn object_store::ObjectStore {
        match &self.backend {
            Backend::Folder { store, .. } => store.as_ref(),
            Backend::S3(store) => store.as_ref(),
        }
    }

    /// Takes a stream in and shows it under `key`, all by `deadline`.
    async fn write(
        &self,
        key: &str,
        content: impl Stream<Item = Result<Bytes, TransferError>> + Unpin,
        max_bytes: u64,
        deadline: Instant,
    ) -> Result<StoredObject, TransferError> {
        let path = store_path(key)?;
        let keeps_attributes = matches!(self.backend, Backend::S3(_));
        let mut upload = Upload::new(self.store(), &path, keeps_attributes, max_bytes);
        let filled = timeout_at(deadline, upload.fill(content, max_bytes)).await.unwrap_or_else(|_| Err(out_of_time()));
        if let Err(error) = filled {
            upload.abort().await;
            return Err(error);
        }
        let stored = upload.stored(key);
        let published = timeout_at(deadline, self.publish(upload, &stored)).await;
        published.unwrap_or_else(|_| Err(out_of_time()))?;
        Ok(stored)
    }

    /// Makes `stored` what is found under its key. An object that is there already is compared by checksum, never by size
    /// alone: equal, it stays untouched; different, it is replaced in one step.
    async fn publish(&self, upload: Upload<'_>, stored: &StoredObject) -> Result<(), TransferError> {
        if self.holds(stored).await? {
            upload.abort().await;
            return Ok(());
        }
        match upload.publish().await {
            Ok(()) => Ok(()),
            // The store may have done it and failed to say so. What is there now decides.
            Err(error) => match self.holds(stored).await {
                Ok(true) => Ok(()),
                Ok(false) | Err(_) => Err(error),
            },
        }
    }

    async fn holds(&self, wanted: &StoredObject) -> Result<bool, TransferError> {
        match self.store().head(&store_path(&wanted.key)?).await {
            // Another size is proof of another content; the same size proves nothing.
            Ok(meta) if meta.size != wanted.bytes => Ok(false),
            Ok(_) => Ok(self.measure_object(&wanted.key).await?.is_some_and(|there| there.sha256 == wanted.sha256)),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(store_error(error)),
        }
    }

    async fn measure_object(&self, key: &str) -> Result<Option<StoredObject>, TransferError> {
        let object = match self.store().get(&store_path(key)?).await {
            Ok(object) => object,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(store_error(error)),
        };
        let size = object.meta.size;
        let mut content = object.into_stream();
        let mut measure = Measure::default();
        while let Some(chunk) = content.try_next().await.map_err(store_error)? {
            measure.update(&chunk);
        }
        whole(measure.bytes(), size)?;
        Ok(Some(measure.into_object(key)))
    }

    async fn fetch_url(&self, url: &str, key: &str, limits: TransferLimits) -> Result<StoredObject, TransferError> {
        store_path(key)?;
        let deadline = Instant::now() + limits.deadline;
        let body =
            timeout_at(deadline, self.fetcher.open(url, limits.max_bytes)).await.map_err(|_| out_of_time())??;
        self.write(key, body.into_stream().boxed(), limits.max_bytes, deadline).await
    }

    async fn copy_to_file(&self, key: &str, to: &Path) -> Result<(), TransferError> {
        let object = self.store().get(&store_path(key)?).await.map_err(store_error)?;
        let size = object.meta.size;
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Removed when dropped; takes its name only when it is whole.
        let part = tempfile::NamedTempFile::new_in(folder).map_err(|error| local_error(&error))?.into_temp_path();
        let mut file = tokio::fs::File::create(&part).await.map_err(|error| local_error(&error))?;
        let mut content = object.into_stream();
        let mut bytes = 0;
        while let Some(chunk) = content.try_next().await.map_err(store_error)? {
            bytes += chunk.len() as u64;
            file.write_all(&chunk).await.map_err(|error| local_error(&error))?;
        }
        file.flush().await.map_err(|error| local_error(&error))?;
        whole(bytes, size)?;
        part.persist(to).map_err(|error| local_error(&error.error))
    }

    async fn link(&self, key: &str, ttl: Duration) -> Result<String, TransferError> {
        let path = store_path(key)?;
        let ttl = ttl.min(MAX_LINK_TTL);
        match &self.backend {
            Backend::Folder { links, .. } => {
                let expires = (SystemTime::now() + ttl).duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                Ok(links.sign(key, expires.as_secs()))
            }
            Backend::S3(store) => {
                let url = store.signed_url(reqwest::Method::GET, &path, ttl).await.map_err(store_error)?;
                Ok(url.into())
            }
        }
    }

    async fn open(&self, key: &str, range: Option<(u64, u64)>) -> Result<Opened, TransferError> {
        let path = store_path(key)?;
        let mut options = GetOptions::default();
        if let Some((from, to)) = range {
            let size = self.store().head(&path).await.map_err(store_error)?.size;
            if from >= to || from >= size {
                return Err(TransferError::Permanent("the range lies outside the object".to_owned()));
            }
            options.range = Some((from..to.min(size)).into());
        }
        let object = self.store().get_opts(&path, options).await.map_err(store_error)?;
        let size = object.meta.size;
        let content = object.into_stream().map_err(|_| std::io::Error::other("the object store failed")).boxed();
        Ok((size, content))
    }
}

type Opened = (u64, BoxStream<'static, Result<Bytes, std::io::Error>>);

impl ObjectStore for Objects {
    fn fetch<'a>(
        &'a self,
        url: &'a str,
        key: &'a str,
        limits: TransferLimits,
    ) -> BoxFuture<'a, Result<StoredObject, TransferError>> {
        Box::pin(self.fetch_url(url, key, limits))
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        content: BoxStream<'a, Result<Bytes, std::io::Error>>,
        limits: TransferLimits,
    ) -> BoxFuture<'a, Result<StoredObject, TransferError>> {
        let deadline = Instant::now() + limits.deadline;
        let broke_off = |_| TransferError::Transient("the content broke off".to_owned());
        Box::pin(self.write(key, content.map_err(broke_off), limits.max_bytes, deadline))
    }

    fn download<'a>(&'a self, key: &'a str, to: &'a Path) -> BoxFuture<'a, Result<(), TransferError>> {
        Box::pin(self.copy_to_file(key, to))
    }

    fn measure<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<StoredObject>, TransferError>> {
        Box::pin(self.measure_object(key))
    }

    fn signed_url<'a>(&'a self, key: &'a str, ttl: Duration) -> BoxFuture<'a, Result<String, TransferError>> {
        Box::pin(self.link(key, ttl))
    }

    fn read<'a>(&'a self, key: &'a str, range: Option<(u64, u64)>) -> BoxFuture<'a, Result<Opened, TransferError>> {
        Box::pin(self.open(key, range))
    }
}

fn folder_backend(config: &ObjectsConfig) -> Result<Backend, ObjectsError> {
    let root = config.folder.as_ref().ok_or(ObjectsError::Setting("kind is \"folder\" but there is no folder"))?;
    if config.link_secret.expose().len() < MIN_SECRET {
        return Err(ObjectsError::Setting("link_secret must have at least 16 bytes"));
    }
    if !config.public_url.starts_with("http://") && !config.public_url.starts_with("https://") {
        return Err(ObjectsError::Setting("public_url must be an http or https address"));
    }
    let unusable = |kind| ObjectsError::Folder { path: root.clone(), kind };
    std::fs::create_dir_all(root).map_err(|error| unusable(error.kind()))?;
    let store = LocalFileSystem::new_with_prefix(root).map_err(|_| unusable(std::io::ErrorKind::Other))?;
    // A recorded asset must survive a power cut, hence the sync to disk before the name appears.
    let store = Arc::new(store.with_fsync(true));
    Ok(Backend::Folder { store, root: root.clone(), links: Links::new(config.link_secret.clone(), &config.public_url) })
}

fn bucket(config: &S3Config) -> Result<AmazonS3, ObjectsError> {
    // The client's own total timeout would cut large objects off; silence is what shows that nothing comes any more.
    let client = ClientOptions::new()
        .with_allow_http(config.allow_http)
        .with_connect_timeout(Duration::from_secs(5))
        .with_read_timeout(Duration::from_secs(30))
        .with_timeout_disabled();
    let retry = RetryConfig { max_retries: 3, retry_timeout: Duration::from_secs(30), ..RetryConfig::default() };
    AmazonS3Builder::new()
        .with_client_options(client)
        .with_retry(retry)
        .with_endpoint(&config.endpoint)
        .with_bucket_name(&config.bucket)
        .with_region(&config.region)
        .with_access_key_id(config.access_key.expose())
        .with_secret_access_key(config.secret_key.expose())
        .build()
        .map_err(|_| ObjectsError::Setting("the [s3] settings are not usable"))
}

fn store_path(key: &str) -> Result<StorePath, TransferError> {
    check_key(key).map_err(|refused| TransferError::Permanent(refused.to_string()))?;
    StorePath::parse(key).map_err(|_| TransferError::Permanent("not an object key".to_owned()))
}

fn whole(bytes: u64, size: u64) -> Result<(), TransferError> {
    if bytes == size { Ok(()) } else { Err(TransferError::Transient("the object was read incompletely".to_owned())) }
}

fn out_of_time() -> TransferError {
    TransferError::Transient("the transfer took too long".to_owned())
}

fn local_error(error: &std::io::Error) -> TransferError {
    TransferError::Transient(format!("the local file could not be written: {}", error.kind()))
}

fn remove_abandoned(folder: &Path, age: Duration) -> std::io::Result<u64> {
    let mut removed = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        if meta.is_dir() {
            removed += remove_abandoned(&entry.path(), age)?;
            continue;
        }
        // The store names a file in the making `{key}#{number}`; keys themselves can not hold a `#`.
        let in_the_making = entry.file_name().to_string_lossy().contains('#');
        if in_the_making && meta.modified()?.elapsed().is_ok_and(|silent| silent >= age) {
            std::fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}
