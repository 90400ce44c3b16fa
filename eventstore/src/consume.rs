//! Handling a message: read, decide, append together with the inbox row; call outside; conclude in the same way; and only then
//! leave to acknowledge.
//!
//! The first try of a step is two trips to the database: one statement reads, one writes, and the inbox row's uniqueness and the
//! streams' versions decide whether it still holds. Where it does not (the message was here before, or others were first), the
//! next try is a transaction that takes the inbox row, and with it the right to handle the message, before it reads.

use crate::append::{Append, Beside, InboxRow, Meta};
use crate::committed::Committed;
use crate::connect::Store;
use crate::delivery::{Ack, Again, Delivery, Outcome};
use crate::error::StoreError;
use crate::transaction::{Session, Tx};
use domain::id::CausationId;
use domain::message::{BadMessage, Envelope, Message};
use domain::outcome::{Answer, Call};
use domain::process::{
    Case, CaseKey, Declined, Entry, Next, ProcessManager, Slot, SlotNote, StreamId, Turn, admit, read, slot_note,
};
use domain::task::Order;
use domain::time::Timestamp;
use rand::RngExt;
use sha2::{Digest, Sha256};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What an outside call may need to know beside the call itself.
#[derive(Clone, Debug)]
pub struct CallContext {
    /// What was ordered.
    pub order: Order,
    /// Before the transaction that decided on the call. Others count the call's time from there: a process that slept between
    /// its commit and the call must not send a request that is given up for lost.
    pub decided: Instant,
}

/// Makes outside calls, and asks admission. It is handed a [`Committed`] call, so nothing is called before its intent is durable.
pub trait Caller: Send + Sync {
    /// Makes the call and answers; every failure is an answer.
    fn call<'a>(
        &'a self,
        call: &'a Committed<Call>,
        context: CallContext,
    ) -> Pin<Box<dyn Future<Output = Answer> + Send + 'a>>;

    /// Asks for the slot that a submit needs, before it is decided: no connection to the database is held meanwhile. Asked again
    /// for the same round, it says the same. Without an admission everybody gets one.
    fn admit<'a>(&'a self, _slot: &'a Slot) -> Pin<Box<dyn Future<Output = Entry> + Send + 'a>> {
        Box::pin(std::future::ready(Entry::Granted))
    }

    /// Told what a turn means for the slot of its attempt, after its commit. It may be lost: the facts say the same.
    fn noted<'a>(&'a self, _note: &'a SlotNote) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(std::future::ready(()))
    }
}

/// How often one step is tried when others win the race for its streams.
const ROUNDS: u32 = 12;
/// How often the record of a finished call is tried when the database can not be used: the answer is worth waiting for.
const RECORD_TRIES: u32 = 12;
/// How often a message about a history that can not be folded comes again before it is parked.
const PATIENCE_WITH_CORRUPT: u32 = 3;
/// How long a trace id is.
const TRACE_DIGITS: usize = 32;
/// The most steps one message may take. A manager that asks for more goes in circles.
const STEPS: u32 = 16;

/// What one committed turn asks for.
enum Turned {
    Finished(Outcome),
    Again,
    Call(Box<(Committed<Call>, CallContext)>),
    Retry(String),
}

/// The step to take.
enum Step {
    React,
    /// To the message once more, whose inbox row is made.
    ReactAgain,
    Conclude(Box<(Call, Answer)>),
}

struct Handling<'a> {
    store: &'a Store,
    manager: &'a dyn ProcessManager,
    delivery: &'a Delivery,
    envelope: Envelope,
    message: Message,
    payload_hash: [u8; 32],
    caller: &'a dyn Caller,
    /// What admission said last, and to what.
    entry: Mutex<Option<(Slot, Entry)>>,
}

