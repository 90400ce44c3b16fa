//! What a command leads to.

use super::{Command, Event, Order, Task, Work};
use crate::aggregate::{Aggregate, Category, Decision, Misfit, NOT_FROM_THIS_STATE, Refusal};
use crate::money::Credits;
use crate::mutant::{self, Mutant};
use crate::time::Timestamp;
use Decision::AlreadySo;

impl Aggregate for Task {
    const CATEGORY: Category = Category::Task;
    type Command = Command;
    type Event = Event;

    fn absent() -> Self {
        Self::Absent
    }

    fn decide(&self, command: Command, now: Timestamp) -> Result<Decision<Event>, Refusal> {
        match command {
            Command::Submit(order) => self.submit(order),
            it @ (Command::BeginSubmission { .. }
            | Command::Accept
            | Command::Defer { .. }
            | Command::Wait { .. }
            | Command::Replace { .. }
            | Command::LoseTrack
            | Command::BeginFetch
            | Command::DelayFetch { .. }) => self.with_provider(it, now),
            it @ (Command::BeginRender
            | Command::DelayRender { .. }
            | Command::StoreVideo(_)
            | Command::BeginProcessing { .. }
            | Command::DelayProcessing { .. }
            | Command::FinishVideo { .. }
            | Command::Finish { .. }
            | Command::ForgoExtras) => self.with_media(it, now),
            Command::Retry { by, give_up_at } => self.retry(by, give_up_at, now),
            it @ (Command::Fail { .. }
            | Command::Cancel { .. }
            | Command::ConfirmCancel
            | Command::DiscardOutput
            | Command::AskPerson { .. }) => self.end(it),
        }
    }

    fn evolve(self, event: &Event) -> Result<Self, Misfit> {
        self.fold(event)
    }
}

impl Task {
    fn refuse(&self, command: &'static str, code: &'static str, message: &str) -> Refusal {
        Refusal { aggregate: "task", state: self.state().name(), command, code, message: message.to_owned() }
    }

    fn out_of_place(&self, command: &'static str) -> Refusal {
        self.refuse(command, NOT_FROM_THIS_STATE, "not possible any more, or not yet")
    }

    fn submit(&self, order: Order) -> Result<Decision<Event>, Refusal> {
        if self.order() == Some(&order) {
            return Ok(AlreadySo);
        }
        if !matches!(self, Self::Absent) {
            return Err(self.out_of_place("Submit"));
        }
        if order.export().is_some_and(|export| !export.spec.is_sound()) {
            return Err(self.refuse("Submit", "bad_export", "an export's height is an even number from 144 to 2160"));
        }
        Ok(Decision::one(Event::Submitted { order }))
    }

    fn with_provider(&self, command: Command, now: Timestamp) -> Result<Decision<Event>, Refusal> {
        let on = command.on().name();
        Ok(match (self, command) {
            (_, Command::BeginSubmission { attempt_no }) => self.begin_submission(attempt_no, now)?,
            (Self::WaitingRetry { live, next_attempt, .. }, Command::Accept) if *next_attempt != live.attempt_no => {
                return Err(self.refuse(on, "other_attempt", "the current attempt is over"));
            }
            (
                Self::Submitting(_) | Self::WaitingRetry { .. } | Self::Reconciling(_) | Self::ManualReview { .. },
                Command::Accept,
            ) => Decision::one(Event::Accepted {}),
            (Self::Submitting(_) | Self::Reconciling(_), Command::Defer { retry_at, reason }) => {
                Decision::one(Event::Deferred { retry_at, reason })
            }
            (_, Command::Wait { retry_at, reason }) => self.wait(retry_at, reason, now)?,
            (
                Self::Submitting(live) | Self::Reconciling(live) | Self::ProviderRunning(live),
                Command::Replace { retry_at, reason, max_attempts },
            ) => {
                if live.attempt_no >= max_attempts {
                    return Err(self.refuse(on, "no_attempts_left", "the policy allows no further attempt"));
                }
                Decision::one(Event::AttemptReplaced { retry_at, reason })
            }
            (Self::Submitting(_), Command::LoseTrack) => Decision::one(Event::TrackLost {}),
            (Self::ProviderRunning(_) | Self::CancelReconciling(_), Command::BeginFetch) => {
                Decision::one(Event::FetchBegun { at: now })
            }
            (Self::Fetching { .. }, Command::DelayFetch { retry_at, cause }) => {
                Decision::one(Event::FetchDelayed { retry_at, cause })
            }
            (Self::ProviderRunning(_), Command::Accept)
            | (Self::Reconciling(_), Command::LoseTrack)
            | (Self::Fetching { .. }, Command::BeginFetch) => AlreadySo,
            _ => return Err(self.out_of_place(on)),
        })
    }

