//! How a broker delivers: at least once, in any order, late.

use super::basics::start;
use crate::time::Timestamp;
use chrono::TimeDelta;
use proptest::prelude::*;
use std::fmt::Debug;

/// One delivery of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery<M> {
    /// When it is delivered.
    pub at: Timestamp,
    /// Which of the scheduled messages it is, by its place.
    pub number: usize,
    /// How often the same message was delivered before.
    pub redeliveries: u32,
    /// The message.
    pub message: M,
}

/// All ways, within an hour, to deliver these messages: each one to three times, in any order, at any distance. None is lost.
///
/// ```
/// use domain::testkit::strategies::schedules;
/// use proptest::prelude::*;
///
/// proptest!(|(schedule in schedules(vec!["a", "b"]))| {
///     prop_assert!(schedule.is_sorted_by_key(|delivery| delivery.at));
///     prop_assert!(schedule.iter().any(|delivery| delivery.message == "a"));
///     prop_assert!(schedule.iter().any(|delivery| delivery.message == "b"));
/// });
/// ```
pub fn schedules<M: Clone + Debug + 'static>(messages: Vec<M>) -> BoxedStrategy<Vec<Delivery<M>>> {
    let delays = prop_oneof![3 => 0_i64..3, 2 => 0_i64..120, 1 => 0_i64..3_600];
    let each = prop::collection::vec(delays, 1..=3);
    prop::collection::vec(each, messages.len())
        .prop_map(move |delays| {
            let mut deliveries: Vec<_> = delays
                .into_iter()
                .enumerate()
                .flat_map(|(number, delays)| delays.into_iter().map(move |delay| (delay, number)))
                .collect();
            deliveries.sort_by_key(|(delay, _)| *delay);
            numbered(&messages, &deliveries)
        })
        .boxed()
}

fn numbered<M: Clone>(messages: &[M], deliveries: &[(i64, usize)]) -> Vec<Delivery<M>> {
    let mut seen = vec![0; messages.len()];
    let mut schedule = Vec::with_capacity(deliveries.len());
    for (delay, number) in deliveries {
        let at = start() + TimeDelta::seconds(*delay);
        schedule.push(Delivery {
            at,
            number: *number,
            redeliveries: seen[*number],
            message: messages[*number].clone(),
        });
        seen[*number] += 1;
    }
    schedule
}
