//! More than one attempt: which failures lead to another one, and that an older one never moves the task again.

use super::facts::Facts;
use super::support::{later, now, order};
use domain::attempt::{self, Attempt, Core};
use domain::id::AttemptId;
use domain::message::Message;
use domain::message::kinds::{AttemptRef, CallbackRef};
use domain::outcome::{Answer, Call, CancelAsked, Created, FaultClass, Found, JobState, Polled, ProviderFault};
use domain::process::{
    ApplyCallback, Next, PollProvider, ProcessManager, Reconcile, SubmitTask, Versioned, cancel, resolve_retry,
};
use domain::task::{State, Task};

fn fault(class: FaultClass) -> ProviderFault {
    ProviderFault { class, code: "code".to_owned(), message: "it broke".to_owned() }
}

fn two_attempts() -> Facts {
    let mut facts = Facts::submitted();
    facts.policy.max_attempts = 2;
    facts
}

fn orphans(facts: &Facts, number: u32) -> Vec<String> {
    facts.attempt(number).and_then(|it| it.core()).map(|core| core.orphans.clone()).unwrap_or_default()
}

#[test]
fn a_provider_that_breaks_is_asked_again_with_a_new_attempt() {
    let mut facts = two_attempts();
    facts.running();
    let (next, told) = facts.poll(JobState::Failed(fault(FaultClass::Internal)), later(60));
    assert_eq!(next, Ok(Next::Done));
    assert_eq!(facts.states(), (State::WaitingRetry, attempt::State::Failed));
    let (due, at) = told.iter().find(|(it, _)| matches!(it, Message::SubmitDue(_))).expect("it will be tried again");
    let at = at.expect("not at once");
    let call = facts.call(&SubmitTask, due, at);
    let second = AttemptId::of(order().task, 2);
    assert!(matches!(&call, Call::Create { attempt, round: 1, .. } if *attempt == second), "{call:?}");
    assert_eq!(facts.states(), (State::Submitting, attempt::State::Submitting));
    facts.accept(&call, "job-2", at);
    let (next, _) = facts.poll(JobState::Failed(fault(FaultClass::Internal)), later(600));
    assert_eq!(next, Ok(Next::Done));
    assert_eq!(facts.states(), (State::Failed, attempt::State::Failed), "no attempts are left");
    facts.nothing_is_left_at_work();
}

#[test]
fn what_will_not_help_is_not_tried_again() {
    for class in [FaultClass::Moderation, FaultClass::BadRequest, FaultClass::Account] {
        let mut facts = two_attempts();
        let call = facts.called(now());
        let rejected = Answer::Created(Created::Rejected(fault(class)));
        facts.conclude(&SubmitTask, &call, rejected, later(1)).0.expect("it is an answer");
        assert_eq!(facts.states().0, State::Failed, "{class:?} at submit");
        let mut facts = two_attempts();
        facts.running();
        facts.poll(JobState::Failed(fault(class)), later(60)).0.expect("it is an answer");
        assert_eq!(facts.states().0, State::Failed, "{class:?} of a job");
    }
    let mut facts = two_attempts();
    facts.running();
    facts.poll(JobState::Running { percent: None }, later(4_000)).0.expect("it took too long");
    assert_eq!(facts.states().0, State::Failed, "a job that may still run is not doubled");
}

#[test]
fn by_default_there_is_one_attempt_and_a_cancel_ends_all_of_them() {
    let mut facts = Facts::submitted();
    facts.running();
    facts.poll(JobState::Failed(fault(FaultClass::Internal)), later(60)).0.expect("it is an answer");
    assert_eq!(facts.states().0, State::Failed);
    let mut facts = two_attempts();
    facts.running();
    facts.ask(later(1), |turn| cancel(turn, "user:1".to_owned())).expect("it is being cancelled");
    facts.poll(JobState::Failed(fault(FaultClass::Internal)), later(60)).0.expect("it is an answer");
    assert_eq!(facts.states().0, State::Canceled);
    let mut facts = two_attempts();
    facts.running();
    facts.poll(JobState::Failed(fault(FaultClass::Internal)), later(60)).0.expect("it is an answer");
    facts.ask(later(61), |turn| cancel(turn, "user:1".to_owned())).expect("nobody has it");
    assert_eq!(facts.states(), (State::Canceled, attempt::State::Failed));
    facts.nothing_is_left_at_work();
}

