//! Media work that is done here: exports, partial readiness, and inputs that kill the worker.

use super::facts::Facts;
use super::support::{export_order, later, now, object, order, probe};
use domain::attempt;
use domain::message::Message;
use domain::message::kinds::TaskRef;
use domain::money::Credits;
use domain::outcome::{Answer, Call, Processed, Rendered};
use domain::process::{
    Next, ProcessManager, ProcessMedia, RenderExport, SettleHold, SubmitTask, cancel, export, wake_up,
};
use domain::task::{ErrorClass, State, Task};
use domain::time::Timestamp;

fn not_now() -> String {
    "no room".to_owned()
}

fn ready() -> Answer {
    Answer::Processed(Processed::Ready { probe: probe(), thumbnail: object("thumbnail.jpg", "image/jpeg") })
}

fn partial() -> Answer {
    Answer::Processed(Processed::Partial { probe: probe(), cause: not_now() })
}

/// An export whose render is called.
fn rendering() -> (Facts, Message, Call) {
    let mut facts = Facts::of(export_order(720));
    let requested = facts.about_task(Message::RenderRequested);
    let call = facts.call(&RenderExport, &requested, now());
    (facts, requested, call)
}

#[test]
fn an_export_goes_its_way_without_a_provider() {
    let (mut facts, requested, call) = rendering();
    let Call::Render { source_key, key, spec } = &call else { panic!("{call:?}") };
    assert_eq!((source_key.as_str(), spec.height_px), ("tenants/t/video.mp4", 720));
    assert!(key.ends_with("/export/video.mp4"), "{key}");
    assert_eq!(facts.states(), (State::Rendering, attempt::State::Absent));
    let stored = Answer::Rendered(Rendered::Stored(object("video.mp4", "video/mp4")));
    let (next, told) = facts.answer(&RenderExport, &requested, &call, stored.clone(), later(30));
    assert_eq!(next, Ok(Next::Done));
    assert_eq!(facts.states().0, State::MediaProcessing);
    facts.answer(&RenderExport, &requested, &call, stored, later(31)).0.expect_err("a second render tells nothing new");
    let due =
        told.iter().find(|(it, _)| matches!(it, Message::PostprocessDue(_))).expect("it will be probed").0.clone();
    let call = facts.call(&ProcessMedia, &due, later(32));
    assert!(matches!(&call, Call::Process { thumbnail_key, .. } if thumbnail_key.ends_with("/export/thumbnail.jpg")));
    facts.answer(&ProcessMedia, &due, &call, ready(), later(33)).0.expect("it is done");
    assert_eq!(facts.states(), (State::Succeeded, attempt::State::Absent));
    let settle = facts.about_task(Message::SettleRequested);
    facts.react(&SettleHold, &settle, later(34)).0.expect("it is charged");
    assert_eq!(facts.case.account.state.charged, Credits(100));
}

#[test]
fn an_export_is_not_submitted_and_a_generation_not_rendered() {
    let mut facts = Facts::of(export_order(720));
    let submit = facts.about_task(Message::SubmitRequested);
    assert_eq!(facts.react(&SubmitTask, &submit, now()).0.expect_err("no provider").code, "not_a_generation");
    let mut facts = Facts::submitted();
    let render = facts.about_task(Message::RenderRequested);
    assert_eq!(facts.react(&RenderExport, &render, now()).0.expect_err("nothing to render").code, "not_an_export");
    let refused = facts.ask(now(), |turn| export(turn, order())).expect_err("it is not an export");
    assert_eq!(refused.code, "not_an_export");
}

#[test]
fn a_render_is_cancelled_at_once_and_its_late_result_changes_nothing() {
    let (mut facts, requested, call) = rendering();
    facts.ask(later(1), |turn| cancel(turn, "user:1".to_owned())).expect("it is ours to cancel");
    assert_eq!(facts.states().0, State::Canceled);
    let stored = Answer::Rendered(Rendered::Stored(object("video.mp4", "video/mp4")));
    facts.answer(&RenderExport, &requested, &call, stored, later(30)).0.expect_err("too late");
    let settle = facts.about_task(Message::SettleRequested);
    facts.react(&SettleHold, &settle, later(31)).0.expect("the hold is released");
    assert_eq!(facts.case.account.state.available, Credits(500));
}

#[test]
fn a_render_is_put_off_a_bounded_number_of_times() {
    let (mut facts, mut message, mut call) = rendering();
    let mut at = now();
    let mut delays = 0;
    loop {
        let busy = Answer::Rendered(Rendered::NotNow { cause: not_now() });
        let (next, told) = facts.answer(&RenderExport, &message, &call, busy, at);
        assert_eq!(next, Ok(Next::Done));
        if facts.states().0 == State::Failed {
            break;
        }
        delays += 1;
        let (due, deliver_at) =
            told.into_iter().find(|(it, _)| matches!(it, Message::RenderDue(_))).expect("a wake-up");
        let (early, again) = facts.react(&RenderExport, &due, at);
        assert_eq!((early, again.len()), (Ok(Next::Done), 1), "too early: it is set again");
        assert_eq!(wake_up(&facts.case, at), None);
        at = deliver_at.expect("later");
        assert_eq!(wake_up(&facts.case, at), Some(due.clone()));
        (call, message) = (facts.call(&RenderExport, &due, at), due);
    }
    assert_eq!(delays, facts.policy.max_render_delays);
}

