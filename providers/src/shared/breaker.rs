//! A circuit breaker for each provider: one that fails is left alone for a while, instead of being asked by every task at once.
//!
//! What fails is the way to the provider and its own breakdown: no connection, no answer, 5xx. A refusal, a throttle or "not
//! found" are answers. When its time is over, one call at a time is let through to see; a create call never is that one, for if
//! it fails nobody knows what it left behind: a harmless request goes before it.
//!
//! The state is this process's own. Another one finds out for itself, which costs it `min_calls` calls.

use serde::Deserialize;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use workers::ports::Outage;

/// Into how many parts the window is cut: a part that is over is forgotten as a whole.
const PARTS: u32 = 10;
/// How long others wait for the call that sees whether the provider answers again.
const LOOKING: Duration = Duration::from_secs(1);

/// When a provider is left alone, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerConfig {
    /// Over how long failures are counted, in milliseconds.
    pub window_ms: u64,
    /// Fewer calls than this within the window say nothing.
    pub min_calls: u32,
    /// From this share of failed calls on it is left alone. More than 100: never.
    pub failure_percent: u32,
    /// For how long, in milliseconds; twice as long each time that it still fails then.
    pub open_ms: u64,
    /// The longest time, in milliseconds.
    pub open_cap_ms: u64,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self { window_ms: 60_000, min_calls: 10, failure_percent: 50, open_ms: 15_000, open_cap_ms: 300_000 }
    }
}

impl BreakerConfig {
    /// One that never opens.
    #[must_use]
    pub fn never() -> Self {
        Self { failure_percent: 101, ..Self::default() }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Closed,
    Open {
        until: Instant,
    },
    /// Its time is over; whether a call is on its way to see.
    Trying {
        looking: bool,
    },
}

/// Calls and failures of a part of the window.
struct Part {
    begun: Instant,
    calls: u32,
    failures: u32,
}

struct Inner {
    state: State,
    parts: VecDeque<Part>,
    /// How often in a row it opened.
    times: u32,
    outage: Option<Outage>,
}

/// See the module.
pub(crate) struct Breaker {
    provider: String,
    config: BreakerConfig,
    inner: Mutex<Inner>,
}

/// What a call may do.
pub(crate) enum Gate<'a> {
    /// Go.
    Pass(Permit<'a>),
    /// Go, and see whether the provider answers again.
    Look(Permit<'a>),
    /// Not for so long.
    Shut(Duration),
}

/// Leave to call, which wants to hear what came of it.
pub(crate) struct Permit<'a> {
    breaker: &'a Breaker,
    looks: bool,
    settled: bool,
}

impl Breaker {
    pub(crate) fn new(provider: &str, config: BreakerConfig) -> Self {
        let inner = Inner { state: State::Closed, parts: VecDeque::new(), times: 0, outage: None };
        Self { provider: provider.to_owned(), config, inner: Mutex::new(inner) }
    }

    /// Whether a call may go now.
    pub(crate) fn gate(&self, now: Instant) -> Gate<'_> {
        let mut inner = self.lock();
        let permit = |looks| Permit { breaker: self, looks, settled: false };
        match inner.state {
            State::Closed => Gate::Pass(permit(false)),
            State::Open { until } if until > now => Gate::Shut(until - now),
            State::Trying { looking: true } => Gate::Shut(LOOKING),
            State::Open { .. } | State::Trying { looking: false } => {
                inner.state = State::Trying { looking: true };
                Gate::Look(permit(true))
            }
        }
    }

    /// What is known of the provider's being away.
    pub(crate) fn outage(&self) -> Option<Outage> {
        self.lock().outage.clone()
    }

    fn settle(&self, looked: bool, failed: Option<&str>, now: Instant) {
        let mut inner = self.lock();
        match (&inner.state, looked, failed) {
            (State::Trying { .. }, true, None) => {
                inner.state = State::Closed;
                inner.parts.clear();
                inner.times = 0;
                inner.outage = None;
                tracing::info!(provider = self.provider, "the provider answers again");
            }
            (State::Trying { .. }, true, Some(cause)) => self.open(&mut inner, cause, now),
            (State::Closed, _, failed) => {
                self.count(&mut inner, failed.is_some(), now);
                if let Some(cause) = failed
                    && self.is_too_much(&inner, now)
                {
                    self.open(&mut inner, cause, now);
                }
            }
            // A call that began before others found out says nothing new.
            _ => {}
        }
    }

    fn count(&self, inner: &mut Inner, failed: bool, now: Instant) {
        let length = Duration::from_millis(self.config.window_ms) / PARTS;
        if inner.parts.back().is_none_or(|part| now.saturating_duration_since(part.begun) >= length) {
            inner.parts.push_back(Part { begun: now, calls: 0, failures: 0 });
        }
        while inner.parts.len() > PARTS as usize {
            inner.parts.pop_front();
        }
        if let Some(part) = inner.parts.back_mut() {
            part.calls += 1;
            part.failures += u32::from(failed);
        }
    }

    fn is_too_much(&self, inner: &Inner, now: Instant) -> bool {
        let window = Duration::from_millis(self.config.window_ms);
        let recent = inner.parts.iter().filter(|part| now.saturating_duration_since(part.begun) < window);
        let (calls, failures) =
            recent.fold((0_u64, 0_u64), |sum, it| (sum.0 + u64::from(it.calls), sum.1 + u64::from(it.failures)));
        calls >= u64::from(self.config.min_calls) && failures * 100 >= calls * u64::from(self.config.failure_percent)
    }

