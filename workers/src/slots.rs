//! Slots, as workers use them: asked for before a submit, given back after it; and the usher, who calls those whose turn it is.
//!
//! Nothing here is needed for anything to be right. What is not told, the usher's comparison with the facts finds out; who is not
//! called asks again by itself.

use admission::{Called, Desk, InFlight};
use domain::process::{Entry, Slot, SlotNote};
use eventstore::{CalledUp, Store};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

/// How often it is looked whose turn has come with time.
const TICK: Duration = Duration::from_millis(500);
/// How soon a task is called again that was just being handled, and how often: by then its slot has ended, or it has come.
const AGAIN: Duration = Duration::from_secs(1);
const TRIES: u32 = 60;

/// Asks for slots and gives them back.
#[derive(Clone)]
pub struct Slots {
    desk: Arc<Desk>,
    calls: UnboundedSender<Called>,
}

impl Slots {
    /// At a desk. The usher has to run beside it, or those whose turn it is hear of it only when they ask again.
    #[must_use]
    pub fn new(desk: Arc<Desk>, store: Store, facts: Arc<dyn InFlight>, sweep: Duration) -> (Self, Usher) {
        let (calls, called) = unbounded_channel();
        let usher = Usher { desk: Arc::clone(&desk), store, facts, sweep, called, later: vec![] };
        (Self { desk, calls }, usher)
    }

    /// Asks for a slot.
    pub async fn ask(&self, slot: &Slot) -> Entry {
        let asked = self.desk.ask(slot).await;
        self.tell(asked.called);
        asked.entry
    }

    /// Tells what a turn said about a slot.
    pub async fn note(&self, note: &SlotNote) {
        self.tell(self.desk.note(note).await);
    }

    /// To the usher; where there is none any more, the process is stopping, and another calls them again.
    fn tell(&self, called: Vec<Called>) {
        for it in called {
            self.calls.send(it).ok();
        }
    }
}

/// Calls the tasks whose turn it is, and compares the slots with the facts.
pub struct Usher {
    desk: Arc<Desk>,
    store: Store,
    facts: Arc<dyn InFlight>,
    sweep: Duration,
    called: UnboundedReceiver<Called>,
    /// To be called again: when, how often it was tried, whom.
    later: Vec<(Instant, u32, Called)>,
}

impl Usher {
    /// Works until it is told to stop.
    pub async fn run(mut self, stop: CancellationToken) {
        if self.desk.is_open() {
            // Nothing is limited, so nobody waits.
            return stop.cancelled().await;
        }
        let mut tick = tokio::time::interval(TICK);
        let mut sweep = tokio::time::interval(self.sweep);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(called) = self.called.recv() => self.call(vec![called]).await,
                () = self.desk.recount_wanted() => self.compare().await,
                _ = sweep.tick() => self.compare().await,
                _ = tick.tick() => {
                    let called = self.desk.tick().await;
                    self.call(called).await;
                    self.call_again().await;
                }
            }
        }
    }

    async fn call(&mut self, called: Vec<Called>) {
        for it in called {
            self.call_one(it, 0).await;
        }
    }

    async fn call_again(&mut self) {
        let now = Instant::now();
        let (due, later) = std::mem::take(&mut self.later).into_iter().partition(|(at, ..)| *at <= now);
        self.later = later;
        let due: Vec<(Instant, u32, Called)> = due;
        for (_, tries, called) in due {
            self.call_one(called, tries).await;
        }
    }

    async fn call_one(&mut self, called: Called, tries: u32) {
        let mut next = vec![(called, tries)];
        while let Some((called @ Called { attempt, task }, tries)) = next.pop() {
            match self.store.call_up(task, attempt).await {
                Ok(CalledUp::Told) => {}
                Ok(CalledUp::NotYet) if tries < TRIES => self.later.push((Instant::now() + AGAIN, tries + 1, called)),
                Ok(CalledUp::NotYet) => {}
                // It was cancelled, or has its slot by now: what was kept for it in vain is the next one's.
                Ok(CalledUp::Gone) => next.extend(self.desk.withdraw(attempt).await.into_iter().map(|it| (it, 0))),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(%task, error, "a task whose turn it is could not be called; it is called again");
                }
            }
        }
    }

    async fn compare(&mut self) {
        match self.desk.sweep(self.facts.as_ref()).await {
            Ok(Some(swept)) => {
                tracing::debug!(in_flight = swept.in_flight, freed = swept.freed, "slots are compared with the facts");
                self.call(swept.called).await;
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "slots could not be compared with the facts");
            }
        }
    }
}