/// Begins the work again and again without an answer, as a worker that dies each time: whenever the last one's lease is over.
fn killed(facts: &mut Facts, manager: &dyn ProcessManager, message: &Message) -> u32 {
    let mut kills = 0;
    loop {
        let at = due(facts);
        match facts.react(manager, message, at).0 {
            Ok(Next::Call(_)) => kills += 1,
            Ok(Next::Done) => return kills,
            other => panic!("{other:?}"),
        }
    }
}

/// When the next try may begin.
fn due(facts: &Facts) -> Timestamp {
    facts.case.task.state.tries().expect("there is work on media").due()
}

/// How many tries have begun without an answer.
fn unanswered(facts: &Facts) -> u32 {
    facts.case.task.state.tries().expect("there is work on media").unanswered
}

/// Whatever comes while a try runs (a duplicate, a redelivery, a repair) is too early, and counts nothing.
fn nothing_begins_beside(
    facts: &mut Facts,
    manager: &dyn ProcessManager,
    newest: fn(TaskRef) -> Message,
    at: Timestamp,
) {
    let (version, count) = (facts.case.task.version, unanswered(facts));
    let duplicate = newest(TaskRef { task_id: facts.task_id(), task_version: version - 1 });
    let declined = facts.react(manager, &duplicate, at).0.expect_err("a worker is at it");
    assert_eq!(declined.code, "early");
    assert_eq!(wake_up(&facts.case, at), None, "nothing for the scan to do");
    // The newest wake-up is the only one: it is set again for the lease's end.
    let lease = due(facts);
    let repair = facts.about_task(newest);
    let (next, told) = facts.react(manager, &repair, at);
    assert_eq!((next, told), (Ok(Next::Done), vec![(repair, Some(lease))]));
    assert_eq!((facts.case.task.version, unanswered(facts)), (version, count), "nothing is recorded");
}

#[test]
fn a_try_that_runs_is_left_alone_until_its_lease_ends() {
    let (mut facts, requested, _) = rendering();
    let lease = facts.policy.processing_lease_seconds.cast_signed();
    assert_eq!(due(&facts), later(lease));
    for at in [later(0), later(1), later(lease - 1)] {
        nothing_begins_beside(&mut facts, &RenderExport, Message::RenderDue, at);
    }
    assert!(matches!(wake_up(&facts.case, later(lease)), Some(Message::RenderDue(_))), "the scan takes over");
    facts.call(&RenderExport, &requested, later(lease));
    assert_eq!(unanswered(&facts), 2, "it is tried again");
    nothing_begins_beside(&mut facts, &RenderExport, Message::RenderDue, later(2 * lease - 1));
    let pause = due(&facts) - later(2 * lease);
    assert!(pause > chrono::TimeDelta::zero(), "after a try without an answer there is a pause");
    let second = due(&facts);
    facts.call(&RenderExport, &requested, second);
    assert!(due(&facts) - second > pause + chrono::TimeDelta::seconds(lease), "and it grows");

    let mut facts = Facts::submitted();
    facts.stored();
    let first = facts.about_task(Message::PostprocessDue);
    facts.call(&ProcessMedia, &first, later(63));
    nothing_begins_beside(&mut facts, &ProcessMedia, Message::PostprocessDue, later(62 + lease));
    facts.call(&ProcessMedia, &first, later(63 + lease));
    assert_eq!(unanswered(&facts), 2, "it is tried again");
}

#[test]
fn the_last_try_keeps_its_lease_too() {
    let (mut facts, requested, call) = rendering();
    for _ in 1..facts.policy.max_processing_tries {
        let at = due(&facts);
        facts.call(&RenderExport, &requested, at);
    }
    let at = due(&facts) - chrono::TimeDelta::seconds(1);
    nothing_begins_beside(&mut facts, &RenderExport, Message::RenderDue, at);
    // The first try answers after all, long after its lease: the work is done.
    let stored = Answer::Rendered(Rendered::Stored(object("video.mp4", "video/mp4")));
    facts.answer(&RenderExport, &requested, &call, stored, at).0.expect("a late answer is an answer");
    assert_eq!(facts.states().0, State::MediaProcessing);
}

