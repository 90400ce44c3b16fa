//! The test kit itself: each invariant finds what it is there for, and a story that goes otherwise says how.

use super::support::{attempt_id, export_order, later, now, object, order, probe, video};
use domain::id::{AttemptId, TaskId};
use domain::ledger::{self, Account, State};
use domain::money::Credits;
use domain::process::Change;
use domain::task::{self, ErrorClass};
use domain::testkit::invariants::{
    AllInvariants, Recorded, Violation, Watch, conserved_credits, gapless_stream, no_blind_resubmit,
    one_posting_per_key, one_winner, replayable, settled_by_verdict, terminal_is_terminal,
};
use domain::testkit::story::{When, given};
use domain::{attempt, id};
use uuid::Uuid;

fn of_task(event: task::Event) -> Change {
    Change::Task(order().task, event)
}

fn of_attempt(event: attempt::Event) -> Change {
    Change::Attempt(attempt_id(), event)
}

fn of_account(event: ledger::Event) -> Change {
    Change::Account(order().account, event)
}

/// Numbers changes as a store would.
fn recorded(changes: impl IntoIterator<Item = Change>) -> Vec<Recorded> {
    let mut history: Vec<Recorded> = vec![];
    for change in changes {
        let version = 1 + history.iter().filter(|it| it.stream() == change.stream()).count() as i64;
        history.push(Recorded { version, at: now(), change });
    }
    history
}

fn granted() -> Change {
    of_account(ledger::Event::Granted { key: "welcome".to_owned(), amount: Credits(500) })
}

fn held() -> Change {
    of_account(ledger::Event::Held { task: order().task, amount: order().hold, expires_at: None })
}

fn submitted() -> Change {
    of_task(task::Event::Submitted { order: order() })
}

fn planned(number: u32) -> Change {
    let event = attempt::Event::Planned { task: order().task, number, provider: "replicate".to_owned() };
    Change::Attempt(AttemptId::of(order().task, number), event)
}

fn begun(round: u32) -> Change {
    of_attempt(attempt::Event::SubmissionBegun { round, give_up_at: later(45) })
}

fn accepted(job: &str) -> Change {
    of_attempt(attempt::Event::Accepted {
        job: job.to_owned(),
        how: attempt::Heard::Answer,
        next_poll_at: later(2),
        give_up_at: later(600),
    })
}

fn failed() -> Change {
    of_task(task::Event::Failed { class: ErrorClass::Provider, code: "x".to_owned(), message: "y".to_owned() })
}

/// A task whose submission has begun.
fn tried() -> Vec<Change> {
    vec![submitted(), of_task(task::Event::SubmissionBegun { attempt_no: 1 })]
}

fn delivered() -> Vec<Change> {
    vec![
        granted(),
        held(),
        submitted(),
        of_task(task::Event::SubmissionBegun { attempt_no: 1 }),
        planned(1),
        begun(1),
        accepted("job-1"),
        of_task(task::Event::Accepted {}),
        of_attempt(attempt::Event::Succeeded { usage_millis: None }),
        of_task(task::Event::FetchBegun { at: now() }),
        stored(video()),
    ]
}

fn attempt_failed() -> Change {
    of_attempt(attempt::Event::Failed { class: ErrorClass::Provider, code: "x".to_owned(), message: "y".to_owned() })
}

fn stored(video: task::Video) -> Change {
    of_task(task::Event::VideoStored { video, at: now() })
}

/// The video of the export that has the task's id.
fn rendered() -> task::Video {
    task::Video { asset: id::AssetId::of_export(order().task, "video"), ..video() }
}

/// An export up to its stored video.
fn export() -> Vec<Change> {
    let order = task::Order { work: export_order(720).work, ..order() };
    let begun = of_task(task::Event::RenderBegun { at: now() });
    vec![granted(), held(), of_task(task::Event::Submitted { order }), begun, stored(rendered())]
}

/// A task that fetches the output of its second attempt.
fn second_attempt() -> Vec<Change> {
    let mut changes = delivered()[..8].to_vec();
    let second = |event| Change::Attempt(AttemptId::of(order().task, 2), event);
    changes.extend([
        attempt_failed(),
        of_task(task::Event::AttemptReplaced { retry_at: now(), reason: "x".to_owned() }),
        of_task(task::Event::SubmissionBegun { attempt_no: 2 }),
        planned(2),
        second(attempt::Event::SubmissionBegun { round: 1, give_up_at: later(45) }),
        second(attempt::Event::Accepted {
            job: "job-2".to_owned(),
            how: attempt::Heard::Answer,
            next_poll_at: later(2),
            give_up_at: later(600),
        }),
        of_task(task::Event::Accepted {}),
        second(attempt::Event::Succeeded { usage_millis: None }),
        of_task(task::Event::FetchBegun { at: now() }),
    ]);
    changes
}

