//! Process managers, in situations that only a bad day brings about. Pure: facts, a message, and what comes of it.

use super::facts::Facts;
use super::support::{later, now, order};
use domain::attempt;
use domain::message::Message;
use domain::message::kinds::TaskRef;
use domain::outcome::{Answer, Call, CancelAsked, Created, Found, JobState, Polled};
use domain::process::{ApplyCallback, Next, Policy, PollProvider, Reconcile, SubmitTask, cancel, wake_up};
use domain::task::State;

#[test]
fn two_look_ups_at_the_same_moment_are_one_absence() {
    let mut facts = Facts::submitted();
    facts.unclear();
    let (first, second) = (facts.find(later(10)), facts.find(later(10)));
    let absent = || Answer::Found(Found::Absent);
    facts.conclude(&Reconcile, &first, absent(), later(11)).0.expect("the first counts");
    let declined = facts.conclude(&Reconcile, &second, absent(), later(11)).0.expect_err("the second does not");
    assert_eq!(declined.code, "stale");
    assert_eq!(facts.states(), (State::Reconciling, attempt::State::Unclear), "nothing is submitted again yet");
    let third = facts.find(later(60));
    facts.conclude(&Reconcile, &third, absent(), later(60)).0.expect("the second absence in a row");
    assert_eq!(facts.states(), (State::WaitingRetry, attempt::State::Planned));
}

#[test]
fn a_callback_stops_a_second_submission() {
    let mut facts = Facts::submitted();
    facts.unclear();
    for at in [10, 60] {
        let call = facts.find(later(at));
        facts.conclude(&Reconcile, &call, Answer::Found(Found::Absent), later(at)).0.expect("absent");
    }
    assert_eq!(facts.states(), (State::WaitingRetry, attempt::State::Planned));
    let (next, _) = facts.react(&ApplyCallback, &Facts::callback("job-1"), later(61));
    assert_eq!(next, Ok(Next::Again));
    assert_eq!(facts.states(), (State::ProviderRunning, attempt::State::Running), "the signed callback knows better");
    let due = Message::SubmitDue(TaskRef { task_id: order().task, task_version: facts.case.task.version });
    facts.react(&SubmitTask, &due, later(900)).0.expect_err("it is not submitted again");
}

#[test]
fn the_answer_of_an_older_round_says_nothing_about_a_later_one() {
    let mut facts = Facts::submitted();
    let first = facts.unclear();
    for at in [10, 60] {
        let call = facts.find(later(at));
        facts.conclude(&Reconcile, &call, Answer::Found(Found::Absent), later(at)).0.expect("absent");
    }
    let second = facts.called(later(900));
    assert_ne!(first, second, "another round");
    let throttled = Answer::Created(Created::Throttled { retry_after: None });
    let declined = facts.conclude(&SubmitTask, &first, throttled, later(901)).0.expect_err("fenced");
    assert_eq!(declined.code, "other_round");
    // A job that the first round made after all is accepted; the second round's is then an orphan, and both are known.
    let accepted = |job: &str| Answer::Created(Created::Accepted { job: job.to_owned() });
    facts.conclude(&SubmitTask, &first, accepted("job-1"), later(902)).0.expect("it exists");
    let (next, told) = facts.conclude(&SubmitTask, &second, accepted("job-2"), later(903));
    assert_eq!(next, Ok(Next::Done));
    assert_eq!(facts.case.attempt.state.core().map(|core| core.orphans.clone()), Some(vec!["job-2".to_owned()]));
    let wakes = told.iter().any(|(message, _)| *message == Message::PollDue(facts.about()));
    assert!(wakes, "the orphan overtook the running job's wake-up, so it sets a new one: {told:?}");
}

#[test]
fn a_wake_up_that_comes_early_is_set_again() {
    let mut facts = Facts::submitted();
    facts.unclear();
    let early = facts.reconcile_due();
    let (next, told) = facts.react(&Reconcile, &early, now());
    assert_eq!((next, told.len()), (Ok(Next::Done), 1), "reconcile");

    let mut facts = Facts::submitted();
    let call = facts.called(now());
    let throttled = Answer::Created(Created::Throttled { retry_after: None });
    facts.conclude(&SubmitTask, &call, throttled, now()).0.expect("put off");
    let due = |version| Message::SubmitDue(TaskRef { task_id: order().task, task_version: version });
    let newest = facts.case.task.version;
    let (next, told) = facts.react(&SubmitTask, &due(newest), now());
    assert_eq!((next, told.len()), (Ok(Next::Done), 1), "submit");
    assert!(facts.react(&SubmitTask, &due(newest - 1), now()).0.is_err(), "an older one was overtaken");

    let mut facts = Facts::submitted();
    facts.running();
    let poll = Message::PollDue(facts.about());
    let (next, told) = facts.react(&PollProvider, &poll, now());
    assert_eq!((next, told.len()), (Ok(Next::Done), 1), "poll");
}

