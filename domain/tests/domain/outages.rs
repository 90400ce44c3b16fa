//! Providers that fail: where a task goes then, and that workers and reconcilers which slept through it change nothing.

use super::facts::Facts;
use super::support::{later, now, order};
use chrono::TimeDelta;
use domain::attempt::{self, Attempt};
use domain::id::AttemptId;
use domain::message::Message;
use domain::outcome::{Answer, Call, Created, FaultClass, Found, JobState, Polled, ProviderFault};
use domain::process::{Change, Next, Policy, PollProvider, ProcessManager, Reconcile, SubmitTask};
use domain::task::{Event, Order, Place, State, Task};
use domain::time::Timestamp;
use std::time::Duration;

fn fault(class: FaultClass) -> ProviderFault {
    ProviderFault { class, code: "code".to_owned(), message: "it broke".to_owned() }
}

/// An order that may be carried out at two other providers.
fn anywhere() -> Order {
    let place =
        |provider: &str| Place { provider: provider.to_owned(), model: format!("{provider}/boat"), seeded: false };
    Order { alternatives: vec![place("runway"), place("ark")], ..order() }
}

fn provider_of(facts: &Facts, number: u32) -> Option<String> {
    facts.attempt(number).and_then(Attempt::core).map(|core| core.provider.clone())
}

/// Takes the wake-up that a turn announced, and submits.
fn submit_again(facts: &mut Facts) -> (Call, Timestamp) {
    let due = facts.about_task(Message::SubmitDue);
    let Task::WaitingRetry { retry_at, .. } = facts.case.task.state else { panic!("{:?}", facts.states()) };
    (facts.call(&SubmitTask, &due, retry_at), retry_at)
}

#[test]
fn an_attempt_that_broke_is_followed_by_one_elsewhere() {
    let mut facts = Facts::of(anywhere());
    facts.running();
    facts.poll(JobState::Failed(fault(FaultClass::Internal)), later(60)).0.expect("it broke");
    assert_eq!(facts.states(), (State::WaitingRetry, attempt::State::Failed));
    let (call, at) = submit_again(&mut facts);
    assert_eq!(provider_of(&facts, 2).as_deref(), Some("runway"));
    facts.accept(&call, "job-2", at);
    facts.poll(JobState::Failed(fault(FaultClass::Internal)), at + TimeDelta::seconds(90)).0.expect("it broke too");
    let (call, at) = submit_again(&mut facts);
    assert_eq!(provider_of(&facts, 3).as_deref(), Some("ark"));
    facts.accept(&call, "job-3", at);
    facts.poll(JobState::Failed(fault(FaultClass::Internal)), at + TimeDelta::seconds(90)).0.expect("all broke");
    assert_eq!(facts.states().0, State::Failed, "each place gets one attempt");
    facts.nothing_is_left_at_work();
}

#[test]
fn what_is_the_accounts_fault_may_work_elsewhere_and_nothing_else_does() {
    let refused = |order: Order, class| {
        let mut facts = Facts::of(order);
        let call = facts.called(now());
        facts
            .conclude(&SubmitTask, &call, Answer::Created(Created::Rejected(fault(class))), later(1))
            .0
            .expect("an answer");
        facts.states().0
    };
    assert_eq!(refused(anywhere(), FaultClass::Account), State::WaitingRetry);
    assert_eq!(refused(order(), FaultClass::Account), State::Failed, "there is nowhere else");
    for class in [FaultClass::Moderation, FaultClass::BadRequest] {
        assert_eq!(refused(anywhere(), class), State::Failed, "{class:?} is not tried elsewhere");
        let mut facts = Facts::of(anywhere());
        facts.running();
        facts.poll(JobState::Failed(fault(class)), later(60)).0.expect("an answer");
        assert_eq!(facts.states().0, State::Failed, "{class:?} of a job is not tried elsewhere");
    }
    let mut facts = Facts::of(anywhere());
    facts.running();
    facts.poll(JobState::Running { percent: None }, later(4_000)).0.expect("it took too long");
    assert_eq!(facts.states().0, State::Failed, "a job that may still run is not doubled");
}

fn away() -> Answer {
    Answer::Created(Created::Unavailable { retry_after: Duration::from_secs(30) })
}