fn ready(charge: i64) -> Change {
    let (at, retry_at, cause) = (now(), later(5), "no picture".to_owned());
    of_task(task::Event::VideoReady { probe: probe(), charge: Credits(charge), at, retry_at, cause })
}

fn finished(charge: i64) -> Change {
    let thumbnail = Some(object("thumbnail.jpg", "image/jpeg"));
    of_task(task::Event::Succeeded { probe: probe(), thumbnail, charge: Credits(charge) })
}

fn settled(charged: i64) -> Change {
    let released = Credits(order().hold.0 - charged);
    of_account(ledger::Event::Settled { task: order().task, charged: Credits(charged), released })
}

fn released() -> Change {
    of_account(ledger::Event::Released { task: order().task, released: order().hold })
}

type Function = fn(&[Recorded]) -> Result<(), Violation>;

/// Each with a history that breaks it by its last event.
fn broken() -> Vec<(Function, &'static str, Vec<Change>)> {
    let plus = |mut changes: Vec<Change>, last: Change| {
        changes.push(last);
        changes
    };
    let then = |more: Vec<Change>| [delivered(), more].concat();
    let other_video = task::Video { asset: id::AssetId(Uuid::from_u128(1)), object: object("x.mp4", "video/mp4") };
    let refund = ledger::Event::Refunded {
        task: order().task,
        key: "a".to_owned(),
        amount: Credits(101),
        reason: "owed".to_owned(),
    };
    let orphan = ledger::Event::Released { task: TaskId(Uuid::from_u128(99)), released: Credits(1) };
    vec![
        (
            terminal_is_terminal,
            "terminal-is-terminal",
            [tried(), vec![failed(), of_task(task::Event::Accepted {})]].concat(),
        ),
        (one_winner, "one-winner", then(vec![stored(video())])),
        (one_winner, "one-winner", plus(delivered()[..10].to_vec(), stored(other_video))),
        (one_winner, "one-winner", plus(delivered()[..8].to_vec(), stored(video()))),
        (one_winner, "one-winner", plus(delivered()[..10].to_vec(), finished(100))),
        (one_winner, "one-winner", plus(export()[..3].to_vec(), stored(rendered()))),
        (one_winner, "one-winner", plus(export()[..4].to_vec(), stored(video()))),
        (one_winner, "one-winner", plus(second_attempt(), stored(video()))),
        (one_winner, "one-winner", plus(delivered()[..10].to_vec(), ready(100))),
        (one_winner, "one-winner", then(vec![ready(100), ready(100)])),
        (one_winner, "one-winner", then(vec![ready(100), failed()])),
        (no_blind_resubmit, "no-blind-resubmit", vec![planned(1), begun(1), begun(2)]),
        (no_blind_resubmit, "no-blind-resubmit", vec![planned(1), begun(2)]),
        (no_blind_resubmit, "no-blind-resubmit", vec![planned(1), begun(1), planned(2)]),
        (no_blind_resubmit, "no-blind-resubmit", vec![planned(1), planned(2)]),
        (no_blind_resubmit, "no-blind-resubmit", vec![planned(2)]),
        (no_blind_resubmit, "no-blind-resubmit", vec![planned(1), planned(1)]),
        (no_blind_resubmit, "no-blind-resubmit", vec![planned(1), begun(1), accepted("a"), accepted("b")]),
        (
            no_blind_resubmit,
            "no-blind-resubmit",
            vec![planned(1), begun(1), attempt_failed(), planned(2), accepted("a")],
        ),
        (no_blind_resubmit, "no-blind-resubmit", vec![planned(1), accepted("a")]),
        (conserved_credits, "conserved-credits", vec![held()]),
        (conserved_credits, "conserved-credits", vec![granted(), held(), released(), released()]),
        (conserved_credits, "conserved-credits", vec![granted(), of_account(orphan)]),
        (conserved_credits, "conserved-credits", vec![granted(), held(), settled(100), of_account(refund)]),
        (one_posting_per_key, "one-posting-per-key", vec![granted(), granted()]),
        (one_posting_per_key, "one-posting-per-key", vec![granted(), held(), settled(1), released()]),
        (settled_by_verdict, "settled-by-verdict", vec![granted(), submitted()]),
        (settled_by_verdict, "settled-by-verdict", vec![granted(), held(), submitted(), released()]),
        (settled_by_verdict, "settled-by-verdict", vec![granted(), held(), submitted(), settled(100)]),
        (settled_by_verdict, "settled-by-verdict", then(vec![ready(100), finished(75)])),
        (settled_by_verdict, "settled-by-verdict", then(vec![finished(100), settled(120)])),
        (settled_by_verdict, "settled-by-verdict", then(vec![finished(100), released()])),
        (replayable, "replayable", vec![submitted(), of_task(task::Event::FetchBegun { at: now() })]),
    ]
}

