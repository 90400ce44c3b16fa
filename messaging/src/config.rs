//! What can be configured about the broker.

use crate::catalogue::{BadPrefix, Catalogue, Group};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Blocking threads of the client that listeners may not use: the client's own file and crypto work needs some.
pub const RESERVED_BLOCKING_THREADS: usize = 8;

/// The most blocking threads that the client's runtime accepts (`MAX_ENTRYPOINT_BLOCKING_THREADS` of rocketmq-runtime 1.0).
pub const MAX_BLOCKING_THREADS: usize = 512;

/// How to reach the broker, and how hard to work for it.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BrokerConfig {
    /// `host:port` of the name server; several are separated by `;`.
    pub name_server: String,
    /// Put before every topic and group name, so that installations can share a broker. Letters, digits, `_`, `-`.
    pub topic_prefix: String,
    /// How long one send may take, in milliseconds. There are no retries inside: the outbox repeats.
    pub send_timeout_ms: u64,
    /// How often a message is delivered again before the broker puts it on the group's dead letter queue.
    pub max_redeliveries: u32,
    /// Messages handled at once per group, where not the group's default.
    pub threads: BTreeMap<Group, usize>,
    /// Threads of the client's runtime for blocking work. All groups' threads together, and
    /// [`RESERVED_BLOCKING_THREADS`] more, must fit; at most [`MAX_BLOCKING_THREADS`].
    pub max_blocking_threads: usize,
    /// Asynchronous worker threads of the client's runtime.
    pub worker_threads: usize,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            name_server: "127.0.0.1:9876".to_owned(),
            topic_prefix: String::new(),
            send_timeout_ms: 3_000,
            max_redeliveries: 16,
            threads: BTreeMap::new(),
            max_blocking_threads: 128,
            worker_threads: 2,
        }
    }
}

/// Why a configuration is refused at start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadConfig {
    /// The name prefix is not legal.
    #[error(transparent)]
    Prefix(#[from] BadPrefix),
    /// More handlers than threads: the client would drop messages back to the retry topic under load.
    #[error(
        "the consumer groups want {wanted} threads, the client's lane has {lane}: lower broker.threads or raise \
         broker.max_blocking_threads (now {configured}, at most {MAX_BLOCKING_THREADS})"
    )]
    TooManyThreads {
        /// Sum over the groups.
        wanted: usize,
        /// What the lane holds.
        lane: usize,
        /// `max_blocking_threads` as configured.
        configured: usize,
    },
    /// A number that makes no sense.
    #[error("broker.{field} = {value}: {rule}")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// What it was set to.
        value: u64,
        /// What it may be.
        rule: &'static str,
    },
}

impl BrokerConfig {
    /// The physical names under this configuration.
    ///
    /// # Errors
    /// [`BadPrefix`] for an illegal prefix.
    pub fn catalogue(&self) -> Result<Catalogue, BadPrefix> {
        Catalogue::with_prefix(&self.topic_prefix)
    }

    /// How many messages of a group are handled at once in this process.
    #[must_use]
    pub fn threads(&self, group: Group) -> usize {
        self.threads.get(&group).copied().unwrap_or_else(|| group.default_threads())
    }

    /// How many listener calls can run at once in the client's blocking lane, over all groups.
    #[must_use]
    pub const fn lane(&self) -> usize {
        self.max_blocking_threads.saturating_sub(RESERVED_BLOCKING_THREADS)
    }

    /// How long one send may take.
    #[must_use]
    pub const fn send_timeout(&self) -> Duration {
        Duration::from_millis(self.send_timeout_ms)
    }

    /// Checks the numbers, and that all groups fit into the lane even if one process runs them all.
    ///
    /// # Errors
    /// [`BadConfig`] names the field and what to do.
    pub fn validate(&self) -> Result<(), BadConfig> {
        self.catalogue()?;
        let out_of_range = |field, value: u64, rule| Err(BadConfig::OutOfRange { field, value, rule });
        if !(RESERVED_BLOCKING_THREADS + 1..=MAX_BLOCKING_THREADS).contains(&self.max_blocking_threads) {
            return out_of_range("max_blocking_threads", self.max_blocking_threads as u64, "must be 9 to 512");
        }
        if !(100..=60_000).contains(&self.send_timeout_ms) {
            return out_of_range("send_timeout_ms", self.send_timeout_ms, "must be 100 to 60000");
        }
        if !(1..=64).contains(&self.worker_threads) {
            return out_of_range("worker_threads", self.worker_threads as u64, "must be 1 to 64");
        }
        if !(1..=1_000).contains(&self.max_redeliveries) {
            return out_of_range("max_redeliveries", u64::from(self.max_redeliveries), "must be 1 to 1000");
        }
        if Group::ALL.into_iter().any(|group| self.threads(group) == 0) {
            return out_of_range("threads", 0, "a group needs at least one thread");
        }
        self.fits(Group::ALL.into_iter().map(|group| self.threads(group)).sum())
    }

    /// Checks that `wanted` threads fit into the lane.
    pub(crate) const fn fits(&self, wanted: usize) -> Result<(), BadConfig> {
        let lane = self.lane();
        if wanted > lane {
            return Err(BadConfig::TooManyThreads { wanted, lane, configured: self.max_blocking_threads });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_accepted() {
        assert_eq!(BrokerConfig::default().validate(), Ok(()));
    }

    #[test]
    fn more_threads_than_the_lane_holds_are_refused_with_the_numbers() {
        let config: BrokerConfig =
            serde_json::from_str(r#"{"threads": {"asset_fetch": 200}}"#).expect("a readable configuration");
        let refused = config.validate().expect_err("235 threads do not fit into 120");
        assert_eq!(refused, BadConfig::TooManyThreads { wanted: 235, lane: 120, configured: 128 });
        assert!(refused.to_string().contains("max_blocking_threads"), "{refused}");
    }

    #[test]
    fn unknown_fields_groups_and_zero_threads_are_refused() {
        assert!(serde_json::from_str::<BrokerConfig>(r#"{"name_srv": "x"}"#).is_err());
        assert!(serde_json::from_str::<BrokerConfig>(r#"{"threads": {"nobody": 1}}"#).is_err());
        let config: BrokerConfig = serde_json::from_str(r#"{"threads": {"reconcile": 0}}"#).expect("readable");
        assert!(matches!(config.validate(), Err(BadConfig::OutOfRange { field: "threads", .. })));
    }
}
