//! The archive on a real PostgreSQL: what is in a file is what the log says, and what is not is found and named.

use super::audit::{python, sealer};
use super::log::{EDITABLE, record, stored};
use super::support::{Anyhow, database};
use domain::attempt::Attempt;
use domain::id::{AttemptId, TaskId};
use domain::process::StreamId;
use domain::task::Task;
use domain::testkit::Subject;
use domain::testkit::strategies::histories;
use eventstore::archive::{
    ArchiveFile, ArchivedStream, Archiving, Draft, DueStream, Flaw, PartFault, Written, archived_stream,
    archives_after, check, find_archive, latest_archives,
};
use eventstore::audit::{Hash, StreamName};
use eventstore::testkit::TestDatabase;
use eventstore::{ArchivedHistory, History, Moment};
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRunner};
use std::io::{BufRead, BufReader, Cursor, Read, Write};
use uuid::Uuid;

const DOCUMENT: &str = include_str!("../../../docs/event-store.md");

fn names(streams: &[StreamId]) -> Vec<StreamName> {
    streams.iter().copied().map(StreamName::from).collect()
}

/// A random history of an aggregate; never empty.
fn history<A: Subject>(runner: &mut TestRunner) -> Anyhow<Vec<domain::stored::Stored>> {
    loop {
        let drawn = histories::<A>(20).new_tree(runner).map_err(|error| error.to_string())?.current();
        if !drawn.events.is_empty() {
            return stored(drawn.events);
        }
    }
}

/// Random histories of tasks and their attempts.
async fn histories_in(database: &TestDatabase, tasks: u128) -> Anyhow<Vec<StreamId>> {
    let mut runner = TestRunner::new(Config::default());
    let mut streams = Vec::new();
    for number in 1..=tasks {
        let task = TaskId(Uuid::from_u128(number));
        streams.push((StreamId::task(task), history::<Task>(&mut runner)?));
        for attempt in 1..=number % 3 {
            let id = AttemptId::of(task, u32::try_from(attempt)?);
            streams.push((StreamId::attempt(id), history::<Attempt>(&mut runner)?));
        }
    }
    for (stream, events) in &streams {
        record(database.pool(), *stream, 0, events).await?;
    }
    Ok(streams.into_iter().map(|(stream, _)| stream).collect())
}

/// Archives what is due of these streams, in files of about so many bytes.
async fn archive(database: &TestDatabase, streams: &[StreamId], bytes: u64) -> Anyhow<Vec<(ArchiveFile, Vec<u8>)>> {
    let mut archiving = Archiving::begin(database.pool()).await?.ok_or("nobody else archives")?;
    let due = archiving.due(&names(streams)).await?;
    assert_eq!(due.waiting, 0);
    let mut files = Vec::new();
    let mut due = due.streams.iter().peekable();
    while due.peek().is_some() {
        let mut content = Vec::new();
        let mut draft = Draft::new(&mut content);
        while draft.bytes() < bytes
            && let Some(stream) = due.next()
        {
            assert_eq!(archiving.write(&mut draft, stream).await?, Written::Whole);
        }
        let finished = archiving.finish(draft).await?.ok_or("something was written")?;
        files.push((archiving.record(finished).await?, content));
    }
    archiving.close().await?;
    Ok(files)
}

fn part<'a>(content: &'a [u8], at: &ArchivedStream) -> &'a [u8] {
    &content[at.offset as usize..(at.offset + at.bytes) as usize]
}

fn unpacked(packed: &[u8]) -> Anyhow<String> {
    let mut text = String::new();
    MultiGzDecoder::new(packed).read_to_string(&mut text)?;
    Ok(text)
}

fn packed(text: &str) -> Anyhow<Vec<u8>> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::default());
    packer.write_all(text.as_bytes())?;
    Ok(packer.finish()?)
}

