//! Time travel: what a stream was at any version or time, and what changed between two versions.
//!
//! Everything here is folded from the events themselves, upcast as ever. Snapshots are not used: who looks at the past wants to
//! know what the log says.

use crate::connect::Store;
use crate::error::StoreError;
use crate::logged::LoggedEvent;
use chrono::SecondsFormat;
use domain::aggregate::Category;
use domain::process::{Folded, StreamId};
use domain::time::Timestamp;
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

/// Which state of a stream is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// After the newest event.
    Newest,
    /// After the event of this version; 0: before the first.
    Version(i64),
    /// As of this time: up to the last event before which nothing was recorded later than it. Two events may carry times in
    /// another order than their versions, where their writers waited for each other; the versions are what counts.
    Time(Timestamp),
}

/// What a stream was at a moment.
#[derive(Clone, Debug)]
pub struct Past {
    /// The state, with its version.
    pub folded: Folded,
    /// The event that made it so; `None` before the first.
    pub event: Option<LoggedEvent>,
    /// The version of the stream's newest event.
    pub newest: i64,
}

/// One value that is not the same at two versions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Where it is in the readable state: a JSON pointer (RFC 6901), such as `/holds/…/state`.
    pub path: String,
    /// What it was; `None` where it was not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// What it is then; `None` where it is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

/// Why a question about the past has no answer.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// Nothing was ever recorded of it.
    #[error("nothing is recorded of {} {}{}", .stream.category.name(), .stream.id, hint(*.instead))]
    NoSuchStream {
        /// What was asked for.
        stream: StreamId,
        /// What has the id instead, if anything.
        instead: Option<Category>,
    },
    /// It has not come so far, or no version is called that.
    #[error("{} {} has no version {version}: it has 1 to {newest}, and 0 is before the first event",
            .stream.category.name(), .stream.id)]
    NoSuchVersion {
        /// The stream.
        stream: StreamId,
        /// What was asked for.
        version: i64,
        /// The version of its newest event.
        newest: i64,
    },
    /// It did not exist yet.
    #[error("{} {} did not exist at {}: its first event was recorded at {}",
            .stream.category.name(), .stream.id, utc(.at), utc(.first))]
    TooEarly {
        /// The stream.
        stream: StreamId,
        /// What was asked for.
        at: Timestamp,
        /// When its first event was recorded.
        first: Timestamp,
    },
    /// The log could not be read, or not be folded: then it names stream, version and event.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn hint(other: Option<Category>) -> String {
    other.map_or_else(String::new, |it| format!("; the id is that of {} {}", article(it), it.name()))
}

const fn article(category: Category) -> &'static str {
    match category {
        Category::Account | Category::Attempt => "an",
        Category::Task => "a",
    }
}

fn utc(at: &Timestamp) -> String {
    at.to_rfc3339_opts(SecondsFormat::Micros, true)
}

/// Events read at a time.
const PAGE: i64 = 1_000;

/// Where the histories of streams can be read: the log, or a copy in the archive. What is said about the past is the same.
pub trait History: Sync {
    /// The events of a stream after a version, in order, at most `limit`, as they were recorded.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    fn stream_events(
        &self,
        stream: StreamId,
        after: i64,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<LoggedEvent>, StoreError>> + Send;

    /// The version of a stream's newest event.
    ///
    /// # Errors
    /// [`HistoryError::NoSuchStream`], [`HistoryError::Store`].
    fn newest_version(&self, stream: StreamId) -> impl Future<Output = Result<i64, HistoryError>> + Send;

    /// What a stream was at a moment.
    ///
    /// # Errors
    /// [`HistoryError`].
    fn past(&self, stream: StreamId, moment: Moment) -> impl Future<Output = Result<Past, HistoryError>> + Send {
        async move {
            let newest = self.newest_version(stream).await?;
            let (up_to, until) = match moment {
                Moment::Newest => (newest, None),
                Moment::Version(version) => (existing(stream, version, newest)?, None),
                Moment::Time(at) => (newest, Some(at)),
            };
            let (folded, event) = replay(self, stream, Folded::absent(stream.category), up_to, until).await?;
            if let (Some(at), None) = (until, &event) {
                let first = self.stream_events(stream, 0, 1).await?.first().map(|it| it.recorded_at);
                return Err(HistoryError::TooEarly { stream, at, first: first.unwrap_or(at) });
            }
            Ok(Past { folded, event, newest })
        }
    }

    /// What is not the same at two versions of a stream, in the order of the paths. Either may be the later one.
    ///
    /// # Errors
    /// [`HistoryError`].
    fn differences(
        &self,
        stream: StreamId,
        from: i64,
        to: i64,
    ) -> impl Future<Output = Result<Vec<Difference>, HistoryError>> + Send {
        async move {
            let newest = self.newest_version(stream).await?;
            let (from, to) = (existing(stream, from, newest)?, existing(stream, to, newest)?);
            let earlier = replay(self, stream, Folded::absent(stream.category), from.min(to), None).await?.0;
            let later = replay(self, stream, earlier.clone(), from.max(to), None).await?.0;
            let readable = |it: &Folded| it.to_readable().map_err(StoreError::from);
            let (earlier, later) = (readable(&earlier)?, readable(&later)?);
            let (before, after) = if from <= to { (earlier, later) } else { (later, earlier) };
            let mut found = Vec::new();
            compare(String::new(), Some(&before), Some(&after), &mut found);
            Ok(found)
        }
    }
}

