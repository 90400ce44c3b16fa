//! The whole chain of one task, through the real process managers: whatever repeats, overtakes, gets lost or dies.

use super::outside::{Ending, Outside, Troubles};
use super::support::{attempt_id, export_order, order};
use super::world::{Person, World, is_over};
use domain::aggregate::Aggregate;
use domain::attempt::{self, Attempt};
use domain::id::{AttemptId, TaskId};
use domain::message::Message;
use domain::message::kinds::{AttemptRef, CallbackRef, TaskRef};
use domain::money::Credits;
use domain::outcome::{Answer, Call, CancelAsked, Created, FaultClass, Found, JobState, Polled, ProviderFault};
use domain::process::{CancelRule, Change, Policy};
use domain::stored::StoredEvent;
use domain::task::{self, State, Task};
use domain::testkit::strategies::schedules;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::HashSet;

const FAULTS: [FaultClass; 4] =
    [FaultClass::Moderation, FaultClass::BadRequest, FaultClass::Account, FaultClass::Internal];

fn endings() -> Vec<Ending> {
    let mut endings = vec![Ending::Succeeds, Ending::Cancels, Ending::NeverEnds, Ending::Unrecognised];
    endings.extend(FAULTS.map(Ending::Fails));
    endings
}

/// What happens around one task.
#[derive(Debug)]
struct Life {
    luck: Vec<u8>,
    outside: Outside,
    people: Vec<(usize, Person)>,
    cancel_rule: CancelRule,
    max_attempts: u32,
    is_export: bool,
    tries_again: bool,
}

fn outsides() -> impl Strategy<Value = Outside> {
    let endings = prop::collection::vec(prop::sample::select(endings()), 1..=3);
    let survives_media = prop::option::weighted(0.2, 0_usize..3);
    let seldom = || prop::bool::weighted(0.2);
    (endings, survives_media, any::<bool>(), seldom(), seldom()).prop_map(
        |(endings, survives_media, first_thumbnail_fails, ignores_cancels, no_look_up)| {
            let troubles = Troubles { survives_media, first_thumbnail_fails, ignores_cancels, no_look_up };
            Outside::new(endings, troubles)
        },
    )
}

fn lives() -> BoxedStrategy<Life> {
    let luck = prop::collection::vec(any::<u8>(), 0..200);
    let people = prop::collection::vec((0_usize..80, prop::sample::select(Person::ALL.to_vec())), 0..4);
    let cancel_rule = prop::sample::select(vec![CancelRule::Deliver, CancelRule::Discard]);
    (luck, outsides(), people, cancel_rule, 1_u32..=3, prop::bool::weighted(0.25), any::<bool>())
        .prop_map(|(luck, outside, people, cancel_rule, max_attempts, is_export, tries_again)| Life {
            luck,
            outside,
            people,
            cancel_rule,
            max_attempts,
            is_export,
            tries_again,
        })
        .boxed()
}

impl Life {
    /// Lives it to its end. Also says how many tasks there were: one, or two where it was tried again.
    fn live(self) -> (World, usize) {
        let policy = Policy { cancel_rule: self.cancel_rule, max_attempts: self.max_attempts, ..Policy::default() };
        let order = if self.is_export { export_order(720) } else { order() };
        let mut world = World::of(order, self.outside, self.luck, policy);
        for step in 0..80 {
            for (_, person) in self.people.iter().filter(|(at, _)| *at == step) {
                world.act(*person).ok();
            }
            world.stumble();
        }
        world.come_to_rest();
        world.call_back_all();
        world.come_to_rest();
        let mut tasks = 1;
        if self.tries_again && world.try_again(TaskId(uuid::Uuid::from_u128(50))).is_ok() {
            tasks += 1;
            world.come_to_rest();
        }
        resolve(&mut world);
        (world, tasks)
    }
}

/// Operators take care of what is in review, until it has ended.
fn resolve(world: &mut World) {
    for person in [Person::TriesAgain, Person::Adopts, Person::CallsOff] {
        if world.act(person).is_ok() {
            world.come_to_rest();
        }
    }
    assert!(world.task().state().is_terminal(), "{:?}\n{}", world.task(), world.story());
}

fn rule(rule: CancelRule) -> Policy {
    Policy { cancel_rule: rule, ..Policy::default() }
}

fn want_cancel(world: &mut World) -> Result<(), domain::aggregate::Refusal> {
    world.act(Person::Cancels)
}

