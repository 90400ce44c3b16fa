//! One task's whole chain in memory: facts with a version check, messages that repeat, overtake each other and get lost, workers
//! that die, a provider whose answers get lost. What happens is drawn from a list of numbers, so that a failure shrinks.
//! All invariants are watched at every commit.

use super::outside::{Ending, Luck, Outside, Troubles};
use super::support::{now, order};
use chrono::TimeDelta;
use domain::aggregate::Refusal;
use domain::attempt::Attempt;
use domain::id::{AttemptId, TaskId};
use domain::ledger::{self, Account};
use domain::message::Message;
use domain::message::kinds::CallbackRef;
use domain::money::Credits;
use domain::outcome::{Answer, Call, Created};
use domain::process::{
    Case, CaseKey, Change, Declined, Entry, Folded, Next, Policy, StreamId, Turn, Why, cancel, grant, manager_of,
    resolve_adopt, resolve_canceled, resolve_failed, resolve_retry, retry, retry_now, submit, wake_up,
};
use domain::task::{Order, Task};
use domain::testkit::invariants::{AllInvariants, Recorded, Watch};
use domain::time::Timestamp;
use std::collections::HashMap;

/// What a person does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Person {
    /// The user does not want it any more.
    Cancels,
    /// The user does not want to wait for the next try.
    HurriesIt,
    /// An operator is certain that nothing runs, rightly or not.
    TriesAgain,
    /// An operator names a job.
    Adopts,
    /// An operator ends it.
    Fails,
    /// An operator ends it, for the user.
    CallsOff,
}

impl Person {
    pub const ALL: [Self; 6] =
        [Self::Cancels, Self::HurriesIt, Self::TriesAgain, Self::Adopts, Self::Fails, Self::CallsOff];
}

/// A call that is out, for which message, and since when.
type InFlight = (Message, Call, Timestamp);

/// The world of one task, and of those that try it again.
pub struct World {
    pub now: Timestamp,
    pub policy: Policy,
    pub outside: Outside,
    pub luck: Luck,
    pub history: Vec<Recorded>,
    pub queue: Vec<(Timestamp, Message)>,
    order: Order,
    states: HashMap<StreamId, Folded>,
    in_flight: Vec<InFlight>,
    watch: AllInvariants,
}

impl World {
    /// A task that was submitted, by somebody with credits enough, and a provider all of whose jobs end alike.
    pub fn submitted(luck: Vec<u8>, ending: Ending, policy: Policy) -> Self {
        Self::of(order(), Outside::new(vec![ending], Troubles::default()), luck, policy)
    }

    /// A task by any order, and any outside.
    pub fn of(order: Order, outside: Outside, luck: Vec<u8>, policy: Policy) -> Self {
        let mut world = Self {
            now: now(),
            policy,
            outside,
            luck: Luck::new(luck),
            history: vec![],
            queue: vec![],
            order: order.clone(),
            states: HashMap::new(),
            in_flight: vec![],
            watch: AllInvariants::default(),
        };
        let key = CaseKey::account(order.account);
        world.ask(key, |turn| grant(turn, "welcome".to_owned(), Credits(500))).expect("granted");
        let key = CaseKey { account: Some(order.account), with_account: true, ..CaseKey::task(order.task) };
        world.ask(key, |turn| submit(turn, order)).expect("submitted");
        world
    }

    /// The user wants the task that has ended tried again. From here on, the world is about the new one.
    pub fn try_again(&mut self, task: TaskId) -> Result<(), Refusal> {
        let again = Order {
            task,
            retry_of: Some(self.order.task),
            give_up_at: self.now + TimeDelta::hours(1),
            ..self.order.clone()
        };
        let key =
            CaseKey { account: Some(again.account), with_account: true, origin: again.retry_of, ..CaseKey::task(task) };
        self.ask(key, |turn| retry(turn, again.clone()))?;
        self.order = again;
        Ok(())
    }

