//! The one catalogue of physical topics and consumer groups.
//!
//! RocketMQ names allow letters, digits, `_` and `-` only, so the logical names of [`Topic`] need a mapping. Nothing else in
//! the project spells a physical name: what is not here does not exist at the broker.

use domain::message::Topic;
use serde::Deserialize;

/// Queues per topic unless configured otherwise. The number of processes that can consume one group at once is bounded by it.
pub const DEFAULT_QUEUES: u32 = 8;

/// The longest name that RocketMQ accepts for a topic (`TOPIC_MAX_LENGTH` of the broker), prefix included.
pub const MAX_NAME_LENGTH: usize = 127;

/// What kind of messages a topic takes: the broker's `message.type` attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageType {
    /// Delivered at once.
    Normal,
    /// Delivered at a time that each message carries.
    Delay,
}

impl MessageType {
    /// The attribute's value as the broker spells it.
    #[must_use]
    pub const fn attribute(self) -> &'static str {
        match self {
            Self::Normal => "NORMAL",
            Self::Delay => "DELAY",
        }
    }
}

/// The consumer groups (chapter 7.5.2). A group is one purpose; every topic has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Submits tasks to providers.
    SchedulerSubmit,
    /// Asks providers how jobs are doing.
    ProviderPoll,
    /// Applies what providers told by callback.
    CallbackApply,
    /// Fetches outputs into the object store.
    AssetFetch,
    /// Probes outputs and makes thumbnails.
    AssetPostprocess,
    /// Renders exports.
    RenderExport,
    /// Settles or releases holds.
    BillingSettle,
    /// Tells people.
    NotificationPush,
    /// Finds out what became of unclear submits and cancels.
    Reconcile,
}

impl Group {
    /// Every group.
    pub const ALL: [Self; 9] = [
        Self::SchedulerSubmit,
        Self::ProviderPoll,
        Self::CallbackApply,
        Self::AssetFetch,
        Self::AssetPostprocess,
        Self::RenderExport,
        Self::BillingSettle,
        Self::NotificationPush,
        Self::Reconcile,
    ];

    /// The group's name without prefix: half of the inbox key, and never renamed (a new version is a new group).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SchedulerSubmit => "cg_scheduler_submit_v1",
            Self::ProviderPoll => "cg_provider_poll_v1",
            Self::CallbackApply => "cg_callback_apply_v1",
            Self::AssetFetch => "cg_asset_fetch_v1",
            Self::AssetPostprocess => "cg_asset_postprocess_v1",
            Self::RenderExport => "cg_render_export_v1",
            Self::BillingSettle => "cg_billing_settle_v1",
            Self::NotificationPush => "cg_notification_push_v1",
            Self::Reconcile => "cg_reconcile_v1",
        }
    }

    /// The topics that the group subscribes to, all tags of each.
    #[must_use]
    pub const fn topics(self) -> &'static [Topic] {
        match self {
            Self::SchedulerSubmit => &[Topic::GenerationSubmit, Topic::GenerationSubmitDelay],
            Self::ProviderPoll => &[Topic::GenerationPollDelay],
            Self::CallbackApply => &[Topic::GenerationCallback],
            Self::AssetFetch => &[Topic::AssetFetch, Topic::AssetFetchDelay],
            Self::AssetPostprocess => &[Topic::AssetPostprocess, Topic::AssetPostprocessDelay],
            Self::RenderExport => &[Topic::RenderExport, Topic::RenderExportDelay],
            Self::BillingSettle => &[Topic::BillingSettle],
            Self::NotificationPush => &[Topic::NotificationEvent],
            Self::Reconcile => &[Topic::CompensationReconcileDelay],
        }
    }

    /// How many messages a process handles at once unless configured otherwise. Each costs a thread and, for a while, a
    /// database connection: more only where the work waits for somebody else (a provider, a download).
    #[must_use]
    pub const fn default_threads(self) -> usize {
        match self {
            Self::SchedulerSubmit | Self::ProviderPoll => 8,
            Self::CallbackApply | Self::AssetFetch | Self::BillingSettle | Self::NotificationPush | Self::Reconcile => {
                4
            }
            Self::AssetPostprocess => 2,
            // A render keeps a processor busy for as long as it takes.
            Self::RenderExport => 1,
        }
    }
}

/// A topic as it is at the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhysicalTopic {
    /// The name at the broker, prefix included.
    pub name: String,
    /// What it takes.
    pub message_type: MessageType,
    /// Read and write queues per broker.
    pub queues: u32,
}

/// A prefix that would make illegal names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("topic prefix {0:?} may have letters, digits, '_' and '-' only, at most 64 of them")]
pub struct BadPrefix(pub String);

/// Physical names. The prefix lets several installations (or tests) share one broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalogue {
    prefix: String,
}

