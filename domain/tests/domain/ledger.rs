//! The ledger, in the situations that other systems got wrong.

use super::support::{later, now, order};
use domain::aggregate::{Aggregate, Decision};
use domain::id::{AccountId, TaskId};
use domain::ledger::{Account, Command, Event, Hold, State};
use domain::money::Credits;
use domain::process::{Case, CaseKey, Folded, Policy, StreamId, Turn, Versioned, charge, expire_hold};
use domain::stored::{Stored, StoredEvent};
use domain::task::{self, ErrorClass, Task};
use domain::testkit::story::{Given, given};
use proptest::prelude::*;
use proptest::sample::subsequence;
use uuid::Uuid;

const GRANTED: Credits = Credits(500);
const HELD: Credits = Credits(100);

fn task() -> TaskId {
    TaskId(Uuid::from_u128(1))
}

fn other() -> TaskId {
    TaskId(Uuid::from_u128(2))
}

fn granted(amount: Credits) -> Event {
    Event::Granted { key: "welcome".to_owned(), amount }
}

fn held() -> Event {
    Event::Held { task: task(), amount: HELD, expires_at: Some(now()) }
}

fn hold(task: TaskId, amount: i64) -> Command {
    Command::Hold { task, amount: Credits(amount), expires_at: None }
}

fn settle(charge: i64) -> Command {
    Command::Settle { task: task(), charge: Credits(charge) }
}

fn settled(charged: i64) -> Event {
    Event::Settled { task: task(), charged: Credits(charged), released: Credits(HELD.0 - charged) }
}

fn refund(key: &str, amount: i64) -> Command {
    Command::Refund { task: task(), key: key.to_owned(), amount: Credits(amount), reason: "owed".to_owned() }
}

fn refunded(key: &str, amount: i64) -> Event {
    Event::Refunded { task: task(), key: key.to_owned(), amount: Credits(amount), reason: "owed".to_owned() }
}

fn with_hold() -> Given<Account> {
    given::<Account>([granted(GRANTED), held()]).at(later(1))
}

/// Runs commands; those that are refused change nothing.
fn run(mut account: Account, commands: impl IntoIterator<Item = Command>) -> (Account, Vec<Event>) {
    let mut recorded = vec![];
    for command in commands {
        if let Ok(Decision::Record(events)) = account.decide(command, later(1)) {
            account = events.iter().try_fold(account, |it, event| it.evolve(event)).expect("it fits");
            recorded.extend(events);
        }
    }
    (account, recorded)
}

fn account(events: &[Event]) -> Account {
    events.iter().try_fold(Account::absent(), |it, event| it.evolve(event)).expect("it folds")
}

/// L1: two requests, one credit. Both decide on the same balance; the one that loses the race for the version decides again.
#[test]
fn one_credit_is_held_once() {
    given::<Account>([granted(Credits(1))])
        .when(hold(task(), 1))
        .then([Event::Held { task: task(), amount: Credits(1), expires_at: None }])
        .when(hold(other(), 1))
        .then_refused("insufficient_credits");
}

/// L2: 80 of 100 are settled; what is refunded in steps is compared with what is left of the charge.
#[test]
fn refunds_in_steps_never_exceed_the_charge() {
    with_hold()
        .when(settle(80))
        .then([settled(80)])
        .when(refund("a", 79))
        .then([refunded("a", 79)])
        .when(refund("b", 2))
        .then_refused("refund_exceeds_charge")
        .when(refund("b", 80))
        .then_refused("refund_exceeds_charge")
        .when(refund("b", 1))
        .then([refunded("b", 1)])
        .when(refund("c", 1))
        .then_refused("refund_exceeds_charge")
        .when(refund("a", 79))
        .then_already_so()
        .when(refund("a", 78))
        .then_refused("key_taken");
}

/// L2: 20 refunds of 10 at once: 8 of them, whichever come first.
#[test]
fn of_many_refunds_at_once_as_many_as_fit() {
    let charged = account(&[granted(GRANTED), held(), settled(80)]);
    let (after, recorded) = run(charged, (0..20).map(|n| refund(&n.to_string(), 10)));
    assert_eq!((recorded.len(), after.refunded), (8, Credits(80)));
    assert_eq!(after.available, GRANTED);
}

/// What closes a hold, as L4 has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Close {
    Partial,
    Full,
    Release,
    Expire,
}

const CLOSES: [Close; 4] = [Close::Partial, Close::Full, Close::Release, Close::Expire];