impl Store {
    /// Handles a delivery to its end.
    ///
    /// # Errors
    /// [`Again`]: it is not acknowledged and comes again. Whatever is durable by then is not done twice.
    pub async fn consume(
        &self,
        manager: &dyn ProcessManager,
        caller: &dyn Caller,
        delivery: &Delivery,
    ) -> Result<Ack, Again> {
        let (envelope, message) = match read(&delivery.body) {
            Ok(it) => it,
            Err(bad) => return self.quarantine(manager.name(), delivery, None, &bad).await,
        };
        let payload_hash = Sha256::digest(&delivery.body).into();
        let entry = Mutex::new(None);
        let handling = Handling { store: self, manager, delivery, envelope, message, payload_hash, caller, entry };
        let mut step = Step::React;
        for _ in 0..STEPS {
            let turned = match handling.persist(&step).await {
                Ok(turned) => turned,
                Err(Fault::Bad(bad)) => {
                    return self.quarantine(manager.name(), delivery, Some(&handling.envelope), &bad).await;
                }
                Err(Fault::Again(again)) => return Err(again),
            };
            step = match turned {
                Turned::Finished(outcome) => return Ok(Ack::new(outcome)),
                Turned::Again => Step::ReactAgain,
                Turned::Retry(cause) => return Err(Again::Unfinished(cause)),
                Turned::Call(committed) => {
                    let (call, context) = *committed;
                    let answer = caller.call(&call, context).await;
                    Step::Conclude(Box::new((call.get().clone(), answer)))
                }
            };
        }
        tracing::error!(manager = manager.name(), event_id = %handling.envelope.event_id, "a message goes in circles");
        Err(Again::Unfinished("it takes more steps than any message may".to_owned()))
    }
}

enum Fault {
    Bad(BadMessage),
    Again(Again),
}

