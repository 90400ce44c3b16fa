//! Product rules that a business changes: data, never code.

use crate::money::Credits;
use crate::task::Order;
use crate::time::{Timestamp, seconds};
use chrono::TimeDelta;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use uuid::Uuid;

/// What happens to an output that the provider finished before it could be cancelled (chapter 7.9.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelRule {
    /// It is delivered and charged: the task ends as `SUCCEEDED`.
    #[default]
    Deliver,
    /// It is dropped and not charged: the task ends as `CANCELED_WITH_OUTPUT`.
    Discard,
}

/// Waiting times and limits. All times in milliseconds or seconds, as the names say.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// How long a create call may take.
    pub submit_timeout_ms: u64,
    /// How long after the timeout the answer of a create call counts as lost (the worker may be gone).
    pub lease_margin_ms: u64,
    /// How long to wait before a lost job is looked up: the provider's list may lag.
    pub settle_delay_ms: u64,
    /// How many look-ups in a row must find nothing before a job counts as not created.
    pub absences_needed: u32,
    /// How long a lost answer may stay unclear before a person is asked.
    pub max_unclear_seconds: u64,
    /// First pause between polls; each further one is twice as long.
    pub poll_first_ms: u64,
    /// Longest pause between polls.
    pub poll_cap_ms: u64,
    /// Providers that call back when a job ends: polls of their jobs only cover for a callback that got lost.
    pub calling_back: BTreeSet<String>,
    /// First pause between polls of a job at a provider that calls back; each further one is twice as long.
    pub poll_calling_back_first_ms: u64,
    /// Longest pause between polls of a job at a provider that calls back.
    pub poll_calling_back_cap_ms: u64,
    /// Shortest pause between two polls of a job, by provider: what a provider asks for goes before the two above.
    pub poll_at_least_ms: BTreeMap<String, u64>,
    /// How long a provider may work on a job.
    pub max_running_seconds: u64,
    /// How long a task may wait for a provider to take it.
    pub max_waiting_seconds: u64,
    /// How long media processing may be tried.
    pub max_processing_seconds: u64,
    /// How long a video without its thumbnail is waited for, before the task succeeds without one.
    pub max_partial_seconds: u64,
    /// How often media work may begin in a row without an answer: an input that kills the worker is not tried for ever.
    pub max_processing_tries: u32,
    /// How long a worker has for one try of media work, transfers included. Until then nobody else begins, so it must exceed what
    /// one try may take.
    pub processing_lease_seconds: u64,
    /// How often a render may be put off.
    pub max_render_delays: u32,
    /// How often a fetch may be put off.
    pub max_fetch_delays: u32,
    /// How many attempts a task may have when the provider breaks. More than one costs more than one job.
    pub max_attempts: u32,
    /// How often in a row no provider may have taken an attempt before the order's alternative is tried instead of waiting on.
    pub elsewhere_after: u32,
    /// First pause after "not now" (chapter 7.10.4), doubled each time.
    pub backoff_base_ms: u64,
    /// Longest pause after "not now".
    pub backoff_cap_ms: u64,
    /// See [`CancelRule`].
    pub cancel_rule: CancelRule,
    /// What is held, as a percentage of price times length asked for: finished videos can be a little longer.
    pub hold_percent: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            submit_timeout_ms: 30_000,
            lease_margin_ms: 15_000,
            settle_delay_ms: 5_000,
            absences_needed: 2,
            max_unclear_seconds: 1_800,
            poll_first_ms: 5_000,
            poll_cap_ms: 60_000,
            calling_back: BTreeSet::new(),
            poll_calling_back_first_ms: 60_000,
            poll_calling_back_cap_ms: 240_000,
            poll_at_least_ms: BTreeMap::new(),
            max_running_seconds: 1_800,
            max_waiting_seconds: 3_600,
            max_processing_seconds: 1_800,
            max_partial_seconds: 1_800,
            max_processing_tries: 5,
            processing_lease_seconds: 900,
            max_render_delays: 8,
            max_fetch_delays: 8,
            max_attempts: 1,
            elsewhere_after: 3,
            backoff_base_ms: 5_000,
            backoff_cap_ms: 600_000,
            cancel_rule: CancelRule::Deliver,
            hold_percent: 120,
        }
    }
}

