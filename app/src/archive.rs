//! `aivideo archive`: files of finished tasks' events, in words.

use crate::cli::ArchiveAction;
use crate::config::Settings;
use crate::roles::{objects_of, scratch};
use anyhow::Context;
use domain::id::TaskId;
use eventstore::Store;
use eventstore::archive::{ArchiveFile, RecordedFile, archives_after, find_archive, latest_archives};
use futures_util::future::BoxFuture;
use projections::finished::FinishedTasks;
use std::sync::Arc;
use workers::archive::{Archive, Archived, Finished, FinishedPage};

/// Files that are listed.
const LISTED: u32 = 10;
/// Files whose rows are read at a time.
const PAGE: u32 = 100;

/// Archives, checks, or says how much is archived.
///
/// # Errors
/// A sentence for the terminal; also where a file is not as it was written.
pub async fn run(settings: &Settings, action: ArchiveAction) -> anyhow::Result<()> {
    let store = Store::open(settings.database()?, settings.policy.clone()).await?;
    let done = match action {
        ArchiveAction::Run { older_than } => archive(settings, &store, older_than).await,
        ArchiveAction::Check { file, .. } => check(settings, &store, file).await,
        ArchiveAction::Status { older_than } => status(&store, older_than).await,
    };
    store.close().await;
    done
}

/// The archive of this store in the configured object store.
///
/// # Errors
/// The object store is not configured, or can not be opened.
pub fn open(settings: &Settings, store: &Store) -> anyhow::Result<Archive> {
    let objects = Arc::new(objects_of(settings)?);
    Ok(Archive::new(store.clone(), objects, settings.limits.clone(), scratch(settings)?))
}

struct Ended(FinishedTasks);

impl Finished for Ended {
    fn finished(&self, after: TaskId, days: u16, limit: i64) -> BoxFuture<'_, Result<FinishedPage, String>> {
        Box::pin(async move { self.0.page(after, days, limit).await.map_err(|error| error.to_string()) })
    }
}

async fn archive(settings: &Settings, store: &Store, days: u16) -> anyhow::Result<()> {
    let ended = Ended(FinishedTasks::new(store.pool().clone()));
    let done = open(settings, store)?.run(&ended, days, |it| println!("{}", described(it))).await?;
    let Some(done) = done else {
        println!("another process is archiving");
        return Ok(());
    };
    let Archived { files, streams, events, waiting, left_out } = done;
    println!("archived {events} events of {streams} streams in {files} files");
    if waiting > 0 {
        println!("{waiting} streams wait until they are sealed (`aivideo status` says whether a sealer runs)");
    }
    for place in &left_out {
        println!("left out: event {place} is not as it was sealed, or does not follow the one before it");
    }
    anyhow::ensure!(left_out.is_empty(), "{} streams were left out: `aivideo audit verify` says more", left_out.len());
    Ok(())
}

fn described(file: &ArchiveFile) -> String {
    format!("{}  {} events of {} streams, {} bytes", file.key, file.events, file.streams, file.bytes)
}

async fn check(settings: &Settings, store: &Store, number: Option<i64>) -> anyhow::Result<()> {
    let archive = open(settings, store)?;
    let (mut files, mut bad) = (0, 0);
    if let Some(number) = number {
        let found = find_archive(store.pool(), number).await?;
        let found = found.with_context(|| format!("there is no file {number}: `aivideo archive status` lists them"))?;
        (files, bad) = (1, check_file(&archive, &found.file).await?);
    } else {
        let mut after = 0;
        loop {
            let page = archives_after(store.pool(), after, PAGE).await?;
            let Some(last) = page.last() else { break };
            after = last.file.number;
            for RecordedFile { file, .. } in &page {
                files += 1;
                bad += check_file(&archive, file).await?;
            }
        }
    }
    println!("{} passed, {bad} failed", files - bad);
    anyhow::ensure!(bad == 0, "{bad} files are not as they were written, or the log says something else");
    Ok(())
}

/// Checks one file, and says 1 where something is wrong with it.
async fn check_file(archive: &Archive, file: &ArchiveFile) -> anyhow::Result<u64> {
    let found = archive.check(file).await?;
    let verdict = if found.found() == 0 { "ok" } else { "WRONG" };
    println!("{verdict:<5} {}", described(file));
    found.objects.iter().for_each(|it| println!("      {it}"));
    found.content.flaws.iter().for_each(|it| println!("      {it}"));
    if found.content.left_out > 0 {
        println!("      and {} more", found.content.left_out);
    }
    Ok(u64::from(found.found() > 0))
}

async fn status(store: &Store, days: u16) -> anyhow::Result<()> {
    let newest = latest_archives(store.pool(), LISTED).await?;
    let files = newest.first().map_or(0, |it| it.file.number);
    let missing = FinishedTasks::new(store.pool().clone()).not_archived(days).await?;
    println!("archived      {files} files");
    println!("not archived  {missing} tasks that ended at least {days} days ago");
    if !newest.is_empty() {
        println!("{:>6} {:>8} {:>8} {:>10}  {:<19} file", "number", "streams", "events", "bytes", "written (UTC)");
    }
    for RecordedFile { file, written_at } in &newest {
        let ArchiveFile { number, streams, events, bytes, key, .. } = file;
        println!("{number:>6} {streams:>8} {events:>8} {bytes:>10}  {} {key}", written_at.format("%Y-%m-%d %H:%M:%S"));
    }
    Ok(())
}
