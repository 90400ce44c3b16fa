//! Ids, amounts, times, words and orders.

use crate::id::{AccountId, AssetId, AttemptId, TaskId, TenantId};
use crate::money::Credits;
use crate::task::{Container, ExportSpec, Order, Work};
use crate::time::Timestamp;
use chrono::{DateTime, TimeDelta};
use proptest::prelude::*;
use uuid::Uuid;

/// When the afternoon begins in which all sensible times lie: seconds since 1970.
pub const START: i64 = 1_790_000_000;

/// [`START`] as an instant, with microseconds, so that nothing that drops them goes unseen.
#[must_use]
pub fn start() -> Timestamp {
    DateTime::from_timestamp(START, 123_456_000).unwrap_or_default()
}

/// One of 4 tasks.
pub fn task_ids() -> BoxedStrategy<TaskId> {
    (1_u128..=4).prop_map(|n| TaskId(Uuid::from_u128(n))).boxed()
}

/// One of 2 tenants.
pub fn tenant_ids() -> BoxedStrategy<TenantId> {
    (7_u128..=8).prop_map(|n| TenantId(Uuid::from_u128(n))).boxed()
}

/// One of the first 3 attempts of one of the tasks.
pub fn attempt_ids() -> BoxedStrategy<AttemptId> {
    (task_ids(), 1_u32..=3).prop_map(|(task, number)| AttemptId::of(task, number)).boxed()
}

/// One of 4 business keys.
pub fn keys() -> BoxedStrategy<String> {
    (1_u8..=4).prop_map(|n| format!("key-{n}")).boxed()
}

/// A short word.
pub fn words() -> BoxedStrategy<String> {
    prop::sample::select(vec!["throttled", "reset", "internal", "late", "user:1"]).prop_map(str::to_owned).boxed()
}

/// Words from the edges: empty, blank, very long, with quotes, with characters of every plane.
pub fn hostile_text() -> BoxedStrategy<String> {
    prop_oneof![
        Just(String::new()),
        Just("   ".to_owned()),
        Just("\u{0}".to_owned()),
        Just("'; DROP TABLE events; --".to_owned()),
        Just("\u{1F6A4}".repeat(3_000)),
        any::<String>(),
    ]
    .boxed()
}

/// Amounts as they occur, a few of them too small.
pub fn credits() -> BoxedStrategy<Credits> {
    prop_oneof![1 => -5_i64..=0, 9 => 1_i64..=150].prop_map(Credits).boxed()
}

/// Amounts from the edges: what adds up to more than fits, or to less than nothing.
pub fn hostile_credits() -> BoxedStrategy<Credits> {
    let edges = vec![i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX / 2, i64::MAX / 2 + 1, i64::MAX - 1, i64::MAX];
    prop_oneof![prop::sample::select(edges), any::<i64>()].prop_map(Credits).boxed()
}

/// Times of one afternoon, to the microsecond.
pub fn timestamps() -> BoxedStrategy<Timestamp> {
    (0_i64..7_200_000_000).prop_map(|micros| start() + TimeDelta::microseconds(micros)).boxed()
}

/// Times of other ages, those included at which adding a pause would overflow.
pub fn hostile_timestamps() -> BoxedStrategy<Timestamp> {
    prop_oneof![
        Just(Timestamp::MIN_UTC),
        Just(Timestamp::UNIX_EPOCH),
        Just(Timestamp::MAX_UTC),
        timestamps(),
        any::<u32>().prop_map(|seconds| Timestamp::UNIX_EPOCH + TimeDelta::seconds(i64::from(seconds))),
    ]
    .boxed()
}

/// Work, mostly to generate; one in five is an export, and a few of those can not be rendered as they are asked for.
pub fn works() -> BoxedStrategy<Work> {
    let heights = prop_oneof![4 => Just(720_u32), 1 => prop::sample::select(vec![0, 142, 721, 2_160, 2_162, u32::MAX])];
    let exports = (task_ids(), heights).prop_map(|(source, height_px)| Work::Export {
        source,
        source_key: format!("tenants/t/tasks/{source}/video.mp4"),
        spec: ExportSpec { container: Container::Mp4, height_px },
    });
    prop_oneof![4 => Just(Work::Generate), 1 => exports].boxed()
}

/// Orders of one of the tasks: the same one again, or another one under the same id.
pub fn orders() -> BoxedStrategy<Order> {
    let unusual = (tenant_ids(), 1_u32..=8, 1_i64..=30, prop::option::of(task_ids()));
    (task_ids(), works(), prop::option::weighted(0.1, unusual))
        .prop_map(|(task, work, unusual)| {
            let usual = Order { work, ..usual_order(task) };
            let Some((tenant, duration_seconds, price, retry_of)) = unusual else { return usual };
            let hold = Credits(price * i64::from(duration_seconds) * 6 / 5);
            let (account, price_per_second) = (AccountId::of(tenant), Credits(price));
            Order { tenant, account, duration_seconds, price_per_second, hold, retry_of, ..usual }
        })
        .boxed()
}

/// The usual order of a task, to generate: 4 seconds at 25 credits each, with a fifth more held.
#[must_use]
pub fn usual_order(task: TaskId) -> Order {
    let tenant = TenantId(Uuid::from_u128(7));
    Order {
        task,
        tenant,
        account: AccountId::of(tenant),
        provider: "replicate".to_owned(),
        model: "aivideo/paper-boat-1".to_owned(),
        duration_seconds: 4,
        input_assets: vec![AssetId(Uuid::from_u128(9))],
        request_ref: format!("generation_request/{task}"),
        hold: Credits(120),
        price_per_second: Credits(25),
        submitted_at: start(),
        give_up_at: start() + TimeDelta::seconds(3_600),
        retry_of: None,
        user: "user:1".to_owned(),
        priority: 0,
        work: Work::Generate,
        seeded: false,
        alternatives: vec![],
    }
}
