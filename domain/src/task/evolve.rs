//! The state after an event. An event that can not have happened in a state is a corrupt history, not a change.

use super::{Event, Live, Maker, Task, Tries};
use crate::aggregate::Misfit;
use crate::mutant::{self, Mutant};
use crate::stored::StoredEvent;

impl Task {
    pub(super) fn fold(self, event: &Event) -> Result<Self, Misfit> {
        let misfit = Misfit { aggregate: "task", state: self.state().name(), event: event.name() };
        let after = match event {
            Event::Submitted { .. }
            | Event::SubmissionBegun { .. }
            | Event::Accepted {}
            | Event::Deferred { .. }
            | Event::AttemptReplaced { .. }
            | Event::RetryRequested { .. }
            | Event::TrackLost {}
            | Event::FetchBegun { .. }
            | Event::FetchDelayed { .. } => self.fold_provider(event),
            Event::RenderBegun { .. }
            | Event::RenderDelayed { .. }
            | Event::VideoStored { .. }
            | Event::ProcessingBegun { .. }
            | Event::ProcessingDelayed { .. }
            | Event::VideoReady { .. }
            | Event::Succeeded { .. } => self.fold_media(event),
            Event::Failed { .. }
            | Event::CancelRequested { .. }
            | Event::Canceled { .. }
            | Event::CanceledWithOutput {}
            | Event::ReviewRequested { .. } => self.fold_end(event),
        };
        after.ok_or(misfit)
    }

    /// What happened between us and the provider.
    fn fold_provider(self, event: &Event) -> Option<Self> {
        Some(match (self, event) {
            (Self::Absent, Event::Submitted { order }) => Self::Queued(order.clone()),
            (Self::Queued(order), Event::SubmissionBegun { attempt_no }) => {
                Self::Submitting(Live { give_up_at: order.give_up_at, order, attempt_no: *attempt_no })
            }
            (Self::WaitingRetry { live, .. }, Event::SubmissionBegun { attempt_no }) => {
                Self::Submitting(Live { attempt_no: *attempt_no, ..live })
            }
            (
                Self::Submitting(live)
                | Self::WaitingRetry { live, .. }
                | Self::Reconciling(live)
                | Self::ManualReview { live, canceling: false },
                Event::Accepted {},
            ) => Self::ProviderRunning(live),
            (Self::ManualReview { live, canceling: true }, Event::Accepted {}) => Self::CancelReconciling(live),
            // There was no slot for its first attempt, or for its next.
            (Self::Queued(order), Event::Deferred { retry_at, .. }) => Self::WaitingRetry {
                live: Live { give_up_at: order.give_up_at, order, attempt_no: 1 },
                next_attempt: 1,
                retry_at: *retry_at,
            },
            (Self::WaitingRetry { live, next_attempt, .. }, Event::Deferred { retry_at, .. }) => {
                Self::WaitingRetry { live, next_attempt, retry_at: *retry_at }
            }
            (Self::Submitting(live) | Self::Reconciling(live), Event::Deferred { retry_at, .. }) => {
                Self::WaitingRetry { next_attempt: live.attempt_no, live, retry_at: *retry_at }
            }
            (
                Self::Submitting(live) | Self::Reconciling(live) | Self::ProviderRunning(live),
                Event::AttemptReplaced { retry_at, .. },
            ) => Self::WaitingRetry { next_attempt: live.attempt_no + 1, live, retry_at: *retry_at },
            (Self::WaitingRetry { live, next_attempt, .. }, Event::RetryRequested { retry_at, give_up_at, .. }) => {
                let live = Live { give_up_at: *give_up_at, ..live };
                Self::WaitingRetry { live, next_attempt, retry_at: *retry_at }
            }
            (Self::ManualReview { live, canceling: false }, Event::RetryRequested { retry_at, give_up_at, .. }) => {
                let live = Live { give_up_at: *give_up_at, ..live };
                Self::WaitingRetry { next_attempt: live.attempt_no + 1, live, retry_at: *retry_at }
            }
            (Self::Submitting(live), Event::TrackLost {}) => Self::Reconciling(live),
            (Self::ProviderRunning(live) | Self::CancelReconciling(live), Event::FetchBegun { at }) => {
                Self::Fetching { live, delays: 0, not_before: *at }
            }
            (Self::Fetching { live, delays, .. }, Event::FetchDelayed { retry_at, .. }) => {
                Self::Fetching { live, delays: delays + 1, not_before: *retry_at }
            }
            _ => return None,
        })
    }

