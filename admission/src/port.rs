//! What is asked and answered, whoever counts.

use domain::id::{AttemptId, TaskId};
use domain::process::{Entry, Slot};
use futures_util::future::BoxFuture;

/// A task whose turn it is: a slot is kept for its attempt for a while, and it has to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Called {
    /// The attempt that the slot is kept for.
    pub attempt: AttemptId,
    /// Its task.
    pub task: TaskId,
}

impl From<&Slot> for Called {
    fn from(slot: &Slot) -> Self {
        Self { attempt: slot.attempt, task: slot.task }
    }
}

/// The answer to whoever asked for a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Theirs.
    pub entry: Entry,
    /// Others whose turn came up with it.
    pub called: Vec<Called>,
}

/// Why nobody could say.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// It did not answer, or not usefully. Whether it did what was asked is not known: everything that is asked of it may be repeated.
    #[error("admission could not {what}")]
    Unavailable {
        /// What was asked.
        what: &'static str,
        /// Why; without the address, which may hold a password.
        #[source]
        source: Option<redis::RedisError>,
    },
    /// The attempts in flight could not be read.
    #[error("the attempts in flight could not be read: {0}")]
    Facts(String),
    /// It answers, and has lost its counts: they have to be made again first.
    #[error("admission has lost its counts")]
    Lost,
}

/// How full it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Slots that are held, those kept for tasks that were called included.
    pub held: u64,
    /// Of those, kept for tasks that were called.
    pub called: u64,
    /// Tasks that wait, those that were called included.
    pub waiting: u64,
    /// Slots held, by provider.
    pub providers: Vec<(String, u64)>,
    /// It has lost its counts.
    pub lost: bool,
}

/// Counts slots. Everything may be asked twice, and comes to the same.
pub trait Admission: Send + Sync {
    /// Asks for a slot; without one, the attempt is in line from then on, at the place it has by its first question.
    ///
    /// # Errors
    /// [`AdmissionError`].
    fn ask<'a>(&'a self, slot: &'a Slot) -> BoxFuture<'a, Result<Asked, AdmissionError>>;

    /// Its attempt is in flight: the slot is held on, or taken where it is not held, also beyond a limit: what runs counts.
    ///
    /// # Errors
    /// [`AdmissionError`].
    fn keep<'a>(&'a self, slot: &'a Slot) -> BoxFuture<'a, Result<(), AdmissionError>>;

    /// Gives a slot back, and says whose turn it is now. What holds for a later round of the attempt is not touched.
    ///
    /// # Errors
    /// [`AdmissionError`].
    fn give_back(&self, attempt: AttemptId, round: u32) -> BoxFuture<'_, Result<Vec<Called>, AdmissionError>>;

    /// The attempt does not wait any more: out of the line, and what was kept for it goes to the next.
    ///
    /// # Errors
    /// [`AdmissionError`].
    fn withdraw(&self, attempt: AttemptId) -> BoxFuture<'_, Result<Vec<Called>, AdmissionError>>;

    /// Time has passed: leases may have ended, calls may have been missed, rates may allow more.
    ///
    /// # Errors
    /// [`AdmissionError`].
    fn tick(&self) -> BoxFuture<'_, Result<Vec<Called>, AdmissionError>>;

    /// Compares the slots with the attempts that are in flight: those that are missing are added, those of no attempt are given
    /// back once they are older than a while. `None`: another process is at it, or was a moment ago.
    ///
    /// # Errors
    /// [`AdmissionError`]; [`AdmissionError::Facts`] where the attempts could not be read: then nothing was changed.
    fn sweep<'a>(&'a self, facts: &'a dyn InFlight) -> BoxFuture<'a, Result<Option<Swept>, AdmissionError>>;

    /// How full it is.
    ///
    /// # Errors
    /// [`AdmissionError`].
    fn count(&self) -> BoxFuture<'_, Result<Count, AdmissionError>>;
}

/// What a comparison came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Attempts in flight.
    pub in_flight: usize,
    /// Slots given back that no attempt was in flight for.
    pub freed: u64,
    /// Whose turn it is now.
    pub called: Vec<Called>,
}

/// Reads the attempts in flight from the facts.
pub trait InFlight: Send + Sync {
    /// The slots that they hold or should hold.
    fn slots(&self) -> BoxFuture<'_, Result<Vec<Slot>, String>>;
}

/// How long it is remembered that a round is over, in milliseconds: for news of it that comes late.
pub(crate) const REMEMBERED: u64 = 3_600_000;
