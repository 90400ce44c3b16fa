//! The outbox relay: hands committed messages to the broker, at least once, each aggregate's in order.
//!
//! It reads rows that are not sent, never "after a cursor": ids are handed out at insert and become visible at commit, so a
//! cursor would pass a row that commits late. A claimed row is fenced by a token: a relay that slept past its lease can not
//! finish a row that another one has taken over. Any number of relays share the work.

mod claim;
mod publisher;
mod record;
mod status;

pub use claim::SEND_AHEAD;
pub use publisher::{FailureKind, OutboundMessage, PublishFailure, Publisher};
pub use status::{RelayStatus, relay_status, release_parked};

use crate::bell::Bell;
use claim::Claimed;
use record::{Finished, Outcome};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// How a relay works.
#[derive(Clone, Copy, Debug)]
pub struct RelayConfig {
    /// Most messages on their way at the same time; also the most rows that one claim takes.
    pub concurrency: usize,
    /// How long a claimed row belongs to this relay. Longer than `send_timeout`, or others send it too.
    pub lease: Duration,
    /// How long the broker may take to answer one send.
    pub send_timeout: Duration,
    /// Pause after the first failure of a row; doubled with each further one.
    pub backoff_base: Duration,
    /// Longest pause after a failure.
    pub backoff_cap: Duration,
    /// After so many refusals in a row a row is parked. Unavailability never parks one.
    pub refusals_before_parking: u32,
    /// Longest time between two looks at the outbox.
    pub tick: Duration,
    /// How long sends that are on their way may take when the relay is told to stop.
    pub grace: Duration,
}

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            concurrency: 64,
            lease: Duration::from_secs(30),
            send_timeout: Duration::from_secs(10),
            backoff_base: Duration::from_millis(500),
            backoff_cap: Duration::from_secs(60),
            refusals_before_parking: 3,
            tick: Duration::from_secs(1),
            grace: Duration::from_secs(5),
        }
    }
}

/// One relay. Several may run side by side, in one process or in many.
pub struct Relay {
    pool: PgPool,
    /// One connection for claims and marks: see [`by_index`].
    outbox: PgPool,
    publisher: Arc<dyn Publisher>,
    config: RelayConfig,
}

/// What one relay has in hand.
#[derive(Default)]
struct InHand {
    sends: JoinSet<Result<(), PublishFailure>>,
    claimed: HashMap<Id, Claimed>,
    /// Answered by the broker, not yet in the database.
    finished: Vec<Finished>,
}

impl Relay {
    /// A relay over this outbox and broker. It opens one connection of its own when it first needs it. To be called within a
    /// Tokio runtime.
    #[must_use]
    pub fn new(pool: PgPool, publisher: Arc<dyn Publisher>, config: RelayConfig) -> Self {
        Self { outbox: by_index(&pool), pool, publisher, config }
    }

    /// Relays until it is cancelled; then it finishes what is on its way, or lets go of it. Faults of the database or the
    /// broker never end it: they are logged, and it tries again.
    pub async fn run(&self, cancel: CancellationToken) {
        let bell = Bell::on(&self.pool, "aivideo_outbox");
        let mut hand = InHand::default();
        let mut look = true;
        let mut troubles: u32 = 0;
        while !cancel.is_cancelled() {
            let wait = match self.cycle(&mut hand, look).await {
                Ok(wait) => {
                    troubles = 0;
                    wait
                }
                Err(error) => {
                    troubles += 1;
                    tracing::warn!(error = &error as &dyn std::error::Error, troubles, "the outbox can not be used");
                    self.backoff(troubles)
                }
            };
            look = tokio::select! {
                biased;
                () = cancel.cancelled() => false,
                Some(ended) = hand.sends.join_next_with_id() => {
                    hand.settle(ended);
                    // The row after it, of the same aggregate, may go now.
                    true
                }
                () = bell.wait(wait) => true,
            };
        }
        drop(bell);
        self.stop(hand).await;
    }

