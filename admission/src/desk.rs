//! Where workers ask: Redis or this process, and what happens while Redis is down.

use crate::config::{AdmissionConfig, Kind, Rules, WhenDown};
use crate::in_process::InProcess;
use crate::in_redis::{InRedis, RedisConfigError};
use crate::port::{Admission, AdmissionError, Asked, Called, Count, InFlight, Swept};
use domain::id::AttemptId;
use domain::process::{Entry, Slot, SlotNote, Why};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How long nobody tries after Redis did not answer: each try may take the whole timeout.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a question waits for counts that are being made again.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether Redis answers, as far as is known here.
#[derive(Default)]
struct Link {
    down: bool,
    not_before: Option<Instant>,
    /// Who waited here while it was down: they ask again, and are in line there.
    to_call: Vec<Called>,
}

/// Admission as a process uses it. It always has an answer: admission may fail, tasks go on.
pub struct Desk {
    open: bool,
    redis: Option<InRedis>,
    /// What counts where there is no Redis; with one, the net for when it is down. It knows what this process was granted.
    here: InProcess,
    when_down: WhenDown,
    down_wait: Duration,
    link: Mutex<Link>,
    /// Slots have to be compared with the facts, now.
    recount: Notify,
}

impl Desk {
    /// As configured.
    ///
    /// # Errors
    /// [`RedisConfigError`]. That Redis does not answer is none.
    pub fn new(config: &AdmissionConfig) -> Result<Self, RedisConfigError> {
        Ok(Self {
            open: Rules::of(config).is_open(),
            redis: match config.kind {
                Kind::Process => None,
                Kind::Redis => Some(InRedis::new(config)?),
            },
            here: InProcess::new(config),
            when_down: config.when_down,
            down_wait: Duration::from_secs(config.down_wait_seconds.max(1)),
            link: Mutex::default(),
            recount: Notify::new(),
        })
    }

    /// Nothing is limited, so nothing is counted and nobody has to look after it.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.open
    }

    /// Asks for a slot.
    pub async fn ask(&self, slot: &Slot) -> Asked {
        if self.open {
            return Asked { entry: Entry::Granted, called: vec![] };
        }
        let Some(redis) = self.redis() else { return self.without_redis(slot).await };
        let began = Instant::now();
        loop {
            match redis.ask(slot).await {
                Ok(asked) => {
                    self.is_up();
                    if asked.entry == Entry::Granted {
                        self.here.keep(slot).await.ok();
                    }
                    return asked;
                }
                // Somebody counts anew; that takes moments.
                Err(AdmissionError::Lost) if began.elapsed() < PATIENCE => {
                    self.recount.notify_one();
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(AdmissionError::Lost) => {
                    return Asked { entry: Entry::Wait { after: PATIENCE, why: Why::Down }, called: vec![] };
                }
                Err(error) => {
                    self.is_down(&error);
                    return self.without_redis(slot).await;
                }
            }
        }
    }

    /// What a turn said about its attempt's slot. Where it is lost, the comparison with the facts puts it right.
    pub async fn note(&self, note: &SlotNote) -> Vec<Called> {
        if self.open {
            return vec![];
        }
        match note {
            SlotNote::InFlight(slot) => {
                self.here.keep(slot).await.ok();
                if let Some(redis) = self.redis() {
                    self.settle(redis.keep(slot).await, ());
                }
                vec![]
            }
            SlotNote::Over { attempt, round } => {
                let here = self.here.give_back(*attempt, *round).await.unwrap_or_default();
                match self.redis() {
                    Some(redis) => self.settle(redis.give_back(*attempt, *round).await, here),
                    None => here,
                }
            }
        }
    }

    /// It does not wait any more.
    pub async fn withdraw(&self, attempt: AttemptId) -> Vec<Called> {
        let here = self.here.withdraw(attempt).await.unwrap_or_default();
        match self.redis() {
            Some(redis) => self.settle(redis.withdraw(attempt).await, here),
            None => here,
        }
    }

    /// Whose turn has come with time.
    pub async fn tick(&self) -> Vec<Called> {
        let mut called = match self.redis() {
            Some(redis) => {
                let called = redis.tick().await;
                self.settle(called, vec![])
            }
            None => self.here.tick().await.unwrap_or_default(),
        };
        called.append(&mut self.link().to_call);
        called
    }

    /// Compares slots with the attempts in flight. `None`: another process does.
    ///
    /// # Errors
    /// The facts could not be read, or Redis does not answer.
    pub async fn sweep(&self, facts: &dyn InFlight) -> Result<Option<Swept>, AdmissionError> {
        let Some(redis) = self.redis() else { return self.here.sweep(facts).await };
        let swept = redis.sweep(facts).await;
        match &swept {
            Ok(_) => self.is_up(),
            Err(AdmissionError::Facts(_)) => {}
            Err(error) => self.is_down(error),
        }
        swept
    }

    /// Returns when a comparison is asked for out of turn.
    pub async fn recount_wanted(&self) {
        self.recount.notified().await;
    }

    /// How full it is; where Redis does not answer, the error that it gave.
    ///
    /// # Errors
    /// [`AdmissionError`].
    pub async fn count(&self) -> Result<Count, AdmissionError> {
        match &self.redis {
            Some(redis) => redis.count().await,
            None => self.here.count().await,
        }
    }

    async fn without_redis(&self, slot: &Slot) -> Asked {
        if self.redis.is_some() && self.when_down == WhenDown::Wait {
            return Asked { entry: Entry::Wait { after: self.down_wait, why: Why::Down }, called: vec![] };
        }
        let answer = self.here.ask(slot).await;
        answer.unwrap_or_else(|_| Asked { entry: Entry::Granted, called: vec![] })
    }

    // ------------------------------------------------------------------ whether Redis answers

    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Redis, unless it is not there or did not answer a moment ago.
    fn redis(&self) -> Option<&InRedis> {
        let paused = self.link().not_before.is_some_and(|it| it > Instant::now());
        self.redis.as_ref().filter(|_| !paused)
    }

    /// What Redis said, or `otherwise`.
    fn settle<T>(&self, answer: Result<T, AdmissionError>, otherwise: T) -> T {
        match answer {
            Ok(it) => {
                self.is_up();
                it
            }
            Err(AdmissionError::Lost) => {
                self.recount.notify_one();
                otherwise
            }
            Err(error) => {
                self.is_down(&error);
                otherwise
            }
        }
    }

    fn is_down(&self, error: &AdmissionError) {
        let mut link = self.link();
        link.not_before = Some(Instant::now() + PAUSE);
        if !std::mem::replace(&mut link.down, true) {
            let how = match self.when_down {
                WhenDown::Admit => "each process admits by its own counts until it is back",
                WhenDown::Wait => "nothing is submitted until it is back",
            };
            tracing::error!(error = error as &dyn std::error::Error, "Redis does not answer: {how}");
            // What runs by the facts is what this process's own counts begin with.
            self.recount.notify_one();
        }
    }

    fn is_up(&self) {
        let mut link = self.link();
        link.not_before = None;
        if std::mem::replace(&mut link.down, false) {
            tracing::info!("Redis answers again: all processes count together");
            let waited = self.here.disband();
            link.to_call.extend(waited);
            self.recount.notify_one();
        }
    }
}