    /// What happened to the video.
    fn fold_media(self, event: &Event) -> Option<Self> {
        Some(match (self, event) {
            (Self::Queued(order), Event::RenderBegun { at }) => {
                Self::Rendering { export: order.export()?, tries: Tries::none(*at, *at) }
            }
            (Self::Rendering { export, tries }, Event::RenderDelayed { retry_at, .. }) => {
                Self::Rendering { export, tries: tries.put_off(*retry_at) }
            }
            (Self::Fetching { live, .. }, Event::VideoStored { video, at }) => Self::MediaProcessing {
                maker: Maker::Attempt(live),
                video: video.clone(),
                tries: Tries::none(*at, *at),
            },
            (Self::Rendering { export, .. }, Event::VideoStored { video, at }) => Self::MediaProcessing {
                maker: Maker::Render(export),
                video: video.clone(),
                tries: Tries::none(*at, *at),
            },
            (mut task, Event::ProcessingBegun { count, busy_until }) => {
                let tries = task.tries_mut()?;
                *tries = tries.begun(*count, *busy_until);
                task
            }
            (
                mut task @ (Self::MediaProcessing { .. } | Self::PartiallyReady { .. }),
                Event::ProcessingDelayed { retry_at, .. },
            ) => {
                let tries = task.tries_mut()?;
                *tries = tries.put_off(*retry_at);
                task
            }
            (Self::MediaProcessing { maker, video, .. }, Event::VideoReady { probe, charge, at, retry_at, .. }) => {
                let tries = Tries::none(*at, *retry_at);
                Self::PartiallyReady { maker, video, probe: probe.clone(), charge: *charge, tries }
            }
            (
                Self::MediaProcessing { maker, .. } | Self::PartiallyReady { maker, .. },
                Event::Succeeded { charge, .. },
            ) => Self::Succeeded { maker, charge: *charge },
            _ => return None,
        })
    }

    /// What ended it, or asked for its end.
    fn fold_end(self, event: &Event) -> Option<Self> {
        Some(match (self, event) {
            (
                task @ (Self::Submitting(_)
                | Self::WaitingRetry { .. }
                | Self::ProviderRunning(_)
                | Self::Fetching { .. }
                | Self::Rendering { .. }
                | Self::MediaProcessing { .. }
                | Self::ManualReview { .. }),
                Event::Failed { class, .. },
            ) => Self::Failed { order: task.order()?.clone(), class: *class },
            (
                Self::Submitting(live) | Self::ProviderRunning(live) | Self::Reconciling(live),
                Event::CancelRequested { .. },
            ) => Self::CancelReconciling(live),
            (Self::ManualReview { live, .. }, Event::CancelRequested { .. }) => {
                Self::ManualReview { live, canceling: true }
            }
            (
                task @ (Self::Queued(_)
                | Self::WaitingRetry { .. }
                | Self::Rendering { .. }
                | Self::CancelReconciling(_)
                | Self::ManualReview { canceling: true, .. }),
                Event::Canceled { .. },
            ) => Self::Canceled(task.order()?.clone()),
            (Self::Succeeded { maker, .. }, Event::Canceled { .. }) if mutant::on(Mutant::TerminalOverwritten) => {
                Self::Canceled(maker.order().clone())
            }
            (Self::CancelReconciling(live), Event::CanceledWithOutput {}) => Self::CanceledWithOutput(live.order),
            (Self::Reconciling(live) | Self::ProviderRunning(live), Event::ReviewRequested { .. }) => {
                Self::ManualReview { live, canceling: false }
            }
            (Self::CancelReconciling(live), Event::ReviewRequested { .. }) => {
                Self::ManualReview { live, canceling: true }
            }
            _ => return None,
        })
    }

    const fn tries_mut(&mut self) -> Option<&mut Tries> {
        match self {
            Self::Rendering { tries, .. }
            | Self::MediaProcessing { tries, .. }
            | Self::PartiallyReady { tries, .. } => Some(tries),
            _ => None,
        }
    }
}
