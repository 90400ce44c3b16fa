//! Facts carried from turn to turn as the store would, for the tests of the process managers.

use super::support::{attempt_id, now, order};
use domain::attempt::{self, Attempt};
use domain::id::AttemptId;
use domain::message::Message;
use domain::message::kinds::{AttemptRef, CallbackRef, TaskRef};
use domain::outcome::{Answer, Call, Created, JobState, Polled};
use domain::process::{
    Case, CaseKey, Declined, Entry, FetchOutput, Folded, Next, Policy, PollProvider, ProcessManager, Reconcile, Slot,
    SlotNote, StreamId, SubmitTask, Turn, Versioned, slot_note, submit,
};
use domain::task::{Order, State};
use domain::time::Timestamp;
use std::collections::BTreeMap;

/// The facts of one task: every stream, and what a turn on them reads.
pub struct Facts {
    pub case: Case,
    pub policy: Policy,
    /// What admission says, where it is asked.
    pub entry: Option<Entry>,
    /// What the last turn said about a slot.
    pub noted: Option<SlotNote>,
    order: Order,
    attempts: BTreeMap<AttemptId, Versioned<Attempt>>,
}

type Told = (Result<Next, Declined>, Vec<(Message, Option<Timestamp>)>);

impl Facts {
    pub fn submitted() -> Self {
        Self::of(order())
    }

    pub fn of(order: Order) -> Self {
        let key = CaseKey { account: Some(order.account), with_account: true, ..CaseKey::task(order.task) };
        let mut facts = Self {
            case: Case::begin(key),
            policy: Policy::default(),
            entry: None,
            noted: None,
            order: order.clone(),
            attempts: BTreeMap::new(),
        };
        let credits =
            |turn: &mut Turn<'_>| domain::process::grant(turn, "test".to_owned(), domain::money::Credits(500));
        facts.ask(now(), credits).expect("credits");
        facts.ask(now(), |turn| submit(turn, order)).expect("it is accepted");
        facts
    }

    /// Reads the case anew for one step, as the store does.
    fn read(&mut self, key: CaseKey) {
        let mut case = Case::begin(CaseKey { account: Some(self.order.account), with_account: true, ..key });
        let (task, account) = (self.case.task.clone(), self.case.account.clone());
        loop {
            let wanted = case.wants();
            if wanted.is_empty() {
                break;
            }
            for stream in wanted {
                let folded = if stream == StreamId::task(self.order.task) {
                    Folded::Task(task.clone())
                } else if stream == StreamId::account(self.order.account) {
                    Folded::Account(account.clone())
                } else {
                    let known = self.attempts.get(&AttemptId(stream.id)).cloned();
                    Folded::Attempt(known.unwrap_or_else(Versioned::absent))
                };
                case.supply(stream, folded);
            }
        }
        self.case = case;
    }