/// Attempt 1 is unclear, an operator is certain that it does not run, and attempt 2 runs.
fn second_runs() -> (Facts, Call) {
    let mut facts = Facts::submitted();
    let first = facts.unclear();
    let call = facts.find(later(10));
    let several = Answer::Found(Found::Ambiguous { jobs: vec!["job-a".to_owned(), "job-b".to_owned()] });
    let due = facts.reconcile_due();
    facts.answer(&Reconcile, &due, &call, several, later(10)).0.expect("a person is asked");
    facts.ask(later(7_200), |turn| resolve_retry(turn, "op:1")).expect("it goes on");
    let due = facts.about_task(Message::SubmitDue);
    let call = facts.call(&SubmitTask, &due, later(7_200));
    assert_ne!(call.attempt_id(), first.attempt_id());
    facts.accept(&call, "job-2", later(7_201));
    assert_eq!(facts.states(), (State::ProviderRunning, attempt::State::Running));
    (facts, first)
}

#[test]
fn nothing_said_about_an_older_attempt_moves_the_task() {
    let (mut facts, first) = second_runs();
    let before = facts.case.task.clone();
    let about = |job: &str| CallbackRef {
        task_id: order().task,
        attempt_id: AttemptId::of(order().task, 1),
        job: job.to_owned(),
    };
    let old = AttemptRef { task_id: order().task, attempt_id: AttemptId::of(order().task, 1), version: 4 };
    let accepted = Answer::Created(Created::Accepted { job: "job-1".to_owned() });
    facts.conclude(&SubmitTask, &first, accepted, later(7_300)).0.expect("the late answer is recorded");
    assert_eq!(facts.case.task, before, "a late answer");
    assert_eq!(orphans(&facts, 1), ["job-1"]);
    facts.react(&ApplyCallback, &Message::CallbackReceived(about("job-a")), later(7_301)).0.expect("recorded");
    assert_eq!(facts.case.task, before, "a late callback");
    assert_eq!(orphans(&facts, 1), ["job-1", "job-a"]);
    facts.react(&PollProvider, &Message::PollDue(old), later(7_302)).0.expect_err("a late poll");
    facts.react(&Reconcile, &Message::ReconcileDue(old), later(7_303)).0.expect_err("a late look-up");
    let rejected = Answer::Created(Created::Rejected(fault(FaultClass::Internal)));
    facts.conclude(&SubmitTask, &first, rejected, later(7_304)).0.expect_err("a late refusal");
    for answer in [
        Polled::State(JobState::Succeeded { output_url: String::new(), usage_millis: None }),
        Polled::State(JobState::Failed(fault(FaultClass::Internal))),
    ] {
        let call = Call::Poll { job: "job-1".to_owned(), poll: 0 };
        let due = Message::PollDue(old);
        facts.answer(&PollProvider, &due, &call, Answer::Polled(answer), later(7_305)).0.expect_err("a late answer");
    }
    assert_eq!(facts.case.task, before);
    assert!(orphans(&facts, 2).is_empty(), "the attempt that runs has nothing to do with it");
    assert!(matches!(&facts.case.task.state, Task::ProviderRunning(live) if live.attempt_no == 2));
}

