//! The archive over a real PostgreSQL and a real folder of objects: what is in it, what a killed run leaves, and what a check finds.

use bytes::Bytes;
use domain::id::{AttemptId, TaskId};
use domain::process::StreamId;
use domain::stored::StoredEvent;
use domain::testkit::strategies::usual_order;
use domain::{attempt, task};
use eventstore::archive::{ArchiveFile, archives_after};
use eventstore::testkit::TestDatabase;
use eventstore::{History, Moment};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use media::{Objects, ObjectsConfig, Secret};
use projections::finished::FinishedTasks;
use projections::projector::{Projector, ProjectorConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use uuid::Uuid;
use workers::CallLimits;
use workers::archive::{Archive, ArchiveFault, Archived, Finished, FinishedPage};
use workers::ports::{ObjectStore, OpenObject, StoredObject, TransferError, TransferLimits};

type Anyhow<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

struct Ended(FinishedTasks);

impl Finished for Ended {
    fn finished(&self, after: TaskId, days: u16, limit: i64) -> BoxFuture<'_, Result<FinishedPage, String>> {
        // Pages of two: a run goes over many of them.
        let limit = limit.min(2);
        Box::pin(async move { self.0.page(after, days, limit).await.map_err(|error| error.to_string()) })
    }
}

/// A database with tasks that ended 40 days ago, and a folder of objects.
struct World {
    database: TestDatabase,
    folder: tempfile::TempDir,
    ended: Ended,
}

const TASKS: u128 = 7;

fn task_id(number: u128) -> TaskId {
    TaskId(Uuid::from_u128(number))
}

/// The streams of a task: one without an attempt, two with one, and so on.
fn streams_of(number: u128) -> Vec<StreamId> {
    let attempts = u32::try_from(number % 3).unwrap_or(0);
    let task = task_id(number);
    let attempts = (1..=attempts).map(|it| StreamId::attempt(AttemptId::of(task, it)));
    std::iter::once(StreamId::task(task)).chain(attempts).collect()
}

impl World {
    async fn begin() -> Anyhow<Self> {
        let database = TestDatabase::create().await?;
        let ended = Ended(FinishedTasks::new(database.pool().clone()));
        let world = Self { database, folder: tempfile::tempdir()?, ended };
        for number in 1..=TASKS {
            let task = task_id(number);
            let mut events = vec![task::Event::Submitted { order: usual_order(task) }];
            // The last one goes on.
            events.extend((number < TASKS).then(|| task::Event::Canceled { by: "user:test".to_owned() }));
            world.record(StreamId::task(task), 1, events).await?;
            for (number, stream) in (1..).zip(streams_of(number).into_iter().skip(1)) {
                let planned = attempt::Event::Planned { task, number, provider: "replicate".to_owned() };
                world.record(stream, 1, [planned, attempt::Event::Canceled {}]).await?;
            }
        }
        world.project().await?;
        Ok(world)
    }

    async fn record<E: StoredEvent>(&self, stream: StreamId, from: i64, events: impl IntoIterator<Item = E>) -> Anyhow {
        for (version, event) in (from..).zip(events) {
            let event = event.encode()?;
            let (category, id) = (stream.category.name(), stream.id);
            let insert = format!(
                "INSERT INTO events (event_id, category, stream_id, version, name, schema_version, body, tenant_id,
                                     correlation_id, causation_id, actor, recorded_at)
                 VALUES (gen_random_uuid(), '{category}', '{id}', {version}, '{}', {}, '{}', '{id}', '{id}', '{id}', 'user:test',
                         clock_timestamp() - interval '40 days')",
                event.name, event.version, event.body
            );
            self.database.sql(&insert).await?;
        }
        Ok(())
    }

    async fn project(&self) -> Anyhow {
        Projector::new(self.database.owner().clone(), ProjectorConfig::default()).catch_up().await?;
        Ok(())
    }

    fn folder_store(&self) -> Anyhow<Objects> {
        let secret = Secret::new("a secret of a test, long enough");
        Ok(Objects::new(&ObjectsConfig::folder(self.folder.path(), secret, "http://127.0.0.1"))?)
    }

    fn over(&self, objects: Arc<dyn ObjectStore>) -> Archive {
        let (store, limits) = (self.database.store().clone(), CallLimits::default());
        Archive::new(store, objects, limits, std::env::temp_dir()).with_file_bytes(2_000)
    }

    fn archive(&self) -> Anyhow<Archive> {
        Ok(self.over(Arc::new(self.folder_store()?)))
    }

    async fn run(&self, days: u16) -> Anyhow<Archived> {
        Ok(self.archive()?.run(&self.ended, days, |_| {}).await?.ok_or("nobody else archives")?)
    }

    async fn files(&self) -> Anyhow<Vec<ArchiveFile>> {
        Ok(archives_after(self.database.pool(), 0, 100).await?.into_iter().map(|it| it.file).collect())
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.path().join(key)
    }

    /// What a check says of a file.
    async fn said(&self, file: &ArchiveFile) -> Anyhow<Vec<String>> {
        let found = self.archive()?.check(file).await?;
        assert_eq!(found.found() as usize, found.objects.len() + found.content.flaws.len());
        Ok(found.objects.into_iter().chain(found.content.flaws.iter().map(ToString::to_string)).collect())
    }
}