#[tokio::test]
async fn what_is_archived_is_what_the_log_says() -> Anyhow {
    let database = database().await?;
    let streams = histories_in(&database, 12).await?;
    sealer(&database, 50).catch_up().await?;
    let files = archive(&database, &streams, 4_000).await?;
    assert!(files.len() > 2, "{} files", files.len());
    for (file, content) in &files {
        let checked = check(database.pool(), file, Cursor::new(content)).await?;
        assert!(checked.flaws.is_empty(), "{:?}", checked.flaws);
        assert_eq!((checked.events, checked.streams), (file.events, file.streams));
        // As one gzip file it is lines of JSON, one an event.
        let lines = BufReader::new(MultiGzDecoder::new(content.as_slice())).lines().collect::<Result<Vec<_>, _>>()?;
        assert_eq!(lines.len() as u64, file.events);
    }
    for stream in &streams {
        let (file, at) = archived_stream(database.pool(), &(*stream).into()).await?.ok_or("it is archived")?;
        let (_, content) = files.iter().find(|(it, _)| *it == file).ok_or("a file of these")?;
        let ours = ArchivedHistory::new(*stream, at.open(part(content, &at))?);
        let store = database.store();
        assert_eq!(ours.stream_events(*stream, 0, 1_000).await?, store.stream_events(*stream, 0, 1_000).await?);
        assert_eq!(ours.stream_events(*stream, 2, 1).await?, store.stream_events(*stream, 2, 1).await?);
        for version in 0..=at.version + 1 {
            let then = Moment::Version(version);
            let (ours, theirs) = (ours.past(*stream, then).await, store.past(*stream, then).await);
            assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
        }
    }
    let recorded = archives_after(database.pool(), 0, 1_000).await?;
    assert_eq!(
        recorded.iter().map(|it| &it.file).collect::<Vec<_>>(),
        files.iter().map(|it| &it.0).collect::<Vec<_>>()
    );
    assert_eq!(latest_archives(database.pool(), 1).await?, recorded[recorded.len() - 1..]);
    assert_eq!(find_archive(database.pool(), 2).await?.as_ref(), recorded.get(1));
    assert_eq!(find_archive(database.pool(), 0).await?, None);
    // All of it is archived.
    assert!(archive(&database, &streams, 4_000).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_stream_that_grew_is_archived_again() -> Anyhow {
    let database = database().await?;
    let streams = histories_in(&database, 3).await?;
    let before = archive(&database, &streams, u64::MAX).await?;
    let (_, first) = archived_stream(database.pool(), &streams[1].into()).await?.ok_or("it is archived")?;
    let late = history::<Attempt>(&mut TestRunner::new(Config::default()))?;
    record(database.pool(), streams[1], first.version, &late[..1]).await?;
    let after = archive(&database, &streams, u64::MAX).await?;
    let (file, again) = archived_stream(database.pool(), &streams[1].into()).await?.ok_or("it is archived")?;
    assert_eq!((after.len(), file.number, file.streams, again.version), (1, 2, 1, first.version + 1));
    assert_eq!(again.open(part(&after[0].1, &again))?.len() as i64, first.version + 1);
    // The older copy is as good as before.
    let checked = check(database.pool(), &before[0].0, Cursor::new(&before[0].1)).await?;
    assert!(checked.flaws.is_empty(), "{:?}", checked.flaws);
    Ok(())
}

/// A run that was killed before it recorded its file: the next one makes the same bytes under the same key.
#[tokio::test]
async fn the_same_streams_make_the_same_file() -> Anyhow {
    let database = database().await?;
    let streams = histories_in(&database, 3).await?;
    let mut keys = Vec::new();
    for _ in 0..2 {
        let mut archiving = Archiving::begin(database.pool()).await?.ok_or("nobody else archives")?;
        assert!(Archiving::begin(database.pool()).await?.is_none(), "two at once");
        let mut draft = Draft::new(Vec::new());
        for stream in archiving.due(&names(&streams)).await?.streams {
            archiving.write(&mut draft, &stream).await?;
        }
        keys.push(archiving.finish(draft).await?.ok_or("a file")?.file.key);
        archiving.close().await?;
    }
    let files = archive(&database, &streams, u64::MAX).await?;
    let [(file, _)] = &files[..] else { return Err("one file".into()) };
    assert_eq!(keys, [file.key.clone(), file.key.clone()]);
    for change in ["UPDATE archives SET bytes = 1", "DELETE FROM archived_streams", "TRUNCATE archives CASCADE"] {
        assert!(database.sql(change).await.is_err(), "{change}");
    }
    Ok(())
}

#[tokio::test]
async fn only_what_is_as_it_was_sealed_is_archived() -> Anyhow {
    let database = database().await?;
    let mut streams = histories_in(&database, 3).await?;
    // One whose first event can be missed: where that is all, nothing says that there ever was a stream.
    let (mut runner, long) = (TestRunner::new(Config::default()), StreamId::task(TaskId(Uuid::from_u128(78))));
    let mut events = history::<Task>(&mut runner)?;
    while events.len() < 2 {
        events = history::<Task>(&mut runner)?;
    }
    record(database.pool(), long, 0, &events).await?;
    streams.push(long);
    let mut archiving = Archiving::begin(database.pool()).await?.ok_or("nobody else archives")?;
    let names = names(&streams);
    // Nothing is sealed, so nothing waits for a seal.
    assert_eq!(archiving.due(&names).await?.waiting, 0);
    sealer(&database, 1_000).catch_up().await?;
    let unsealed = StreamId::task(TaskId(Uuid::from_u128(77)));
    record(database.pool(), unsealed, 0, &history::<Task>(&mut TestRunner::new(Config::default()))?).await?;
    let due = archiving.due(&[names.clone(), vec![StreamName::from(unsealed)]].concat()).await?;
    assert_eq!((due.streams.len(), due.waiting), (names.len(), 1));
    database.sql(EDITABLE).await?;
    for (edit, index) in [
        (format!("UPDATE events SET actor = 'me' WHERE stream_id = '{}' AND version = 1", names[0].id), 0),
        (format!("DELETE FROM events WHERE stream_id = '{}' AND version = 1", long.id), names.len() - 1),
    ] {
        database.sql(&edit).await?;
        let mut draft = Draft::new(Vec::new());
        let found = archiving.write(&mut draft, &due.streams[index]).await?;
        let Written::LeftOut(place) = found else { return Err(format!("{edit}: it was archived").into()) };
        assert_eq!(place.stream, names[index]);
        assert!(archiving.finish(draft).await?.is_none(), "nothing of it is in the file");
    }
    Ok(())
}

#[tokio::test]
async fn a_changed_byte_anywhere_is_found_and_its_stream_named() -> Anyhow {
    let database = database().await?;
    let streams = histories_in(&database, 3).await?;
    let files = archive(&database, &streams, u64::MAX).await?;
    let [(file, content)] = &files[..] else { return Err("one file".into()) };
    let mut placed = Vec::new();
    for stream in &streams {
        placed.push(archived_stream(database.pool(), &(*stream).into()).await?.ok_or("it is archived")?.1);
    }
    for at in (0..content.len()).step_by(content.len() / 60 + 1).chain([content.len() - 1]) {
        let mut changed = content.clone();
        changed[at] ^= 1 << (at % 7);
        let checked = check(database.pool(), file, Cursor::new(&changed)).await?;
        assert!(matches!(checked.flaws[0], Flaw::OtherFile { .. }), "byte {at}: {:?}", checked.flaws);
        let owner = placed.iter().find(|it| (it.offset..it.offset + it.bytes).contains(&(at as u64)));
        let owner = owner.ok_or("every byte belongs to a stream")?;
        // The ten bytes of a part's head say nothing of its events: there the file is named, not the stream.
        let in_head = at as u64 - owner.offset < 10;
        let named: Vec<&StreamName> = checked
            .flaws
            .iter()
            .filter_map(|it| if let Flaw::Part { stream, .. } = it { Some(stream) } else { None })
            .collect();
        assert!(named == [&owner.stream] || (in_head && named.is_empty()), "byte {at}: {:?}", checked.flaws);
    }
    for cut in [&content[..content.len() - 1], &content[..content.len() / 2], &[][..]] {
        let checked = check(database.pool(), file, Cursor::new(cut)).await?;
        assert!(checked.flaws.iter().any(|it| matches!(it, Flaw::Part { .. })), "{:?}", checked.flaws);
    }
    Ok(())
}

/// Somebody unpacks a part, edits it, and packs it again.
#[tokio::test]
async fn an_edited_part_is_not_believed() -> Anyhow {
    let database = database().await?;
    let stream = StreamId::task(TaskId(Uuid::from_u128(1)));
    let events: Vec<_> = std::iter::repeat_with(|| history::<Task>(&mut TestRunner::new(Config::default())))
        .find(|it| it.as_ref().is_ok_and(|it| it.len() > 3))
        .ok_or("it never ends")??;
    record(database.pool(), stream, 0, &events).await?;
    let files = archive(&database, &[stream], u64::MAX).await?;
    let [(_, content)] = &files[..] else { return Err("one file".into()) };
    let (_, at) = archived_stream(database.pool(), &stream.into()).await?.ok_or("it is archived")?;
    let text = unpacked(content)?;
    let lines: Vec<&str> = text.lines().collect();
    let edited = |lines: &[&str]| -> Anyhow<PartFault> {
        let again = packed(&(lines.join("\n") + "\n"))?;
        Ok(at.open(again.as_slice()).err().ok_or("it was believed")?)
    };
    assert!(at.open(packed(&text)?.as_slice()).is_ok(), "packed again, it is the same");
    let actor = text.replacen("user:test", "user:best", 1);
    assert!(matches!(edited(&actor.lines().collect::<Vec<_>>())?, PartFault::Changed(it) if it.version == 1));
    let more = text.replacen('{', "{\"more\":1,", 1);
    assert!(matches!(edited(&more.lines().collect::<Vec<_>>())?, PartFault::NotAnEvent { line: 1, .. }));
    assert!(matches!(edited(&lines[..lines.len() - 1])?, PartFault::OtherEnd { .. }));
    assert!(matches!(edited(&lines[1..])?, PartFault::OutOfSequence { after: 0, .. }));
    assert!(matches!(edited(&[lines[0], lines[2]])?, PartFault::OutOfSequence { after: 1, .. }));
    assert!(matches!(edited(&[lines[1], lines[0]])?, PartFault::OutOfSequence { after: 0, .. }));
    assert!(matches!(edited(&["{}"])?, PartFault::NotAnEvent { line: 1, .. }));
    // With all hashes computed anew only the last one, which is on record, tells.
    let other = ArchivedStream { hash: Hash::ZERO, ..at.clone() };
    assert!(matches!(other.open(content.as_slice()), Err(PartFault::OtherEnd { .. })));
    Ok(())
}

#[tokio::test]
async fn a_log_that_says_something_else_is_found() -> Anyhow {
    let database = database().await?;
    let streams = histories_in(&database, 2).await?;
    let files = archive(&database, &streams, u64::MAX).await?;
    let [(file, content)] = &files[..] else { return Err("one file".into()) };
    database.sql(EDITABLE).await?;
    let of = format!("stream_id = '{}' AND version = 1", streams[0].id);
    database.sql(&format!("UPDATE events SET actor = 'me', body = '{{}}' WHERE {of}")).await?;
    let flaws = check(database.pool(), file, Cursor::new(content)).await?.flaws;
    let [Flaw::OtherInLog { at, columns }] = &flaws[..] else { return Err(format!("{flaws:?}").into()) };
    assert_eq!((at.version, &at.stream), (1, &StreamName::from(streams[0])));
    assert_eq!(columns, &["actor", "body"]);
    database.sql(&format!("DELETE FROM events WHERE {of}")).await?;
    let flaws = check(database.pool(), file, Cursor::new(content)).await?.flaws;
    assert!(matches!(&flaws[..], [Flaw::NotInLog(it)] if it.version == 1), "{flaws:?}");
    Ok(())
}

/// A due stream that is gone when it is to be written: nothing is recorded.
#[tokio::test]
async fn a_stream_that_is_gone_stops_the_run() -> Anyhow {
    let database = database().await?;
    let mut archiving = Archiving::begin(database.pool()).await?.ok_or("nobody else archives")?;
    let gone = DueStream { stream: StreamId::task(TaskId(Uuid::from_u128(5))).into(), version: 3 };
    assert!(archiving.write(&mut Draft::new(Vec::new()), &gone).await.is_err());
    Ok(())
}

/// The program in the document, as it stands there, on a file: it says that all is well, and says so of nothing else.
#[tokio::test]
async fn the_program_in_the_document_verifies_a_file() -> Anyhow {
    let (_, section) = DOCUMENT.split_once("\n## Archive\n").ok_or("the document has no such section")?;
    let (_, program) = section.split_once("```python\n").ok_or("the section has no program")?;
    let (program, _) = program.split_once("```").ok_or("the program has no end")?;
    let database = database().await?;
    let streams = histories_in(&database, 3).await?;
    let files = archive(&database, &streams, u64::MAX).await?;
    let [(file, content)] = &files[..] else { return Err("one file".into()) };
    let Some(said) = python(program, content)? else { return Ok(()) };
    assert_eq!(said.trim(), format!("ok: {} events of {} streams", file.events, file.streams));
    let forged = packed(&unpacked(content)?.replacen("user:test", "user:best", 1))?;
    let said = python(program, &forged)?.unwrap_or_default();
    assert!(said.contains("AssertionError"), "{said}");
    Ok(())
}
