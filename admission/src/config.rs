//! What may run at once and how often: limits by name, rates, weights, and what happens while Redis is down.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use uuid::Uuid;

/// Who counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Each process for itself: for development, and for one process.
    #[default]
    Process,
    /// Redis, for all processes together.
    Redis,
}

/// What happens while Redis does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenDown {
    /// Each process admits by the same limits on its own: with N processes up to N times as much may run. A provider that gets too
    /// much says "not now", which tasks wait out: an outage of what only counts stops nobody.
    #[default]
    Admit,
    /// Nothing is submitted until it answers again.
    Wait,
}

/// The most that may run at once, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// For whoever is not named; none: no limit. 0: nothing begins.
    #[serde(rename(serialize = "d"), skip_serializing_if = "Option::is_none")]
    pub default: Option<u32>,
    /// By name.
    #[serde(rename(serialize = "o"))]
    pub by: BTreeMap<String, u32>,
}

impl Limits {
    pub(crate) fn of(&self, name: &str) -> Option<u32> {
        self.by.get(name).copied().or(self.default)
    }

    fn is_open(&self) -> bool {
        self.default.is_none() && self.by.is_empty()
    }
}

/// So many requests in so many seconds, evenly; after a pause all of them may come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// How many.
    pub requests: u32,
    /// In how many seconds.
    pub seconds: u32,
}

impl Serialize for Rate {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Bucket {
            n: u32,
            ms: u64,
        }
        Bucket { n: self.requests, ms: u64::from(self.seconds) * 1000 }.serialize(to)
    }
}

/// Rates by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rates {
    /// For whoever is not named; none: as often as they like.
    #[serde(rename(serialize = "d"), skip_serializing_if = "Option::is_none")]
    pub default: Option<Rate>,
    /// By name.
    #[serde(rename(serialize = "o"))]
    pub by: BTreeMap<String, Rate>,
}

impl Rates {
    pub(crate) fn of(&self, name: &str) -> Option<Rate> {
        self.by.get(name).copied().or(self.default)
    }

    fn is_open(&self) -> bool {
        self.default.is_none() && self.by.is_empty()
    }
}

/// The section `[admission]`.
#[derive(Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdmissionConfig {
    /// Who counts.
    pub kind: Kind,
    /// `redis://[user:password@]host:port/database`; needed for `redis`. A secret: it is never printed.
    pub url: Option<String>,
    /// What all keys begin with. Installations that share a Redis have one each.
    pub prefix: String,
    /// What happens while Redis does not answer.
    pub when_down: WhenDown,
    /// How long Redis has to answer, in milliseconds.
    pub timeout_ms: u64,
    /// How long a slot is held without a word of its attempt, in seconds.
    pub lease_seconds: u64,
    /// How long a slot is kept for a task that was called, in seconds.
    pub call_seconds: u64,
    /// After how many calls in vain a task leaves the line. It comes back by itself at its next look.
    pub missed_calls: u32,
    /// When a task that waits asks again though nobody called it, at the soonest, in seconds; from then on as long again as it has
    /// waited so far.
    pub recheck_first_seconds: u64,
    /// The same, at the latest.
    pub recheck_last_seconds: u64,
    /// How often slots are compared with the attempts in flight, in seconds.
    pub sweep_seconds: u64,
    /// How long a task waits before it asks again while Redis is down and `when_down` is `wait`, in seconds.
    pub down_wait_seconds: u64,
    /// Slots by user, named `TENANT/USER`.
    pub users: Limits,
    /// Slots by tenant.
    pub tenants: Limits,
    /// Slots by model, named as in the catalogue.
    pub models: Limits,
    /// Slots by provider.
    pub providers: Limits,
    /// Submissions by tenant.
    pub tenant_rate: Rates,
    /// Submissions by provider.
    pub provider_rate: Rates,
    /// Shares of tenants where several wait; 1 for those not named.
    pub weights: BTreeMap<String, f64>,
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        Self {
            kind: Kind::Process,
            url: None,
            prefix: "aivideo".to_owned(),
            when_down: WhenDown::Admit,
            timeout_ms: 250,
            lease_seconds: 300,
            call_seconds: 30,
            missed_calls: 3,
            recheck_first_seconds: 60,
            recheck_last_seconds: 300,
            sweep_seconds: 30,
            down_wait_seconds: 15,
            users: Limits::default(),
            tenants: Limits::default(),
            models: Limits::default(),
            providers: Limits::default(),
            tenant_rate: Rates::default(),
            provider_rate: Rates::default(),
            weights: BTreeMap::new(),
        }
    }
}