    /// A person acts; what is not possible now is refused, and changes nothing.
    pub fn act(&mut self, person: Person) -> Result<(), Refusal> {
        let job = self.outside.all_jobs().pop().map_or_else(|| "job-x".to_owned(), |(_, job)| job);
        self.ask(CaseKey::task(self.order.task), |turn| match person {
            Person::Cancels => cancel(turn, "user:1".to_owned()),
            Person::HurriesIt => retry_now(turn, "user:1".to_owned()),
            Person::TriesAgain => resolve_retry(turn, "operator:1"),
            Person::Adopts => resolve_adopt(turn, job, "operator:1".to_owned()),
            Person::Fails => resolve_failed(turn, "operator:1"),
            Person::CallsOff => resolve_canceled(turn, "operator:1"),
        })
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
        let key = CaseKey::step(message, answered.as_ref().map(|(call, _)| *call), manager.needs_account());
        let policy = self.policy.clone();
        let case = self.load(key);
        let wanted = manager.needs_slot(message, &case, self.now).filter(|_| answered.is_none());
        let mut turn = Turn::new(case, self.now, &policy);
        turn.entry = wanted.map(|_| self.admission());
        let next = match answered {
            None => manager.react(message, &mut turn)?,
            Some((call, answer)) => manager.conclude(message, call, answer, &mut turn)?,
        };
        self.commit(turn);
        Ok(next)
    }

    /// There is a slot, mostly; when bad luck has run out, always.
    fn admission(&mut self) -> Entry {
        if self.luck.is_used_up() || self.luck.below(4) > 0 {
            return Entry::Granted;
        }
        let why = Why::ALL[self.luck.below(Why::ALL.len())];
        Entry::Wait { after: std::time::Duration::from_secs(1 << self.luck.below(10)), why }
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
        match self.luck.below(12) {
            0..=3 if !self.queue.is_empty() => self.deliver_any(),
            4..=6 if !self.in_flight.is_empty() => {
                let (message, call, since) = self.in_flight.swap_remove(self.luck.below(self.in_flight.len()));
                let Some(answer) = self.answer_since(&call, since) else { return };
                let further = self.answer(&message, &call, answer).ok().flatten();
                self.in_flight.extend(further.map(|call| (message, call, self.now)));
            }
            // A worker dies: before its call left, or after the provider had acted on it.
            7 if !self.in_flight.is_empty() => {
                let (_, call, since) = self.in_flight.swap_remove(self.luck.below(self.in_flight.len()));
                if self.luck.below(2) == 1 {
                    self.answer_since(&call, since);
                }
            }
            // A message is lost.
            8 if !self.queue.is_empty() => {
                self.queue.swap_remove(self.luck.below(self.queue.len()));
            }
            9 => self.call_back(),
            _ => self.now += TimeDelta::seconds(1 << self.luck.below(8)),
        }
    }

    /// The answer to a call that was made a while ago. A create call keeps its timeout: what the policy waits for is no guess then.
    fn answer_since(&mut self, call: &Call, since: Timestamp) -> Option<Answer> {
        match call {
            Call::Create { timeout, .. } if (self.now - since).to_std().is_ok_and(|passed| passed > *timeout) => {
                Some(Answer::Created(Created::Unknown { cause: "timeout".to_owned() }))
            }
            _ => self.outside.answer(call, &mut self.luck),
        }
    }

    /// The provider calls back about any of its jobs, also about one of an attempt that is over.
    fn call_back(&mut self) {
        let jobs = self.outside.all_jobs();
        if jobs.is_empty() {
            return;
        }
        let (attempt_id, job) = jobs[self.luck.below(jobs.len())].clone();
        self.called_back(attempt_id, job);
    }

    /// Every job calls back once more, however late.
    pub fn call_back_all(&mut self) {
        for (attempt_id, job) in self.outside.all_jobs() {
            self.called_back(attempt_id, job);
        }
    }

    fn called_back(&mut self, attempt_id: AttemptId, job: String) {
        let callback = CallbackRef { task_id: self.order.task, attempt_id, job };
        self.queue.push((self.now, Message::CallbackReceived(callback)));
    }