impl Handling<'_> {
    /// Takes one step, however often the race is lost. The answer to a call is recorded with more patience.
    async fn persist(&self, step: &Step) -> Result<Turned, Fault> {
        let mut lost = 0;
        let mut unreachable = 0;
        loop {
            match self.step(step, lost > 0).await {
                Ok(turned) => return Ok(turned),
                Err(StepFault::Bad(bad)) => return Err(Fault::Bad(bad)),
                Err(StepFault::Store(StoreError::Race)) => {
                    lost += 1;
                    if lost >= ROUNDS {
                        return Err(Fault::Again(Again::Busy { rounds: lost }));
                    }
                    pause(5 << lost.min(6)).await;
                }
                // A release that is being rolled out may yet read it; one that never does is for a person.
                Err(StepFault::Store(StoreError::Corrupt(corrupt))) => {
                    tracing::error!(manager = self.manager.name(), error = %corrupt, "a history can not be folded");
                    return Err(if self.delivery.redeliveries >= PATIENCE_WITH_CORRUPT {
                        Fault::Bad(BadMessage::Corrupt { what: corrupt.stream.to_string() })
                    } else {
                        Fault::Again(Again::Unfinished(format!("{} can not be folded", corrupt.stream)))
                    });
                }
                Err(StepFault::Store(error)) => {
                    unreachable += 1;
                    let patient = matches!(step, Step::Conclude(..)) && matches!(error, StoreError::Database(_));
                    tracing::warn!(manager = self.manager.name(), event_id = %self.envelope.event_id,
                                   error = &error as &dyn std::error::Error, tries = unreachable, "a step failed");
                    if !patient || unreachable >= RECORD_TRIES {
                        return Err(Fault::Again(Again::Database(Box::new(error))));
                    }
                    pause(50 << unreachable.min(6)).await;
                }
            }
        }
    }

    async fn step(&self, step: &Step, contended: bool) -> Result<Turned, StepFault> {
        let decided = Instant::now();
        let key = self.case_key(step);
        if !contended && !matches!(step, Step::ReactAgain) {
            let mut session = Session::Together(self.store);
            let first = matches!(step, Step::React);
            let (case, now) = match session.load(Case::begin(key)).await {
                // If it was handled before, it does not matter that its history can not be folded any more.
                Err(StoreError::Corrupt(_)) if first => return Err(StoreError::Race.into()),
                read => read?,
            };
            if let Some(slot) = self.slot_for(step, &case, now) {
                // Whether the facts still hold afterwards, the append finds out.
                self.ask_admission(slot).await;
            }
            return self.decide(session, step, case, (now, decided), first).await;
        }
        let mut tx = self.store.begin().await?;
        // The answer to a call is recorded even where somebody else has closed the row meanwhile: it must not be lost.
        if !matches!(step, Step::Conclude(_)) && self.claim(&mut tx).await? == "done" {
            tx.commit().await?;
            return Ok(Turned::Finished(Outcome::Duplicate));
        }
        if contended {
            tx.queue_up(&self.streams()).await?;
        }
        let (mut case, mut now) = tx.load(Case::begin(key)).await?;
        if contended && self.manager.needs_account() {
            // Which account it is, the first reading told: queue up for it, then read what others did meanwhile.
            let account = case.account_id().map(StreamId::account);
            tx.queue_up(&account.into_iter().collect::<Vec<_>>()).await?;
            (case, now) = tx.load(Case::begin(key)).await?;
        }
        if let Some(slot) = self.slot_for(step, &case, now)
            && self.known_entry(&slot).is_none()
        {
            // Nothing outside is asked in a transaction: this one ends, and the step is tried again with the answer.
            drop(tx);
            self.ask_admission(slot).await;
            return Err(StoreError::Race.into());
        }
        self.decide(Session::Alone(tx), step, case, (now, decided), false).await
    }

    /// The slot that has to be asked for, where the message may be believed.
    fn slot_for(&self, step: &Step, case: &Case, now: Timestamp) -> Option<Slot> {
        let reacts = !matches!(step, Step::Conclude(_)) && admit(&self.envelope, &self.message, case).is_ok();
        reacts.then(|| self.manager.needs_slot(&self.message, case, now)).flatten()
    }

    async fn ask_admission(&self, slot: Slot) {
        let entry = self.caller.admit(&slot).await;
        *self.entry.lock().unwrap_or_else(PoisonError::into_inner) = Some((slot, entry));
    }

    /// What admission said to this very slot.
    fn known_entry(&self, slot: &Slot) -> Option<Entry> {
        let last = self.entry.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(asked, _)| asked == slot).map(|(_, entry)| *entry)
    }

    /// Decides and writes. `first`: it is not known whether the message was here before, and an answer counts only if the inbox
    /// row can be made with it.
    async fn decide(
        &self,
        session: Session<'_>,
        step: &Step,
        case: Case,
        at: (Timestamp, Instant),
        first: bool,
    ) -> Result<Turned, StepFault> {
        if let Err(bad) = admit(&self.envelope, &self.message, &case) {
            return Err(if first { StoreError::Race.into() } else { StepFault::Bad(bad) });
        }
        let entry = self.slot_for(step, &case, at.0).and_then(|slot| self.known_entry(&slot));
        let mut turn = Turn::new(case, at.0, &self.store.policy);
        turn.entry = entry;
        let next = match step {
            Step::React | Step::ReactAgain => self.manager.react(&self.message, &mut turn),
            Step::Conclude(asked) => self.manager.conclude(&self.message, &asked.0, asked.1.clone(), &mut turn),
        };
        Ok(self.finish(session, next, turn, at, first).await?)
    }

    async fn finish(
        &self,
        session: Session<'_>,
        next: Result<Next, Declined>,
        turn: Turn<'_>,
        (now, decided): (Timestamp, Instant),
        first: bool,
    ) -> Result<Turned, StoreError> {
        let meta = Arc::new(self.meta());
        let note = next.is_ok().then(|| slot_note(&turn)).flatten();
        let (ended, append, order) = match &next {
            Err(declined) => (Some(("declined", Some(declined.to_string()))), Append::empty(meta, now), None),
            Ok(Next::Retry(_)) if first => return Err(StoreError::Race),
            // Rolled back, row and all: it changed nothing.
            Ok(Next::Retry(cause)) => return Ok(Turned::Retry(cause.clone())),
            Ok(next) => {
                // Of the attempt that the call is for: it may be made elsewhere than the first one.
                let number = turn.case.attempt.state.core().map_or(1, |core| core.number);
                let order = turn.case.task.state.order().map(|order| order.at_attempt(number));
                ((*next == Next::Done).then_some(("applied", None)), Append::of(turn, meta)?, order)
            }
        };
        let row = self.inbox_row(ended);
        let beside = match row.ended {
            _ if first => Beside::Take(row),
            Some(_) => Beside::Close(row),
            None => Beside::Nothing,
        };
        session.record(append.with(beside)).await?;
        if let Some(note) = note {
            self.caller.noted(&note).await;
        }
        Ok(match (next, order) {
            (Err(_), _) => Turned::Finished(Outcome::Declined),
            (Ok(Next::Done), _) => Turned::Finished(Outcome::Done),
            (Ok(Next::Again), _) => Turned::Again,
            (Ok(Next::Call(call)), Some(order)) => {
                Turned::Call(Box::new((Committed::after_commit(call), CallContext { order, decided })))
            }
            // `admit` has seen to it that there is an order.
            (Ok(Next::Call(_)), None) => Turned::Retry("the task has no order".to_owned()),
            (Ok(Next::Retry(cause)), _) => Turned::Retry(cause),
        })
    }

    fn inbox_row(&self, ended: Option<(&'static str, Option<String>)>) -> InboxRow {
        InboxRow {
            consumer: self.manager.name(),
            event_id: self.envelope.event_id.0,
            aggregate: self.message.task_id().0,
            payload_hash: self.payload_hash,
            ended,
        }
    }

    fn case_key(&self, step: &Step) -> CaseKey {
        let asked = match step {
            Step::React | Step::ReactAgain => None,
            Step::Conclude(asked) => Some(&asked.0),
        };
        CaseKey::step(&self.message, asked, self.manager.needs_account())
    }

    fn streams(&self) -> Vec<StreamId> {
        let task = StreamId::task(self.message.task_id());
        let attempt = self.message.attempt_id().map(StreamId::attempt);
        std::iter::once(task).chain(attempt).collect()
    }

    fn meta(&self) -> Meta {
        Meta {
            tenant: self.envelope.tenant_id,
            correlation: self.envelope.correlation_id,
            causation: CausationId(self.envelope.event_id.0),
            actor: self.manager.name().to_owned(),
            // What is no trace id is not handed on: a message that carries it along may grow too large to be sent.
            trace: self.envelope.trace_id.chars().take(TRACE_DIGITS).collect(),
        }
    }

    /// Takes the inbox row, and with it the right to handle the message now: others wait at the row's lock.
    async fn claim(&self, tx: &mut Tx<'_>) -> Result<String, StoreError> {
        Ok(sqlx::query_scalar(
            "/* eventstore.claim */
             INSERT INTO inbox_dedup AS row (consumer_name, event_id, aggregate_id, phase, payload_hash)
             VALUES ($1, $2, $3, 'claimed', $4)
             ON CONFLICT (consumer_name, event_id) DO UPDATE SET deliveries = row.deliveries + 1
             RETURNING phase",
        )
        .bind(self.manager.name())
        .bind(self.envelope.event_id.0)
        .bind(self.message.task_id().0)
        .bind(self.payload_hash.as_slice())
        .fetch_one(&mut *tx.inner)
        .await?)
    }
}

enum StepFault {
    Bad(BadMessage),
    Store(StoreError),
}

impl From<StoreError> for StepFault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Waits between half of `millis` and all of it: those who lost the same race must not meet again.
pub(crate) async fn pause(millis: u64) {
    let millis = rand::rng().random_range(millis / 2..=millis);
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