#[test]
fn a_late_answer_of_the_first_try_finishes_the_task() {
    let mut facts = Facts::submitted();
    facts.stored();
    let due_first = facts.about_task(Message::PostprocessDue);
    let first = facts.call(&ProcessMedia, &due_first, later(63));
    let second_at = due(&facts);
    facts.call(&ProcessMedia, &due_first, second_at);
    facts.answer(&ProcessMedia, &due_first, &first, ready(), second_at).0.expect("it is done");
    assert_eq!(facts.states().0, State::Succeeded);
}

#[test]
fn an_input_that_kills_the_worker_is_not_tried_for_ever() {
    let (mut facts, requested, _) = rendering();
    let tries = facts.policy.max_processing_tries;
    assert_eq!(killed(&mut facts, &RenderExport, &requested) + 1, tries);
    assert!(matches!(facts.case.task.state, Task::Failed { class: ErrorClass::Output, .. }), "a render");
    let mut facts = Facts::submitted();
    facts.stored();
    let due = facts.about_task(Message::PostprocessDue);
    assert_eq!(killed(&mut facts, &ProcessMedia, &due), tries);
    assert!(matches!(facts.case.task.state, Task::Failed { class: ErrorClass::Output, .. }), "media processing");
    let mut facts = Facts::submitted();
    facts.policy.max_partial_seconds = 100_000;
    facts.stored();
    let due = facts.about_task(Message::PostprocessDue);
    let call = facts.call(&ProcessMedia, &due, later(63));
    facts.answer(&ProcessMedia, &due, &call, partial(), later(64)).0.expect("the video can be played");
    let due = facts.about_task(Message::PostprocessDue);
    assert_eq!(killed(&mut facts, &ProcessMedia, &due), tries);
    assert_eq!(facts.states().0, State::Succeeded, "a thumbnail that kills is forgone");
}

#[test]
fn an_answer_starts_the_count_of_tries_anew() {
    let mut facts = Facts::submitted();
    facts.stored();
    let mut at = later(63);
    for _ in 0..facts.policy.max_processing_tries + 2 {
        let due = facts.about_task(Message::PostprocessDue);
        let call = facts.call(&ProcessMedia, &due, at);
        let busy = Answer::Processed(Processed::NotNow { cause: not_now() });
        let (_, told) = facts.answer(&ProcessMedia, &due, &call, busy, at);
        at = told.iter().find_map(|(_, at)| *at).expect("a wake-up");
    }
    assert_eq!(facts.states().0, State::MediaProcessing);
    let due = facts.about_task(Message::PostprocessDue);
    let call = facts.call(&ProcessMedia, &due, later(4_000));
    let busy = Answer::Processed(Processed::NotNow { cause: not_now() });
    facts.answer(&ProcessMedia, &due, &call, busy, later(4_000)).0.expect("the limit of time");
    assert_eq!(facts.states().0, State::Failed);
}

/// A task whose video is handed out without its thumbnail.
fn partially_ready() -> (Facts, Message, Timestamp) {
    let mut facts = Facts::submitted();
    facts.stored();
    let due = facts.about_task(Message::PostprocessDue);
    let call = facts.call(&ProcessMedia, &due, later(63));
    let (next, told) = facts.answer(&ProcessMedia, &due, &call, partial(), later(64));
    assert_eq!((next, facts.states().0), (Ok(Next::Done), State::PartiallyReady));
    let (due, at) = told.into_iter().find(|(it, _)| matches!(it, Message::PostprocessDue(_))).expect("a wake-up");
    (facts, due, at.expect("later"))
}

#[test]
fn the_thumbnail_comes_after_the_video() {
    let (mut facts, due, at) = partially_ready();
    let refused = facts.ask(later(65), |turn| cancel(turn, "user:1".to_owned())).expect_err("the user has the video");
    assert_eq!(refused.code, "not_from_this_state");
    let call = facts.call(&ProcessMedia, &due, at);
    // The file is probed again; what the user was told stands.
    let other = Processed::Ready {
        probe: domain::outcome::Probe { duration_millis: Some(9_000), ..probe() },
        thumbnail: object("thumbnail.jpg", "image/jpeg"),
    };
    facts.answer(&ProcessMedia, &due, &call, Answer::Processed(other), at).0.expect("the thumbnail");
    assert!(matches!(facts.case.task.state, Task::Succeeded { charge: Credits(100), .. }));
}

#[test]
fn a_thumbnail_that_never_comes_is_forgone() {
    let (mut facts, due, at) = partially_ready();
    assert_eq!(wake_up(&facts.case, at), Some(due.clone()));
    let call = facts.call(&ProcessMedia, &due, at);
    facts.answer(&ProcessMedia, &due, &call, partial(), at).0.expect("put off");
    assert_eq!(facts.states().0, State::PartiallyReady);
    let due = facts.about_task(Message::PostprocessDue);
    assert_eq!(facts.react(&ProcessMedia, &due, later(4_000)).0, Ok(Next::Done));
    assert_eq!(facts.states().0, State::Succeeded);
}
