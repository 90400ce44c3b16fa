//! The named invariants, over a history of all streams of one or many cases. Each is a function over a whole history, and a
//! [`Watch`] that is asked after each event: it remembers what it needs, and takes the same short time however long the history is.
//!
//! ```
//! use domain::id::{AccountId, TaskId};
//! use domain::ledger::Event;
//! use domain::money::Credits;
//! use domain::process::Change;
//! use domain::testkit::invariants::{AllInvariants, Recorded, Watch, conserved_credits};
//! use domain::testkit::strategies::start;
//!
//! let account = AccountId(uuid::Uuid::from_u128(7));
//! let task = TaskId(uuid::Uuid::from_u128(1));
//! let posting = |version, event| Recorded { version, at: start(), change: Change::Account(account, event) };
//! let history = [
//!     posting(1, Event::Granted { key: "welcome".to_owned(), amount: Credits(100) }),
//!     posting(2, Event::Held { task, amount: Credits(60), expires_at: None }),
//! ];
//! assert_eq!(conserved_credits(&history), Ok(()));
//!
//! // After each step of a simulation:
//! let mut watch = AllInvariants::default();
//! for recorded in &history {
//!     watch.observe(recorded)?;
//! }
//! let broken = watch.observe(&posting(3, Event::Released { task, released: Credits(61) })).expect_err("61 of 60");
//! assert_eq!((broken.invariant, broken.version), ("conserved-credits", 3));
//! # Ok::<(), domain::testkit::invariants::Violation>(())
//! ```

mod attempts;
mod credits;
mod streams;
mod tasks;
mod verdicts;

pub use attempts::NoBlindResubmit;
pub use credits::{ConservedCredits, OnePostingPerKey};
pub use streams::{GaplessStream, Replayable};
pub use tasks::{NoSilentStall, OneWinner, TerminalIsTerminal};
pub use verdicts::SettledByVerdict;

use crate::process::{Change, StreamId, Turn};
use crate::time::Timestamp;

/// An event as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its version in its stream.
    pub version: i64,
    /// When it was recorded.
    pub at: Timestamp,
    /// The event, with the stream it belongs to.
    pub change: Change,
}

impl Recorded {
    /// Its stream.
    #[must_use]
    pub const fn stream(&self) -> StreamId {
        self.change.stream()
    }

    /// What a turn has recorded, numbered as a store would: a turn that goes over to the next attempt has left the one before as
    /// it was, so one attempt's version is enough. Should a turn ever write to two, gapless-stream finds it.
    #[must_use]
    pub fn of(turn: &Turn<'_>) -> Vec<Self> {
        let case = &turn.case;
        let mut next = [case.task.version, case.attempt.version, case.account.version];
        let mut recorded: Vec<Self> = Vec::with_capacity(turn.changes.len());
        // From the last one back: the case has the versions after the turn.
        for change in turn.changes.iter().rev() {
            let version = match change {
                Change::Task(..) => &mut next[0],
                Change::Attempt(..) => &mut next[1],
                Change::Account(..) => &mut next[2],
            };
            recorded.push(Self { version: *version, at: turn.now, change: change.clone() });
            *version -= 1;
        }
        recorded.reverse();
        recorded
    }
}

/// An invariant does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{invariant} is broken by {stream} at version {version}: {sentence}")]
pub struct Violation {
    /// Its name in the design.
    pub invariant: &'static str,
    /// The stream whose event breaks it.
    pub stream: StreamId,
    /// The event's version; 0 where the history's end breaks it.
    pub version: i64,
    /// What is wrong.
    pub sentence: String,
}

/// Watches one invariant while a history is made.
pub trait Watch {
    /// The invariant's name in the design.
    fn invariant(&self) -> &'static str;

    /// Takes the next recorded event. Events come in the order in which they were committed; after a violation, what is said
    /// of the same stream means nothing.
    ///
    /// # Errors
    /// [`Violation`]: the event breaks the invariant.
    fn observe(&mut self, recorded: &Recorded) -> Result<(), Violation>;

    /// Asks at the end, when nothing is on its way any more.
    ///
    /// # Errors
    /// [`Violation`]: something that had to come did not.
    fn at_rest(&self) -> Result<(), Violation> {
        Ok(())
    }

    /// A violation by this event.
    fn broken(&self, recorded: &Recorded, sentence: String) -> Violation {
        Violation { invariant: self.invariant(), stream: recorded.stream(), version: recorded.version, sentence }
    }
}

/// Holds a whole history against one invariant.
///
/// # Errors
/// The first [`Violation`].
pub fn check(mut watch: impl Watch, history: &[Recorded]) -> Result<(), Violation> {
    history.iter().try_for_each(|recorded| watch.observe(recorded))
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: $watch:ident),+ $(,)?) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// The first [`Violation`].
            pub fn $name(history: &[Recorded]) -> Result<(), Violation> {
                check($watch::default(), history)
            }
        )+

        /// All of them at once.
        #[derive(Debug, Default)]
        pub struct AllInvariants {
            $($name: $watch,)+
        }

        impl Watch for AllInvariants {
            fn invariant(&self) -> &'static str {
                "all"
            }

            fn observe(&mut self, recorded: &Recorded) -> Result<(), Violation> {
                $(self.$name.observe(recorded)?;)+
                Ok(())
            }

            fn at_rest(&self) -> Result<(), Violation> {
                $(self.$name.at_rest()?;)+
                Ok(())
            }
        }
    };
}

functions! {
    /// The versions of each stream are 1, 2, 3 and so on.
    gapless_stream: GaplessStream,
    /// Nothing happens to a task after its end.
    terminal_is_terminal: TerminalIsTerminal,
    /// At most one video of a task, and it is of its current attempt, which succeeded, or of an export's own render.
    one_winner: OneWinner,
    /// Each further submission follows the word that nothing had been created, each further attempt the end of the one before; at
    /// most one job per attempt.
    no_blind_resubmit: NoBlindResubmit,
    /// What came into an account is what is there; nothing is ever less than nothing.
    conserved_credits: ConservedCredits,
    /// One posting per business key, one that closes a hold.
    one_posting_per_key: OnePostingPerKey,
    /// A task is submitted with its hold, and the hold is closed as the task ended.
    settled_by_verdict: SettledByVerdict,
    /// At rest, each task has ended or is with a person.
    no_silent_stall: NoSilentStall,
    /// Each event survives its stored form, and the history folds. Asked last: it also finds what the others name better.
    replayable: Replayable,
}
