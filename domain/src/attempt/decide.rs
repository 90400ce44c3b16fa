//! What a command leads to.

use super::{Attempt, Command, Core, Event};
use crate::aggregate::{Aggregate, Category, Decision, Misfit, NOT_FROM_THIS_STATE, Refusal};
use crate::mutant::{self, Mutant};
use crate::time::Timestamp;

impl Aggregate for Attempt {
    const CATEGORY: Category = Category::Attempt;
    type Command = Command;
    type Event = Event;

    fn absent() -> Self {
        Self::Absent
    }

    fn decide(&self, command: Command, now: Timestamp) -> Result<Decision<Event>, Refusal> {
        use Decision::AlreadySo;
        let on = command.on().name();
        Ok(match (self, command) {
            (Self::Absent, Command::Plan { task, number, provider }) => {
                Decision::one(Event::Planned { task, number, provider })
            }
            (Self::Planned(_), Command::Plan { .. }) => AlreadySo,
            (Self::Planned(core), Command::BeginSubmission { give_up_at }) => {
                if give_up_at <= now {
                    return Err(self.refuse(on, "deadline_passed", "the deadline must be ahead"));
                }
                Decision::one(Event::SubmissionBegun { round: core.round + 1, give_up_at })
            }
            (
                Self::Submitting { .. } | Self::Unclear { .. },
                Command::Accept { job, how, next_poll_at, give_up_at },
            ) => Decision::one(Event::Accepted { job, how, next_poll_at, give_up_at }),
            (Self::Planned(core), Command::Accept { job, how, next_poll_at, give_up_at }) => {
                if core.round == 0 {
                    return Err(self.refuse(on, "never_submitted", "nothing has left for this attempt yet"));
                }
                Decision::one(Event::Accepted { job, how, next_poll_at, give_up_at })
            }
            (Self::Running { job: known, .. } | Self::Succeeded { job: known, .. }, Command::Accept { job, .. })
                if *known == job =>
            {
                AlreadySo
            }
            (Self::Submitting { core, .. } | Self::Unclear { core, .. }, Command::Defer { reason, round }) => {
                self.in_round(core, round, on)?;
                Decision::one(Event::Deferred { reason })
            }
            (Self::Submitting { core, .. }, Command::LoseAnswer { round, next_lookup_at, cause }) => {
                self.in_round(core, round, on)?;
                Decision::one(Event::AnswerLost { at: now, next_lookup_at, cause })
            }
            (Self::Unclear { core, .. }, Command::LoseAnswer { round, .. }) => {
                self.in_round(core, round, on)?;
                AlreadySo
            }
            (Self::Unclear { .. }, Command::NoteLookup { absent, next_lookup_at, finding }) => {
                Decision::one(Event::LookedUp { absent, next_lookup_at, finding })
            }
            (Self::Running { .. }, Command::NotePoll { percent, next_poll_at, finding }) => {
                Decision::one(Event::Polled { percent, next_poll_at, finding })
            }
            (Self::Running { .. }, Command::Succeed { usage_millis }) => {
                Decision::one(Event::Succeeded { usage_millis })
            }
            (Self::Succeeded { .. }, Command::Succeed { .. }) => AlreadySo,
            (state, Command::Fail { round, class, code, message }) => {
                return state.fail(round, Event::Failed { class, code, message }, on);
            }
            (Self::Planned(_) | Self::Running { .. }, Command::ConfirmCancel) => Decision::one(Event::Canceled {}),
            (Self::Canceled(_), Command::ConfirmCancel) | (Self::GivenUp { .. }, Command::GiveUp { .. }) => AlreadySo,
            (Self::Planned(_) | Self::Running { .. } | Self::Unclear { .. }, Command::GiveUp { reason }) => {
                Decision::one(Event::GivenUp { reason })
            }
            (state, Command::RecordOrphan { job }) => return state.orphan(job, on),
            _ => return Err(self.refuse(on, NOT_FROM_THIS_STATE, "not possible any more, or not yet")),
        })
    }

    fn evolve(self, event: &Event) -> Result<Self, Misfit> {
        self.fold(event)
    }
}

impl Attempt {
    fn refuse(&self, command: &'static str, code: &'static str, message: &str) -> Refusal {
        Refusal { aggregate: "attempt", state: self.state().name(), command, code, message: message.to_owned() }
    }

    /// Fencing: a worker that slept while others went on can not speak for a later round.
    fn in_round(&self, core: &Core, round: u32, on: &'static str) -> Result<(), Refusal> {
        if core.round == round || mutant::on(Mutant::RoundUnfenced) {
            return Ok(());
        }
        Err(self.refuse(on, "other_round", "the answer belongs to an earlier submission of this attempt"))
    }

    fn fail(&self, round: Option<u32>, event: Event, on: &'static str) -> Result<Decision<Event>, Refusal> {
        match (self, round) {
            (Self::Submitting { core, .. } | Self::Unclear { core, .. }, Some(round)) => {
                self.in_round(core, round, on)?;
                Ok(Decision::one(event))
            }
            (Self::Submitting { .. } | Self::Unclear { .. }, None) => {
                Err(self.refuse(on, "no_round", "only the answer of its own round can refuse a submission"))
            }
            (Self::Running { .. }, None) => Ok(Decision::one(event)),
            (Self::Running { .. }, Some(_)) => Err(self.refuse(on, "already_accepted", "the provider has the job")),
            (Self::Failed(_), _) => Ok(Decision::AlreadySo),
            _ => Err(self.refuse(on, NOT_FROM_THIS_STATE, "not possible any more, or not yet")),
        }
    }

    fn orphan(&self, job: String, on: &'static str) -> Result<Decision<Event>, Refusal> {
        let core = match self {
            Self::Running { core, .. }
            | Self::Succeeded { core, .. }
            | Self::GivenUp { core, .. }
            | Self::Failed(core)
            | Self::Canceled(core) => core,
            _ => {
                return Err(self.refuse(on, NOT_FROM_THIS_STATE, "a job that turns up now is accepted, not an orphan"));
            }
        };
        // Late news of the attempt's own job is no second job.
        if core.job.as_ref() == Some(&job) || core.orphans.contains(&job) || mutant::on(Mutant::OrphanForgotten) {
            return Ok(Decision::AlreadySo);
        }
        Ok(Decision::one(Event::OrphanRecorded { job }))
    }
}