impl std::fmt::Debug for AdmissionConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdmissionConfig")
            .field("kind", &self.kind)
            .field("url", &self.url.as_ref().map(|_| "<secret>"))
            .field("prefix", &self.prefix)
            .field("when_down", &self.when_down)
            .field("rules", &Rules::of(self))
            .finish_non_exhaustive()
    }
}

impl AdmissionConfig {
    /// Refuses what can not work.
    ///
    /// # Errors
    /// A sentence that names the key.
    pub fn check(&self) -> Result<(), String> {
        let rates = [&self.tenant_rate, &self.provider_rate];
        let mut rates = rates.iter().flat_map(|it| it.default.iter().chain(it.by.values()));
        let rules = [
            (
                self.kind == Kind::Process || self.url.is_some(),
                "admission.kind is redis, and admission.url is not given: set AIVIDEO_ADMISSION__URL",
            ),
            (self.timeout_ms >= 10, "admission.timeout_ms must be at least 10"),
            (self.sweep_seconds >= 1, "admission.sweep_seconds must be at least 1"),
            (
                self.lease_seconds >= self.sweep_seconds.saturating_mul(3),
                "admission.lease_seconds must be at least three times admission.sweep_seconds: each sweep renews the slots of what runs",
            ),
            (self.call_seconds >= 1, "admission.call_seconds must be at least 1"),
            (self.missed_calls >= 1, "admission.missed_calls must be at least 1"),
            (
                self.recheck_first_seconds >= 1 && self.recheck_last_seconds >= self.recheck_first_seconds,
                "admission.recheck_first_seconds must be at least 1, and admission.recheck_last_seconds not less than that",
            ),
            (
                rates.all(|it| it.requests >= 1 && it.seconds >= 1),
                "a rate of admission needs at least 1 request and 1 second",
            ),
            (
                self.weights.values().all(|it| it.is_finite() && *it >= 0.001 && *it <= 1000.0),
                "admission.weights are from 0.001 to 1000",
            ),
            (
                !self.prefix.is_empty()
                    && self.prefix.chars().all(|it| it.is_ascii_alphanumeric() || "-_.:".contains(it)),
                "admission.prefix is made of letters, digits and -_.:",
            ),
        ];
        if let Some((_, rule)) = rules.iter().find(|(holds, _)| !holds) {
            return Err((*rule).to_owned());
        }
        let tenants = self.tenants.by.keys().chain(self.tenant_rate.by.keys()).chain(self.weights.keys());
        let users = self.users.by.keys().map(|it| it.split_once('/').map_or("", |(tenant, _)| tenant));
        // As tenants are written: another way of writing the same one would never be met.
        let unknown = tenants
            .map(String::as_str)
            .chain(users)
            .find(|it| it.parse::<Uuid>().map(|id| id.to_string()).ok().as_deref() != Some(*it));
        match unknown {
            Some(name) => Err(format!(
                "admission: {name:?} is no tenant: tenants are named by their UUIDs in small letters, users as TENANT/USER"
            )),
            None => Ok(()),
        }
    }
}