    /// Records what was answered, claims what is due, and sends it. Says how long nothing needs to be looked at.
    async fn cycle(&self, hand: &mut InHand, look: bool) -> Result<Duration, sqlx::Error> {
        hand.collect();
        self.record(hand).await?;
        let free = self.config.concurrency.saturating_sub(hand.claimed.len());
        if !look || free == 0 {
            return Ok(self.config.tick);
        }
        let claimed = claim::claim(&self.outbox, free, self.config.lease).await?;
        let full = claimed.len() == free;
        for row in claimed {
            self.send(hand, row);
        }
        if !hand.finished.is_empty() {
            // Some were not for sending: their place is free at once.
            self.record(hand).await?;
            return Ok(Duration::ZERO);
        }
        if full || !hand.claimed.is_empty() {
            // A send that ends wakes the relay.
            return Ok(self.config.tick);
        }
        let due = claim::next_due(&self.outbox).await?;
        Ok(due.unwrap_or(self.config.tick).min(self.config.tick))
    }

    fn send(&self, hand: &mut InHand, row: Claimed) {
        if row.is_far_ahead {
            hand.finished.push(Finished::of(&row, Outcome::FarAhead));
            return;
        }
        let message = match row.message() {
            Ok(message) => message,
            Err(failure) => {
                hand.finished.push(Finished::of(&row, Outcome::Failed(failure)));
                return;
            }
        };
        let publisher = Arc::clone(&self.publisher);
        let timeout = self.config.send_timeout;
        let task = hand.sends.spawn(async move {
            match tokio::time::timeout(timeout, publisher.publish(&message)).await {
                Ok(answer) => answer,
                // It may have arrived all the same: it is sent again with the same id.
                Err(_) => Err(PublishFailure::unavailable("timeout", "the broker did not answer in time")),
            }
        });
        hand.claimed.insert(task.id(), row);
    }

    async fn record(&self, hand: &mut InHand) -> Result<(), sqlx::Error> {
        if hand.finished.is_empty() {
            return Ok(());
        }
        record::record(&self.outbox, &hand.finished, &self.config).await?;
        hand.finished.clear();
        Ok(())
    }

    async fn stop(&self, mut hand: InHand) {
        let ended = tokio::time::timeout(self.config.grace, async {
            while let Some(ended) = hand.sends.join_next_with_id().await {
                hand.settle(ended);
            }
        })
        .await;
        if ended.is_err() {
            hand.sends.abort_all();
            hand.finished.extend(hand.claimed.values().map(|row| Finished::of(row, Outcome::LetGo)));
        }
        if let Err(error) = self.record(&mut hand).await {
            // The leases end by themselves, and the rows are sent again with the same ids.
            tracing::warn!(error = &error as &dyn std::error::Error, "what was sent last could not be recorded");
        }
    }

    fn backoff(&self, failures: u32) -> Duration {
        record::backoff(self.config.backoff_base / 5, Duration::from_secs(5), failures)
    }
}

/// A connection whose statements look rows up by index, whatever the planner thinks. The table of unsent rows is almost empty and
/// full of dead rows: by its statistics a bitmap or a sort is as good, but those walk over all that is dead, each time, where an
/// index scan marks it and passes it by. Measured under load: 25 ms for a claim instead of half a millisecond.
fn by_index(pool: &PgPool) -> PgPool {
    let plans = [("enable_seqscan", "off"), ("enable_bitmapscan", "off"), ("enable_sort", "off")];
    let options = pool.connect_options().as_ref().clone().options(plans);
    let timeout = pool.options().get_acquire_timeout();
    PgPoolOptions::new().max_connections(1).acquire_timeout(timeout).connect_lazy_with(options)
}

impl InHand {
    /// Takes all sends that have ended.
    fn collect(&mut self) {
        while let Some(ended) = self.sends.try_join_next_with_id() {
            self.settle(ended);
        }
    }

    fn settle(&mut self, ended: Result<(Id, Result<(), PublishFailure>), JoinError>) {
        let (id, answer) = match ended {
            Ok(it) => it,
            // A publisher that panics must not take the relay with it.
            Err(broken) => (broken.id(), Err(PublishFailure::unavailable("panicked", "the publisher failed"))),
        };
        let Some(row) = self.claimed.remove(&id) else { return };
        let outcome = match answer {
            Ok(()) => Outcome::Published,
            Err(failure) => Outcome::Failed(failure),
        };
        self.finished.push(Finished::of(&row, outcome));
    }
}