#[test]
fn each_invariant_finds_what_breaks_it() {
    for (number, (function, invariant, changes)) in broken().into_iter().enumerate() {
        let history = recorded(changes);
        let last = history.last().expect("an event");
        let (before, violation) = (&history[..history.len() - 1], function(&history).expect_err(invariant));
        assert_eq!(function(before), Ok(()), "{number}: it is the last event that breaks {invariant}");
        assert_eq!(
            (violation.invariant, violation.stream, violation.version),
            (invariant, last.stream(), last.version)
        );
        assert!(!violation.sentence.is_empty());
        // The same by a watcher that is asked after each event, together with all others.
        let mut watch = AllInvariants::default();
        let found = history.iter().find_map(|it| watch.observe(it).err());
        assert!(found.is_some(), "{number}: all invariants together do not see that {invariant} is broken");
    }
}

#[test]
fn a_hole_and_a_repeat_are_found() {
    let mut history = recorded(delivered());
    assert_eq!(gapless_stream(&history), Ok(()));
    let last = history.len() - 1;
    for version in [history[last].version - 1, history[last].version + 1] {
        history[last].version = version;
        assert_eq!(gapless_stream(&history).expect_err("a hole or a repeat").version, version);
    }
}

#[test]
fn at_rest_a_task_has_ended_and_its_hold_is_closed() {
    let at_rest = |more: Vec<Change>| {
        let mut watch = AllInvariants::default();
        for it in recorded([delivered(), more].concat()) {
            watch.observe(&it)?;
        }
        watch.at_rest()
    };
    assert_eq!(at_rest(vec![]).expect_err("it has not ended").invariant, "no-silent-stall");
    assert_eq!(at_rest(vec![finished(100)]).expect_err("it is not settled").invariant, "settled-by-verdict");
    assert_eq!(at_rest(vec![finished(100), settled(100)]), Ok(()));
}

#[test]
fn exports_second_attempts_and_late_thumbnails_break_nothing() {
    let mine = task::Video { asset: id::AssetId::of(AttemptId::of(order().task, 2), "video"), ..video() };
    let whole = |before: Vec<Change>, more: Vec<Change>| {
        let mut watch = AllInvariants::default();
        for it in recorded([before, more, vec![finished(100), settled(100)]].concat()) {
            watch.observe(&it)?;
        }
        watch.at_rest()
    };
    assert_eq!(whole(export(), vec![]), Ok(()));
    assert_eq!(whole(second_attempt(), vec![stored(mine)]), Ok(()));
    assert_eq!(whole(delivered(), vec![ready(100)]), Ok(()));
}

/// What a story that goes otherwise says.
fn told(story: impl FnOnce() + std::panic::UnwindSafe) -> String {
    let panic = std::panic::catch_unwind(story).expect_err("it goes otherwise");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

type Expectation = fn(When<Account>);

#[test]
fn a_story_that_goes_otherwise_says_how() {
    let account = || given::<Account>([ledger::Event::Granted { key: "welcome".to_owned(), amount: Credits(7) }]);
    let hold = || ledger::Command::Hold { task: order().task, amount: Credits(5), expires_at: None };
    let expectations: [(&str, Expectation); 4] = [
        ("wanted  nothing", |when| drop(when.then([]))),
        ("wanted  a refusal: insufficient_credits", |when| drop(when.then_refused("insufficient_credits"))),
        ("wanted  already so", |when| drop(when.then_already_so())),
        ("wanted  to be in SETTLED", |when| drop(when.then_state(State::Settled))),
    ];
    for (wanted, expect) in expectations {
        let text = told(move || expect(account().when(hold())));
        for part in [wanted, "account", "Granted", "welcome", "Hold {", "Credits(5)"] {
            assert!(text.contains(part), "{part:?} is not in:\n{text}");
        }
    }
    let refused =
        told(|| drop(account().when(ledger::Command::Release { task: order().task }).then_state(State::Released)));
    for part in ["NO_POSTING", "wanted  to reach RELEASED", "a refusal: not_from_this_state"] {
        assert!(refused.contains(part), "{part:?} is not in:\n{refused}");
    }
    let never = told(|| {
        drop(given::<Account>([ledger::Event::Released { task: order().task, released: Credits(1) }]).at(now()))
    });
    assert!(never.contains("this can not be given"), "{never}");
}