/// What the counting goes by: the part of the configuration that is sent with each question, so that a change counts at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Rules {
    #[serde(rename = "u")]
    pub users: Limits,
    #[serde(rename = "t")]
    pub tenants: Limits,
    #[serde(rename = "m")]
    pub models: Limits,
    #[serde(rename = "p")]
    pub providers: Limits,
    #[serde(rename = "rt")]
    pub tenant_rate: Rates,
    #[serde(rename = "rp")]
    pub provider_rate: Rates,
    pub weights: BTreeMap<String, f64>,
    /// Milliseconds, all of them.
    pub lease: u64,
    /// How old a slot must be before its attempt must be known to the facts: it is asked for before the submit is recorded, and
    /// the read side lags a little.
    pub grace: u64,
    pub call: u64,
    pub missed: u32,
    pub first: u64,
    pub last: u64,
}

impl Rules {
    pub fn of(config: &AdmissionConfig) -> Self {
        Self {
            users: config.users.clone(),
            tenants: config.tenants.clone(),
            models: config.models.clone(),
            providers: config.providers.clone(),
            tenant_rate: config.tenant_rate.clone(),
            provider_rate: config.provider_rate.clone(),
            weights: config.weights.clone(),
            lease: config.lease_seconds.saturating_mul(1000),
            grace: config.lease_seconds.saturating_mul(200),
            call: config.call_seconds.saturating_mul(1000),
            missed: config.missed_calls,
            first: config.recheck_first_seconds.saturating_mul(1000),
            last: config.recheck_last_seconds.saturating_mul(1000),
        }
    }

    /// Nothing is limited: there is nothing to count.
    pub fn is_open(&self) -> bool {
        let limits = [&self.users, &self.tenants, &self.models, &self.providers];
        limits.iter().all(|it| it.is_open()) && self.tenant_rate.is_open() && self.provider_rate.is_open()
    }

    pub fn weight(&self, tenant: &str) -> f64 {
        self.weights.get(tenant).copied().unwrap_or(1.0)
    }

    /// When a task asks again that has waited so long.
    pub fn recheck(&self, waited: u64) -> Duration {
        Duration::from_millis(waited.clamp(self.first, self.last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_work_is_refused_by_its_key() {
        let sound = AdmissionConfig::default();
        sound.check().expect("the defaults work");
        let tenant = Uuid::from_u128(7).to_string();
        let named = |name: &str| Limits { default: None, by: BTreeMap::from([(name.to_owned(), 1)]) };
        let shout = Uuid::from_u128(0xabc).to_string().to_uppercase();
        let cases = [
            (AdmissionConfig { kind: Kind::Redis, ..sound.clone() }, "admission.url"),
            (AdmissionConfig { timeout_ms: 0, ..sound.clone() }, "timeout_ms"),
            (AdmissionConfig { lease_seconds: 60, ..sound.clone() }, "lease_seconds"),
            (AdmissionConfig { recheck_last_seconds: 1, ..sound.clone() }, "recheck"),
            (AdmissionConfig { weights: BTreeMap::from([(tenant.clone(), 0.0)]), ..sound.clone() }, "weights"),
            (AdmissionConfig { tenants: named("acme"), ..sound.clone() }, "acme"),
            (AdmissionConfig { tenants: named(&shout), ..sound.clone() }, "small letters"),
            (AdmissionConfig { users: named("anna"), ..sound.clone() }, "TENANT/USER"),
            (AdmissionConfig { prefix: "a{b".to_owned(), ..sound.clone() }, "prefix"),
        ];
        for (config, named) in cases {
            let refused = config.check().expect_err(named);
            assert!(refused.contains(named), "{named}: {refused}");
        }
        AdmissionConfig { users: named(&format!("{tenant}/anna")), ..sound }.check().expect("that is a user");
    }

    #[test]
    fn the_address_is_not_shown() {
        let config = AdmissionConfig { url: Some("redis://:hunter2@h/0".to_owned()), ..AdmissionConfig::default() };
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
