//! Everything that a provider's simulator can be asked to do wrong, and what must come of it.

use domain::task::State;
use workers::ports::{CancelKind, Capabilities, Dedupe, LookUp, WebhookScheme};

/// What a fault does to the create call's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing: it comes.
    None,
    /// It is lost, and there is no job.
    Before,
    /// It is lost, and there is a job.
    After,
}

/// A row of the matrix.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The simulator's words.
    pub words: &'static str,
    /// What becomes of the create call's answer.
    pub loss: Loss,
    /// Whether callbacks come, where the provider has some.
    pub calls_back: bool,
    /// When the user cancels.
    pub cancel: Option<State>,
    /// How it ends where nothing is lost.
    end: State,
}

const fn fault(words: &'static str, loss: Loss, end: State) -> Fault {
    Fault { words, loss, calls_back: true, cancel: None, end }
}

const fn silent(fault: Fault) -> Fault {
    Fault { calls_back: false, ..fault }
}

const fn canceled(words: &'static str, cancel: State) -> Fault {
    Fault { words, loss: Loss::None, calls_back: true, cancel: Some(cancel), end: State::Canceled }
}

use Loss::{After, Before, None as Kept};
use State::{Failed, Succeeded};

/// Every fault of the simulators that one task can ask for (`providers/src/simulator/mod.rs` explains the words).
pub const FAULTS: &[Fault] = &[
    fault("run=300", Kept, Succeeded),
    fault("refuse=400", Kept, Failed),
    fault("refuse=402", Kept, Failed),
    fault("refuse=moderation", Kept, Failed),
    fault("fail=internal", Kept, Failed),
    fault("fail=moderation", Kept, Failed),
    fault("fail=expired", Kept, Failed),
    fault("fail=hidden", Kept, Failed),
    fault("throttle=2", Kept, Succeeded),
    fault("drop=before", Before, Succeeded),
    fault("5xx=before", Before, Succeeded),
    fault("hang=before:9", Before, Succeeded),
    fault("drop=after", After, Succeeded),
    silent(fault("drop=after callback=none", After, Succeeded)),
    fault("5xx=after", After, Succeeded),
    fault("hang=after:9", After, Succeeded),
    fault("reply=cut", After, Succeeded),
    fault("reply=junk", After, Succeeded),
    fault("reply=noid", After, Succeeded),
    silent(fault("drop=after callback=none list=late:600", After, Succeeded)),
    silent(fault("drop=after callback=none list=late:60000 conflict=409", After, Succeeded)),
    fault("callback=early", Kept, Succeeded),
    fault("callback=early drop=after", After, Succeeded),
    fault("callback=duplicate:3", Kept, Succeeded),
    fault("callback=late:1500", Kept, Succeeded),
    silent(fault("callback=none", Kept, Succeeded)),
    fault("cut=1", Kept, Succeeded),
    fault("expire=1", Kept, Succeeded),
    fault("status=weird", Kept, Succeeded),
    silent(fault("never", Kept, Failed)),
    canceled("never", State::ProviderRunning),
    canceled("never cancel=fail:2", State::ProviderRunning),
    canceled("run=1500 cancel=late", State::ProviderRunning),
    canceled("hang=after:9 never", State::Submitting),
];

impl Fault {
    /// Its name in the table.
    pub fn name(&self) -> String {
        match self.cancel {
            None => self.words.to_owned(),
            Some(at) => format!("{} + cancel in {}", self.words, at.name()),
        }
    }

    /// Whether it means anything at this provider.
    pub fn is_for(&self, can: &Capabilities) -> bool {
        // A list that never shows the job is beyond what a look-up by list can see through: what helps is an id of our own.
        !self.words.contains("list=late:60000") || can.dedupe == Dedupe::RefusesDuplicate
    }

    /// In which states it may end, or be handed to a person. `crashed`: a process died on the way, at the submission or not.
    pub fn ends(&self, can: &Capabilities, crashed: Crashed) -> Vec<State> {
        let mut ends = self.without_a_crash(can);
        if crashed == Crashed::AtSubmit {
            // The answer may be lost now, before or after the job was accepted. A throttled or refused call leaves no job: a
            // further submission comes to the same.
            for loss in [Before, After] {
                ends.extend(Self { loss, ..*self }.without_a_crash(can));
            }
        }
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    fn without_a_crash(&self, can: &Capabilities) -> Vec<State> {
        if let Some(at) = self.cancel {
            return self.canceled(can, at);
        }
        let person = State::ManualReview;
        let told = self.calls_back && can.webhook != WebhookScheme::None && self.end == Succeeded;
        match (self.loss, can.look_up) {
            (Kept, _) | (_, LookUp::ByReference | LookUp::ListByReference | LookUp::ListByLikeness) => vec![self.end],
            (_, LookUp::None) => vec![person],
            (Before, LookUp::CallbackOnly) => vec![person],
            (After, LookUp::CallbackOnly) if told => vec![self.end],
            (After, LookUp::CallbackOnly) if self.calls_back => vec![self.end, person],
            (After, LookUp::CallbackOnly) => vec![person],
        }
    }

    fn canceled(&self, can: &Capabilities, at: State) -> Vec<State> {
        let late = self.words.contains("cancel=late");
        let mut ends = match can.cancel {
            // It can not be stopped: it runs to its end, or a person is asked when that takes too long.
            CancelKind::None if late => vec![Succeeded],
            CancelKind::None => vec![State::ManualReview],
            // Whether it had started when the cancel came is a matter of milliseconds.
            CancelKind::QueuedOnly if late => vec![Succeeded, State::Canceled],
            CancelKind::QueuedOnly => vec![State::ManualReview, State::Canceled],
            CancelKind::Unfinished if late => vec![Succeeded, State::Canceled],
            CancelKind::Unfinished => vec![State::Canceled],
        };
        let unclear = at == State::Submitting || self.loss != Kept;
        if unclear && matches!(can.look_up, LookUp::None | LookUp::CallbackOnly) {
            ends.push(State::ManualReview);
        }
        // Without a job there is nothing to cancel.
        if unclear {
            ends.push(State::Canceled);
        }
        ends
    }
}

/// Where a process died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crashed {
    Nowhere,
    /// With a create call on its way.
    AtSubmit,
    /// Elsewhere.
    Elsewhere,
}
