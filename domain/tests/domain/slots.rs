//! Admission's answer is a fact among others: what a task does without a slot, what it asks for, and what is said of slots.

use super::facts::Facts;
use super::support::{attempt_id, export_order, later, now, order};
use domain::attempt;
use domain::id::AttemptId;
use domain::message::Message;
use domain::outcome::{Answer, Call, Created, FaultClass, JobState, ProviderFault};
use domain::process::{Entry, Next, Slot, SlotNote, SubmitTask, Why, cancel, retry_now, wake_up};
use domain::task::{ErrorClass, State, Task};
use domain::time::Timestamp;
use std::time::Duration;

fn full(why: Why) -> Option<Entry> {
    Some(Entry::Wait { after: Duration::from_secs(60), why })
}

/// A task that was not admitted, and when it asks again.
fn waiting() -> (Facts, Timestamp) {
    let mut facts = Facts::submitted();
    facts.entry = full(Why::Provider);
    let message = facts.about_task(Message::SubmitRequested);
    let (next, told) = facts.react(&SubmitTask, &message, now());
    assert_eq!(next, Ok(Next::Done), "the message is handled: a limit is no failure");
    assert_eq!(facts.states(), (State::WaitingRetry, attempt::State::Planned));
    let due = told.iter().find(|(it, _)| matches!(it, Message::SubmitDue(_))).and_then(|(_, at)| *at);
    (facts, due.expect("it wakes itself up"))
}

#[test]
fn without_a_slot_it_waits_and_then_goes_on_as_if_it_had_just_begun() {
    let (mut facts, due) = waiting();
    assert!((60..=75).contains(&(due - now()).num_seconds()), "what admission said, and a little more");
    assert_eq!(facts.slot(later(1)), None, "it is not asked for before its time");
    let slot = facts.slot(due).expect("it is due");
    assert_eq!((slot.attempt, slot.round), (attempt_id(), 1), "no attempt and no round was used up");
    facts.entry = Some(Entry::Granted);
    let message = facts.about_task(Message::SubmitDue);
    let call = facts.call(&SubmitTask, &message, due);
    assert!(matches!(call, Call::Create { attempt, round: 1, .. } if attempt == attempt_id()), "{call:?}");
    assert_eq!(facts.states(), (State::Submitting, attempt::State::Submitting));
}

#[test]
fn each_wait_leaves_one_event_and_no_more() {
    let (mut facts, mut due) = waiting();
    for why in [Why::Tenant, Why::Turn, Why::Down] {
        facts.entry = full(why);
        let before = (facts.case.task.version, facts.case.attempt.version);
        let message = facts.about_task(Message::SubmitDue);
        let (next, told) = facts.react(&SubmitTask, &message, due);
        assert_eq!(next, Ok(Next::Done));
        assert_eq!((facts.case.task.version, facts.case.attempt.version), (before.0 + 1, before.1));
        assert_eq!(told.len(), 1, "one message to itself, and no news for anybody: {told:?}");
        assert_eq!(facts.states(), (State::WaitingRetry, attempt::State::Planned));
        due = told[0].1.expect("later");
    }
}

/// However long its turn does not come: at its own limit it ends, under a name, and the hold goes back.
#[test]
fn it_waits_no_longer_than_its_limit() {
    let (mut facts, mut due) = waiting();
    let limit = order().give_up_at;
    let mut waits = 0;
    while facts.slot(due).is_some() {
        facts.entry = Some(Entry::Wait { after: Duration::from_secs(900), why: Why::Provider });
        let message = facts.about_task(Message::SubmitDue);
        let (_, told) = facts.react(&SubmitTask, &message, due);
        due = told[0].1.expect("later");
        assert!(due <= limit, "it looks again at the limit at the latest");
        waits += 1;
        assert!(waits < 20);
    }
    assert_eq!(due, limit);
    let message = facts.about_task(Message::SubmitDue);
    let (next, told) = facts.react(&SubmitTask, &message, due);
    assert_eq!(next, Ok(Next::Done));
    assert_eq!(facts.states(), (State::Failed, attempt::State::GivenUp));
    assert!(matches!(facts.case.task.state, Task::Failed { class: ErrorClass::Timeout, .. }));
    assert!(told.iter().any(|(it, _)| matches!(it, Message::SettleRequested(_))), "the hold is released: {told:?}");
}

#[test]
fn a_free_slot_is_called_out_and_the_message_comes_at_once() {
    let (mut facts, _) = waiting();
    let told = facts.ask(later(5), |turn| retry_now(turn, "admission".to_owned())).expect("it waits");
    assert!(matches!(told.as_slice(), [(Message::SubmitDue(_), Some(at))] if *at == later(5)), "{told:?}");
    assert!(facts.slot(later(5)).is_some());
    // The word got lost: the scan says it again.
    assert!(matches!(wake_up(&facts.case, later(40)), Some(Message::SubmitDue(_))));
    let told = facts.ask(later(6), |turn| retry_now(turn, "admission".to_owned())).expect("called again");
    assert!(told.is_empty(), "it has been told: {told:?}");
}

