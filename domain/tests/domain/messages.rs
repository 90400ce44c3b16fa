//! How many messages a task takes, by a simulated clock: the broker's load is tasks times this.

use super::facts::Facts;
use super::support::{now, object, probe};
use chrono::TimeDelta;
use domain::message::Message;
use domain::outcome::{Answer, Call, Created, Fetched, JobState, Polled, Processed};
use domain::process::{Next, Policy, manager_of};
use domain::task::State;
use domain::time::Timestamp;
use std::collections::BTreeMap;

/// A job that takes five minutes.
const RUNS: TimeDelta = TimeDelta::seconds(300);

/// What becomes of the job, and what is said of it.
struct Provider {
    calls_back: bool,
    says_progress: bool,
    begun: Option<Timestamp>,
}

impl Provider {
    fn answer(&mut self, call: &Call, at: Timestamp) -> Answer {
        match call {
            Call::Create { .. } => {
                self.begun = Some(at);
                Answer::Created(Created::Accepted { job: "job-1".to_owned() })
            }
            Call::Poll { .. } => Answer::Polled(Polled::State(self.state(at))),
            Call::Fetch { key, .. } => Answer::Fetched(Fetched::Stored(object(key, "video/mp4"))),
            Call::Process { .. } => {
                Answer::Processed(Processed::Ready { probe: probe(), thumbnail: object("thumbnail.jpg", "image/jpeg") })
            }
            other => panic!("nothing goes wrong, yet {other:?}"),
        }
    }

    fn state(&self, at: Timestamp) -> JobState {
        let age = at - self.begun.expect("it is asked about after it was begun");
        if age >= RUNS {
            return JobState::Succeeded { output_url: "https://out.example".to_owned(), usage_millis: None };
        }
        let percent = (age.num_seconds() * 100 / RUNS.num_seconds()).try_into().ok();
        JobState::Running { percent: percent.filter(|_| self.says_progress) }
    }
}

/// The messages of one task from its submission to its settlement, by kind; what nobody waits for any more included.
fn messages(mut provider: Provider) -> BTreeMap<&'static str, usize> {
    let mut facts = Facts::submitted();
    facts.policy = Policy::default();
    if provider.calls_back {
        facts.policy.calling_back.insert("replicate".to_owned());
    }
    let mut queue = vec![(now(), facts.about_task(Message::SubmitRequested))];
    let mut counts = BTreeMap::new();
    let mut clock = now();
    while !queue.is_empty() {
        queue.sort_by_key(|(due, _)| *due);
        let (due, message) = queue.remove(0);
        clock = clock.max(due);
        *counts.entry(message.event_type()).or_default() += 1;
        let manager = manager_of(message.topic());
        let (mut next, mut told) = facts.react(manager, &message, clock);
        loop {
            queue.extend(told.iter().map(|(message, at)| (at.unwrap_or(clock), message.clone())));
            (next, told) = match next {
                Ok(Next::Call(call)) => {
                    let answer = provider.answer(&call, clock);
                    if matches!(call, Call::Create { .. }) && provider.calls_back {
                        queue.push((clock + RUNS, Facts::callback("job-1")));
                    }
                    facts.answer(manager, &message, &call, answer, clock)
                }
                Ok(Next::Again) => facts.react(manager, &message, clock),
                _ => break,
            };
        }
    }
    assert_eq!(facts.states().0, State::Succeeded, "{counts:?}");
    counts
}

fn total(counts: &BTreeMap<&'static str, usize>) -> usize {
    counts.values().sum()
}

#[test]
fn a_task_of_five_minutes_takes_twelve_messages_with_callbacks_and_sixteen_without() {
    let told = messages(Provider { calls_back: true, says_progress: false, begun: None });
    let polled = messages(Provider { calls_back: false, says_progress: false, begun: None });
    let progress = messages(Provider { calls_back: false, says_progress: true, begun: None });
    println!("with callbacks {}: {told:?}", total(&told));
    println!("by polling alone {}: {polled:?}", total(&polled));
    println!("by polling alone, with progress {}: {progress:?}", total(&progress));
    assert!(total(&told) <= 12, "{told:?}");
    assert!(total(&polled) <= 16, "{polled:?}");
    assert!(total(&progress) <= 16, "{progress:?}");
}
