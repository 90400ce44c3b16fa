//! Seeded faults for tests that must find them. Without the feature `mutants` nothing of this is in the code.

/// A fault of the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// An attempt whose answer was lost is submitted again at once.
    ResubmitUnclear,
    /// One look-up that finds nothing is enough.
    OneAbsenceIsEnough,
    /// A lost job is looked up at once.
    NoSettleDelay,
    /// The answer of an old round is believed.
    RoundUnfenced,
    /// A wake-up that came early is not set again.
    NoRearm,
    /// A callback for an attempt whose answer was lost is thrown away.
    CallbackDropped,
    /// A second job is not written down.
    OrphanForgotten,
    /// A cancel is confirmed before anybody asked the provider.
    CancelAtOnce,
    /// A hold is settled as often as somebody asks.
    SettleTwice,
    /// A hold is released as often as somebody asks.
    ReleaseTwice,
    /// A refund is posted as often as somebody asks.
    RefundTwice,
    /// A task that has succeeded may be cancelled.
    TerminalOverwritten,
    /// An event is recorded without the message that sets the next step going.
    AnnouncementForgotten,
    /// A new attempt begins while the one before it may still run.
    ReplacedWhileRunning,
}

#[cfg(feature = "mutants")]
mod switch {
    use super::Mutant;
    use std::cell::Cell;

    thread_local! {
        static ON: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Switches a fault on for this thread, or all of them off. Says whether this build has them.
    pub fn set(mutant: Option<Mutant>) -> bool {
        ON.set(mutant);
        true
    }

    /// Whether a fault is on.
    pub(crate) fn on(mutant: Mutant) -> bool {
        ON.get() == Some(mutant)
    }
}

#[cfg(not(feature = "mutants"))]
mod switch {
    use super::Mutant;

    /// Switches nothing: this build has no seeded faults, and says so.
    pub const fn set(_mutant: Option<Mutant>) -> bool {
        false
    }

    pub(crate) const fn on(_mutant: Mutant) -> bool {
        false
    }
}

pub(crate) use switch::on;
pub use switch::set;
