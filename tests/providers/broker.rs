//! A broker in memory between the real relay and the real process managers: it keeps times, delivers at least once, and gives what
//! a dead process had in hand to the next one.

use crate::cell::Cells;
use crate::steps::{Moment, Mortal, Point, handler_of};
use domain::process::{manager_of, read};
use domain::time::Timestamp;
use eventstore::{Ack, Again, Delivery, Store};
use futures_util::future::BoxFuture;
use projections::relay::{OutboundMessage, PublishFailure, Publisher};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;
use workers::Outside;

/// How many deliveries are in hand at once.
const HANDS: usize = 24;
/// When the broker notices that a process is dead.
const NOTICED: Duration = Duration::from_millis(250);

struct Waiting {
    due: Instant,
    number: u64,
    message: Arc<OutboundMessage>,
    redeliveries: u32,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

#[derive(Default)]
struct Queue {
    waiting: BinaryHeap<Reverse<Waiting>>,
    count: u64,
}

/// See the module.
#[derive(Default)]
pub struct Broker {
    queue: Mutex<Queue>,
    bell: Notify,
}

impl Publisher for Broker {
    fn publish<'a>(&'a self, message: &'a OutboundMessage) -> BoxFuture<'a, Result<(), PublishFailure>> {
        self.put(Arc::new(message.clone()), message.deliver_at.map_or(Duration::ZERO, until), 0);
        Box::pin(std::future::ready(Ok(())))
    }
}

fn until(at: Timestamp) -> Duration {
    (at - Timestamp::from(SystemTime::now())).to_std().unwrap_or(Duration::ZERO)
}

impl Broker {
    fn put(&self, message: Arc<OutboundMessage>, after: Duration, redeliveries: u32) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.count += 1;
        let number = queue.count;
        queue.waiting.push(Reverse(Waiting { due: Instant::now() + after, number, message, redeliveries }));
        self.bell.notify_one();
    }

    /// What is due, or when to look again.
    fn take(&self) -> Result<Waiting, Duration> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        match queue.waiting.peek() {
            None => Err(Duration::from_secs(1)),
            Some(Reverse(first)) if first.due > now => Err(first.due - now),
            Some(_) => queue.waiting.pop().map(|it| it.0).ok_or(Duration::ZERO),
        }
    }

    /// Delivers until it is dropped.
    pub async fn deliver(self: Arc<Self>, store: Store, outside: Arc<Outside>, cells: Arc<Cells>) {
        let hands = Arc::new(Semaphore::new(HANDS));
        let mut handling = JoinSet::new();
        loop {
            while handling.try_join_next().is_some() {}
            match self.take() {
                Ok(waiting) => {
                    let Ok(hand) = Arc::clone(&hands).acquire_owned().await else { return };
                    let worker =
                        Worker { store: store.clone(), outside: Arc::clone(&outside), cells: Arc::clone(&cells) };
                    let broker = Arc::clone(&self);
                    handling.spawn(async move {
                        let again = worker.handle(&waiting).await;
                        if let Some(after) = again {
                            broker.put(waiting.message, after, waiting.redeliveries + 1);
                        }
                        drop(hand);
                    });
                }
                Err(pause) => {
                    tokio::select! {
                        () = self.bell.notified() => {}
                        () = tokio::time::sleep(pause) => {}
                    }
                }
            }
        }
    }
}

struct Worker {
    store: Store,
    outside: Arc<Outside>,
    cells: Arc<Cells>,
}

impl Worker {
    /// Handles a delivery; when it comes again, where it was not acknowledged.
    async fn handle(&self, waiting: &Waiting) -> Option<Duration> {
        let manager = manager_of(waiting.message.topic);
        let delivery = Delivery {
            group: "matrix",
            topic: waiting.message.topic.name().to_owned(),
            key: Some(waiting.message.key.to_string()),
            redeliveries: waiting.redeliveries,
            body: waiting.message.body.clone(),
        };
        let (_, message) = read(&delivery.body).ok()?;
        let cell = self.cells.of_task(message.task_id())?;
        let handler = handler_of(&message, &cell);
        let reaches = |moment| handler.is_some_and(|handler| cell.reaches(Point(handler, moment)));
        // M4: a wake-up that never comes.
        if reaches(Moment::Lost) {
            return None;
        }
        if reaches(Moment::Taken) {
            return Some(NOTICED);
        }
        let died = Notify::new();
        let mortal = Mortal { outside: &self.outside, cell: &cell, handler, died: &died };
        let handled: Option<Result<Ack, Again>> = tokio::select! {
            biased;
            // All that the process had in hand goes with it: connections, the transaction, what it knew.
            () = died.notified() => None,
            handled = self.store.consume(manager, &mortal, &delivery) => Some(handled),
        };
        cell.heard.notify_one();
        match handled {
            None => Some(NOTICED),
            Some(Ok(_)) if reaches(Moment::Recorded) => Some(NOTICED),
            Some(Ok(_)) => None,
            Some(Err(again)) => {
                cell.note(format!("comes again: {again}"));
                Some(NOTICED * 2)
            }
        }
    }
}
