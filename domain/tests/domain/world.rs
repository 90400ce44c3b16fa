//! One task's whole chain in memory: facts with a version check, messages that repeat, overtake each other and get lost, workers
//! that die, a provider whose answers get lost. What happens is drawn from a list of numbers, so that a failure shrinks.
//! All invariants are watched at every commit.

use super::support::{now, object, order, probe};
use chrono::TimeDelta;
use domain::aggregate::Refusal;
use domain::attempt::Attempt;
use domain::id::AttemptId;
use domain::ledger::{self, Account};
use domain::message::{Message, Topic};
use domain::money::Credits;
use domain::outcome::{
    Answer, Call, CancelAsked, Created, FaultClass, Fetched, Found, JobState, Polled, Processed, ProviderFault,
};
use domain::process::{
    ApplyCallback, Case, CaseKey, Declined, FetchOutput, Folded, Next, Notify, Policy, PollProvider, ProcessManager,
    ProcessMedia, Reconcile, SettleHold, StreamId, SubmitTask, Turn, grant, submit, wake_up,
};
use domain::task::Task;
use domain::testkit::invariants::{AllInvariants, Recorded, Watch};
use domain::time::Timestamp;
use std::collections::HashMap;

/// Numbers drawn by proptest; when they are used up, everything goes well.
#[derive(Debug)]
pub struct Luck {
    drawn: std::vec::IntoIter<u8>,
}

impl Luck {
    pub fn new(drawn: Vec<u8>) -> Self {
        Self { drawn: drawn.into_iter() }
    }

    /// Below `bound`; 0 is the best that can happen.
    fn below(&mut self, bound: usize) -> usize {
        usize::from(self.drawn.next().unwrap_or(0)) % bound
    }

    fn is_used_up(&self) -> bool {
        self.drawn.len() == 0
    }
}

/// What a provider does with a job once it has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Succeeds,
    Fails(FaultClass),
    Cancels,
    NeverEnds,
    Unrecognised,
}

/// A provider that knows what it created.
pub struct Provider {
    pub ending: Ending,
    jobs: HashMap<AttemptId, Vec<String>>,
    polls: usize,
    canceled: bool,
}

impl Provider {
    fn create(&mut self, attempt: AttemptId, luck: &mut Luck) -> Created {
        let fault = || ProviderFault { class: FaultClass::Moderation, code: "no".to_owned(), message: "no".to_owned() };
        match luck.below(8) {
            5 => Created::Unknown { cause: "reset before it arrived".to_owned() },
            4 => Created::Throttled { retry_after: None },
            3 => Created::NotSent { cause: "refused".to_owned() },
            7 => Created::Rejected(fault()),
            chance => {
                let jobs = self.jobs.entry(attempt).or_default();
                let job = format!("job-{}", jobs.len() + 1);
                jobs.push(job.clone());
                if matches!(chance, 2 | 6) {
                    Created::Unknown { cause: "answer lost".to_owned() }
                } else {
                    Created::Accepted { job }
                }
            }
        }
    }

    fn find(&self, attempt: AttemptId, luck: &mut Luck) -> Found {
        match self.jobs.get(&attempt).map_or(&[][..], Vec::as_slice) {
            _ if luck.below(4) == 3 => Found::Inconclusive { cause: "503".to_owned() },
            [] => Found::Absent,
            [job] => Found::Job { job: job.clone() },
            jobs => Found::Ambiguous { jobs: jobs.to_vec() },
        }
    }

    fn poll(&mut self, luck: &mut Luck) -> Polled {
        self.polls += 1;
        if luck.below(6) == 5 {
            return Polled::Unavailable { cause: "503".to_owned(), retry_after: None };
        }
        let fault = |class| ProviderFault { class, code: "broke".to_owned(), message: "it broke".to_owned() };
        Polled::State(match self.ending {
            _ if self.canceled => JobState::Canceled,
            _ if self.polls < 3 => JobState::Running { percent: Some(40) },
            Ending::Succeeds => JobState::Succeeded { output_url: "https://out".to_owned(), usage_millis: None },
            Ending::Fails(class) => JobState::Failed(fault(class)),
            Ending::Cancels => JobState::Canceled,
            Ending::NeverEnds => JobState::Running { percent: None },
            Ending::Unrecognised => JobState::Unrecognised { raw: "pondering".to_owned() },
        })
    }

