//! One action on the model, one transaction at a time, so that two of them can be interleaved in every way.

use super::action::{Action, Said, Sent};
use super::memory::Memory;
use super::script::answer;
use domain::id::CausationId;
use domain::message::{BadMessage, Envelope, Message};
use domain::outcome::{Answer, Call};
use domain::process::{CaseKey, Next, Turn, admit, manager_of, read};
use eventstore::{Meta, Outcome};
use sha2::{Digest, Sha256};

/// How often one message may make its manager act: beyond it goes in circles.
const STEPS: u32 = 16;

/// How far an action has got.
#[derive(Clone, Debug)]
pub struct Work<'a> {
    action: &'a Action,
    answered: Option<(Call, Answer)>,
    calls: Vec<Call>,
    steps: u32,
}

impl<'a> Work<'a> {
    pub const fn new(action: &'a Action) -> Self {
        Self { action, answered: None, calls: Vec::new(), steps: 0 }
    }

    /// Does it to its end.
    pub fn run(action: &'a Action, memory: &mut Memory) -> Said {
        let mut work = Self::new(action);
        loop {
            if let Some(said) = work.advance(memory) {
                return said;
            }
        }
    }

    /// The next transaction; `Some` where it was the last.
    pub fn advance(&mut self, memory: &mut Memory) -> Option<Said> {
        match self.action {
            Action::Ask(ask) => Some(memory.execute(ask)),
            Action::Deliver(sent) => self.handle(sent, memory),
        }
    }

    fn handle(&mut self, sent: &Sent, memory: &mut Memory) -> Option<Said> {
        if self.steps == STEPS {
            return Some(self.unfinished("it takes more steps than any message may".to_owned()));
        }
        self.steps += 1;
        let (envelope, message) = match read(&sent.delivery.body) {
            Ok(it) => it,
            Err(bad) => return Some(self.park(sent, &bad, memory)),
        };
        match self.step(sent, &envelope, &message, memory) {
            Ok(ended) => ended,
            Err(bad) => Some(self.park(sent, &bad, memory)),
        }
    }

    fn step(
        &mut self,
        sent: &Sent,
        envelope: &Envelope,
        message: &Message,
        memory: &mut Memory,
    ) -> Result<Option<Said>, BadMessage> {
        let manager = manager_of(sent.topic);
        let id = envelope.event_id.0;
        let answered = self.answered.take();
        let row = memory.claimed(manager.name(), id, answered.is_none());
        if row.phase == "done" && answered.is_none() {
            memory.keep(row, (manager.name(), id, "", None), false);
            return Ok(Some(self.acknowledged(Outcome::Duplicate)));
        }
        let key = CaseKey::step(message, answered.as_ref().map(|it| &it.0), manager.needs_account());
        let case = memory.load(key).expect("the model's own history folds");
        admit(envelope, message, &case)?;
        let policy = memory.policy.clone();
        let mut turn = Turn::new(case, memory.now, &policy);
        let next = match answered {
            None => manager.react(message, &mut turn),
            Some((call, answer)) => manager.conclude(message, &call, answer, &mut turn),
        };
        let next = match next {
            Ok(Next::Retry(cause)) => return Ok(Some(self.unfinished(cause))),
            Err(declined) => {
                memory.keep(row, (manager.name(), id, "declined", Some(declined.to_string())), true);
                return Ok(Some(self.acknowledged(Outcome::Declined)));
            }
            Ok(next) => next,
        };
        memory.append(turn, &meta(envelope, manager.name()));
        memory.keep(row, (manager.name(), id, "applied", None), next == Next::Done);
        Ok(match next {
            Next::Call(call) => {
                self.calls.push(call.clone());
                let answer = answer(&call, sent.luck, self.calls.len());
                self.answered = Some((call, answer));
                None
            }
            Next::Done => Some(self.acknowledged(Outcome::Done)),
            Next::Again | Next::Retry(_) => None,
        })
    }

    fn park(&self, sent: &Sent, bad: &BadMessage, memory: &mut Memory) -> Said {
        let place = (manager_of(sent.topic).name().to_owned(), Sha256::digest(&sent.delivery.body).to_vec());
        memory.facts.quarantine.entry(place).or_insert_with(|| (bad.class().to_owned(), 0)).1 += 1;
        self.acknowledged(Outcome::Parked)
    }

    fn acknowledged(&self, outcome: Outcome) -> Said {
        Said::Acknowledged(outcome, self.calls.clone())
    }

    fn unfinished(&self, cause: String) -> Said {
        Said::Unfinished(cause, self.calls.clone())
    }
}

fn meta(envelope: &Envelope, actor: &str) -> Meta {
    Meta {
        tenant: envelope.tenant_id,
        correlation: envelope.correlation_id,
        causation: CausationId(envelope.event_id.0),
        actor: actor.to_owned(),
        trace: envelope.trace_id.clone(),
    }
}
