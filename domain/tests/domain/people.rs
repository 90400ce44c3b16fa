//! What people ask for: cancels that race with everything else, retries, and what operators do with a task in review.

use super::facts::Facts;
use super::support::{later, now, order};
use domain::aggregate::Category;
use domain::attempt::{self, Attempt};
use domain::id::{TaskId, TenantId};
use domain::ledger::Hold;
use domain::message::Message;
use domain::outcome::{Answer, Call, CancelAsked, Created, Found, JobState, Polled};
use domain::process::{
    Case, CaseKey, Folded, Next, Policy, PollProvider, Reconcile, SettleHold, StreamId, SubmitTask, Turn, cancel,
    resolve_adopt, resolve_canceled, resolve_failed, resolve_retry, retry, retry_now, wake_up,
};
use domain::task::{ErrorClass, Order, State, Task};
use uuid::Uuid;

fn ask_cancel(facts: &mut Facts, at: i64) -> Result<(), &'static str> {
    facts.ask(later(at), |turn| cancel(turn, "user:1".to_owned())).map(drop).map_err(|declined| declined.code)
}

fn in_review() -> Facts {
    let mut facts = Facts::submitted();
    facts.unclear();
    let call = facts.find(later(10));
    let several = Answer::Found(Found::Ambiguous { jobs: vec!["job-a".to_owned(), "job-b".to_owned()] });
    let due = facts.reconcile_due();
    facts.answer(&Reconcile, &due, &call, several, later(10)).0.expect("a person is asked");
    assert_eq!(facts.states(), (State::ManualReview, attempt::State::Unclear));
    facts
}

#[test]
fn a_task_is_not_cancelled_while_the_submit_may_be_on_its_way() {
    let mut facts = Facts::submitted();
    let call = facts.called(now());
    ask_cancel(&mut facts, 1).expect("it is being cancelled");
    assert_eq!(facts.states(), (State::CancelReconciling, attempt::State::Submitting), "the call is out");
    facts.accept(&call, "job-1", later(2));
    assert_eq!(facts.states(), (State::CancelReconciling, attempt::State::Running));
    let due = facts.reconcile_due();
    let call = facts.call(&Reconcile, &due, later(3));
    assert_eq!(call, Call::Cancel { job: "job-1".to_owned() });
    for answer in [CancelAsked::Unknown, CancelAsked::NotFound, CancelAsked::AlreadyEnded, CancelAsked::Requested] {
        let (next, _) = facts.answer(&Reconcile, &due, &call, Answer::CancelAsked(answer), later(4));
        assert_eq!(
            next,
            Ok(Next::Call(Call::Poll { job: "job-1".to_owned(), poll: 0 })),
            "the job's own state decides"
        );
    }
    let poll = Call::Poll { job: "job-1".to_owned(), poll: 0 };
    let canceled = Answer::Polled(Polled::State(JobState::Canceled));
    facts.answer(&Reconcile, &due, &poll, canceled, later(5)).0.expect("confirmed");
    assert_eq!(facts.states(), (State::Canceled, attempt::State::Canceled));
}

#[test]
fn a_cancel_of_a_submit_that_made_nothing_is_final() {
    let mut facts = Facts::submitted();
    let call = facts.called(now());
    ask_cancel(&mut facts, 1).expect("it is being cancelled");
    let throttled = Answer::Created(Created::Throttled { retry_after: None });
    facts.conclude(&SubmitTask, &call, throttled, later(2)).0.expect("nothing was created");
    assert_eq!(facts.states(), (State::Canceled, attempt::State::Canceled));
    facts.nothing_is_left_at_work();
}

#[test]
fn a_cancelled_task_hears_late_news_and_stays_cancelled() {
    let mut facts = Facts::submitted();
    facts.running();
    ask_cancel(&mut facts, 1).expect("it is being cancelled");
    facts.poll(JobState::Canceled, later(60)).0.expect("confirmed");
    let before = facts.case.task.clone();
    let due = Message::PollDue(facts.about());
    let done = JobState::Succeeded { output_url: String::new(), usage_millis: None };
    let call = Call::Poll { job: "job-1".to_owned(), poll: 0 };
    let late = facts.answer(&PollProvider, &due, &call, Answer::Polled(Polled::State(done)), later(61));
    late.0.expect_err("terminal stays terminal");
    assert_eq!(facts.case.task, before);
    let settle = facts.about_task(Message::SettleRequested);
    for _ in 0..2 {
        facts.react(&SettleHold, &settle, later(62)).0.expect("released once");
    }
    assert_eq!(facts.case.account.state.hold(order().task), Some(Hold::Released));
}

#[test]
fn a_task_that_waits_goes_on_when_a_person_says_so() {
    let mut facts = Facts::submitted();
    let call = facts.called(now());
    let throttled = Answer::Created(Created::Throttled { retry_after: None });
    facts.conclude(&SubmitTask, &call, throttled, now()).0.expect("put off");
    let told = facts.ask(later(1), |turn| retry_now(turn, "user:1".to_owned())).expect("sooner");
    let (due, _) = told.iter().find(|(it, _)| matches!(it, Message::SubmitDue(_))).expect("it is announced");
    let told = facts.ask(later(1), |turn| retry_now(turn, "user:1".to_owned())).expect("already so");
    assert!(told.is_empty(), "a repeated word records nothing");
    let call = facts.call(&SubmitTask, due, later(1));
    assert!(matches!(call, Call::Create { round: 2, .. }), "the same attempt: nothing was created in its first round");
    let refused = facts.ask(later(2), |turn| retry_now(turn, "user:1".to_owned())).expect_err("it does not wait");
    assert_eq!(refused.code, "not_from_this_state");
}