impl Close {
    fn command(self) -> Command {
        match self {
            Self::Partial => settle(40),
            Self::Full => settle(HELD.0),
            Self::Release => Command::Release { task: task() },
            Self::Expire => Command::Expire { task: task() },
        }
    }

    fn event(self) -> Event {
        match self {
            Self::Partial => settled(40),
            Self::Full => settled(HELD.0),
            Self::Release => Event::Released { task: task(), released: HELD },
            Self::Expire => Event::HoldExpired { task: task(), released: HELD, at: later(1) },
        }
    }
}

/// L4: the outcome of each ordered pair. The first closes the hold, the rest is released in the same posting; `None`: the second
/// is the first once more, and already so.
const OUTCOMES: [(Close, Close, Option<&str>); 16] = [
    (Close::Partial, Close::Partial, None),
    (Close::Partial, Close::Full, Some("not_from_this_state")),
    (Close::Partial, Close::Release, Some("not_from_this_state")),
    (Close::Partial, Close::Expire, Some("not_from_this_state")),
    (Close::Full, Close::Partial, Some("not_from_this_state")),
    (Close::Full, Close::Full, None),
    (Close::Full, Close::Release, Some("not_from_this_state")),
    (Close::Full, Close::Expire, Some("not_from_this_state")),
    (Close::Release, Close::Partial, Some("not_from_this_state")),
    (Close::Release, Close::Full, Some("not_from_this_state")),
    (Close::Release, Close::Release, None),
    (Close::Release, Close::Expire, Some("not_from_this_state")),
    (Close::Expire, Close::Partial, Some("hold_expired")),
    (Close::Expire, Close::Full, Some("hold_expired")),
    (Close::Expire, Close::Release, Some("hold_expired")),
    (Close::Expire, Close::Expire, None),
];

/// L4: settle after void, void after settle, settle after expiry, and every other pair, in both orders.
#[test]
fn a_hold_is_closed_once_one_way() {
    for first in CLOSES {
        for second in CLOSES {
            let outcome =
                OUTCOMES.iter().find(|it| (it.0, it.1) == (first, second)).expect("every pair is in the table").2;
            let once = with_hold().when(first.command()).then([first.event()]);
            let open = once.state().held;
            assert_eq!(open, Credits::ZERO, "{first:?} leaves something held");
            let twice = once.when(second.command());
            match outcome {
                None => twice.then_already_so(),
                Some(code) => twice.then_refused(code),
            };
        }
    }
}

/// L4: an expiry before its time, or of a hold that has none, is refused; and the hold's time alone closes nothing.
#[test]
fn only_an_expiry_in_time_expires() {
    given::<Account>([granted(GRANTED), Event::Held { task: task(), amount: HELD, expires_at: None }])
        .at(later(1_000_000))
        .when(Command::Expire { task: task() })
        .then_refused("not_expired");
    let open =
        || given::<Account>([granted(GRANTED), Event::Held { task: task(), amount: HELD, expires_at: Some(later(9)) }]);
    open().at(later(8)).when(Command::Expire { task: task() }).then_refused("not_expired");
    open().at(later(9)).when(Command::Expire { task: task() }).then_state(State::Expired);
    open().at(later(10)).when(settle(40)).then_state(State::Settled);
}

/// What people correct by hand says why, and takes away no more than there is.
#[test]
fn an_adjustment_is_bounded_and_explained() {
    let adjust = |amount, reason: &str| Command::Adjust {
        key: "correction".to_owned(),
        amount: Credits(amount),
        reason: reason.to_owned(),
        by: "operator:1".to_owned(),
    };
    with_hold()
        .when(adjust(-401, "a mistake"))
        .then_refused("insufficient_credits")
        .when(adjust(i64::MIN, "a mistake"))
        .then_refused("insufficient_credits")
        .when(adjust(i64::MAX, "a mistake"))
        .then_refused("overflow")
        .when(adjust(0, "a mistake"))
        .then_refused("not_an_amount")
        .when(adjust(-400, " "))
        .then_refused("blank")
        .when(adjust(-400, "a mistake"))
        .then_state(State::Adjusted)
        .when(adjust(-400, "a mistake"))
        .then_already_so()
        .when(adjust(-399, "a mistake"))
        .then_refused("key_taken");
}