impl Catalogue {
    /// A catalogue whose every topic and group name starts with `prefix`; empty for none.
    ///
    /// # Errors
    /// [`BadPrefix`] when the broker would refuse the names.
    pub fn with_prefix(prefix: &str) -> Result<Self, BadPrefix> {
        if prefix.len() > 64 || !prefix.chars().all(is_legal) {
            return Err(BadPrefix(prefix.chars().take(80).collect()));
        }
        Ok(Self { prefix: prefix.to_owned() })
    }

    /// The topic as it is at the broker.
    #[must_use]
    pub fn topic(&self, topic: Topic) -> PhysicalTopic {
        PhysicalTopic {
            name: self.topic_name(topic),
            message_type: if topic.is_delayed() { MessageType::Delay } else { MessageType::Normal },
            queues: DEFAULT_QUEUES,
        }
    }

    /// The topic's name at the broker: delayed ones end in `_delay`, all others in `_normal`.
    #[must_use]
    pub fn topic_name(&self, topic: Topic) -> String {
        let base = match topic {
            Topic::GenerationSubmit => "generation_submit_normal",
            Topic::GenerationSubmitDelay => "generation_submit_delay",
            Topic::GenerationPollDelay => "generation_poll_delay",
            Topic::GenerationCallback => "generation_callback_normal",
            Topic::AssetFetch => "asset_fetch_normal",
            Topic::AssetFetchDelay => "asset_fetch_delay",
            Topic::AssetPostprocess => "asset_postprocess_normal",
            Topic::AssetPostprocessDelay => "asset_postprocess_delay",
            Topic::RenderExport => "render_export_normal",
            Topic::RenderExportDelay => "render_export_delay",
            Topic::BillingSettle => "billing_settle_normal",
            Topic::NotificationEvent => "notification_event_normal",
            Topic::CompensationReconcileDelay => "compensation_reconcile_delay",
        };
        format!("{}{base}", self.prefix)
    }

    /// The logical topic of a physical name, if it is one of ours.
    #[must_use]
    pub fn logical(&self, name: &str) -> Option<Topic> {
        Topic::ALL.into_iter().find(|topic| self.topic_name(*topic) == name)
    }

    /// The group's name at the broker.
    #[must_use]
    pub fn group_name(&self, group: Group) -> String {
        format!("{}{}", self.prefix, group.name())
    }

    /// The topic of the readiness probe. It carries no business.
    #[must_use]
    pub fn probe_topic(&self) -> PhysicalTopic {
        PhysicalTopic {
            name: format!("{}aivideo_probe_normal", self.prefix),
            message_type: MessageType::Normal,
            queues: 1,
        }
    }

    /// The group name under which the readiness probe reads. It never commits an offset.
    #[must_use]
    pub fn probe_group(&self) -> String {
        format!("{}cg_aivideo_probe_v1", self.prefix)
    }

    /// Every topic that must exist at the broker, the probe's included.
    #[must_use]
    pub fn all_topics(&self) -> Vec<PhysicalTopic> {
        Topic::ALL.into_iter().map(|topic| self.topic(topic)).chain([self.probe_topic()]).collect()
    }

    /// Every group name that must exist at the broker, the probe's included.
    #[must_use]
    pub fn all_groups(&self) -> Vec<String> {
        Group::ALL.into_iter().map(|group| self.group_name(group)).chain([self.probe_group()]).collect()
    }
}

const fn is_legal(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_' || character == '-'
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_legal_and_unique_with_the_longest_prefix() {
        for prefix in [String::new(), "p".repeat(64)] {
            let catalogue = Catalogue::with_prefix(&prefix).expect("a legal prefix");
            let names: Vec<String> =
                catalogue.all_topics().into_iter().map(|topic| topic.name).chain(catalogue.all_groups()).collect();
            for name in &names {
                assert!(name.chars().all(is_legal), "{name} has a character that RocketMQ refuses");
                assert!(name.len() <= MAX_NAME_LENGTH, "{name} is too long");
            }
            assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "a name is used twice");
        }
    }

    #[test]
    fn every_topic_has_exactly_one_group() {
        for topic in Topic::ALL {
            let readers: Vec<Group> = Group::ALL.into_iter().filter(|group| group.topics().contains(&topic)).collect();
            assert_eq!(readers.len(), 1, "{} is read by {readers:?}", topic.name());
        }
    }

    #[test]
    fn suffix_and_type_say_the_same() {
        let catalogue = Catalogue::default();
        for topic in Topic::ALL {
            let physical = catalogue.topic(topic);
            let delayed = physical.message_type == MessageType::Delay;
            assert_eq!(physical.name.ends_with("_delay"), delayed, "{}", physical.name);
            assert_eq!(delayed, topic.is_delayed());
            assert_eq!(catalogue.logical(&physical.name), Some(topic));
        }
        assert_eq!(catalogue.logical("generation.submit"), None);
    }

    #[test]
    fn a_bad_prefix_is_refused() {
        assert_eq!(Catalogue::with_prefix("a.b"), Err(BadPrefix("a.b".to_owned())));
        assert!(Catalogue::with_prefix(&"x".repeat(65)).is_err());
    }
}