    /// Any message, due or not; sometimes it stays and comes again.
    fn deliver_any(&mut self) {
        let number = self.luck.below(self.queue.len());
        let message = self.queue[number].1.clone();
        if self.luck.below(3) != 2 {
            self.queue.swap_remove(number);
        }
        let call = self.deliver(&message).ok().flatten();
        self.in_flight.extend(call.map(|call| (message, call, self.now)));
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
                // Where the call kills the worker, the message comes again.
                let Some(answer) = self.reply(&made) else {
                    self.queue.push((self.now + TimeDelta::seconds(10), message));
                    break;
                };
                call = self.answer(&message, &made, answer).ok().flatten();
            }
        }
        panic!("it does not come to rest\n{}", self.story());
    }

    /// What the scan for stalled tasks would wake, a minute later.
    pub fn scan(&mut self) -> Option<(Timestamp, Message)> {
        self.now += TimeDelta::seconds(60);
        let key = CaseKey { with_account: true, ..CaseKey::task(self.order.task) };
        wake_up(&self.load(key), self.now).map(|message| (self.now, message))
    }

    /// The answer to a call; `None` where it kills the worker.
    pub fn reply(&mut self, call: &Call) -> Option<Answer> {
        self.outside.answer(call, &mut self.luck)
    }

    fn is_at_rest(&self) -> bool {
        matches!(self.task(), Task::ManualReview { .. }) || self.task().state().is_terminal()
    }

    fn check_rest(&self) {
        if let Err(violation) = self.watch.at_rest() {
            panic!("{violation}\n{}", self.story());
        }
        let most = self.outside.most_creations();
        assert!(most <= 1, "an attempt was created {most} times\n{}", self.story());
        if self.task().state().is_terminal() {
            for it in self.attempts() {
                let over = is_over(it);
                assert!(over, "the task has ended, and an attempt is {it:?}\n{}", self.story());
            }
        }
    }

    pub fn task(&self) -> &Task {
        match self.states.get(&StreamId::task(self.order.task)) {
            Some(Folded::Task(it)) => &it.state,
            other => panic!("no task: {other:?}"),
        }
    }

    /// Its first attempt.
    pub fn attempt(&self) -> &Attempt {
        self.attempts().next().unwrap_or(&Attempt::Absent)
    }

    /// Its attempts, in order.
    pub fn attempts(&self) -> impl Iterator<Item = &Attempt> {
        (1..).map_while(|number| match self.states.get(&StreamId::attempt(AttemptId::of(self.order.task, number))) {
            Some(Folded::Attempt(it)) => Some(&it.state),
            _ => None,
        })
    }

    pub fn account(&self) -> &Account {
        match self.states.get(&StreamId::account(self.order.account)) {
            Some(Folded::Account(it)) => &it.state,
            other => panic!("no account: {other:?}"),
        }
    }

    /// Events of the current task that are as asked for.
    pub fn count(&self, of: impl Fn(&domain::task::Event) -> bool) -> usize {
        let counts =
            |it: &&Recorded| matches!(&it.change, Change::Task(id, event) if *id == self.order.task && of(event));
        self.history.iter().filter(counts).count()
    }

    /// Postings that close a hold.
    pub fn closings(&self) -> usize {
        let closes = |it: &&Recorded| {
            use ledger::Event as Of;
            let Change::Account(_, event) = &it.change else { return false };
            matches!(event, Of::Settled { .. } | Of::Released { .. } | Of::HoldExpired { .. })
        };
        self.history.iter().filter(closes).count()
    }

    /// The history, for whoever reads a failure.
    pub fn story(&self) -> String {
        self.history.iter().map(|it| format!("  {} {} v{} {:?}\n", it.at, it.stream(), it.version, it.change)).collect()
    }
}

/// Whether nothing more is expected of an attempt.
pub fn is_over(attempt: &Attempt) -> bool {
    matches!(attempt, Attempt::Succeeded { .. } | Attempt::Failed(_) | Attempt::Canceled(_) | Attempt::GivenUp { .. })
}