fn all_streams() -> impl Iterator<Item = StreamId> {
    (1..TASKS).flat_map(streams_of)
}

#[tokio::test]
async fn history_from_the_archive_is_history_from_the_log() -> Anyhow {
    let world = World::begin().await?;
    assert_eq!(world.run(41).await?, Archived::default(), "nothing ended so long ago");
    let done = world.run(39).await?;
    let streams = all_streams().count() as u64;
    assert_eq!((done.streams, done.waiting, done.left_out.len()), (streams, 0, 0));
    assert!(done.files > 1, "{done:?}");
    assert_eq!(world.run(0).await?, Archived::default(), "all of it is archived");
    for file in world.files().await? {
        assert_eq!(world.said(&file).await?, Vec::<String>::new());
        let manifest: serde_json::Value = serde_json::from_slice(&std::fs::read(world.path(&file.manifest_key()))?)?;
        assert_eq!((&manifest["format"], &manifest["file"]), (&"aivideo-archive-1".into(), &file.key.as_str().into()));
        assert_eq!(manifest["sha256"], file.sha256.to_string());
    }
    let (archive, log) = (world.archive()?, world.database.store());
    for stream in all_streams() {
        let copy = archive.history(stream).await?;
        assert_eq!(copy.stream_events(stream, 0, 99).await?, log.stream_events(stream, 0, 99).await?);
        let (there, here) = (copy.past(stream, Moment::Version(1)).await?, log.past(stream, Moment::Version(1)).await?);
        assert_eq!(format!("{there:?}"), format!("{here:?}"));
        assert_eq!(copy.differences(stream, 0, 2).await?, log.differences(stream, 0, 2).await?);
    }
    let running = StreamId::task(task_id(TASKS));
    let refused = archive.history(running).await.err().ok_or("it goes on")?;
    assert!(matches!(refused, ArchiveFault::NotArchived(_)) && refused.to_string().contains(&running.id.to_string()));
    Ok(())
}

/// A late orphan: the stream is archived again, and nothing else is.
#[tokio::test]
async fn a_stream_that_grew_is_archived_to_its_new_version() -> Anyhow {
    let world = World::begin().await?;
    let before = world.run(0).await?.files;
    let stream = streams_of(2)[1];
    world.record(stream, 3, [attempt::Event::OrphanRecorded { job: "job-9".to_owned() }]).await?;
    world.project().await?;
    let done = world.run(0).await?;
    assert_eq!((done.files, done.streams, done.events), (1, 1, 3));
    let copy = world.archive()?.history(stream).await?;
    assert_eq!(copy.newest_version(stream).await?, 3);
    let files = world.files().await?;
    assert_eq!(files.iter().map(|it| it.number).max(), Some(before as i64 + 1));
    for file in &files {
        assert_eq!(world.said(file).await?, Vec::<String>::new());
    }
    Ok(())
}

#[tokio::test]
async fn what_was_changed_in_the_object_store_is_named() -> Anyhow {
    let world = World::begin().await?;
    world.run(0).await?;
    let file = world.files().await?.remove(0);
    let (path, manifest) = (world.path(&file.key), world.path(&file.manifest_key()));
    let content = std::fs::read(&path)?;
    let mut changed = content.clone();
    changed[40] ^= 4;
    std::fs::write(&path, &changed)?;
    let said = world.said(&file).await?;
    assert!(said[0].contains("not the one that was written") && said[1].starts_with("task/"), "{said:?}");
    let refused = world.archive()?.history(StreamId::task(task_id(1))).await.err().ok_or("it was believed")?;
    assert!(refused.to_string().contains(&file.key) && refused.to_string().contains("task/"), "{refused}");
    // The others of the file can still be read.
    world.archive()?.history(streams_of(2)[1]).await?;
    std::fs::write(&path, &content)?;
    std::fs::write(&manifest, "{}")?;
    assert!(matches!(&world.said(&file).await?[..], [it] if it.contains("says something else")));
    std::fs::remove_file(&manifest)?;
    std::fs::remove_file(&path)?;
    let said = world.said(&file).await?;
    assert!(matches!(&said[..], [one, other] if one.contains("manifest") && other.contains("the file")), "{said:?}");
    world.archive()?.history(StreamId::task(task_id(1))).await.err().ok_or("it is gone")?;
    Ok(())
}

