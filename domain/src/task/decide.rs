//! What a command leads to.

use super::{Command, Event, Live, Task};
use crate::aggregate::{Aggregate, Category, Decision, Misfit, NOT_FROM_THIS_STATE, Refusal};
use crate::money::Credits;
use crate::time::Timestamp;

impl Aggregate for Task {
    const CATEGORY: Category = Category::Task;
    type Command = Command;
    type Event = Event;

    fn absent() -> Self {
        Self::Absent
    }

    fn decide(&self, command: Command, now: Timestamp) -> Result<Decision<Event>, Refusal> {
        use Decision::AlreadySo;
        let on = command.on();
        Ok(match (self, command) {
            (Self::Absent, Command::Submit(order)) => Decision::one(Event::Submitted { order }),
            (task, Command::Submit(order)) if task.order() == Some(&order) => AlreadySo,

            (Self::Queued(_), Command::BeginSubmission { attempt_no: 1 }) => {
                Decision::one(Event::SubmissionBegun { attempt_no: 1 })
            }
            (Self::Queued(_), Command::BeginSubmission { .. }) => {
                return Err(self.refuse(on.name(), "wrong_attempt", "the first attempt has number 1"));
            }
            (Self::WaitingRetry { live, retry_at, .. }, Command::BeginSubmission { attempt_no }) => {
                self.retry(live, *retry_at, attempt_no, now)?
            }

            (
                Self::Submitting(_) | Self::WaitingRetry { .. } | Self::Reconciling(_) | Self::ManualReview { .. },
                Command::Accept,
            ) => Decision::one(Event::Accepted {}),
            (Self::ProviderRunning(_), Command::Accept) => AlreadySo,

            (Self::Submitting(_) | Self::Reconciling(_), Command::Defer { retry_at, reason }) => {
                Decision::one(Event::Deferred { retry_at, reason })
            }
            (Self::Submitting(_), Command::LoseTrack) => Decision::one(Event::TrackLost {}),
            (Self::Reconciling(_), Command::LoseTrack) => AlreadySo,

            (Self::ProviderRunning(_) | Self::CancelReconciling(_), Command::BeginFetch) => {
                Decision::one(Event::FetchBegun { at: now })
            }
            (Self::Fetching { .. }, Command::BeginFetch) => AlreadySo,
            (Self::Fetching { .. }, Command::DelayFetch { retry_at, cause }) => {
                Decision::one(Event::FetchDelayed { retry_at, cause })
            }
            (Self::Fetching { .. }, Command::StoreVideo(video)) => Decision::one(Event::VideoStored { video, at: now }),
            (Self::MediaProcessing { video: stored, .. }, Command::StoreVideo(video)) if *stored == video => AlreadySo,

            (Self::MediaProcessing { live, .. }, Command::Finish { probe, thumbnail, charge }) => {
                self.within_hold(live, charge)?;
                Decision::one(Event::Succeeded { probe, thumbnail, charge })
            }

            (
                Self::Queued(_)
                | Self::Submitting(_)
                | Self::WaitingRetry { .. }
                | Self::ProviderRunning(_)
                | Self::Fetching { .. }
                | Self::MediaProcessing { .. }
                | Self::ManualReview { .. },
                Command::Fail { class, code, message },
            ) => Decision::one(Event::Failed { class, code, message }),
            (Self::Failed { class: known, .. }, Command::Fail { class, .. }) if *known == class => AlreadySo,

            (Self::Queued(_) | Self::WaitingRetry { .. }, Command::Cancel { by }) => {
                Decision::one(Event::Canceled { by })
            }
            (Self::Submitting(_) | Self::ProviderRunning(_) | Self::Reconciling(_), Command::Cancel { by }) => {
                Decision::one(Event::CancelRequested { by })
            }
            (Self::CancelReconciling(_) | Self::Canceled(_) | Self::CanceledWithOutput(_), Command::Cancel { .. })
            | (Self::Canceled(_), Command::ConfirmCancel)
            | (Self::CanceledWithOutput(_), Command::DiscardOutput)
            | (Self::ManualReview { .. }, Command::AskPerson { .. }) => AlreadySo,

            (Self::CancelReconciling(_), Command::ConfirmCancel) => {
                Decision::one(Event::Canceled { by: String::new() })
            }
            (Self::CancelReconciling(_), Command::DiscardOutput) => Decision::one(Event::CanceledWithOutput {}),
            (Self::Reconciling(_) | Self::CancelReconciling(_), Command::AskPerson { reason }) => {
                Decision::one(Event::ReviewRequested { reason })
            }
            _ => return Err(self.refuse(on.name(), NOT_FROM_THIS_STATE, "not possible any more, or not yet")),
        })
    }

    fn evolve(self, event: &Event) -> Result<Self, Misfit> {
        self.fold(event)
    }
}

impl Task {
    fn refuse(&self, command: &'static str, code: &'static str, message: &str) -> Refusal {
        Refusal { aggregate: "task", state: self.state().name(), command, code, message: message.to_owned() }
    }

    fn retry(
        &self,
        live: &Live,
        retry_at: Timestamp,
        attempt_no: u32,
        now: Timestamp,
    ) -> Result<Decision<Event>, Refusal> {
        if attempt_no != live.attempt_no && attempt_no != live.attempt_no + 1 {
            return Err(self.refuse(
                "BeginSubmission",
                "wrong_attempt",
                "neither the current attempt nor the next one",
            ));
        }
        if retry_at > now {
            return Err(self.refuse("BeginSubmission", "too_early", "the retry is not due yet"));
        }
        Ok(Decision::one(Event::SubmissionBegun { attempt_no }))
    }

    fn within_hold(&self, live: &Live, charge: Credits) -> Result<(), Refusal> {
        if charge < Credits::ZERO || charge > live.order.hold {
            return Err(self.refuse("Finish", "charge_exceeds_hold", "a charge is between nothing and what is held"));
        }
        Ok(())
    }
}