/// All orders of a list.
fn permutations<T: Clone>(items: &[T]) -> Vec<Vec<T>> {
    if items.is_empty() {
        return vec![vec![]];
    }
    let mut all = vec![];
    for number in 0..items.len() {
        let mut rest = items.to_vec();
        let first = rest.remove(number);
        all.extend(permutations(&rest).into_iter().map(|mut tail| {
            tail.insert(0, first.clone());
            tail
        }));
    }
    all
}

/// A world whose provider has the job.
fn running(policy: Policy) -> (World, Message) {
    let mut world = World::submitted(vec![], Ending::Succeeds, policy);
    let submit = Message::SubmitRequested(TaskRef { task_id: order().task, task_version: 1 });
    let call = world.deliver(&submit).expect("it goes").expect("it calls");
    let accepted = Answer::Created(Created::Accepted { job: "job-1".to_owned() });
    world.answer(&submit, &call, accepted).expect("it is accepted");
    let version = 3;
    (world, Message::PollDue(AttemptRef { task_id: order().task, attempt_id: attempt_id(), version }))
}

fn poll() -> Call {
    Call::Poll { job: "job-1".to_owned(), poll: 0 }
}

fn fault() -> ProviderFault {
    ProviderFault { class: FaultClass::Internal, code: "broke".to_owned(), message: "it broke".to_owned() }
}

fn succeeded() -> JobState {
    JobState::Succeeded { output_url: "https://out".to_owned(), usage_millis: None }
}