/// Should two attempts ever be at work at once, by whatever fault, only the task's own moves it.
#[test]
fn a_second_attempt_at_work_can_not_move_the_task() {
    let (mut facts, _) = second_runs();
    let first = AttemptId::of(order().task, 1);
    let due = Message::PollDue(AttemptRef { task_id: order().task, attempt_id: first, version: 4 });
    let before = facts.case.task.clone();
    let call = Call::Poll { job: "job-1".to_owned(), poll: 0 };
    let done = JobState::Succeeded { output_url: String::new(), usage_millis: None };
    for state in [done, JobState::Failed(fault(FaultClass::Internal)), JobState::Canceled] {
        let core = Core {
            task: order().task,
            number: 1,
            provider: "replicate".to_owned(),
            round: 1,
            job: None,
            unclear_once: false,
            orphans: vec![],
        };
        let at_work = Attempt::Running {
            core,
            job: "job-1".to_owned(),
            polls: 0,
            next_poll_at: later(60),
            give_up_at: later(600),
            percent: None,
        };
        facts.forge(Versioned { state: at_work, version: 4 });
        facts
            .answer(&PollProvider, &due, &call, Answer::Polled(Polled::State(state)), later(7_300))
            .0
            .expect("recorded");
        assert_eq!(facts.case.task, before);
        assert!(!matches!(facts.attempt(1), Some(Attempt::Running { .. })), "its own end is recorded");
    }
}

/// A reader that forgets to read the call's own attempt must not credit the present one with the answer.
#[test]
fn an_answer_is_not_taken_for_another_attempts() {
    let (mut facts, first) = second_runs();
    let before = facts.case.clone();
    let accepted = Answer::Created(Created::Accepted { job: "job-1".to_owned() });
    let message = facts.about_task(Message::SubmitRequested);
    let declined =
        facts.turn(later(7_300), |turn| SubmitTask.conclude(&message, &first, accepted, turn)).0.expect_err("fenced");
    assert_eq!(declined.code, "stale");
    assert_eq!((facts.case.task, facts.case.attempt), (before.task, before.attempt));
}

#[test]
fn one_winner_delivers_the_others_job_is_an_orphan() {
    let (mut facts, first) = second_runs();
    let done = JobState::Succeeded { output_url: String::new(), usage_millis: None };
    facts.poll(done, later(7_300)).0.expect("the second attempt wins");
    assert_eq!(facts.states(), (State::Fetching, attempt::State::Succeeded));
    let before = facts.case.task.clone();
    let accepted = Answer::Created(Created::Accepted { job: "job-1".to_owned() });
    facts.conclude(&SubmitTask, &first, accepted, later(7_301)).0.expect("the first one's job is known");
    assert_eq!((orphans(&facts, 1), facts.case.task), (vec!["job-1".to_owned()], before));
}

#[test]
fn a_cancel_that_is_never_confirmed_is_a_persons_business() {
    let mut facts = Facts::submitted();
    facts.running();
    facts.ask(later(1), |turn| cancel(turn, "user:1".to_owned())).expect("it is being cancelled");
    let due = Message::PollDue(facts.about());
    let call = facts.call(&PollProvider, &due, later(4_000));
    let silent = Answer::Polled(Polled::Unavailable { cause: "503".to_owned(), retry_after: None });
    let (next, _) = facts.answer(&PollProvider, &due, &call, silent, later(4_000));
    assert_eq!(next, Ok(Next::Call(Call::Cancel { job: "job-1".to_owned() })), "it is asked for once more");
    assert_eq!(facts.states(), (State::ManualReview, attempt::State::GivenUp), "not CANCELED on a guess");
    let asked = Answer::CancelAsked(CancelAsked::Unknown);
    let call = Call::Cancel { job: "job-1".to_owned() };
    assert_eq!(facts.answer(&PollProvider, &due, &call, asked, later(4_001)).0, Ok(Next::Done));
    facts.ask(later(4_002), |turn| resolve_retry(turn, "op:1")).expect_err("the user wants it cancelled");
    facts.ask(later(4_003), |turn| domain::process::resolve_canceled(turn, "op:1")).expect("a person ends it");
    assert_eq!(facts.states(), (State::Canceled, attempt::State::GivenUp));
}
