//! The state after an event. An event that can not have happened in a state is a corrupt history, not a change.

use super::{Event, Live, Task};
use crate::aggregate::Misfit;
use crate::stored::StoredEvent;

impl Task {
    pub(super) fn fold(self, event: &Event) -> Result<Self, Misfit> {
        let misfit = Misfit { aggregate: "task", state: self.state().name(), event: event.name() };
        Ok(match (self, event) {
            (Self::Absent, Event::Submitted { order }) => Self::Queued(order.clone()),
            (Self::Queued(order), Event::SubmissionBegun { attempt_no }) => {
                Self::Submitting(Live { order, attempt_no: *attempt_no })
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
            (Self::Submitting(live) | Self::Reconciling(live), Event::Deferred { retry_at, .. }) => {
                Self::WaitingRetry { live, retry_at: *retry_at }
            }
            (Self::Submitting(live), Event::TrackLost {}) => Self::Reconciling(live),
            (Self::ProviderRunning(live) | Self::CancelReconciling(live), Event::FetchBegun { at }) => {
                Self::Fetching { live, delays: 0, not_before: *at }
            }
            (Self::Fetching { live, delays, .. }, Event::FetchDelayed { retry_at, .. }) => {
                Self::Fetching { live, delays: delays + 1, not_before: *retry_at }
            }
            (Self::Fetching { live, .. }, Event::VideoStored { video, at }) => {
                Self::MediaProcessing { live, video: video.clone(), since: *at }
            }
            (Self::MediaProcessing { live, .. }, Event::Succeeded { charge, .. }) => {
                Self::Succeeded { live, charge: *charge }
            }
            (Self::Queued(order), Event::Failed { class, .. }) => Self::Failed { order, class: *class },
            (
                Self::Submitting(live)
                | Self::WaitingRetry { live, .. }
                | Self::ProviderRunning(live)
                | Self::Fetching { live, .. }
                | Self::MediaProcessing { live, .. }
                | Self::ManualReview { live, .. },
                Event::Failed { class, .. },
            ) => Self::Failed { order: live.order, class: *class },
            (
                Self::Submitting(live) | Self::ProviderRunning(live) | Self::Reconciling(live),
                Event::CancelRequested { .. },
            ) => Self::CancelReconciling(live),
            (Self::Queued(order), Event::Canceled { .. }) => Self::Canceled(order),
            (Self::WaitingRetry { live, .. } | Self::CancelReconciling(live), Event::Canceled { .. }) => {
                Self::Canceled(live.order)
            }
            (Self::CancelReconciling(live), Event::CanceledWithOutput {}) => Self::CanceledWithOutput(live.order),
            (Self::Reconciling(live), Event::ReviewRequested { .. }) => Self::ManualReview { live, canceling: false },
            (Self::CancelReconciling(live), Event::ReviewRequested { .. }) => {
                Self::ManualReview { live, canceling: true }
            }
            _ => return Err(misfit),
        })
    }
}