/// A property over lives in which little happens shows little: together they bring about every event of tasks and attempts.
#[test]
fn lives_bring_about_every_event() {
    let names = [task::Event::NAMES, attempt::Event::NAMES].concat();
    let mut missing: HashSet<&str> = names.into_iter().map(|(name, _)| name).collect();
    let mut runner = TestRunner::deterministic();
    for _ in 0..2_000 {
        let life = lives().new_tree(&mut runner).expect("nothing is filtered").current();
        for recorded in &life.live().0.history {
            let name = match &recorded.change {
                Change::Task(_, event) => event.name(),
                Change::Attempt(_, event) => event.name(),
                Change::Account(..) => continue,
            };
            missing.remove(name);
        }
        if missing.is_empty() {
            return;
        }
    }
    panic!("no life brings about {missing:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// E1, L5, L6, S1, S3, S4 and S5 at once: any luck, any ends of the jobs, one attempt or several, a generation or an export, media
    /// that kill their worker, people who act at any time. All invariants hold at every commit, the task comes to a named end, at
    /// the latest by a person, the hold is closed once, and no attempt is created twice.
    #[test]
    fn any_luck_comes_to_an_end(life in lives()) {
        let max_attempts = life.max_attempts as usize;
        let (world, tasks) = life.live();
        prop_assert_eq!(world.closings(), tasks, "{}", world.story());
        let charged = world.account().charged;
        prop_assert_eq!(charged > Credits::ZERO, matches!(world.task(), Task::Succeeded { .. }), "{}", world.story());
        if world.count(|it| matches!(it, task::Event::RetryRequested { .. })) == 0 {
            prop_assert!(world.attempts().count() <= max_attempts, "{}", world.story());
        }
    }

    /// S4: the provider breaks once or twice and the policy allows further attempts; callbacks of all jobs come at any time. One
    /// attempt delivers, once, and nobody is charged for the others.
    #[test]
    fn of_several_attempts_one_delivers(luck in prop::collection::vec(any::<u8>(), 0..160), broken in 1_usize..=2) {
        let mut endings = vec![Ending::Fails(FaultClass::Internal); broken];
        endings.push(Ending::Succeeds);
        let policy = Policy { max_attempts: 3, ..Policy::default() };
        let mut world = World::of(order(), Outside::new(endings, Troubles::default()), luck, policy);
        for _ in 0..100 {
            world.stumble();
        }
        world.come_to_rest();
        resolve(&mut world);
        let winners = world.attempts().filter(|it| matches!(it, Attempt::Succeeded { .. })).count();
        let videos = world.count(|it| matches!(it, task::Event::VideoStored { .. }));
        prop_assert!(winners <= 1 && videos <= winners, "{winners} winners, {videos} videos\n{}", world.story());
        prop_assert_eq!(world.closings(), 1);
        let delivered = matches!(world.task(), Task::Succeeded { .. });
        prop_assert_eq!(world.account().charged, if delivered { Credits(100) } else { Credits::ZERO });
    }

    /// S2: a cancel at any of 50 points, the provider's calls held for as long as luck has it. The task is not CANCELED while its
    /// attempt may have left and nobody knows what became of it; the cancel is not lost: without an output there is no success
    /// but by the product rule.
    #[test]
    fn a_cancel_is_confirmed_only_when_nothing_runs(luck in prop::collection::vec(any::<u8>(), 0..120), point in 0_usize..50) {
        let mut world = World::submitted(luck, Ending::NeverEnds, rule(CancelRule::Discard));
        let mut asked = false;
        for step in 0..60 {
            if step == point {
                asked = want_cancel(&mut world).is_ok();
            }
            world.stumble();
            if matches!(world.task(), Task::Canceled(_)) {
                for attempt in world.attempts() {
                    let nothing_runs = is_over(attempt) && !matches!(attempt, Attempt::Succeeded { .. });
                    prop_assert!(nothing_runs, "canceled, and an attempt is {:?}", attempt);
                }
            }
        }
        world.come_to_rest();
        if asked {
            let end = world.task().state();
            prop_assert!(matches!(end, State::Canceled | State::ManualReview), "a cancel was lost: {:?}", end);
        }
    }

    /// L9: the message that settles comes up to three times, early, late, by replay: one posting, and nothing once it is posted.
    #[test]
    fn a_settlement_is_posted_once(
        schedule in schedules(vec![1_i64, 2, 3, 4, 5]),
        ending in prop::sample::select(vec![Ending::Succeeds, Ending::Fails(FaultClass::Internal)]),
    ) {
        let mut world = World::submitted(vec![], ending, Policy::default());
        let settle = |version| Message::SettleRequested(TaskRef { task_id: order().task, task_version: version });
        prop_assert_eq!(world.deliver(&settle(1)).expect_err("there is no verdict yet").code, "stale");
        world.come_to_rest();
        prop_assert_eq!(world.closings(), 1);
        let before = world.account().clone();
        for delivery in schedule {
            world.now = world.now.max(delivery.at);
            prop_assert_eq!(world.deliver(&settle(delivery.message)), Ok(None), "a repeat is handled, and posts nothing");
        }
        prop_assert_eq!(world.account(), &before);
        prop_assert_eq!(world.closings(), 1);
    }

    /// S4: the callbacks of two jobs for one attempt, in any order and number: the first that is heard of wins, the other is
    /// recorded as an orphan, once, and nobody is charged for it.
    #[test]
    fn of_two_jobs_one_wins(schedule in schedules(vec!["job-1", "job-2"])) {
        let mut world = World::submitted(vec![], Ending::Succeeds, Policy::default());
        let submit = Message::SubmitRequested(TaskRef { task_id: order().task, task_version: 1 });
        let call = world.deliver(&submit).expect("it goes").expect("it calls");
        world.answer(&submit, &call, Answer::Created(Created::Unknown { cause: "reset".to_owned() })).expect("lost");
        let first = schedule[0].message;
        for delivery in &schedule {
            let job = delivery.message.to_owned();
            let callback =
                Message::CallbackReceived(CallbackRef { task_id: order().task, attempt_id: attempt_id(), job: job.clone() });
            world.now = world.now.max(delivery.at);
            let mut call = world.deliver(&callback).ok().flatten();
            if let Some(Call::Poll { job: asked, .. }) = &call {
                prop_assert_eq!(asked, first);
                call = world.answer(&callback, &poll_of(first), Answer::Polled(Polled::State(succeeded()))).ok().flatten();
            }
            prop_assert_eq!(call, None);
        }
        let orphan = if first == "job-1" { "job-2" } else { "job-1" };
        let core = world.attempt().core().expect("an attempt");
        prop_assert_eq!(&core.orphans, &vec![orphan.to_owned()]);
        world.come_to_rest();
        let videos = world.history.iter().filter(|it| matches!(it.change, Change::Task(_, task::Event::VideoStored { .. })));
        prop_assert_eq!((videos.count(), world.closings()), (1, 1));
        prop_assert_eq!(world.task().state(), State::Succeeded);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// W2 and L6: the messages of a whole life, in any order, each up to three times, before and after their time: the end is the
    /// same as in the right order.
    #[test]
    fn any_schedule_of_a_lifes_messages_ends_alike(
        schedule in schedules(life()),
        ending in prop::sample::select(endings()),
    ) {
        // The schedule holds messages up for an hour; that may not be what ends the task.
        let patient = Policy { max_running_seconds: 8_000, ..Policy::default() };
        let mut straight = World::submitted(vec![], ending, patient.clone());
        straight.come_to_rest();
        let mut world = World::submitted(vec![], ending, patient);
        for delivery in schedule {
            world.now = world.now.max(delivery.at);
            let mut call = world.deliver(&delivery.message).ok().flatten();
            while let Some(made) = call {
                let answer = world.reply(&made).expect("nobody dies");
                call = world.answer(&delivery.message, &made, answer).ok().flatten();
            }
        }
        world.come_to_rest();
        prop_assert_eq!(world.task().state(), straight.task().state());
        prop_assert_eq!(world.account(), straight.account());
    }
}

fn poll_of(job: &str) -> Call {
    Call::Poll { job: job.to_owned(), poll: 0 }
}

/// Every message that a straight life of a task brings about.
fn life() -> Vec<Message> {
    let task = |task_version| TaskRef { task_id: order().task, task_version };
    let attempt = |version| AttemptRef { task_id: order().task, attempt_id: attempt_id(), version };
    vec![
        Message::SubmitRequested(task(1)),
        Message::SubmitDue(task(2)),
        Message::PollDue(attempt(3)),
        Message::PollDue(attempt(4)),
        Message::PollDue(attempt(5)),
        Message::ReconcileDue(attempt(3)),
        Message::FetchRequested(attempt(4)),
        Message::PostprocessRequested(attempt(5)),
        Message::PostprocessDue(task(6)),
        Message::SettleRequested(task(7)),
        Message::StateChanged(task(7)),
    ]
}

/// W2: what a provider says of a job, in all 24 orders, asked four times at once: the same end, and progress never goes back.
#[test]
fn answers_in_any_order_come_to_the_same_end() {
    let answers =
        [JobState::Queued, JobState::Running { percent: None }, JobState::Running { percent: Some(40) }, succeeded()];
    for order_of in permutations(&answers) {
        let (mut world, message) = running(Policy::default());
        let mut seen = None;
        for state in &order_of {
            world.answer(&message, &poll(), Answer::Polled(Polled::State(state.clone()))).ok();
            if let Attempt::Running { percent, .. } = world.attempt() {
                assert!(*percent >= seen, "progress went back from {seen:?} to {percent:?}: {order_of:?}");
                seen = *percent;
            }
        }
        assert_eq!(world.task().state(), State::Fetching, "{order_of:?}");
        assert_eq!(world.attempt().state(), attempt::State::Succeeded, "{order_of:?}");
        world.come_to_rest();
        assert_eq!((world.task().state(), world.closings()), (State::Succeeded, 1), "{order_of:?}");
    }
}

/// S1: after a cancel: completed, failed, in progress, cancelled, in all 24 orders, under both product rules. The first that is
/// final decides, the others change nothing; the credits are decided on once.
#[test]
fn after_a_cancel_the_first_final_word_counts() {
    let answers = [succeeded(), JobState::Failed(fault()), JobState::Running { percent: Some(90) }, JobState::Canceled];
    for keep in [CancelRule::Deliver, CancelRule::Discard] {
        for order_of in permutations(&answers) {
            let (mut world, message) = running(rule(keep));
            want_cancel(&mut world).expect("it can still be cancelled");
            for state in &order_of {
                world.answer(&message, &poll(), Answer::Polled(Polled::State(state.clone()))).ok();
            }
            world.come_to_rest();
            let first = order_of.iter().find(|it| !matches!(it, JobState::Running { .. })).expect("one is final");
            let expected = match (first, keep) {
                (JobState::Succeeded { .. }, CancelRule::Deliver) => State::Succeeded,
                (JobState::Succeeded { .. }, CancelRule::Discard) => State::CanceledWithOutput,
                _ => State::Canceled,
            };
            assert_eq!((world.task().state(), world.closings()), (expected, 1), "{order_of:?}");
            let charged = world.account().charged > Credits::ZERO;
            assert_eq!(charged, expected == State::Succeeded, "{order_of:?}");
        }
    }
}

/// S3: the provider's cancel fails halfway, in each way it can. The task waits in CANCEL_RECONCILING for the job's own word,
/// and then ends; it is never a success without one.
#[test]
fn a_cancel_that_fails_halfway_ends_all_the_same() {
    for said in [
        CancelAsked::Requested,
        CancelAsked::AlreadyEnded,
        CancelAsked::NotFound,
        CancelAsked::NotPossible,
        CancelAsked::Unknown,
    ] {
        for (word, end) in [
            (JobState::Canceled, State::Canceled),
            (JobState::Failed(fault()), State::Canceled),
            (succeeded(), State::CanceledWithOutput),
        ] {
            let (mut world, _) = running(rule(CancelRule::Discard));
            want_cancel(&mut world).expect("it can still be cancelled");
            let due = world
                .queue
                .iter()
                .find(|it| matches!(it.1, Message::ReconcileDue(_)))
                .expect("it is followed up")
                .1
                .clone();
            let call = world.deliver(&due).expect("it goes").expect("it calls");
            assert_eq!(call, Call::Cancel { job: "job-1".to_owned() });
            let then = world.answer(&due, &call, Answer::CancelAsked(said)).expect("whatever it said");
            assert_eq!(then, Some(poll()), "only the job's own state tells");
            assert_eq!(world.task().state(), State::CancelReconciling, "{said:?}");
            let unknown = Polled::Unavailable { cause: "timeout".to_owned(), retry_after: None };
            world.answer(&due, &poll(), Answer::Polled(unknown)).expect("asked again later");
            assert_eq!(world.task().state(), State::CancelReconciling, "{said:?}");
            world.answer(&due, &poll(), Answer::Polled(Polled::State(word.clone()))).expect("a final word");
            world.come_to_rest();
            assert_eq!((world.task().state(), world.closings()), (end, 1), "{said:?} {word:?}");
        }
    }
}

/// S5: a worker that dies at every create call, after the request has left or before: each round counts, nothing is submitted
/// blindly, and the task's own limit ends it.
#[test]
fn a_worker_that_always_dies_does_not_go_on_for_ever() {
    let mut world = World::submitted(vec![], Ending::Succeeds, Policy::default());
    let mut rounds = 0;
    for _ in 0..10_000 {
        if world.task().state().is_terminal() {
            break;
        }
        world.queue.sort_by_key(|it| it.0);
        let message = if world.queue.is_empty() { world.scan() } else { Some(world.queue.remove(0)) };
        let Some((due, message)) = message else { continue };
        world.now = world.now.max(due);
        match world.deliver(&message).ok().flatten() {
            // It dies: nobody ever concludes.
            Some(Call::Create { .. }) => rounds += 1,
            Some(call @ Call::Find { .. }) => {
                world.answer(&message, &call, Answer::Found(Found::Absent)).expect("nothing was created");
            }
            _ => {}
        }
    }
    assert_eq!(world.task().state(), State::Failed, "{}", world.story());
    let counted = world
        .history
        .iter()
        .filter(|it| matches!(it.change, Change::Attempt(_, attempt::Event::SubmissionBegun { .. })));
    assert_eq!(counted.count(), rounds, "each call was counted before it was made");
    assert!((2..100).contains(&rounds), "{rounds} rounds");
}

/// S5: media that kill their worker each time, at an export's render, at the probe, or once the video is handed out. Each try is
/// counted before it begins, and the limit ends it: without a video as failed, with one as succeeded. A thumbnail is given more
/// time here than by default, where the time would end it before the count.
#[test]
fn media_that_kill_their_worker_are_not_tried_for_ever() {
    for (order, survived, first_thumbnail_fails, end) in [
        (export_order(720), 0, false, State::Failed),
        (export_order(720), 1, false, State::Failed),
        (order(), 0, false, State::Failed),
        (order(), 1, true, State::Succeeded),
    ] {
        let troubles = Troubles { survives_media: Some(survived), first_thumbnail_fails, ..Troubles::default() };
        let outside = Outside::new(vec![Ending::Succeeds], troubles);
        let policy = Policy { max_partial_seconds: 86_400, ..Policy::default() };
        let mut world = World::of(order, outside, vec![], policy);
        world.come_to_rest();
        assert_eq!(world.task().state(), end, "{}", world.story());
        let begun = world.count(|it| matches!(it, task::Event::ProcessingBegun { .. }));
        assert_eq!(begun, Policy::default().max_processing_tries as usize + survived, "{}", world.story());
        assert_eq!(world.closings(), 1);
    }
}

/// Two writers on one version: the store takes one, and the other decides again on what is there now, with the same end as if it
/// had come later.
#[test]
fn the_writer_that_lost_decides_again() {
    let (mut world, message) = running(Policy::default());
    let late = world.attempt().clone();
    world.answer(&message, &poll(), Answer::Polled(Polled::State(JobState::Failed(fault())))).expect("it failed");
    let stale = late.decide(attempt::Command::Succeed { usage_millis: None }, world.now);
    assert!(stale.is_ok(), "on what it had read it would have succeeded");
    let again = world.answer(&message, &poll(), Answer::Polled(Polled::State(succeeded())));
    assert_eq!(again.expect_err("on what is there now it does not").code, "stale");
    assert_eq!(AttemptId::of(order().task, 1), attempt_id());
    assert_eq!(world.task().state(), State::Failed);
}