    fn open(&self, inner: &mut Inner, cause: &str, now: Instant) {
        let millis = self.config.open_ms.saturating_mul(1 << inner.times.min(20)).min(self.config.open_cap_ms);
        let pause = Duration::from_millis(millis);
        inner.times += 1;
        inner.state = State::Open { until: now + pause };
        let clock = SystemTime::now();
        let since = inner.outage.as_ref().map_or(clock, |outage| outage.since);
        inner.outage = Some(Outage { since, until: clock + pause, cause: cause.to_owned() });
        tracing::warn!(
            provider = self.provider,
            cause,
            for_ms = millis,
            "the provider fails: it is left alone for a while"
        );
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit<'_> {
    /// The call came to this; `failed` is a short cause.
    pub(crate) fn settle(mut self, failed: Option<&str>, now: Instant) {
        self.settled = true;
        self.breaker.settle(self.looks, failed, now);
    }
}

impl Drop for Permit<'_> {
    /// A call that was given up half-way says nothing; the next one looks.
    fn drop(&mut self) {
        if self.looks && !self.settled {
            let mut inner = self.breaker.lock();
            if inner.state == (State::Trying { looking: true }) {
                inner.state = State::Trying { looking: false };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    /// Calls, and says what came of it; how long to wait where it may not.
    fn call(breaker: &Breaker, failed: bool, now: Instant) -> Result<(), u64> {
        match breaker.gate(now) {
            Gate::Pass(permit) | Gate::Look(permit) => {
                permit.settle(failed.then_some("http 503"), now);
                Ok(())
            }
            Gate::Shut(left) => Err(left.as_secs()),
        }
    }

    fn open(start: Instant) -> Breaker {
        let breaker = Breaker::new("acme", BreakerConfig::default());
        for _ in 0..10 {
            call(&breaker, true, start).expect("it is asked");
        }
        breaker
    }

    #[test]
    fn it_opens_by_the_share_of_failures_and_not_by_a_few() {
        let start = Instant::now();
        let breaker = Breaker::new("acme", BreakerConfig::default());
        for _ in 0..9 {
            call(&breaker, true, start).expect("nine calls say nothing");
        }
        assert_eq!(breaker.outage(), None);
        for number in 0..200 {
            call(&breaker, number % 5 >= 3, at(start, 61 + number / 10)).expect("two in five fail: it is asked");
        }
        let breaker = open(start);
        assert_eq!(call(&breaker, false, at(start, 5)), Err(10));
        let outage = breaker.outage().expect("it is out");
        assert_eq!(outage.cause, "http 503");
    }

    #[test]
    fn failures_of_long_ago_are_forgotten() {
        let start = Instant::now();
        let breaker = Breaker::new("acme", BreakerConfig::default());
        for second in 0..9 {
            call(&breaker, true, at(start, second)).expect("not enough");
        }
        for second in 100..109 {
            call(&breaker, true, at(start, second)).expect("the first nine are forgotten");
        }
        assert_eq!(call(&breaker, true, at(start, 110)), Ok(()), "the tenth of the window opens it");
        assert!(call(&breaker, true, at(start, 111)).is_err());
    }

    #[test]
    fn one_call_looks_and_decides() {
        let start = Instant::now();
        let breaker = open(start);
        let looking = breaker.gate(at(start, 15));
        assert!(matches!(looking, Gate::Look(_)));
        assert_eq!(call(&breaker, false, at(start, 15)), Err(1), "one at a time");
        drop(looking);
        assert!(matches!(breaker.gate(at(start, 16)), Gate::Look(_)), "it was given up: the next one looks");
        call(&breaker, true, at(start, 16)).expect("it looks");
        assert_eq!(call(&breaker, true, at(start, 17)), Err(29), "still failing: twice as long");
        call(&breaker, false, at(start, 46)).expect("it looks");
        assert_eq!((call(&breaker, true, at(start, 46)), breaker.outage()), (Ok(()), None), "it is back");
    }

    #[test]
    fn the_time_grows_to_a_cap() {
        let start = Instant::now();
        let breaker = open(start);
        let mut now = start;
        for wait in [15, 30, 60, 120, 240, 300, 300] {
            assert_eq!(call(&breaker, false, now), Err(wait));
            now = at(now, wait);
            call(&breaker, true, now).expect("it looks, and fails");
        }
    }

    #[test]
    fn calls_that_were_on_their_way_change_nothing() {
        let start = Instant::now();
        let breaker = Breaker::new("acme", BreakerConfig::default());
        let Gate::Pass(late) = breaker.gate(start) else { panic!("it is closed") };
        for _ in 0..10 {
            call(&breaker, true, start).expect("it is asked");
        }
        late.settle(None, at(start, 3));
        assert_eq!(call(&breaker, false, at(start, 5)), Err(10), "one late answer does not close it");
    }

    #[test]
    fn it_can_be_turned_off() {
        let start = Instant::now();
        let breaker = Breaker::new("acme", BreakerConfig::never());
        for _ in 0..100 {
            assert_eq!(call(&breaker, true, start), Ok(()));
        }
    }
}
