//! What those who watch are told.

use super::scalars::{BigInt, Instant};
use super::siblings::Siblings;
use super::task::Task;
use async_graphql::{Enum, SimpleObject};
use projections::live::{Item, What};

/// What an update is. `docs/graphql.md` shows how they follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
pub(crate) enum UpdateKind {
    /// A task as it is.
    Snapshot,
    /// Everything so far was told; from here on changes come as they happen.
    Current,
    /// A task's next version. None is left out.
    Change,
    /// No new version: an attempt got on, `progressPercent` may have changed.
    Progress,
    /// You were too slow, or away too long: changes are left out here. Drop what you have; a snapshot follows.
    Resync,
}

/// What somebody who watches is told.
#[derive(SimpleObject)]
pub(crate) struct TaskUpdate {
    /// What it is.
    kind: UpdateKind,
    /// Everything up to here was told: after connecting again, give the last one you got as `after`. Null within a snapshot.
    position: Option<BigInt>,
    /// The task, as it was at this version.
    task: Option<Task>,
    /// What happened to it, by the event's name, such as `task.accepted`; of a change.
    event: Option<String>,
    /// When it was recorded; of a change.
    recorded_at: Option<Instant>,
}

impl TaskUpdate {
    const fn new(kind: UpdateKind) -> Self {
        Self { kind, position: None, task: None, event: None, recorded_at: None }
    }

    pub(crate) fn of(item: Item) -> Self {
        match item {
            Item::Resync => Self::new(UpdateKind::Resync),
            Item::Current(position) => Self { position: Some(BigInt(position)), ..Self::new(UpdateKind::Current) },
            Item::Snapshot(row) => Self { task: Some(Task::alone(*row)), ..Self::new(UpdateKind::Snapshot) },
            Item::Change(change) => {
                // What belongs to the task is read once for all who are told.
                let siblings = change.beside(|row| Siblings::of(std::slice::from_ref(row)));
                let (kind, event, at) = match &change.what {
                    What::Event { name, at } => (UpdateKind::Change, Some(name.clone()), Some(Instant(*at))),
                    What::Progress => (UpdateKind::Progress, None, None),
                };
                let task = Some(Task::among(change.row.clone(), siblings));
                Self { kind, position: Some(BigInt(change.position)), task, event, recorded_at: at }
            }
        }
    }

    /// The task, if it is at a newer version than this.
    pub(crate) fn newer_than(item: Item, version: i64) -> Option<(i64, Task)> {
        let shown = match &item {
            Item::Snapshot(row) => row.version,
            Item::Change(change) if change.what != What::Progress => change.row.version,
            Item::Change(_) | Item::Current(_) | Item::Resync => return None,
        };
        if shown <= version {
            return None;
        }
        Some((shown, Self::of(item).task?))
    }
}