    pub fn turn(&mut self, at: Timestamp, act: impl FnOnce(&mut Turn<'_>) -> Result<Next, Declined>) -> Told {
        let mut turn = Turn::new(self.case.clone(), at, &self.policy);
        turn.entry = self.entry;
        let next = act(&mut turn);
        self.noted = slot_note(&turn);
        let told = turn.announcements.iter().map(|it| (it.message.clone(), it.deliver_at)).collect();
        if next.is_ok() {
            self.case = turn.case;
            if let Some(core) = self.case.attempt.state.core() {
                self.attempts.insert(core.id(), self.case.attempt.clone());
            }
        }
        (next, told)
    }

    /// What a person asks for; the current facts are read first.
    pub fn ask(
        &mut self,
        at: Timestamp,
        act: impl FnOnce(&mut Turn<'_>) -> Result<(), domain::aggregate::Refusal>,
    ) -> Result<Vec<(Message, Option<Timestamp>)>, Declined> {
        self.read(CaseKey::task(self.order.task));
        let (next, told) = self.turn(at, |turn| act(turn).map(|()| Next::Done).map_err(Into::into));
        next.map(|_| told)
    }

    pub fn react(&mut self, manager: &dyn ProcessManager, message: &Message, at: Timestamp) -> Told {
        self.read(CaseKey::step(message, None, false));
        self.turn(at, |turn| manager.react(message, turn))
    }

    /// Reacts as often as the manager asks for it, and returns the call it ends with.
    pub fn call(&mut self, manager: &dyn ProcessManager, message: &Message, at: Timestamp) -> Call {
        loop {
            match self.react(manager, message, at).0 {
                Ok(Next::Again) => {}
                Ok(Next::Call(call)) => return call,
                other => panic!("no call: {other:?}"),
            }
        }
    }

    pub fn conclude(&mut self, manager: &dyn ProcessManager, call: &Call, answer: Answer, at: Timestamp) -> Told {
        let message = self.about_task(Message::SubmitRequested);
        self.answer(manager, &message, call, answer, at)
    }

    pub fn answer(
        &mut self,
        manager: &dyn ProcessManager,
        message: &Message,
        call: &Call,
        answer: Answer,
        at: Timestamp,
    ) -> Told {
        self.read(CaseKey::step(message, Some(call), false));
        self.turn(at, |turn| manager.conclude(message, call, answer, turn))
    }

    /// The slot that a submit would need now.
    pub fn slot(&mut self, at: Timestamp) -> Option<Slot> {
        let message = self.about_task(Message::SubmitRequested);
        self.read(CaseKey::step(&message, None, false));
        SubmitTask.needs_slot(&message, &self.case, at)
    }

    /// Submits, and returns the create call.
    pub fn called(&mut self, at: Timestamp) -> Call {
        let message = self.about_task(Message::SubmitRequested);
        self.call(&SubmitTask, &message, at)
    }

    pub fn unclear(&mut self) -> Call {
        let call = self.called(now());
        let lost = Answer::Created(Created::Unknown { cause: "reset".to_owned() });
        self.conclude(&SubmitTask, &call, lost, now()).0.expect("the answer is lost");
        call
    }

    pub fn find(&mut self, at: Timestamp) -> Call {
        self.call(&Reconcile, &self.reconcile_due(), at)
    }

    pub fn reconcile_due(&self) -> Message {
        Message::ReconcileDue(self.about())
    }

    pub fn about_task(&self, kind: impl Fn(TaskRef) -> Message) -> Message {
        kind(TaskRef { task_id: self.order.task, task_version: self.case.task.version })
    }

    pub fn about(&self) -> AttemptRef {
        let attempt_id = self.case.attempt_id().unwrap_or_else(attempt_id);
        AttemptRef { task_id: self.order.task, attempt_id, version: self.case.attempt.version }
    }

    pub fn callback(job: &str) -> Message {
        Message::CallbackReceived(CallbackRef { task_id: order().task, attempt_id: attempt_id(), job: job.to_owned() })
    }

    pub const fn task_id(&self) -> domain::id::TaskId {
        self.order.task
    }

    pub fn states(&self) -> (State, attempt::State) {
        (self.case.task.state.state(), self.case.attempt.state.state())
    }

    pub fn accept(&mut self, call: &Call, job: &str, at: Timestamp) {
        let accepted = Answer::Created(Created::Accepted { job: job.to_owned() });
        self.conclude(&SubmitTask, call, accepted, at).0.expect("accepted");
    }

    pub fn running(&mut self) {
        let call = self.called(now());
        self.accept(&call, "job-1", now());
        assert_eq!(self.states(), (State::ProviderRunning, attempt::State::Running));
    }

    /// Polls, and is told how the job is doing.
    pub fn poll(&mut self, state: JobState, at: Timestamp) -> Told {
        let due = Message::PollDue(self.about());
        let call = self.call(&PollProvider, &due, at);
        self.answer(&PollProvider, &due, &call, Answer::Polled(Polled::State(state)), at)
    }

    /// The video is stored: media processing is next.
    pub fn stored(&mut self) {
        self.running();
        let done = JobState::Succeeded { output_url: "https://out.example/1".to_owned(), usage_millis: None };
        self.poll(done, super::support::later(60)).0.expect("it is done");
        let due = Message::FetchRequested(AttemptRef { version: self.case.task.version, ..self.about() });
        let call = self.call(&FetchOutput, &due, super::support::later(61));
        let object = super::support::object("video.mp4", "video/mp4");
        let fetched = Answer::Fetched(domain::outcome::Fetched::Stored(object));
        self.answer(&FetchOutput, &due, &call, fetched, super::support::later(62)).0.expect("it is stored");
        assert_eq!(self.states(), (State::MediaProcessing, attempt::State::Succeeded));
    }

    /// The task, its attempts: none is left at work when the task has ended.
    pub fn nothing_is_left_at_work(&self) {
        use attempt::State as It;
        if self.case.task.state.state().is_terminal() {
            for it in self.attempts.values() {
                let state = it.state.state();
                let over = matches!(state, It::Succeeded | It::Failed | It::Canceled | It::GivenUp);
                assert!(over, "the task ended, and an attempt is {state:?}");
            }
        }
    }

    /// Writes an attempt's history by hand, as only a fault elsewhere could have made it.
    pub fn forge(&mut self, attempt: Versioned<Attempt>) {
        if let Some(core) = attempt.state.core() {
            self.attempts.insert(core.id(), attempt);
        }
    }

    /// An attempt of the task, by number.
    pub fn attempt(&self, number: u32) -> Option<&Attempt> {
        self.attempts.get(&AttemptId::of(self.order.task, number)).map(|it| &it.state)
    }
}