#[test]
fn a_provider_that_is_left_alone_is_waited_for_or_passed_by() {
    let mut facts = Facts::submitted();
    let mut call = facts.called(now());
    let mut at = now();
    for _ in 0..5 {
        facts.conclude(&SubmitTask, &call, away(), at).0.expect("nothing was sent");
        assert_eq!(facts.states(), (State::WaitingRetry, attempt::State::Planned));
        let Task::WaitingRetry { retry_at, .. } = facts.case.task.state else { panic!("it waits") };
        assert!(retry_at - at >= TimeDelta::seconds(30), "as long as the provider is left alone");
        (call, at) = submit_again(&mut facts);
    }
    assert_eq!(call.attempt_id(), Some(AttemptId::of(order().task, 1)), "no attempt is used up by waiting");

    let mut facts = Facts::of(anywhere());
    let (mut call, mut at) = (facts.called(now()), now());
    for _ in 0..2 {
        facts.conclude(&SubmitTask, &call, away(), at).0.expect("nothing was sent");
        (call, at) = submit_again(&mut facts);
    }
    facts.conclude(&SubmitTask, &call, away(), at).0.expect("nothing was sent");
    assert_eq!(facts.states(), (State::WaitingRetry, attempt::State::GivenUp), "it waited there often enough");
    let (call, soon) = submit_again(&mut facts);
    assert_eq!((call.attempt_id(), soon), (Some(AttemptId::of(order().task, 2)), at), "at once");
    assert_eq!(provider_of(&facts, 2).as_deref(), Some("runway"));
}

#[test]
fn an_attempt_that_was_unclear_once_is_not_passed_by() {
    let mut facts = Facts::of(anywhere());
    facts.unclear();
    for at in [10, 60] {
        let call = facts.find(later(at));
        facts.conclude(&Reconcile, &call, Answer::Found(Found::Absent), later(at)).0.expect("absent");
    }
    let (mut call, mut at) = submit_again(&mut facts);
    for _ in 0..6 {
        facts.conclude(&SubmitTask, &call, away(), at).0.expect("nothing was sent");
        (call, at) = submit_again(&mut facts);
    }
    assert_eq!(call.attempt_id(), Some(AttemptId::of(order().task, 1)), "its first job may exist after all");
}

#[test]
fn an_order_says_where_each_attempt_is_made() {
    let order = anywhere();
    let at = |number| order.at_attempt(number).provider;
    assert_eq!([at(1), at(2), at(3), at(4)], ["replicate", "runway", "ark", "replicate"]);
    assert_eq!((order.at_attempt(2).model.as_str(), order.attempts(1), order.attempts(5)), ("runway/boat", 3, 5));
    assert_eq!(super::support::order().place(9).provider, "replicate");
}

/// Fencing: a worker that was paused between its poll and the record of the answer.
#[test]
fn the_answer_of_an_older_poll_neither_waits_nor_gives_up() {
    let mut facts = Facts::submitted();
    facts.running();
    let due = Message::PollDue(facts.about());
    let slept = facts.call(&PollProvider, &due, later(10));
    let awake = facts.call(&PollProvider, &due, later(11));
    assert_eq!(slept, awake, "both had the same message");
    let running = || Answer::Polled(Polled::State(JobState::Running { percent: None }));
    facts.answer(&PollProvider, &due, &awake, running(), later(12)).0.expect("the first answer counts");
    let (before, version) = (facts.case.attempt.state.clone(), facts.case.attempt.version);
    for at in [13, 4_000] {
        let (late, told) = facts.answer(&PollProvider, &due, &slept, running(), later(at));
        assert_eq!((late.expect_err("it is fenced").code, told.len()), ("stale", 0));
        assert_eq!((&facts.case.attempt.state, facts.case.attempt.version), (&before, version), "{at}");
    }
    let done = JobState::Succeeded { output_url: "https://out.example".to_owned(), usage_millis: None };
    facts
        .answer(&PollProvider, &due, &slept, Answer::Polled(Polled::State(done)), later(4_001))
        .0
        .expect("an end is true");
    assert_eq!(facts.states(), (State::Fetching, attempt::State::Succeeded));
}

/// A reconciler that was paused with the job in hand, while others took it for absent.
#[test]
fn a_job_that_is_found_late_is_adopted_or_an_orphan() {
    let absent_twice = |facts: &mut Facts| {
        for at in [20, 70] {
            let call = facts.find(later(at));
            facts.conclude(&Reconcile, &call, Answer::Found(Found::Absent), later(at)).0.expect("absent");
        }
    };
    let found = |job: &str| Answer::Found(Found::Job { job: job.to_owned() });
    let mut facts = Facts::submitted();
    facts.unclear();
    let slept = facts.find(later(10));
    absent_twice(&mut facts);
    facts.conclude(&Reconcile, &slept, found("job-1"), later(80)).0.expect("it exists");
    assert_eq!(facts.states(), (State::ProviderRunning, attempt::State::Running), "and is not submitted again");

    let mut facts = Facts::submitted();
    facts.unclear();
    let slept = facts.find(later(10));
    absent_twice(&mut facts);
    let (call, at) = submit_again(&mut facts);
    facts.accept(&call, "job-2", at);
    facts.conclude(&Reconcile, &slept, found("job-1"), at).0.expect("it exists, too");
    let core = facts.case.attempt.state.core().expect("an attempt");
    assert_eq!((core.job.as_deref(), core.orphans.as_slice()), (Some("job-2"), &["job-1".to_owned()][..]));
    let late = facts.conclude(&Reconcile, &slept, Answer::Found(Found::Absent), at).0;
    assert_eq!(late.expect_err("what is no job is stale").code, "stale");
}