    /// It waits for a slot. One that waits already only asks again when its time has come.
    fn wait(&self, retry_at: Timestamp, reason: String, now: Timestamp) -> Result<Decision<Event>, Refusal> {
        const ON: &str = "Wait";
        match self {
            Self::Queued(order) if order.work != Work::Generate => {
                Err(self.refuse(ON, "not_a_generation", "an export is rendered here, and needs no slot"))
            }
            Self::WaitingRetry { retry_at: due, .. } if *due > now => {
                Err(self.refuse(ON, "too_early", "the retry is not due yet"))
            }
            Self::Queued(_) | Self::WaitingRetry { .. } => Ok(Decision::one(Event::Deferred { retry_at, reason })),
            _ => Err(self.out_of_place(ON)),
        }
    }

    fn begin_submission(&self, attempt_no: u32, now: Timestamp) -> Result<Decision<Event>, Refusal> {
        const ON: &str = "BeginSubmission";
        let next = match self {
            Self::Queued(order) if order.work != Work::Generate => {
                return Err(self.refuse(ON, "not_a_generation", "an export is rendered here, not submitted"));
            }
            Self::Queued(_) => 1,
            Self::WaitingRetry { retry_at, .. } if *retry_at > now => {
                return Err(self.refuse(ON, "too_early", "the retry is not due yet"));
            }
            Self::WaitingRetry { next_attempt, .. } => *next_attempt,
            _ => return Err(self.out_of_place(ON)),
        };
        if attempt_no != next {
            return Err(self.refuse(ON, "wrong_attempt", "it is not the attempt whose turn it is"));
        }
        Ok(Decision::one(Event::SubmissionBegun { attempt_no }))
    }

    fn with_media(&self, command: Command, now: Timestamp) -> Result<Decision<Event>, Refusal> {
        let on = command.on().name();
        Ok(match (self, command) {
            (Self::Queued(Order { work: Work::Export { .. }, .. }), Command::BeginRender) => {
                Decision::one(Event::RenderBegun { at: now })
            }
            (Self::Queued(_), Command::BeginRender) => {
                return Err(self.refuse(on, "not_an_export", "only an export is rendered"));
            }
            (Self::Rendering { .. }, Command::BeginRender) => AlreadySo,
            (Self::Rendering { .. }, Command::DelayRender { retry_at, cause }) => {
                Decision::one(Event::RenderDelayed { retry_at, cause })
            }
            (Self::Fetching { .. } | Self::Rendering { .. }, Command::StoreVideo(video)) => {
                Decision::one(Event::VideoStored { video, at: now })
            }
            (
                Self::MediaProcessing { video: stored, .. } | Self::PartiallyReady { video: stored, .. },
                Command::StoreVideo(video),
            ) if *stored == video => AlreadySo,
            (_, Command::BeginProcessing { max_tries, busy_until }) => {
                self.begin_processing(max_tries, busy_until, now)?
            }
            (
                Self::MediaProcessing { .. } | Self::PartiallyReady { .. },
                Command::DelayProcessing { retry_at, cause },
            ) => Decision::one(Event::ProcessingDelayed { retry_at, cause }),
            (Self::MediaProcessing { maker, .. }, Command::FinishVideo { probe, charge, retry_at, cause }) => {
                self.within_hold(maker.order(), charge, on)?;
                Decision::one(Event::VideoReady { probe, charge, at: now, retry_at, cause })
            }
            (Self::MediaProcessing { maker, .. }, Command::Finish { probe, thumbnail, charge }) => {
                self.within_hold(maker.order(), charge, on)?;
                Decision::one(Event::Succeeded { probe, thumbnail: Some(thumbnail), charge })
            }
            (Self::PartiallyReady { charge: known, .. }, Command::Finish { probe, thumbnail, charge }) => {
                if charge != *known {
                    return Err(self.refuse(on, "charge_changed", "the user has been told another charge"));
                }
                Decision::one(Event::Succeeded { probe, thumbnail: Some(thumbnail), charge })
            }
            (Self::PartiallyReady { probe, charge, .. }, Command::ForgoExtras) => {
                Decision::one(Event::Succeeded { probe: probe.clone(), thumbnail: None, charge: *charge })
            }
            _ => return Err(self.out_of_place(on)),
        })
    }

