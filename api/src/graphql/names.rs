//! The words of the domain as GraphQL enums. A test holds the two lists together.

use async_graphql::Enum;
use async_graphql::resolver_utils::EnumType;

/// The states of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
pub(crate) enum TaskState {
    /// Accepted; nobody has been asked yet.
    Queued,
    /// A provider is being asked.
    Submitting,
    /// The provider could not take it now; it will be asked again.
    WaitingRetry,
    /// A provider works on it.
    ProviderRunning,
    /// The provider may or may not have it: that is being found out.
    Reconciling,
    /// It is being cancelled.
    CancelReconciling,
    /// The provider has finished; the output is being fetched.
    Fetching,
    /// An export is being rendered.
    Rendering,
    /// The video is stored and is being examined.
    MediaProcessing,
    /// The video can be played; its thumbnail is still to come.
    PartiallyReady,
    /// A person has been asked.
    ManualReview,
    /// End: the video is ready.
    Succeeded,
    /// End: no video.
    Failed,
    /// End: cancelled.
    Canceled,
    /// End: cancelled, though the provider had finished.
    CanceledWithOutput,
}

/// The states of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
pub(crate) enum AttemptState {
    /// Decided on; no request has left.
    Planned,
    /// A request may be on its way.
    Submitting,
    /// Its answer was lost.
    SubmitUnknown,
    /// The provider has the job.
    Running,
    /// The provider has finished.
    Succeeded,
    /// The provider refused it, or the job failed.
    Failed,
    /// Cancelled, or never left.
    Canceled,
    /// Nobody waits for it any more.
    GivenUp,
}

/// The kinds of asset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
pub(crate) enum AssetKind {
    /// The video.
    Video,
    /// A still of it.
    Thumbnail,
}

/// The value of a stored name.
pub(crate) fn named<E: EnumType>(name: &str) -> Option<E> {
    E::items().iter().find(|item| item.name.eq_ignore_ascii_case(name)).map(|item| item.value)
}

/// The stored name of a value.
pub(crate) fn name_of<E: EnumType>(value: E) -> Option<&'static str> {
    E::items().iter().find(|item| item.value == value).map(|item| item.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_the_domain_s() {
        let shown: Vec<&str> = TaskState::items().iter().map(|item| item.name).collect();
        let stored: Vec<&str> = domain::task::State::ALL.iter().map(|state| state.name()).collect();
        assert_eq!(shown, stored[1..], "all but ABSENT");
        let shown: Vec<&str> = AttemptState::items().iter().map(|item| item.name).collect();
        let stored: Vec<&str> = domain::attempt::State::ALL.iter().map(|state| state.name()).collect();
        assert_eq!(shown, stored[1..], "all but ABSENT");
        assert_eq!(named("video"), Some(AssetKind::Video));
        assert_eq!(name_of(TaskState::WaitingRetry), Some("WAITING_RETRY"));
        assert_eq!(named::<TaskState>("ABSENT"), None);
    }
}