impl History for Store {
    async fn stream_events(&self, stream: StreamId, after: i64, limit: i64) -> Result<Vec<LoggedEvent>, StoreError> {
        Ok(sqlx::query_as(
            "/* eventstore.stream_events */
             SELECT position, event_id, category, stream_id, version, name, schema_version, body, tenant_id, correlation_id,
                    causation_id, actor, recorded_at
               FROM events WHERE category = $1 AND stream_id = $2 AND version > $3 ORDER BY version LIMIT $4",
        )
        .bind(stream.category.name())
        .bind(stream.id)
        .bind(after)
        .bind(limit)
        .fetch_all(&self.pool)
        .await?)
    }

    async fn newest_version(&self, stream: StreamId) -> Result<i64, HistoryError> {
        let categories = [stream.category, Category::Task, Category::Attempt, Category::Account];
        for category in categories {
            match self.version_of(category, stream.id).await? {
                Some(newest) if category == stream.category => return Ok(newest),
                Some(_) => return Err(HistoryError::NoSuchStream { stream, instead: Some(category) }),
                None => {}
            }
        }
        Err(HistoryError::NoSuchStream { stream, instead: None })
    }
}

impl Store {
    async fn version_of(&self, category: Category, id: Uuid) -> Result<Option<i64>, StoreError> {
        Ok(sqlx::query_scalar(
            "/* eventstore.version_of */
             SELECT version FROM events WHERE category = $1 AND stream_id = $2 ORDER BY version DESC LIMIT 1",
        )
        .bind(category.name())
        .bind(id)
        .fetch_optional(&self.pool)
        .await?)
    }
}

/// One stream, as the archive has it.
#[derive(Clone, Debug)]
pub struct ArchivedHistory {
    stream: StreamId,
    events: Vec<LoggedEvent>,
}

impl ArchivedHistory {
    /// Of a stream's events from version 1 on, as [`crate::archive::ArchivedStream::open`] gives them.
    #[must_use]
    pub const fn new(stream: StreamId, events: Vec<LoggedEvent>) -> Self {
        Self { stream, events }
    }
}

impl History for ArchivedHistory {
    async fn stream_events(&self, stream: StreamId, after: i64, limit: i64) -> Result<Vec<LoggedEvent>, StoreError> {
        let number = |it: i64| usize::try_from(it).unwrap_or(0);
        let events = if stream == self.stream { self.events.as_slice() } else { &[] };
        Ok(events.iter().skip(number(after)).take(number(limit)).cloned().collect())
    }

    async fn newest_version(&self, stream: StreamId) -> Result<i64, HistoryError> {
        match self.events.last() {
            Some(newest) if stream == self.stream => Ok(newest.version),
            _ => Err(HistoryError::NoSuchStream { stream, instead: None }),
        }
    }
}

/// Folds what follows a state, up to a version and before a time, and says which event was the last.
async fn replay<H: History + ?Sized>(
    history: &H,
    stream: StreamId,
    mut folded: Folded,
    up_to: i64,
    until: Option<Timestamp>,
) -> Result<(Folded, Option<LoggedEvent>), StoreError> {
    let mut last = None;
    while folded.version() < up_to {
        let limit = PAGE.min(up_to - folded.version());
        let page = history.stream_events(stream, folded.version(), limit).await?;
        if page.is_empty() {
            // They were there a moment ago: a restore is going on.
            return Err(StoreError::Race);
        }
        for event in page {
            if until.is_some_and(|until| event.recorded_at > until) {
                return Ok((folded, last));
            }
            folded = folded.fold(stream, [(event.version, event.stored())])?;
            last = Some(event);
        }
    }
    Ok((folded, last))
}

fn existing(stream: StreamId, version: i64, newest: i64) -> Result<i64, HistoryError> {
    if version < 0 || version > newest {
        return Err(HistoryError::NoSuchVersion { stream, version, newest });
    }
    Ok(version)
}

/// Objects member by member, everything else as a whole.
fn compare(path: String, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<Difference>) {
    match (before, after) {
        (Some(Value::Object(one)), Some(Value::Object(other))) => {
            let mut names: Vec<&String> = one.keys().chain(other.keys()).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                let name_in_path = name.replace('~', "~0").replace('/', "~1");
                compare(format!("{path}/{name_in_path}"), one.get(name), other.get(name), found);
            }
        }
        (before, after) if before == after => {}
        (before, after) => found.push(Difference { path, before: before.cloned(), after: after.cloned() }),
    }
}
