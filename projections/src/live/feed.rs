//! What one watcher is told: a snapshot, or what it missed, and then each change, without a gap or a repeat.

use super::change::Change;
use super::hub::{Subscriber, Topic};
use super::mailbox::Told;
use super::read::{Since, Snapshot};
use crate::query::{ReadError, Reader, TaskRow, Viewer};
use domain::id::TaskId;
use domain::task::State;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// How long a watcher waits for the reader to be at the log.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where a watcher begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// With a snapshot.
    Now,
    /// After this position: everything up to it is known.
    Position(i64),
    /// After this version of the one task that is watched.
    Version(i64),
}

/// What a watcher is told.
#[derive(Clone)]
pub enum Item {
    /// A task as it is.
    Snapshot(Box<TaskRow>),
    /// Everything up to this position is told; what comes now happens after it. Begin after it to go on from here.
    Current(i64),
    /// This happened.
    Change(Arc<Change>),
    /// The watcher was too slow, or was away too long: changes are left out, and a snapshot follows.
    Resync,
}

/// See the module. Whoever opens one has checked that the viewer may see what is watched.
pub struct Feed {
    reader: Reader,
    viewer: Viewer,
    subscriber: Subscriber,
    /// What has to be read before anything else is told.
    due: Option<Due>,
    ready: VecDeque<Item>,
    /// Everything up to this position was told, or is in `ready`.
    seen: i64,
    /// Of the watched tasks those that have not ended; `None` for a tenant, which never ends.
    running: Option<BTreeSet<TaskId>>,
}

#[derive(Clone, Copy)]
enum Due {
    Begin(Begin),
    Resync,
}

impl Feed {
    /// Watches from now on; what is told is read when it is asked for.
    #[must_use]
    pub fn open(reader: &Reader, viewer: Viewer, topic: Topic, from: Begin) -> Self {
        let running = match &topic {
            Topic::Tasks(tasks) => Some(tasks.clone()),
            Topic::Tenant(_) => None,
        };
        let subscriber = reader.live().subscribe(topic);
        let (due, ready) = (Some(Due::Begin(from)), VecDeque::new());
        Self { reader: reader.clone(), viewer, subscriber, due, ready, seen: 0, running }
    }

    /// What is told next; `None` when all that is watched has ended. After an error the same is tried again.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn next(&mut self) -> Result<Option<Item>, ReadError> {
        loop {
            if let Some(due) = self.due {
                self.prepare(due).await?;
                self.due = None;
            }
            if let Some(item) = self.ready.pop_front() {
                return Ok(Some(item));
            }
            if self.running.as_ref().is_some_and(BTreeSet::is_empty) {
                return Ok(None);
            }
            match self.subscriber.next().await {
                Told::Lagged => self.due = Some(Due::Resync),
                Told::Closed => return Err(ReadError::NotLive),
                Told::Change(change) if change.position > self.seen && self.viewer.sees(change.row.tenant) => {
                    self.seen = change.position;
                    self.note(&change.row);
                    return Ok(Some(Item::Change(change)));
                }
                Told::Change(_) => {}
            }
        }
    }

    async fn prepare(&mut self, due: Due) -> Result<(), ReadError> {
        if !self.subscriber.is_live(PATIENCE).await {
            return Err(ReadError::NotLive);
        }
        let from = match due {
            Due::Begin(from) => from,
            Due::Resync => Begin::Now,
        };
        let tasks = self.tasks();
        let since = match (from, self.subscriber.topic()) {
            (Begin::Now, _) => None,
            (Begin::Position(after), Topic::Tenant(tenant)) => Some(self.reader.tenant_since(*tenant, after).await?),
            (Begin::Position(after), Topic::Tasks(_)) => {
                Some(self.reader.since(self.viewer, &tasks, |event| event.position > after).await?)
                    .map(|since| if after > since.position { Since { changes: None, ..since } } else { since })
            }
            (Begin::Version(after), _) => {
                Some(self.reader.since(self.viewer, &tasks, |event| event.version > after).await?)
            }
        };
        self.ready.clear();
        match since {
            Some(Since { position, changes: Some(changes), ended }) => {
                // Whoever knows the end of a task already is not told again, and does not wait for more of it.
                if let Some(running) = &mut self.running {
                    running.retain(|task| !ended.contains(task));
                }
                self.ready.extend(changes.into_iter().map(|change| Item::Change(Arc::new(change))));
                self.told_up_to(position);
            }
            missed => {
                if missed.is_some() || matches!(due, Due::Resync) {
                    self.ready.push_back(Item::Resync);
                }
                let snapshot = self.snapshot(&tasks).await?;
                for row in snapshot.rows {
                    self.note(&row);
                    self.ready.push_back(Item::Snapshot(Box::new(row)));
                }
                self.told_up_to(snapshot.position);
            }
        }
        Ok(())
    }

    async fn snapshot(&self, tasks: &[TaskId]) -> Result<Snapshot, ReadError> {
        match self.subscriber.topic() {
            Topic::Tasks(_) => self.reader.snapshot(self.viewer, tasks).await,
            Topic::Tenant(tenant) => self.reader.tenant_snapshot(*tenant).await,
        }
    }

    fn tasks(&self) -> Vec<TaskId> {
        match self.subscriber.topic() {
            Topic::Tasks(tasks) => tasks.iter().copied().collect(),
            Topic::Tenant(_) => Vec::new(),
        }
    }

    fn told_up_to(&mut self, position: i64) {
        self.seen = position;
        self.ready.push_back(Item::Current(position));
    }

    fn note(&mut self, row: &TaskRow) {
        if let Some(running) = &mut self.running
            && State::parse(&row.state).is_some_and(State::is_terminal)
        {
            running.remove(&row.task);
        }
    }
}
