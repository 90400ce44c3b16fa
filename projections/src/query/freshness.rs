//! How fresh the read models are: waiting for a version, and the hub that tells who waits.
//!
//! The projector notifies on the channel `aivideo_read` with `{"t": task, "v": version, "tenant": tenant}`. One listener per
//! process feeds the hub. A notification is a wake-up and nothing more: it may be lost, late or doubled, so whoever is woken
//! reads the read model, and whoever is not looks now and then.

use super::{AccountRow, ReadError, Reader, TaskRow, Viewer};
use domain::id::{TaskId, TenantId};
use serde::Deserialize;
use sqlx::postgres::PgListener;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use uuid::Uuid;

/// The channel of the projector's notifications.
const CHANNEL: &str = "aivideo_read";
/// How often somebody who waits for a version looks without having been woken.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Pause before a lost listener connects again.
const RECONNECT: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
struct Notification {
    t: Uuid,
}

type Signals = Mutex<HashMap<TaskId, watch::Sender<u64>>>;

/// Tells which tasks have changed, each only to those who watch it. Clones share it.
#[derive(Clone, Default)]
pub struct Changes {
    signals: Arc<Signals>,
}

/// Watches one task; it stops when dropped. It never lags: only that something changed is kept, not how often.
pub struct Watch {
    task: TaskId,
    // Taken only when it is dropped.
    receiver: Option<watch::Receiver<u64>>,
    signals: Arc<Signals>,
}

impl Watch {
    /// Waits until the task may have changed since the last call.
    pub async fn changed(&mut self) {
        if let Some(receiver) = &mut self.receiver
            && receiver.changed().await.is_ok()
        {
            return;
        }
        // The sender lives as long as this receiver; without one there is nothing to wait for.
        std::future::pending::<()>().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.receiver.take());
        if signals.get(&self.task).is_some_and(|sender| sender.receiver_count() == 0) {
            signals.remove(&self.task);
        }
    }
}

impl Changes {
    /// Watches a task from now on: watch first, then read, and no change is missed.
    #[must_use]
    pub fn watch(&self, task: TaskId) -> Watch {
        let mut signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner);
        let receiver = signals.entry(task).or_insert_with(|| watch::Sender::new(0)).subscribe();
        Watch { task, receiver: Some(receiver), signals: Arc::clone(&self.signals) }
    }

    /// How many tasks are watched.
    #[must_use]
    pub fn watched(&self) -> usize {
        self.signals.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn tell(&self, task: TaskId) {
        let signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = signals.get(&task) {
            sender.send_modify(|count| *count += 1);
        }
    }

    /// After a gap in the notifications everybody looks.
    fn tell_everybody(&self) {
        let signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner);
        for sender in signals.values() {
            sender.send_modify(|count| *count += 1);
        }
    }
}

/// What a wait for a version came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen<T> {
    /// It shows that version or a newer one.
    Fresh(T),
    /// It exists, but its read model does not show that version yet.
    Behind {
        /// The version that it shows; 0 while it shows nothing.
        shown: i64,
    },
    /// There is no such thing for this viewer.
    Nothing,
}

impl Reader {
    /// Feeds the hubs, for ever; connects again when the connection is lost. One of these per process.
    pub async fn listen(&self) -> Infallible {
        let (never, _) = tokio::join!(self.listen_for_changes(), self.live().run(&self.pool));
        never
    }

    async fn listen_for_changes(&self) -> Infallible {
        loop {
            if let Err(error) = self.listen_once().await {
                tracing::warn!(error = %error, "listening for changes of the read models broke off; connecting again");
            }
            sleep(RECONNECT).await;
        }
    }

    async fn listen_once(&self) -> Result<(), sqlx::Error> {
        let mut listener = PgListener::connect_with(&self.pool).await?;
        listener.listen(CHANNEL).await?;
        self.changes().tell_everybody();
        loop {
            match listener.try_recv().await? {
                Some(notification) => match serde_json::from_str::<Notification>(notification.payload()) {
                    Ok(told) => self.changes().tell(TaskId(told.t)),
                    Err(_) => self.changes().tell_everybody(),
                },
                // The connection was lost and will be made again: what was notified meanwhile is unknown.
                None => self.changes().tell_everybody(),
            }
            self.live().ring();
        }
    }

    /// Waits until a task's read model shows at least `version`, and reads it; at most for `patience`.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn wait_for_version(
        &self,
        viewer: Viewer,
        task: TaskId,
        version: i64,
        patience: Duration,
    ) -> Result<Seen<TaskRow>, ReadError> {
        let until = Instant::now() + patience;
        let mut watch = self.changes().watch(task);
        let mut known = false;
        loop {
            let row = self.task(viewer, task).await?;
            let shown = row.as_ref().map_or(0, |row| row.version);
            if let Some(row) = row.filter(|row| row.version >= version) {
                return Ok(Seen::Fresh(row));
            }
            // Whoever asks for a task that is not there shall not wait for it.
            known = known || shown > 0 || self.task_exists(viewer, task).await?;
            if !known {
                return Ok(Seen::Nothing);
            }
            let now = Instant::now();
            if now >= until {
                return Ok(Seen::Behind { shown });
            }
            let _ = timeout_at(until.min(now + LOOK_AGAIN), watch.changed()).await;
        }
    }

    /// Waits until an account's read model shows at least `version`, and reads it; at most for `patience`.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn wait_for_account(
        &self,
        viewer: Viewer,
        tenant: TenantId,
        version: i64,
        patience: Duration,
    ) -> Result<Seen<AccountRow>, ReadError> {
        let until = Instant::now() + patience;
        loop {
            let Some(row) = self.account(viewer, tenant).await? else { return Ok(Seen::Nothing) };
            if row.version >= version {
                return Ok(Seen::Fresh(row));
            }
            if Instant::now() >= until {
                return Ok(Seen::Behind { shown: row.version });
            }
            sleep(LOOK_AGAIN / 4).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_woken(watch: &mut Watch) -> bool {
        timeout_at(Instant::now() + Duration::from_millis(20), watch.changed()).await.is_ok()
    }

    fn task(number: u128) -> TaskId {
        TaskId(Uuid::from_u128(number))
    }

    #[tokio::test]
    async fn only_who_watches_a_task_is_told_and_nothing_is_kept_afterwards() {
        let changes = Changes::default();
        let mut one = changes.watch(task(1));
        let mut also_one = changes.watch(task(1));
        let mut two = changes.watch(task(2));
        changes.tell(task(1));
        changes.tell(task(1));
        changes.tell(task(3));
        assert!(is_woken(&mut one).await && is_woken(&mut also_one).await);
        assert!(!is_woken(&mut one).await, "two changes are one wake-up");
        assert!(!is_woken(&mut two).await);
        changes.tell_everybody();
        assert!(is_woken(&mut two).await);
        drop(one);
        assert_eq!(changes.watched(), 2);
        drop((also_one, two));
        assert_eq!(changes.watched(), 0);
    }
}