/// A job that is shown under a word that nobody knows, or not at all, may be done and paid for: it is neither cancelled nor is its
/// hold freed.
#[test]
fn a_riddle_is_parked_at_the_deadline_and_not_cancelled() {
    for state in [JobState::Unrecognised { raw: "migrating".to_owned() }, JobState::NotFound] {
        let mut facts = Facts::submitted();
        facts.running();
        facts.poll(state.clone(), later(60)).0.expect("it is asked again");
        assert_eq!(facts.states(), (State::ProviderRunning, attempt::State::Running), "{state:?}");
        let (next, told) = facts.poll(state.clone(), later(4_000));
        assert_eq!((next, facts.states().0), (Ok(Next::Done), State::ManualReview), "{state:?}");
        let settles = told.iter().any(|(message, _)| matches!(message, Message::SettleRequested(_)));
        assert!(!settles, "{state:?}: the hold stays until there is a verdict");
    }
    let mut facts = Facts::submitted();
    facts.running();
    facts.poll(JobState::Running { percent: None }, later(4_000)).0.expect("it took too long");
    assert_eq!(facts.states().0, State::Failed, "of a job that is known to run it is known that it is late");
}

/// The job of a lost answer has used up what was left at the provider: that the next submission is refused for it proves nothing
/// about the first.
#[test]
fn a_refusal_for_the_account_after_a_lost_answer_leaves_it_unclear() {
    let mut facts = Facts::submitted();
    facts.unclear();
    for at in [10, 60] {
        let call = facts.find(later(at));
        facts.conclude(&Reconcile, &call, Answer::Found(Found::Absent), later(at)).0.expect("absent");
    }
    let (call, at) = submit_again(&mut facts);
    let refused = Answer::Created(Created::Rejected(fault(FaultClass::Account)));
    facts.conclude(&SubmitTask, &call, refused, at).0.expect("an answer");
    assert_eq!(facts.states(), (State::Reconciling, attempt::State::Unclear), "not failed, and its hold not freed");
    let find = facts.find(at + TimeDelta::seconds(60));
    let found = Answer::Found(Found::Job { job: "job-1".to_owned() });
    facts.conclude(&Reconcile, &find, found, at + TimeDelta::seconds(61)).0.expect("there it is");
    assert_eq!(facts.states(), (State::ProviderRunning, attempt::State::Running));
}

#[test]
fn a_person_is_told_what_is_known() {
    let mut facts = Facts::submitted();
    facts.unclear();
    let (call, due) = (facts.find(later(10)), facts.reconcile_due());
    let mut told = None;
    let (next, _) = facts.turn(later(10), |turn| {
        let next = Reconcile.conclude(&due, &call, Answer::Found(Found::Impossible), turn);
        told = turn.changes.iter().find_map(|it| match it {
            Change::Task(_, Event::ReviewRequested { reason }) => Some(reason.clone()),
            _ => None,
        });
        next
    });
    assert_eq!((next, facts.states().0), (Ok(Next::Done), State::ManualReview));
    let told = told.expect("a person was asked");
    let attempt = AttemptId::of(order().task, 1).to_string();
    for known in [attempt.as_str(), "attempt 1", "at replicate", "submission 1", "2026-09-21T14:13:20Z", "1 look-ups"] {
        assert!(told.contains(known), "{known:?} is not in {told:?}");
    }
}

#[test]
fn polls_adapt_to_callbacks_age_and_progress() {
    let mut policy = Policy::default();
    policy.calling_back.insert("told".to_owned());
    let pause = |provider: &str, n| policy.poll_pause(provider, n).num_seconds();
    assert_eq!([pause("asked", 0), pause("asked", 1), pause("asked", 2), pause("asked", 9)], [5, 10, 20, 60]);
    assert_eq!([pause("told", 0), pause("told", 1), pause("told", 2), pause("told", 9)], [60, 120, 240, 240]);
    assert_eq!([policy.cancel_pause("told", 0), policy.cancel_pause("told", 9)].map(|it| it.num_seconds()), [5, 20]);
    let seconds = TimeDelta::seconds;
    let sooner = |age, percent| policy.expected_sooner("asked", seconds(60), seconds(age), percent).num_seconds();
    assert_eq!(sooner(90, Some(75)), 30, "three quarters took 90 s: 30 are left");
    assert_eq!(sooner(90, Some(10)), 60, "never later than usual");
    assert_eq!(sooner(600, Some(99)), 15, "a job that stays at 99 % is not asked about all the time");
    assert_eq!([sooner(90, None), sooner(90, Some(3))], [60, 60], "nothing is said, or too little to go by");
}