/// Stores what it is given, and of some objects never says so.
struct Silent {
    inner: Objects,
    after: &'static str,
    stored: Arc<Notify>,
}

impl ObjectStore for Silent {
    fn fetch<'a>(
        &'a self,
        url: &'a str,
        key: &'a str,
        limits: TransferLimits,
    ) -> BoxFuture<'a, Result<StoredObject, TransferError>> {
        self.inner.fetch(url, key, limits)
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        content: BoxStream<'a, Result<Bytes, std::io::Error>>,
        limits: TransferLimits,
    ) -> BoxFuture<'a, Result<StoredObject, TransferError>> {
        Box::pin(async move {
            let stored = self.inner.put(key, content, limits).await?;
            if key.ends_with(self.after) {
                self.stored.notify_one();
                std::future::pending::<()>().await;
            }
            Ok(stored)
        })
    }

    fn download<'a>(&'a self, key: &'a str, to: &'a Path) -> BoxFuture<'a, Result<(), TransferError>> {
        self.inner.download(key, to)
    }

    fn measure<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<StoredObject>, TransferError>> {
        self.inner.measure(key)
    }

    fn signed_url<'a>(&'a self, key: &'a str, ttl: Duration) -> BoxFuture<'a, Result<String, TransferError>> {
        self.inner.signed_url(key, ttl)
    }

    fn read<'a>(&'a self, key: &'a str, range: Option<(u64, u64)>) -> BoxFuture<'a, Result<OpenObject, TransferError>> {
        self.inner.read(key, range)
    }
}

/// Killed between an object and its row: nothing is recorded, and the next run makes the same object.
#[tokio::test]
async fn a_killed_run_leaves_at_most_an_object_that_the_next_one_writes_again() -> Anyhow {
    for after in [".ndjson.gz", ".json"] {
        let world = World::begin().await?;
        let stored = Arc::new(Notify::new());
        let silent = Silent { inner: world.folder_store()?, after, stored: Arc::clone(&stored) };
        let archive = world.over(Arc::new(silent));
        tokio::select! {
            done = archive.run(&world.ended, 0, |_| {}) => return Err(format!("it was to be killed: {done:?}").into()),
            () = stored.notified() => {}
        }
        assert_eq!(world.files().await?, [], "nothing is recorded that is not known to be stored");
        let left: Vec<_> = std::fs::read_dir(world.path("archives"))?.collect::<Result<_, _>>()?;
        assert_eq!(left.len(), if after == ".json" { 2 } else { 1 });
        // The lock goes with the connection, which the server notices a moment later.
        let mut tries = 0;
        while world.archive()?.run(&world.ended, 0, |_| {}).await?.is_none() {
            tries += 1;
            assert!(tries < 100, "the lock of a killed run stays");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let files = world.files().await?;
        let name = left[0].file_name().to_string_lossy().into_owned();
        assert!(files.iter().any(|it| it.key.ends_with(&name) || it.manifest_key().ends_with(&name)), "{name}");
        assert_eq!(std::fs::read_dir(world.path("archives"))?.count(), files.len() * 2, "nothing is left over");
        for file in &files {
            assert_eq!(world.said(file).await?, Vec::<String>::new());
        }
    }
    Ok(())
}

/// Two at once: one does it, the other is told.
#[tokio::test]
async fn one_archives_at_a_time() -> Anyhow {
    let world = World::begin().await?;
    let (one, other) = (world.archive()?, world.archive()?);
    let both = tokio::join!(one.run(&world.ended, 0, |_| {}), other.run(&world.ended, 0, |_| {}));
    let done = [both.0?, both.1?];
    let streams: u64 = done.iter().flatten().map(|it| it.streams).sum();
    assert_eq!(streams, all_streams().count() as u64, "{done:?}");
    assert_eq!(world.database.count("SELECT count(*) FROM archived_streams").await?, streams as i64);
    Ok(())
}
