//! Chance, all of it drawn from one seed. Each draw is a function of (seed, subject, site, how often this subject drew there),
//! so that taking a task or a kind of fault away leaves the luck of the others as it was: that is what makes a story shrink.

use crate::clock::Micros;

/// Whose luck it is: a task by its number, or a process.
pub(crate) type Subject = u32;

/// The first subject that is not a task.
pub(crate) const PROCESSES: Subject = 1 << 20;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $rate:literal $text:literal),+ $(,)?) => {
        /// The kinds of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub(crate) enum Fault { $($(#[$doc])* $name),+ }

        impl Fault {
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name),+];

            /// How often in 10,000 occasions.
            const fn rate(self) -> u64 {
                match self { $(Self::$name => $rate),+ }
            }

            /// What it is, for stories and documentation.
            pub(crate) const fn text(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }
        }
    };
}

faults! {
    Serialization = 150 "the database asks for another try",
    CommitLostDone = 60 "a commit is carried out and its answer lost",
    CommitLostUndone = 60 "a commit is lost with its connection",
    BeginFails = 60 "no connection to the database",
    Outage = 4_000 "the database is down for a while",
    BellLost = 300 "a NOTIFY is lost",
    Duplicate = 250 "the broker delivers a message twice",
    Slow = 300 "the broker delivers late, so that messages overtake each other",
    Early = 200 "a delayed message comes early",
    Lost = 150 "a delayed message is lost",
    AckLost = 150 "an acknowledgement is lost",
    Impatient = 150 "a message is delivered again while its handler runs",
    FewTries = 500 "a message is dead-lettered after four deliveries",
    SendFails = 150 "the broker refuses a send",
    SendUnanswered = 150 "the broker takes a message and its answer is lost",
    Wipe = 1_500 "the broker loses everything it has",
    Poison = 20 "a message that nobody can read",
    Forged = 40 "a message that names another tenant",
    Kill = 10_000 "a process is killed",
    Pause = 10_000 "a process is paused and goes on later",
    Nap = 60 "a worker falls asleep between its commit and its call",
    NapWithAnswer = 60 "a worker falls asleep with an answer in hand",
    NapWithNo = 2_500 "a worker falls asleep with the provider's no in hand",
    Refuse = 350 "the provider refuses the request",
    Throttle = 600 "the provider answers 429",
    NoSlot = 800 "admission has no slot for a task",
    NeverTaken = 120 "the provider never has room for this one",
    NotSent = 250 "the provider can not be reached",
    DropBefore = 250 "a request is lost on the way",
    AcceptThenDrop = 500 "the provider takes the job and the answer is lost",
    ErrorBefore = 150 "5xx, and nothing was created",
    ErrorAfter = 250 "5xx, and the job exists",
    SlowAnswer = 2_000 "a create is answered late",
    CommitLate = 2_500 "a job is in the provider's list only seconds later",
    CommitVeryLate = 2_500 "a job is in the provider's list only minutes later, beyond what it promises",
    UnknownWord = 200 "a status word nobody knows",
    Slowness = 300 "a job takes very long",
    NeverFinishes = 200 "a job never finishes",
    FailsLater = 500 "a job fails",
    CanceledByProvider = 100 "the provider ends a job itself",
    PollUnavailable = 400 "a poll is not answered",
    PollThrottled = 200 "a poll is answered 429",
    PollNotFound = 100 "the provider does not know its job for a moment",
    AmbiguousList = 300 "a look-up finds several jobs",
    LookupFails = 500 "a look-up fails",
    CallbackDuplicate = 1_000 "a callback comes twice",
    CallbackEarly = 1_500 "a callback comes before the create's answer",
    CallbackLate = 800 "a callback comes very late",
    CallbackLost = 500 "a callback is lost",
    CancelRefused = 1_500 "a cancel is refused",
    CancelLost = 1_500 "a cancel is lost",
    CancelIgnored = 1_000 "a cancel is accepted and not carried out",
    CancelForgets = 500 "a cancelled job is forgotten by the provider",
    FetchNotNow = 700 "an output is not ready, or its transfer is cut short",
    FetchNever = 150 "an output can not be had",
    NeverReady = 60 "an output is never ready",
    NotAVideo = 100 "an output is not a video",
    ThumbnailFails = 1_000 "a thumbnail can not be made this time",
    NeverThumbnail = 150 "a thumbnail can never be made",
    RenderNotNow = 1_500 "a render is cut short",
    NeverRendered = 600 "a render always fails",
    RenderNever = 500 "a source can not be rendered",
    KillsWorker = 150 "an input kills the worker that processes it",
    ProcessNotNow = 500 "the media tool or the store fails",
    NeverProcessed = 60 "the media tool never works on this one",
    Corrupt = 150 "a video is corrupt",
    Resubmit = 1_500 "a user submits again with the same key",
    Concurrent = 1_000 "a user submits twice at the same moment",
    OtherBody = 300 "a user sends another request under the same key",
    Cancel = 3_500 "a user cancels",
    CancelTwice = 1_000 "a user cancels again",
    Foreign = 500 "a stranger cancels",
    AnswerLost = 300 "the answer to a user is lost",
    Export = 5_000 "a user orders an export",
    Retry = 5_000 "a user tries a failed task again",
    RetryNow = 1_500 "a user does not want to wait for the next try",
    Refund = 1_500 "an operator refunds",
    Adjust = 3_000 "an operator adjusts an account",
    Sweep = 4_000 "an operator sweeps expired holds",
    ReplaySame = 800 "an operator replays a message under its own id",
    ReplayNew = 800 "an operator replays a message under a new id",
    GrantTwice = 2_000 "a grant is posted twice",
    Poor = 1_500 "an account is nearly empty",
}

