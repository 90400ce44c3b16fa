//! The archive's files: to the object store and back. What a file is and says is the event store's business.

use crate::calls::CallLimits;
use crate::ports::{ObjectStore, TransferError};
use domain::id::TaskId;
use domain::process::StreamId;
use eventstore::archive::{
    ArchiveError, ArchiveFile, Archiving, Checked, Draft, PartFault, Written, archived_stream, check,
};
use eventstore::audit::{Hash, Place, StreamName};
use eventstore::{ArchivedHistory, Store};
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::io::BufWriter;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::NamedTempFile;
use tokio_util::io::ReaderStream;
use uuid::Uuid;

/// How long a file is, in bytes, before the next one is begun.
const FILE_BYTES: u64 = 16 << 20;
/// Tasks that are looked at in one statement.
const PAGE: i64 = 1_000;

/// Some streams of tasks that have ended, and the task up to which was looked; `None`: there are no more.
pub type FinishedPage = (Vec<StreamId>, Option<TaskId>);

/// Where tasks that have ended are found: the read side knows.
pub trait Finished: Send + Sync {
    /// Of the next `limit` tasks after one, in the order of ids: the streams of those that ended at least `days` days ago, and of
    /// their attempts.
    fn finished(&self, after: TaskId, days: u16, limit: i64) -> BoxFuture<'_, Result<FinishedPage, String>>;
}