/// The ends at which an order's task may be.
fn ends() -> Vec<(Task, Result<(), &'static str>)> {
    let fold = |events: Vec<task::Event>| {
        events.iter().try_fold(Task::Absent, |it, event| it.evolve(event)).expect("it folds")
    };
    let submitted = || task::Event::Submitted { order: order() };
    let failed =
        task::Event::Failed { class: ErrorClass::Timeout, code: "late".to_owned(), message: "late".to_owned() };
    let begun = task::Event::SubmissionBegun { attempt_no: 1 };
    let Task::Submitting(live) = fold(vec![submitted(), begun.clone()]) else { panic!("it is being submitted") };
    vec![
        (Task::Absent, Ok(())),
        (fold(vec![submitted()]), Err("no_verdict")),
        (fold(vec![submitted(), begun.clone()]), Err("no_verdict")),
        (fold(vec![submitted(), begun, failed]), Ok(())),
        (fold(vec![submitted(), task::Event::Canceled { by: "user:1".to_owned() }]), Ok(())),
        (Task::Succeeded { maker: task::Maker::Attempt(live), charge: Credits(40) }, Err("charge_is_due")),
    ]
}

/// L5: a hold whose time is over is freed only when there is a verdict, and the verdict is not a charge; or when there is no
/// task at all.
#[test]
fn the_sweep_waits_for_the_verdict() {
    let policy = Policy::default();
    for (state, expected) in ends() {
        let met = state.state().name();
        let key = CaseKey { account: Some(AccountId(Uuid::from_u128(7))), with_account: true, ..CaseKey::task(task()) };
        let mut case = Case::begin(key);
        case.supply(StreamId::task(task()), Folded::Task(Versioned { state, version: 3 }));
        let books = Versioned { state: account(&[granted(GRANTED), held()]), version: 2 };
        case.supply(StreamId::account(AccountId(Uuid::from_u128(7))), Folded::Account(books));
        let mut turn = Turn::new(case, later(1), &policy);
        assert_eq!(expire_hold(&mut turn).map_err(|refusal| refusal.code), expected, "{met}");
        assert_eq!(turn.changes.len(), usize::from(expected.is_ok()), "{met}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// L2: whatever is refunded, under whatever keys, in whatever order, repeated or not: at most the charge comes back.
    #[test]
    fn no_order_of_refunds_exceeds_the_charge(
        charge in 0_i64..=100,
        refunds in prop::collection::vec((0_u8..6, -3_i64..120), 0..40),
    ) {
        let charged = account(&[granted(GRANTED), held(), settled(charge)]);
        let (after, recorded) = run(charged, refunds.iter().map(|(key, amount)| refund(&key.to_string(), *amount)));
        let sum: i64 = recorded.iter().map(|event| match event {
            Event::Refunded { amount, .. } => amount.0,
            other => panic!("{other:?}"),
        }).sum();
        prop_assert!(sum <= charge && after.refunded == Credits(sum));
        prop_assert!(after.is_conserved());
    }

    /// L3 and L5: whatever closes a hold comes in any order and any number, refunds among it: one of them closes it.
    #[test]
    fn of_all_that_would_close_a_hold_one_does(
        commands in prop::collection::vec(
            prop_oneof![prop::sample::select(CLOSES.to_vec()).prop_map(Close::command), Just(refund("a", 10))],
            0..20,
        ),
    ) {
        let closing = commands.iter().any(|it| !matches!(it, Command::Refund { .. }));
        let (after, recorded) = run(account(&[granted(GRANTED), held()]), commands);
        let closes = recorded.iter().filter(|it| !matches!(it, Event::Refunded { .. })).count();
        prop_assert_eq!(closes, usize::from(closing));
        prop_assert_eq!(after.held == Credits::ZERO, closing);
        prop_assert!(after.is_conserved());
    }

    /// L7: a run that was charged and refunded is not tried again for free: its task has had its hold, and a new task needs one
    /// of its own. In the end one run is charged, or nothing where there are not credits enough.
    #[test]
    fn a_retry_of_a_refunded_run_is_paid_for(granted_amount in 100_i64..250, cost in 1_i64..=100) {
        let first = [granted(Credits(granted_amount)), held(), settled(cost), refunded("a", cost)];
        let (after, recorded) = run(account(&first), [hold(task(), 100), settle(cost), Command::Release { task: task() }]);
        prop_assert_eq!(recorded, vec![], "the old task's hold is used up");
        let retry = [hold(other(), 100), Command::Settle { task: other(), charge: Credits(cost) }];
        let (after, _) = run(after, retry);
        prop_assert_eq!(after.charged.0 - after.refunded.0, cost);
        let (poor, recorded) = run(after, [Command::Hold { task: TaskId(Uuid::from_u128(3)), amount: Credits(10_000), expires_at: None }]);
        prop_assert!(recorded.is_empty() && poor.held == Credits::ZERO, "no retry without credits");
    }

    /// L8: a price is worked out once, from whole started seconds, and never per record: the sum of a thousand charges is exact,
    /// each is within one second's price of the exact product, never below it, and never above the hold.
    #[test]
    fn rounding_happens_once(price in 1_i64..1_000, millis in prop::collection::vec(1_u64..20_000, 1..50)) {
        let order = task::Order { price_per_second: Credits(price), hold: Credits(i64::MAX), ..order() };
        let mut sum = 0;
        for length in &millis {
            let charged = i128::from(charge(&order, Some(*length)).0);
            let exact_thousandths = i128::from(price) * i128::from(*length);
            prop_assert!(charged * 1_000 >= exact_thousandths);
            prop_assert!(charged * 1_000 - exact_thousandths < i128::from(price) * 1_000);
            sum += charged;
        }
        let started: u64 = millis.iter().map(|length| length.div_ceil(1_000)).sum();
        prop_assert_eq!(sum, i128::from(price) * i128::from(started));
    }

    /// L9: of any selection of commands, given again in the same order by a replay with new message ids, none is posted again.
    #[test]
    fn a_replay_posts_nothing(
        commands in subsequence(vec![
            Command::Grant { key: "b".to_owned(), amount: Credits(5) }, hold(task(), 100), hold(other(), 100), settle(40),
            Command::Release { task: other() }, refund("a", 10), refund("b", 30),
        ], 0..=7),
    ) {
        let (after, _) = run(account(&[granted(GRANTED)]), commands.clone());
        let (again, recorded) = run(after.clone(), commands);
        prop_assert_eq!(recorded, vec![]);
        prop_assert_eq!(again, after);
    }
}

/// A stored history that no account can have had is corrupt, whoever wrote it: the fold does not believe it.
#[test]
fn a_history_that_can_not_be_is_corrupt() {
    let expired = |at| Event::HoldExpired { task: task(), released: HELD, at };
    let never = Event::Held { task: task(), amount: HELD, expires_at: None };
    let released = |amount| Event::Released { task: task(), released: Credits(amount) };
    let adjusted = |amount| Event::Adjusted {
        key: "a".to_owned(),
        amount: Credits(amount),
        reason: "a mistake".to_owned(),
        by: "operator:1".to_owned(),
    };
    let too_much = Event::Held { task: other(), amount: Credits(401), expires_at: None };
    let impossible: [(&str, &[Event], Event); 14] = [
        ("a grant of nothing", &[], granted(Credits(0))),
        ("a grant twice", &[], granted(GRANTED)),
        ("more is held than there is", &[held()], too_much),
        ("a second hold", &[held(), released(100)], held()),
        ("a part is released", &[held()], released(99)),
        ("nothing was held", &[], released(100)),
        ("more is charged than was held", &[held()], settled(101)),
        ("both charged and released", &[held(), settled(40)], released(100)),
        ("expired before its time", &[held()], expired(later(-1))),
        ("expired without a time", &[never], expired(later(1))),
        ("refunded beyond the charge", &[held(), settled(80), refunded("a", 79)], refunded("b", 2)),
        ("refunded without a charge", &[held(), released(100)], refunded("a", 1)),
        ("refunded twice with one key", &[held(), settled(80), refunded("a", 1)], refunded("a", 1)),
        ("more is taken away than there is", &[held()], adjusted(-401)),
    ];
    for (what, before, event) in impossible {
        let before: Vec<Event> = [granted(GRANTED)].into_iter().chain(before.iter().cloned()).collect();
        let misfit = account(&before).evolve(&event).expect_err(what);
        assert_eq!(misfit.aggregate, "account", "{what}");
    }
}

/// A hold that was written before holds could expire has no time, and never does.
#[test]
fn a_hold_of_the_first_version_never_expires() {
    let body = serde_json::json!({ "task": task(), "amount": HELD });
    let first = Event::decode(Stored { name: "account.held".to_owned(), version: 1, body }).expect("it is lifted");
    assert_eq!(first, Event::Held { task: task(), amount: HELD, expires_at: None });
    given::<Account>([granted(GRANTED), first])
        .at(later(1_000_000_000))
        .when(Command::Expire { task: task() })
        .then_refused("not_expired");
}

/// L6: the four ends without a video free the whole hold; see `chain.rs` for the ends as providers bring them about.
#[test]
fn nothing_stays_held_after_a_release() {
    let released = with_hold().when(Command::Release { task: task() }).then([Close::Release.event()]);
    assert_eq!(released.state().hold(task()), Some(Hold::Released));
    assert_eq!((released.state().available, released.state().charged), (GRANTED, Credits::ZERO));
}