    fn cancel(&mut self, luck: &mut Luck) -> CancelAsked {
        match luck.below(5) {
            0 => {
                self.canceled |= self.polls < 3 || self.ending != Ending::Succeeds;
                CancelAsked::Requested
            }
            1 => CancelAsked::AlreadyEnded,
            2 => CancelAsked::NotFound,
            3 => CancelAsked::Unknown,
            // The answer is lost, and the provider does it.
            _ => {
                self.canceled = true;
                CancelAsked::Unknown
            }
        }
    }

    /// Jobs made for one attempt, at most.
    pub fn most_jobs(&self) -> usize {
        self.jobs.values().map(Vec::len).max().unwrap_or(0)
    }

    fn answer(&mut self, call: &Call, luck: &mut Luck) -> Answer {
        match call {
            Call::Create { attempt, .. } => Answer::Created(self.create(*attempt, luck)),
            Call::Find { attempt, .. } => Answer::Found(self.find(*attempt, luck)),
            Call::Poll { .. } => Answer::Polled(self.poll(luck)),
            Call::Cancel { .. } => Answer::CancelAsked(self.cancel(luck)),
            Call::Fetch { key, .. } => Answer::Fetched(match luck.below(6) {
                5 => Fetched::NotNow { cause: "503".to_owned() },
                _ => Fetched::Stored(object(key, "video/mp4")),
            }),
            Call::Process { .. } => Answer::Processed(match luck.below(6) {
                5 => Processed::NotNow { cause: "busy".to_owned() },
                _ => Processed::Ready { probe: probe(), thumbnail: object("thumbnail.jpg", "image/jpeg") },
            }),
        }
    }
}

fn manager_of(topic: Topic) -> &'static dyn ProcessManager {
    match topic {
        Topic::GenerationSubmit | Topic::GenerationSubmitDelay => &SubmitTask,
        Topic::GenerationPollDelay => &PollProvider,
        Topic::GenerationCallback => &ApplyCallback,
        Topic::AssetFetch | Topic::AssetFetchDelay => &FetchOutput,
        Topic::AssetPostprocess => &ProcessMedia,
        Topic::BillingSettle => &SettleHold,
        Topic::NotificationEvent => &Notify,
        Topic::CompensationReconcileDelay => &Reconcile,
    }
}

type InFlight = (Message, Call);

/// The world of one task.
pub struct World {
    pub now: Timestamp,
    pub policy: Policy,
    pub provider: Provider,
    pub luck: Luck,
    pub history: Vec<Recorded>,
    pub queue: Vec<(Timestamp, Message)>,
    states: HashMap<StreamId, Folded>,
    in_flight: Vec<InFlight>,
    watch: AllInvariants,
}

impl World {
    /// A task that was submitted, by somebody with credits enough.
    pub fn submitted(luck: Vec<u8>, ending: Ending, policy: Policy) -> Self {
        let mut world = Self {
            now: now(),
            policy,
            provider: Provider { ending, jobs: HashMap::new(), polls: 0, canceled: false },
            luck: Luck::new(luck),
            history: vec![],
            queue: vec![],
            states: HashMap::new(),
            in_flight: vec![],
            watch: AllInvariants::default(),
        };
        let key = CaseKey::account(order().account);
        world.ask(key, |turn| grant(turn, "welcome".to_owned(), Credits(500))).expect("granted");
        let key = CaseKey { account: Some(order().account), with_account: true, ..CaseKey::task(order().task) };
        world.ask(key, |turn| submit(turn, order())).expect("submitted");
        world
    }