#[test]
fn an_operator_names_the_job() {
    let mut facts = in_review();
    let adopt = |turn: &mut Turn<'_>| resolve_adopt(turn, "job-b".to_owned(), "op:1".to_owned());
    facts.ask(later(20), adopt).expect("adopted");
    assert_eq!(facts.states(), (State::ProviderRunning, attempt::State::Running));
    assert!(matches!(facts.attempt(1), Some(Attempt::Running { job, .. }) if job == "job-b"));
    assert_eq!(wake_up(&facts.case, later(60)), Some(Message::PollDue(facts.about())));
    facts.ask(later(21), adopt).expect_err("it is not in review any more");
}

#[test]
fn an_operator_ends_a_review() {
    let mut facts = in_review();
    facts.ask(later(20), |turn| resolve_failed(turn, "op:1")).expect("failed");
    assert_eq!(facts.states(), (State::Failed, attempt::State::GivenUp));
    let mut facts = in_review();
    facts.ask(later(20), |turn| resolve_canceled(turn, "op:1")).expect("cancelled");
    assert_eq!(facts.states(), (State::Canceled, attempt::State::GivenUp));
    let mut facts = in_review();
    ask_cancel(&mut facts, 11).expect("noted");
    assert_eq!(facts.states().0, State::ManualReview, "the person in charge ends it");
    facts.ask(later(20), |turn| resolve_retry(turn, "op:1")).expect_err("the user does not want it any more");
    facts.ask(later(21), |turn| resolve_canceled(turn, "op:1")).expect("cancelled");
    assert_eq!(facts.states(), (State::Canceled, attempt::State::GivenUp));
    facts.nothing_is_left_at_work();
    let mut facts = Facts::submitted();
    for refused in [
        facts.ask(now(), |turn| resolve_failed(turn, "op:1")),
        facts.ask(now(), |turn| resolve_canceled(turn, "op:1")),
        facts.ask(now(), |turn| resolve_retry(turn, "op:1")),
    ] {
        assert_eq!(refused.expect_err("nobody was asked").code, "not_in_review");
    }
}

/// The refusal's code of trying `old` again, or the fresh case.
fn try_again(old: &Facts, order: Order, credits: i64) -> Result<Case, &'static str> {
    let origin = order.retry_of;
    let key = CaseKey { account: Some(order.account), with_account: true, origin, ..CaseKey::task(order.task) };
    let mut case = Case::begin(key);
    for stream in case.wants() {
        let folded = match stream.category {
            Category::Account => Folded::Account(old.case.account.clone()),
            Category::Task if origin.map(StreamId::task) == Some(stream) => Folded::Task(old.case.task.clone()),
            other => Folded::absent(other),
        };
        case.supply(stream, folded);
    }
    let policy = Policy::default();
    let mut turn = Turn::new(case, later(100), &policy);
    if credits > 0 {
        domain::process::grant(&mut turn, "more".to_owned(), domain::money::Credits(credits)).map_err(|it| it.code)?;
    }
    retry(&mut turn, order).map_err(|it| it.code)?;
    Ok(turn.case)
}

#[test]
fn a_failed_task_is_tried_again_as_a_new_one_with_its_own_hold() {
    let again = || Order { task: TaskId(Uuid::from_u128(50)), retry_of: Some(order().task), ..order() };
    let mut old = in_review();
    assert_eq!(try_again(&old, again(), 0).expect_err("it has not ended"), "not_retryable");
    old.ask(later(20), |turn| resolve_failed(turn, "op:1")).expect("failed");
    let settle = old.about_task(Message::SettleRequested);
    old.react(&SettleHold, &settle, later(21)).0.expect("released");
    let fresh = try_again(&old, again(), 0).expect("tried again");
    let hold = fresh.account.state.hold(again().task);
    assert!(matches!(hold, Some(Hold::Open(open)) if open.amount == order().hold), "it is paid for again: {hold:?}");
    assert_eq!(fresh.account.state.hold(order().task), Some(Hold::Released));
    assert!(matches!(fresh.task.state, Task::Queued(_)));
    let short = Order { hold: domain::money::Credits(501), ..again() };
    assert_eq!(try_again(&old, short, 0).expect_err("not enough credits"), "insufficient_credits");
    let stranger = Order { tenant: TenantId(Uuid::from_u128(8)), ..again() };
    assert_eq!(try_again(&old, stranger, 0).expect_err("not theirs"), "not_retryable");
    let unrelated = Order { retry_of: None, ..again() };
    assert_eq!(try_again(&old, unrelated, 0).expect_err("it names no other"), "not_retryable");
}

#[test]
fn refused_content_is_not_tried_again() {
    let mut old = Facts::submitted();
    let call = old.called(now());
    let fault = domain::outcome::ProviderFault {
        class: domain::outcome::FaultClass::Moderation,
        code: "nsfw".to_owned(),
        message: "refused".to_owned(),
    };
    old.conclude(&SubmitTask, &call, Answer::Created(Created::Rejected(fault)), later(1)).0.expect("refused");
    assert!(matches!(old.case.task.state, Task::Failed { class: ErrorClass::Moderation, .. }));
    let again = Order { task: TaskId(Uuid::from_u128(50)), retry_of: Some(order().task), ..order() };
    assert_eq!(try_again(&old, again, 0).expect_err("its content was refused"), "not_retryable");
}