impl Policy {
    /// Refuses rules under which a promise could not be kept.
    ///
    /// # Errors
    /// A sentence that names the key.
    pub fn check(&self) -> Result<(), String> {
        let rules = [
            (self.submit_timeout_ms >= 1_000, "policy.submit_timeout_ms must be at least 1000"),
            (
                self.lease_margin_ms >= 2_500,
                "policy.lease_margin_ms must be at least 2500: a create call may end 2 s late",
            ),
            (self.max_attempts >= 1, "policy.max_attempts must be at least 1"),
            (self.elsewhere_after >= 1, "policy.elsewhere_after must be at least 1"),
            (self.max_processing_tries >= 1, "policy.max_processing_tries must be at least 1"),
            (
                self.processing_lease_seconds >= 60,
                "policy.processing_lease_seconds must be at least 60: no try of media work is sure to be over sooner",
            ),
            (self.absences_needed >= 1, "policy.absences_needed must be at least 1"),
            (self.hold_percent >= 100, "policy.hold_percent must be at least 100: what is not held is not charged"),
            (self.backoff_base_ms >= 1, "policy.backoff_base_ms must be at least 1"),
            (self.poll_first_ms >= 1, "policy.poll_first_ms must be at least 1"),
            (self.poll_calling_back_first_ms >= 1, "policy.poll_calling_back_first_ms must be at least 1"),
        ];
        rules.iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, rule)| Err((*rule).to_owned()))
    }

    /// `min(cap, base * 2^n)` plus up to a quarter of that. The spread comes from `salt`, not from chance: the same step of
    /// the same attempt always waits the same time, so that a history can be replayed.
    #[must_use]
    pub fn backoff(&self, n: u32, salt: Uuid) -> TimeDelta {
        let pause = doubled(self.backoff_base_ms, n).min(self.backoff_cap_ms);
        millis(pause + spread(salt, n) % (pause / 4 + 1))
    }

    /// The pause before the next try when somebody asked us to wait: never less than the backoff's base, never more than its cap.
    #[must_use]
    pub fn retry_pause(&self, asked: Option<Duration>, n: u32, salt: Uuid) -> TimeDelta {
        match asked {
            None => self.backoff(n, salt),
            Some(asked) => {
                let asked = u64::try_from(asked.as_millis()).unwrap_or(u64::MAX);
                let pause = asked.clamp(self.backoff_base_ms, self.backoff_cap_ms);
                millis(pause + spread(salt, n) % (self.backoff_base_ms / 4 + 1))
            }
        }
    }

    /// The pause of a task that has no slot: what admission says, at least 0.1 s and at most an hour, and up to a quarter more,
    /// so that not all who wait come at once.
    #[must_use]
    pub fn slot_pause(&self, after: Duration, salt: Uuid) -> TimeDelta {
        let pause = u64::try_from(after.as_millis()).unwrap_or(u64::MAX).clamp(100, 3_600_000);
        millis(pause + spread(salt, 0) % (pause / 4 + 1))
    }

    /// The pause before poll number `n` (from 0) of a job at `provider`.
    #[must_use]
    pub fn poll_pause(&self, provider: &str, n: u32) -> TimeDelta {
        let (first, cap) = if self.calling_back.contains(provider) {
            (self.poll_calling_back_first_ms, self.poll_calling_back_cap_ms)
        } else {
            (self.poll_first_ms, self.poll_cap_ms)
        };
        millis(doubled(first, n).min(cap).max(self.poll_floor(provider)))
    }

    /// The pause before the next look at a job that is being cancelled, after `n` polls.
    #[must_use]
    pub fn cancel_pause(&self, provider: &str, n: u32) -> TimeDelta {
        millis(doubled(self.poll_first_ms, n.min(2)).min(self.poll_cap_ms).max(self.poll_floor(provider)))
    }

    /// Looks sooner where the job's progress says that it is nearly done: never later than `pause`, and no sooner than a quarter
    /// of it, for a job that stays at 99 % must not be asked about all the time.
    #[must_use]
    pub fn expected_sooner(&self, provider: &str, pause: TimeDelta, age: TimeDelta, percent: Option<u8>) -> TimeDelta {
        let Some(percent) = percent.filter(|it| (10..=100).contains(it)) else { return pause };
        let left = age.max(TimeDelta::zero()) * (100 - i32::from(percent)) / i32::from(percent);
        let floor = millis(self.poll_first_ms.max(self.poll_floor(provider))).max(pause / 4);
        left.max(floor).min(pause)
    }

    fn poll_floor(&self, provider: &str) -> u64 {
        self.poll_at_least_ms.get(provider).copied().unwrap_or(0)
    }

    /// When the answer of a create call that starts now counts as lost.
    #[must_use]
    pub fn answer_deadline(&self, now: Timestamp) -> Timestamp {
        now + millis(self.submit_timeout_ms.saturating_add(self.lease_margin_ms))
    }

    /// When a try of media work that begins now counts as over without an answer. After earlier ones that nobody answered, a
    /// growing pause is added: an input that kills its worker must not take one worker after the other.
    #[must_use]
    pub fn processing_lease(&self, now: Timestamp, unanswered: u32, salt: Uuid) -> Timestamp {
        let pause = if unanswered > 0 { self.backoff(unanswered, salt) } else { TimeDelta::zero() };
        now + seconds(self.processing_lease_seconds) + pause
    }

    /// When a job that is accepted now is given up.
    #[must_use]
    pub fn running_deadline(&self, now: Timestamp) -> Timestamp {
        now + seconds(self.max_running_seconds)
    }

    /// What is held for a video of `length` seconds at `price` a second; `None` on overflow.
    #[must_use]
    pub fn hold(&self, price: Credits, length: u32) -> Option<Credits> {
        let full = price.times(u64::from(length))?.times(u64::from(self.hold_percent))?;
        Some(Credits(full.0.checked_add(99)? / 100))
    }
}

/// What a finished video costs: each started second, never more than is held. Without a measured length, the length asked for.
#[must_use]
pub fn charge(order: &Order, duration_millis: Option<u64>) -> Credits {
    let started = duration_millis.map_or(u64::from(order.duration_seconds), |millis| millis.div_ceil(1000));
    order.price_per_second.times(started).map_or(order.hold, |price| price.min(order.hold))
}

const fn doubled(first: u64, n: u32) -> u64 {
    first.saturating_mul(1 << if n < 20 { n } else { 20 })
}

pub(super) fn millis(count: u64) -> TimeDelta {
    TimeDelta::milliseconds(i64::try_from(count).unwrap_or(i64::MAX / 1_000_000))
}

fn spread(salt: Uuid, n: u32) -> u64 {
    let (high, low) = salt.as_u64_pair();
    (high ^ low.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(n % 63) >> 8
}