    fn load(&self, key: CaseKey) -> Case {
        let mut case = Case::begin(key);
        while let Some(stream) = case.wants().first().copied() {
            let folded = self.states.get(&stream).cloned().unwrap_or_else(|| Folded::absent(stream.category));
            case.supply(stream, folded);
        }
        case
    }

    /// What a person asks for, in a transaction of its own.
    pub fn ask(&mut self, key: CaseKey, act: impl FnOnce(&mut Turn<'_>) -> Result<(), Refusal>) -> Result<(), Refusal> {
        let policy = self.policy.clone();
        let mut turn = Turn::new(self.load(key), self.now, &policy);
        act(&mut turn)?;
        self.commit(turn);
        Ok(())
    }

    /// A message is handled up to the next outside call.
    pub fn deliver(&mut self, message: &Message) -> Result<Option<Call>, Declined> {
        loop {
            match self.step(message, None)? {
                Next::Again => {}
                Next::Call(call) => return Ok(Some(call)),
                Next::Retry(_) => {
                    self.queue.push((self.now + TimeDelta::seconds(10), message.clone()));
                    return Ok(None);
                }
                Next::Done => return Ok(None),
            }
        }
    }

    /// The answer to a call arrives.
    pub fn answer(&mut self, message: &Message, call: &Call, answer: Answer) -> Result<Option<Call>, Declined> {
        match self.step(message, Some((call, answer)))? {
            Next::Again => self.deliver(message),
            Next::Call(call) => Ok(Some(call)),
            Next::Retry(_) => {
                self.queue.push((self.now + TimeDelta::seconds(10), message.clone()));
                Ok(None)
            }
            Next::Done => Ok(None),
        }
    }

    fn step(&mut self, message: &Message, answered: Option<(&Call, Answer)>) -> Result<Next, Declined> {
        let manager = manager_of(message.topic());
        let key = CaseKey {
            attempt: message.attempt_id(),
            with_account: manager.needs_account(),
            ..CaseKey::task(message.task_id())
        };
        let policy = self.policy.clone();
        let mut turn = Turn::new(self.load(key), self.now, &policy);
        let next = match answered {
            None => manager.react(message, &mut turn)?,
            Some((call, answer)) => manager.conclude(message, call, answer, &mut turn)?,
        };
        self.commit(turn);
        Ok(next)
    }

    fn commit(&mut self, turn: Turn<'_>) {
        for recorded in Recorded::of(&turn) {
            if let Err(violation) = self.watch.observe(&recorded) {
                panic!("{violation}\n{}", self.story());
            }
            self.history.push(recorded);
        }
        let Turn { case, announcements, .. } = turn;
        if let Some(id) = case.attempt_id().filter(|_| case.attempt.version > 0) {
            self.states.insert(StreamId::attempt(id), Folded::Attempt(case.attempt.clone()));
        }
        if let Some(id) = case.account_id() {
            self.states.insert(StreamId::account(id), Folded::Account(case.account.clone()));
        }
        if let Some(id) = case.task_id() {
            self.states.insert(StreamId::task(id), Folded::Task(case.task));
        }
        self.queue.extend(announcements.into_iter().map(|it| (it.deliver_at.unwrap_or(self.now), it.message)));
    }

    /// One thing happens, by chance: also what should not.
    pub fn stumble(&mut self) {
        match self.luck.below(10) {
            0..=3 if !self.queue.is_empty() => self.deliver_any(),
            4..=6 if !self.in_flight.is_empty() => {
                let (message, call) = self.in_flight.swap_remove(self.luck.below(self.in_flight.len()));
                let answer = self.provider.answer(&call, &mut self.luck);
                let further = self.answer(&message, &call, answer).ok().flatten();
                self.in_flight.extend(further.map(|call| (message, call)));
            }
            // A worker dies: before its call left, or after the provider had acted on it.
            7 if !self.in_flight.is_empty() => {
                let (_, call) = self.in_flight.swap_remove(self.luck.below(self.in_flight.len()));
                if self.luck.below(2) == 1 {
                    self.provider.answer(&call, &mut self.luck);
                }
            }
            // A message is lost.
            8 if !self.queue.is_empty() => {
                self.queue.swap_remove(self.luck.below(self.queue.len()));
            }
            _ => self.now += TimeDelta::seconds(1 << self.luck.below(8)),
        }
    }

    /// Any message, due or not; sometimes it stays and comes again.
    fn deliver_any(&mut self) {
        let number = self.luck.below(self.queue.len());
        let message = self.queue[number].1.clone();
        if self.luck.below(3) != 2 {
            self.queue.swap_remove(number);
        }
        let call = self.deliver(&message).ok().flatten();
        self.in_flight.extend(call.map(|call| (message, call)));
    }

    /// Bad luck runs out, and everything goes on until nothing is left to do: messages in their order, and the scan that wakes
    /// what nobody woke.
    pub fn come_to_rest(&mut self) {
        while !self.luck.is_used_up() {
            self.stumble();
        }
        // Whoever was at a call has died; the facts know.
        self.in_flight.clear();
        for _ in 0..2_000 {
            self.queue.sort_by_key(|it| it.0);
            let message = if self.queue.is_empty() {
                match self.scan() {
                    Some((_, message)) => message,
                    None if self.is_at_rest() => return self.check_rest(),
                    None => continue,
                }
            } else {
                let (due, message) = self.queue.remove(0);
                self.now = self.now.max(due);
                message
            };
            let mut call = self.deliver(&message).ok().flatten();
            while let Some(made) = call {
                let answer = self.reply(&made);
                call = self.answer(&message, &made, answer).ok().flatten();
            }
        }
        panic!("it does not come to rest\n{}", self.story());
    }

    /// What the scan for stalled tasks would wake, a minute later.
    pub fn scan(&mut self) -> Option<(Timestamp, Message)> {
        self.now += TimeDelta::seconds(60);
        let key = CaseKey { with_account: true, ..CaseKey::task(order().task) };
        wake_up(&self.load(key), self.now).map(|message| (self.now, message))
    }

    /// The provider's answer to a call.
    pub fn reply(&mut self, call: &Call) -> Answer {
        self.provider.answer(call, &mut self.luck)
    }

    fn is_at_rest(&self) -> bool {
        matches!(self.task(), Task::ManualReview { .. }) || self.task().state().is_terminal()
    }

    fn check_rest(&self) {
        if let Err(violation) = self.watch.at_rest() {
            panic!("{violation}\n{}", self.story());
        }
        assert!(self.provider.most_jobs() <= 1, "an attempt has {} jobs\n{}", self.provider.most_jobs(), self.story());
    }

    pub fn task(&self) -> &Task {
        match self.states.get(&StreamId::task(order().task)) {
            Some(Folded::Task(it)) => &it.state,
            other => panic!("no task: {other:?}"),
        }
    }

    pub fn attempt(&self) -> &Attempt {
        match self.states.get(&StreamId::attempt(AttemptId::of(order().task, 1))) {
            Some(Folded::Attempt(it)) => &it.state,
            other => panic!("no attempt: {other:?}"),
        }
    }

    pub fn account(&self) -> &Account {
        match self.states.get(&StreamId::account(order().account)) {
            Some(Folded::Account(it)) => &it.state,
            other => panic!("no account: {other:?}"),
        }
    }

    /// Postings that close the task's hold.
    pub fn closings(&self) -> usize {
        let closes = |it: &&Recorded| {
            use ledger::Event as Of;
            let domain::process::Change::Account(_, event) = &it.change else { return false };
            matches!(event, Of::Settled { .. } | Of::Released { .. } | Of::HoldExpired { .. })
        };
        self.history.iter().filter(closes).count()
    }

    /// The history, for whoever reads a failure.
    pub fn story(&self) -> String {
        self.history.iter().map(|it| format!("  {} {} v{} {:?}\n", it.at, it.stream(), it.version, it.change)).collect()
    }
}