/// Which kinds of fault are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults(u128);

impl Faults {
    /// All of them.
    #[must_use]
    pub const fn all() -> Self {
        Self(u128::MAX)
    }

    /// None: everything goes well.
    #[must_use]
    pub const fn none() -> Self {
        Self(0)
    }

    pub(crate) const fn has(self, fault: Fault) -> bool {
        self.0 & (1 << fault as u128) != 0
    }

    pub(crate) const fn without(self, fault: Fault) -> Self {
        Self(self.0 & !(1 << fault as u128))
    }
}

/// Places other than faults where something is drawn.
#[derive(Clone, Copy, Debug)]
#[repr(u16)]
pub(crate) enum Site {
    Rules = 200,
    Tenant,
    Provider,
    Submit,
    CancelAt,
    Think,
    Network,
    Worker,
    Redeliver,
    DeliverAfter,
    Job,
    Fate,
    Callback,
    Retry,
    Lives,
    Sleep,
    Operator,
    Media,
}

const SITES: usize = 256;

/// The dice of one world.
pub(crate) struct Dice {
    seed: u64,
    faults: Faults,
    calm: bool,
    tasks: Vec<[u16; SITES]>,
    processes: Vec<[u16; SITES]>,
}

impl Dice {
    pub(crate) const fn new(seed: u64, faults: Faults) -> Self {
        Self { seed, faults, calm: false, tasks: Vec::new(), processes: Vec::new() }
    }

    /// From now on no fault happens any more: what is left must come to an end.
    pub(crate) fn calm_down(&mut self) {
        self.calm = true;
    }

    fn draw(&mut self, subject: Subject, site: u16) -> u64 {
        let (rows, row) = if subject >= PROCESSES {
            (&mut self.processes, (subject - PROCESSES) as usize)
        } else {
            (&mut self.tasks, subject as usize)
        };
        if rows.len() <= row {
            rows.resize(row + 1, [0; SITES]);
        }
        let count = &mut rows[row][usize::from(site)];
        *count = count.wrapping_add(1);
        let key = (u64::from(subject) << 32) | (u64::from(site) << 16) | u64::from(*count);
        mix(mix(self.seed ^ 0x5851_f42d_4c95_7f2d).wrapping_add(mix(key)))
    }

    /// From 0 to `n - 1`.
    pub(crate) fn below(&mut self, subject: Subject, site: Site, n: u64) -> u64 {
        self.draw(subject, site as u16) % n.max(1)
    }

    /// From `low` to `high`.
    pub(crate) fn between(&mut self, subject: Subject, site: Site, low: Micros, high: Micros) -> Micros {
        low + self.below(subject, site, high.saturating_sub(low) + 1)
    }

    /// Whether a fault happens on this occasion.
    pub(crate) fn strikes(&mut self, subject: Subject, fault: Fault) -> bool {
        let draw = self.draw(subject, fault as u16) % 10_000;
        !self.calm && self.faults.has(fault) && draw < fault.rate()
    }
}

/// The finaliser of splitmix64.
pub(crate) const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