#[test]
fn a_cancel_is_not_forgotten_in_a_review() {
    let mut facts = Facts::submitted();
    facts.unclear();
    facts.ask(now(), |turn| cancel(turn, "user:1".to_owned())).expect("ok");
    let call = facts.find(later(10));
    let several = Answer::Found(Found::Ambiguous { jobs: vec!["job-1".to_owned(), "job-2".to_owned()] });
    facts.conclude(&Reconcile, &call, several, later(10)).0.expect("a person is asked");
    assert_eq!(facts.states().0, State::ManualReview);
    facts.react(&ApplyCallback, &Facts::callback("job-1"), later(20)).0.expect("the job is known");
    assert_eq!(facts.states(), (State::CancelReconciling, attempt::State::Running));
}

#[test]
fn a_job_that_was_given_up_is_cancelled_even_if_the_process_died_first() {
    let mut facts = Facts::submitted();
    facts.running();
    let poll = Message::PollDue(facts.about());
    let (next, _) = facts.react(&PollProvider, &poll, later(4_000));
    let Ok(Next::Call(call)) = next else { panic!("{next:?}") };
    let still = Answer::Polled(Polled::State(JobState::Running { percent: None }));
    let (next, _) = facts.conclude(&PollProvider, &call, still, later(4_000));
    assert_eq!(next, Ok(Next::Call(Call::Cancel { job: "job-1".to_owned() })));
    assert_eq!(facts.states(), (State::Failed, attempt::State::GivenUp));
    // The same message again: the process died before it cancelled.
    let (next, _) = facts.react(&PollProvider, &poll, later(4_010));
    assert_eq!(next, Ok(Next::Call(Call::Cancel { job: "job-1".to_owned() })));
    let asked = Answer::CancelAsked(CancelAsked::Requested);
    let call = Call::Cancel { job: "job-1".to_owned() };
    assert_eq!(facts.conclude(&PollProvider, &call, asked, later(4_011)).0, Ok(Next::Done));
}

#[test]
fn nothing_is_woken_before_its_time() {
    let mut facts = Facts::submitted();
    facts.running();
    assert_eq!(wake_up(&facts.case, now()), None, "the poll is not due");
    assert_eq!(wake_up(&facts.case, later(60)), Some(Message::PollDue(facts.about())));
}

#[test]
fn a_taken_id_is_this_attempts_own_job() {
    let mut facts = Facts::submitted();
    facts.unclear();
    for at in [10, 60] {
        let call = facts.find(later(at));
        facts.conclude(&Reconcile, &call, Answer::Found(Found::Absent), later(at)).0.expect("absent");
    }
    let again = facts.called(later(900));
    let taken = Answer::Created(Created::DuplicateOf { job: "job-1".to_owned() });
    facts.conclude(&SubmitTask, &again, taken, later(901)).0.expect("an earlier call had arrived");
    assert_eq!(facts.states(), (State::ProviderRunning, attempt::State::Running));
    assert_eq!(facts.case.attempt.state.core().and_then(|core| core.job.clone()).as_deref(), Some("job-1"));
}

#[test]
fn where_nothing_can_be_looked_up_a_person_is_asked_at_once() {
    let mut facts = Facts::submitted();
    facts.unclear();
    let call = facts.find(later(10));
    facts.conclude(&Reconcile, &call, Answer::Found(Found::Impossible), later(10)).0.expect("a person is asked");
    assert_eq!(facts.states(), (State::ManualReview, attempt::State::Unclear));
}

#[test]
fn a_cancel_after_which_the_provider_forgets_the_job_is_its_last_word() {
    let mut facts = Facts::submitted();
    facts.running();
    facts.ask(later(5), |turn| cancel(turn, "user:1".to_owned())).expect("it can still be cancelled");
    let due = facts.reconcile_due();
    let call = facts.call(&Reconcile, &due, later(5));
    let gone = || Answer::CancelAsked(CancelAsked::Gone);
    facts.answer(&Reconcile, &due, &call, gone(), later(6)).0.expect("it is cancelled");
    assert_eq!(facts.states(), (State::Canceled, attempt::State::Canceled));

    // The first one was lost, and the poll that found the job running asks again.
    let mut facts = Facts::submitted();
    facts.running();
    facts.ask(later(5), |turn| cancel(turn, "user:1".to_owned())).expect("it can still be cancelled");
    let call = Call::Cancel { job: "job-1".to_owned() };
    let due = Message::PollDue(facts.about());
    facts.answer(&PollProvider, &due, &call, gone(), later(30)).0.expect("it is cancelled");
    assert_eq!(facts.states(), (State::Canceled, attempt::State::Canceled));
}

#[test]
fn a_provider_is_polled_no_faster_than_it_asks() {
    let mut policy = Policy::default();
    policy.poll_at_least_ms.insert("slow".to_owned(), 45_000);
    let pause = |provider: &str, n| policy.poll_pause(provider, n).num_milliseconds();
    assert_eq!((pause("slow", 0), pause("slow", 20)), (45_000, 60_000));
    assert_eq!((pause("other", 0), pause("other", 20)), (5_000, 60_000));
}