    /// One worker at a time: beside a try whose lease runs nothing begins, and nothing is counted.
    fn begin_processing(
        &self,
        max_tries: u32,
        busy_until: Timestamp,
        now: Timestamp,
    ) -> Result<Decision<Event>, Refusal> {
        const ON: &str = "BeginProcessing";
        let tries = self.tries().ok_or_else(|| self.out_of_place(ON))?;
        if tries.busy_until.is_some_and(|lease| lease > now) {
            return Err(self.refuse(ON, "already_at_work", "a worker is at it"));
        }
        if tries.unanswered >= max_tries {
            return Err(self.refuse(ON, "no_tries_left", "the work began that often and was never answered"));
        }
        Ok(Decision::one(Event::ProcessingBegun { count: tries.unanswered + 1, busy_until }))
    }

    fn end(&self, command: Command) -> Result<Decision<Event>, Refusal> {
        let on = command.on().name();
        Ok(match (self, command) {
            (
                Self::Submitting(_)
                | Self::WaitingRetry { .. }
                | Self::ProviderRunning(_)
                | Self::Fetching { .. }
                | Self::Rendering { .. }
                | Self::MediaProcessing { .. }
                | Self::ManualReview { .. },
                Command::Fail { class, code, message },
            ) => Decision::one(Event::Failed { class, code, message }),
            (Self::Queued(_) | Self::WaitingRetry { .. } | Self::Rendering { .. }, Command::Cancel { by }) => {
                Decision::one(Event::Canceled { by })
            }
            (Self::Succeeded { .. }, Command::Cancel { by }) if mutant::on(Mutant::TerminalOverwritten) => {
                Decision::one(Event::Canceled { by })
            }
            (
                Self::Submitting(_)
                | Self::ProviderRunning(_)
                | Self::Reconciling(_)
                | Self::ManualReview { canceling: false, .. },
                Command::Cancel { by },
            ) => Decision::one(Event::CancelRequested { by }),
            (Self::CancelReconciling(_) | Self::ManualReview { canceling: true, .. }, Command::ConfirmCancel) => {
                Decision::one(Event::Canceled { by: String::new() })
            }
            (Self::ManualReview { canceling: false, .. }, Command::ConfirmCancel) => {
                return Err(self.refuse(on, "not_canceling", "nobody asked for it to be cancelled"));
            }
            (Self::CancelReconciling(_), Command::DiscardOutput) => Decision::one(Event::CanceledWithOutput {}),
            (
                Self::Reconciling(_) | Self::CancelReconciling(_) | Self::ProviderRunning(_),
                Command::AskPerson { reason },
            ) => Decision::one(Event::ReviewRequested { reason }),
            (Self::Failed { class: known, .. }, Command::Fail { class, .. }) if *known == class => AlreadySo,
            (
                Self::CancelReconciling(_)
                | Self::ManualReview { canceling: true, .. }
                | Self::Canceled(_)
                | Self::CanceledWithOutput(_),
                Command::Cancel { .. },
            )
            | (Self::Canceled(_), Command::ConfirmCancel)
            | (Self::CanceledWithOutput(_), Command::DiscardOutput)
            | (Self::ManualReview { .. }, Command::AskPerson { .. }) => AlreadySo,
            _ => return Err(self.out_of_place(on)),
        })
    }

    fn retry(&self, by: String, give_up_at: Timestamp, now: Timestamp) -> Result<Decision<Event>, Refusal> {
        let live = match self {
            // It only ever comes sooner.
            Self::WaitingRetry { retry_at, .. } if *retry_at <= now => return Ok(AlreadySo),
            Self::ManualReview { canceling: true, .. } => {
                return Err(self.refuse("Retry", "canceling", "the user wants it cancelled"));
            }
            Self::WaitingRetry { live, .. } | Self::ManualReview { live, .. } => live,
            _ => return Err(self.out_of_place("Retry")),
        };
        let give_up_at = give_up_at.max(live.give_up_at);
        Ok(Decision::one(Event::RetryRequested { by, retry_at: now, give_up_at }))
    }

    fn within_hold(&self, order: &Order, charge: Credits, on: &'static str) -> Result<(), Refusal> {
        if charge < Credits::ZERO || charge > order.hold {
            return Err(self.refuse(on, "charge_exceeds_hold", "a charge is between nothing and what is held"));
        }
        Ok(())
    }
}