/// Why something of the archive did not work.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveFault {
    /// The event store.
    #[error(transparent)]
    Store(#[from] ArchiveError),
    /// The object store.
    #[error("{key}: the object store: {cause}")]
    Objects {
        /// The object.
        key: String,
        /// What it said.
        cause: TransferError,
    },
    /// It has stored something else than it was given.
    #[error("{0}: what is stored is not what was written: run it again")]
    StoredOther(String),
    /// A scratch file.
    #[error("a scratch file can not be used")]
    Scratch(#[from] std::io::Error),
    /// A manifest could not be written as JSON.
    #[error("a value could not be encoded")]
    Encode(#[from] serde_json::Error),
    /// The read models could not say which tasks have ended.
    #[error("the tasks that have ended can not be found: {0}")]
    ReadModels(String),
    /// It is in no file.
    #[error("{0} is not archived: `aivideo archive run` takes tasks that have ended, with their attempts")]
    NotArchived(StreamName),
    /// What is in the file is not what was archived.
    #[error("{key}: {stream} {fault}")]
    Part {
        /// The file.
        key: String,
        /// The stream.
        stream: StreamName,
        /// What is wrong.
        fault: Box<PartFault>,
    },
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Archived {
    /// Files that were written.
    pub files: u64,
    /// Streams in them.
    pub streams: u64,
    /// Events in them.
    pub events: u64,
    /// Streams that have to wait for the next seal.
    pub waiting: u64,
    /// Streams that were left out: for each an event that is not as it was sealed, or does not follow the one before it.
    pub left_out: Vec<Place>,
}

/// What a check of a file came to.
#[derive(Debug, Default)]
pub struct FileCheck {
    /// What is wrong with the objects themselves.
    pub objects: Vec<String>,
    /// What is wrong with what the file says.
    pub content: Checked,
}

impl FileCheck {
    /// How many flaws there are.
    #[must_use]
    pub const fn found(&self) -> u64 {
        self.objects.len() as u64 + self.content.found()
    }
}

/// The archive.
pub struct Archive {
    store: Store,
    objects: Arc<dyn ObjectStore>,
    limits: CallLimits,
    scratch: PathBuf,
    file_bytes: u64,
}

impl Archive {
    /// The archive of a store in an object store. `scratch`: a folder with room for one file.
    pub const fn new(store: Store, objects: Arc<dyn ObjectStore>, limits: CallLimits, scratch: PathBuf) -> Self {
        Self { store, objects, limits, scratch, file_bytes: FILE_BYTES }
    }

    /// With files of about so many bytes.
    #[must_use]
    pub fn with_file_bytes(self, file_bytes: u64) -> Self {
        Self { file_bytes, ..self }
    }

    /// Archives what is due of the tasks that ended at least `days` days ago; `None` where another process is at it. `written` is
    /// told of each file.
    ///
    /// # Errors
    /// [`ArchiveFault`]; the files written until then are archived.
    pub async fn run(
        &self,
        finished: &impl Finished,
        days: u16,
        mut written: impl FnMut(&ArchiveFile) + Send,
    ) -> Result<Option<Archived>, ArchiveFault> {
        let Some(mut archiving) = Archiving::begin(self.store.pool()).await? else { return Ok(None) };
        let mut done = Archived::default();
        let mut open = None;
        let mut after = TaskId(Uuid::nil());
        loop {
            let (streams, last) = finished.finished(after, days, PAGE).await.map_err(ArchiveFault::ReadModels)?;
            let Some(last) = last else { break };
            after = last;
            let names: Vec<StreamName> = streams.into_iter().map(StreamName::from).collect();
            let due = archiving.due(&names).await?;
            done.waiting += due.waiting;
            for stream in &due.streams {
                let (_, draft) = match &mut open {
                    Some(open) => open,
                    none => none.insert(self.begin_file()?),
                };
                if let Written::LeftOut(place) = archiving.write(draft, stream).await? {
                    done.left_out.push(place);
                }
                if draft.bytes() >= self.file_bytes {
                    self.end_file(&mut archiving, open.take(), &mut done, &mut written).await?;
                }
            }
        }
        self.end_file(&mut archiving, open, &mut done, &mut written).await?;
        archiving.close().await?;
        Ok(Some(done))
    }

    fn begin_file(&self) -> Result<OpenFile, ArchiveFault> {
        let scratch = NamedTempFile::with_prefix_in("archive-", &self.scratch)?;
        let draft = Draft::new(BufWriter::new(scratch.reopen()?));
        Ok((scratch, draft))
    }

    /// Stores a file and its manifest, and then records it: what is recorded is there.
    async fn end_file(
        &self,
        archiving: &mut Archiving,
        open: Option<OpenFile>,
        done: &mut Archived,
        written: &mut (impl FnMut(&ArchiveFile) + Send),
    ) -> Result<(), ArchiveFault> {
        let Some((scratch, draft)) = open else { return Ok(()) };
        let Some(unrecorded) = archiving.finish(draft).await? else { return Ok(()) };
        let content = tokio::fs::File::open(scratch.path()).await?;
        let file = &unrecorded.file;
        self.put(&file.key, ReaderStream::new(content).boxed(), file.bytes, file.sha256).await?;
        let manifest = file.manifest()?;
        let (length, sha256) = (manifest.len() as u64, Hash::of_parts(&[&manifest]));
        self.put(&file.manifest_key(), stream::iter([Ok(manifest.into())]).boxed(), length, sha256).await?;
        let file = archiving.record(unrecorded).await?;
        done.files += 1;
        done.streams += file.streams;
        done.events += file.events;
        written(&file);
        Ok(())
    }

    async fn put(&self, key: &str, content: Content<'_>, bytes: u64, sha256: Hash) -> Result<(), ArchiveFault> {
        let stored = self.objects.put(key, content, self.limits.transfer(bytes)).await.map_err(of(key))?;
        if stored.sha256 == sha256.to_string() { Ok(()) } else { Err(ArchiveFault::StoredOther(key.to_owned())) }
    }

    /// Checks a file and its manifest: in themselves, against what is on record, and against the log.
    ///
    /// # Errors
    /// [`ArchiveFault`], where it can not be told. Flaws are no errors: they are in the answer.
    pub async fn check(&self, file: &ArchiveFile) -> Result<FileCheck, ArchiveFault> {
        let mut found = FileCheck::default();
        let key = file.manifest_key();
        match self.objects.measure(&key).await.map_err(of(&key))? {
            None => found.objects.push(format!("the manifest {key} is not in the object store")),
            Some(there) if there.sha256 != Hash::of_parts(&[&file.manifest()?]).to_string() => {
                found.objects.push(format!("the manifest {key} says something else than is on record"));
            }
            Some(_) => {}
        }
        if self.objects.measure(&file.key).await.map_err(of(&file.key))?.is_none() {
            found.objects.push("the file is not in the object store".to_owned());
            return Ok(found);
        }
        let folder = tempfile::Builder::new().prefix("archive-").tempdir_in(&self.scratch)?;
        let copy = folder.path().join("file");
        self.objects.download(&file.key, &copy).await.map_err(of(&file.key))?;
        found.content = check(self.store.pool(), file, std::fs::File::open(&copy)?).await?;
        Ok(found)
    }

    /// Reads the history of a stream from the archive, and nothing else of its file.
    ///
    /// # Errors
    /// [`ArchiveFault`]; also where it is not what was archived.
    pub async fn history(&self, stream: StreamId) -> Result<ArchivedHistory, ArchiveFault> {
        let name = StreamName::from(stream);
        let found = archived_stream(self.store.pool(), &name).await?;
        let (file, archived) = found.ok_or_else(|| ArchiveFault::NotArchived(name.clone()))?;
        let range = (archived.offset, archived.offset + archived.bytes);
        let (_, content) = self.objects.read(&file.key, Some(range)).await.map_err(of(&file.key))?;
        let content: Result<Vec<_>, _> = content.try_collect().await;
        let opened = content.map_err(PartFault::from).and_then(|it| archived.open(it.concat().as_slice()));
        let fault = |fault| ArchiveFault::Part { key: file.key, stream: name, fault: Box::new(fault) };
        Ok(ArchivedHistory::new(stream, opened.map_err(fault)?))
    }
}

/// A file in the making: where it lies meanwhile, and what is in it.
type OpenFile = (NamedTempFile, Draft<BufWriter<std::fs::File>>);

type Content<'a> = stream::BoxStream<'a, Result<bytes::Bytes, std::io::Error>>;

fn of(key: &str) -> impl FnOnce(TransferError) -> ArchiveFault {
    let key = key.to_owned();
    move |cause| ArchiveFault::Objects { key, cause }
}
