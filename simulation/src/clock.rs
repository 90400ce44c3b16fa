//! The simulated clock and the queue of what happens next. Time only moves when the next thing happens.

use domain::time::Timestamp;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Microseconds since the world began.
pub(crate) type Micros = u64;

pub(crate) const MILLI: Micros = 1_000;
pub(crate) const SECOND: Micros = 1_000 * MILLI;
pub(crate) const MINUTE: Micros = 60 * SECOND;
pub(crate) const HOUR: Micros = 60 * MINUTE;

/// When every world begins: 2026-01-01, so that a story's times read well.
const BEGINNING: i64 = 1_767_225_600;

/// The instant at a simulated time.
pub(crate) fn instant(at: Micros) -> Timestamp {
    Timestamp::from_timestamp(BEGINNING, 0).unwrap_or_default() + chrono::TimeDelta::microseconds(at.cast_signed())
}

/// The simulated time of an instant; instants before the beginning are the beginning.
pub(crate) fn micros(at: Timestamp) -> Micros {
    (at - instant(0)).num_microseconds().unwrap_or(0).max(0).cast_unsigned()
}

/// What happens next, in order of time; what falls on the same microsecond happens in the order it was planned.
pub(crate) struct Queue<T> {
    heap: BinaryHeap<Reverse<Planned<T>>>,
    planned: u64,
}

struct Planned<T> {
    at: Micros,
    number: u64,
    what: T,
}

impl<T> PartialEq for Planned<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}
impl<T> Eq for Planned<T> {}
impl<T> PartialOrd for Planned<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Planned<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<T> Queue<T> {
    pub(crate) const fn new() -> Self {
        Self { heap: BinaryHeap::new(), planned: 0 }
    }

    pub(crate) fn plan(&mut self, at: Micros, what: T) {
        self.planned += 1;
        self.heap.push(Reverse(Planned { at, number: self.planned, what }));
    }

    pub(crate) fn next(&mut self) -> Option<(Micros, T)> {
        self.heap.pop().map(|Reverse(it)| (it.at, it.what))
    }
}
