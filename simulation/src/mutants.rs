//! Seeded faults of the system itself, switched on one at a time: each must be found by an invariant.

macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident = $text:literal $(in $domain:ident)?),+ $(,)?) => {
        /// A seeded fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutant { $($(#[$doc])* $name),+ }

        impl Mutant {
            /// Every mutant.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// What is wrong with it.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }

            /// The domain's own switch, where the fault is in the domain.
            pub(crate) const fn in_domain(self) -> Option<domain::mutant::Mutant> {
                match self { $(Self::$name => mutants!(@ $($domain)?)),+ }
            }
        }
    };
    (@) => { None };
    (@ $domain:ident) => { Some(domain::mutant::Mutant::$domain) };
}

impl Mutant {
    /// Whether this build can switch it on: those of the domain need the feature `mutants`.
    #[must_use]
    pub fn is_built_in(self) -> bool {
        let built_in = self.in_domain().is_none_or(|it| domain::mutant::set(Some(it)));
        domain::mutant::set(None);
        built_in
    }
}

mutants! {
    /// The broker is told before the database.
    AckBeforeCommit = "acknowledge before commit",
    /// Deliveries are not recognised.
    InboxKeyMissing = "missing inbox key",
    /// Done is recorded on its own.
    InboxInAnotherTransaction = "inbox row marked done in another transaction",
    /// A cursor over sequence numbers.
    CursorSkips = "projection cursor that skips late commits",
    /// The token is not asked for.
    LeaseUnfenced = "relay lease without fencing",
    /// Nobody looks at versions.
    LastWins = "last message wins (no version check)",
    /// No reconciler.
    NoScan = "delayed message lost with no scan",
    /// A failure of the send is not looked at.
    MarkedSentThoughFailed = "outbox row marked sent although the send failed",
    /// Each try is a new message.
    NewIdOnResend = "new event id on resend",
    /// Whoever asks may cancel.
    TenantCheckMissing = "tenant check missing at the API",
    /// Whoever writes a message is believed.
    MessageTenantUnchecked = "tenant of a message not checked",
    /// No quarantine.
    PoisonRetried = "a message that can not be read is tried again",
    /// The key of a request is not looked up.
    KeyNotKept = "idempotency key not looked up",
    /// A worker that slept past its budget sends all the same.
    LateRequestLeaves = "request leaves after the lease of its answer",
    /// See the domain.
    ResubmitUnclear = "resubmit after timeout" in ResubmitUnclear,
    /// See the domain.
    OneAbsenceIsEnough = "look-up absence counted once" in OneAbsenceIsEnough,
    /// See the domain.
    NoSettleDelay = "settle delay ignored" in NoSettleDelay,
    /// See the domain.
    RoundUnfenced = "late answer of an old round applied" in RoundUnfenced,
    /// See the domain.
    NoRearm = "wake-up that came early not set again" in NoRearm,
    /// See the domain.
    CallbackDropped = "callback for an unclear attempt dropped" in CallbackDropped,
    /// See the domain.
    OrphanForgotten = "orphan not recorded" in OrphanForgotten,
    /// See the domain.
    CancelAtOnce = "cancel says done while work goes on" in CancelAtOnce,
    /// See the domain.
    SettleTwice = "settle without business key" in SettleTwice,
    /// See the domain.
    ReleaseTwice = "release twice" in ReleaseTwice,
    /// See the domain.
    RefundTwice = "refund twice" in RefundTwice,
    /// See the domain.
    ReplacedWhileRunning = "another attempt while the first may still run" in ReplacedWhileRunning,
    /// See the domain.
    TerminalOverwritten = "terminal state overwritten" in TerminalOverwritten,
    /// See the domain.
    AnnouncementForgotten = "an event without the message that it announces" in AnnouncementForgotten,
}