/// S2: who cancels while it waits has it cancelled at once: nobody has it.
#[test]
fn s2_a_task_without_a_slot_is_cancelled_at_once() {
    let (mut facts, due) = waiting();
    facts.ask(later(1), |turn| cancel(turn, "user:1".to_owned())).expect("it can be cancelled");
    assert_eq!(facts.states(), (State::Canceled, attempt::State::Canceled));
    assert_eq!(
        facts.noted,
        Some(SlotNote::Over { attempt: attempt_id(), round: SlotNote::ALL_ROUNDS }),
        "it leaves the line"
    );
    assert_eq!(facts.slot(due), None);
    let message = facts.about_task(Message::SubmitDue);
    facts.react(&SubmitTask, &message, due).0.expect_err("nothing is submitted");
}

#[test]
fn only_a_submit_that_would_begin_needs_a_slot() {
    let mut facts = Facts::submitted();
    let slot = facts.slot(now()).expect("to generate");
    assert_eq!(slot, Slot::of(&order(), 1, 1));
    facts.running();
    assert_eq!(facts.slot(later(1)), None, "it runs");
    assert_eq!(Facts::of(export_order(720)).slot(now()), None, "an export is rendered here");
    let mut facts = Facts::submitted();
    let call = facts.called(now());
    let throttled = Answer::Created(Created::Throttled { retry_after: None });
    facts.conclude(&SubmitTask, &call, throttled, now()).0.expect("not now");
    assert_eq!(facts.slot(later(1)), None, "the provider's wait goes first");
    assert_eq!(facts.slot(later(60)).map(|it| it.round), Some(2), "the next round has a number of its own");
    assert_eq!(facts.slot(order().give_up_at), None, "it is given up, not submitted");
}

/// L7: a provider that broke: the next attempt is another holder, and asks as everybody does.
#[test]
fn l7_the_next_attempt_needs_a_slot_of_its_own() {
    let mut facts = Facts::submitted();
    facts.policy.max_attempts = 2;
    facts.running();
    let fault = ProviderFault { class: FaultClass::Internal, code: "code".to_owned(), message: "it broke".to_owned() };
    let (_, told) = facts.poll(JobState::Failed(fault), later(60));
    assert_eq!(facts.noted, Some(SlotNote::Over { attempt: attempt_id(), round: SlotNote::ALL_ROUNDS }));
    let due = told.iter().find_map(|(it, at)| at.filter(|_| matches!(it, Message::SubmitDue(_)))).expect("again");
    let slot = facts.slot(due).expect("it would begin");
    let second = AttemptId::of(order().task, 2);
    assert_eq!((slot.attempt, slot.round), (second, 1));
    facts.entry = full(Why::Model);
    let message = facts.about_task(Message::SubmitDue);
    let (_, told) = facts.react(&SubmitTask, &message, due);
    assert_eq!(facts.states(), (State::WaitingRetry, attempt::State::Failed), "nothing is planned yet");
    let due = told[0].1.expect("later");
    facts.entry = Some(Entry::Granted);
    let message = facts.about_task(Message::SubmitDue);
    let call = facts.call(&SubmitTask, &message, due);
    assert!(matches!(call, Call::Create { attempt, round: 1, .. } if attempt == second), "{call:?}");
}

/// Who holds a slot, and who gives it back, turn by turn.
#[test]
fn what_a_turn_says_about_the_slot() {
    let held =
        |facts: &Facts| matches!(&facts.noted, Some(SlotNote::InFlight(slot)) if *slot == Slot::of(&order(), 1, 1));
    let mut facts = Facts::submitted();
    let call = facts.called(now());
    assert_eq!(facts.noted, None, "it has just been given one");
    facts.accept(&call, "job-1", now());
    assert!(held(&facts), "the provider has it: {:?}", facts.noted);
    facts.poll(JobState::Running { percent: Some(5) }, later(60)).0.expect("it runs");
    assert!(held(&facts), "each poll keeps it: {:?}", facts.noted);
    let done = JobState::Succeeded { output_url: "https://out.example/1".to_owned(), usage_millis: None };
    facts.poll(done, later(120)).0.expect("it is done");
    let over = |round| Some(SlotNote::Over { attempt: attempt_id(), round });
    assert_eq!(facts.noted, over(SlotNote::ALL_ROUNDS), "what comes after is our own work");

    let mut facts = Facts::submitted();
    facts.unclear();
    assert!(held(&facts), "nobody knows: the job may run: {:?}", facts.noted);

    let mut facts = Facts::submitted();
    let call = facts.called(now());
    let throttled = Answer::Created(Created::Throttled { retry_after: None });
    facts.conclude(&SubmitTask, &call, throttled, now()).0.expect("not now");
    assert_eq!(facts.noted, over(1), "nothing was created: others may go meanwhile");
}
