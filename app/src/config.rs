//! Configuration: a TOML file, then the environment over it, all typed; unknown keys are refused.

use admission::AdmissionConfig;
use anyhow::Context;
use eventstore::DatabaseConfig;
use eventstore::audit::AuditConfig;
use figment::Figment;
use figment::providers::{Env, Format, Toml};
use media::{MediaConfig, ObjectsConfig};
use messaging::config::BrokerConfig;
use projections::retention::RetentionConfig;
use providers::ProviderConfig;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use workers::catalogue::Catalogue;
use workers::ports::WebhookScheme;
use workers::{CallLimits, ScanConfig};

/// Everything that can be configured. `None`: the section is not given, and the command that needs it says so.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// PostgreSQL.
    pub database: Option<DatabaseConfig>,
    /// RocketMQ.
    #[serde(default)]
    pub broker: BrokerConfig,
    /// The object store.
    pub objects: Option<ObjectsConfig>,
    /// ffmpeg and ffprobe.
    #[serde(default)]
    pub media: MediaConfig,
    /// The HTTP side.
    pub api: Option<api::ApiConfig>,
    /// Models and prices.
    #[serde(default)]
    pub catalogue: CatalogueConfig,
    /// The providers, by the names that tasks are stored with.
    #[serde(default)]
    pub providers: BTreeMap<String, ProviderConfig>,
    /// Product rules: waiting times, limits, what a lost cancel does.
    #[serde(default)]
    pub policy: domain::process::Policy,
    /// Limits of outside calls.
    #[serde(default)]
    pub limits: CallLimits,
    /// Who may submit now: slots, rates, shares.
    #[serde(default)]
    pub admission: AdmissionConfig,
    /// The scan for stalled tasks.
    #[serde(default)]
    pub scan: ScanConfig,
    /// Keys and rhythm of the seals over the log.
    #[serde(default)]
    pub audit: AuditConfig,
    /// How long rows are kept that are no facts.
    #[serde(default)]
    pub retention: RetentionConfig,
    /// How processes start and stop.
    #[serde(default)]
    pub process: ProcessConfig,
}

/// Where the models are. Either a file, which is read again when it changes, or the models here.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CatalogueConfig {
    /// A TOML file with a section `[models."NAME"]` for each model.
    pub file: Option<PathBuf>,
    /// How often to look whether the file has changed, in seconds.
    pub reload_seconds: u64,
    /// The models, where there is no file. Default: one model, to try.
    pub models: Option<Catalogue>,
}

impl Default for CatalogueConfig {
    fn default() -> Self {
        Self { file: None, reload_seconds: 5, models: None }
    }
}

/// How processes start and stop.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessConfig {
    /// How long work in flight may go on after SIGTERM, in milliseconds. What is not done by then is left unacknowledged.
    pub grace_ms: u64,
    /// Where files lie while they are worked on. Default: the system's temporary folder.
    pub scratch: Option<PathBuf>,
}

impl Default for ProcessConfig {
    fn default() -> Self {
        Self { grace_ms: 20_000, scratch: None }
    }
}

/// Environment variables that belong to the command line or to `./dev`, not to the configuration, have no double underscore.
const PREFIX: &str = "AIVIDEO_";

/// The one provider that there used to be is now one of several.
const RENAMED: &str = "configuration: the section [provider] is now [providers.replicate], with kind = \"replicate\" in it; \
     AIVIDEO_PROVIDER__TOKEN, for instance, is now AIVIDEO_PROVIDERS__REPLICATE__TOKEN, and \
     AIVIDEO_PROVIDERS__REPLICATE__KIND=replicate is needed";

/// What lies between the beginning of a try of media work, its call, and the record of its answer, in seconds.
const RECORDING_SECONDS: u64 = 30;

impl Settings {
    /// Reads the file (where one is given) and the environment: `AIVIDEO_DATABASE__URL` is `url` in `[database]`.
    ///
    /// # Errors
    /// Names the key and what is expected. Values are not shown: they may be secrets.
    pub fn load(file: Option<&Path>) -> anyhow::Result<Self> {
        let mut figment = Figment::new();
        if let Some(file) = file {
            anyhow::ensure!(file.is_file(), "the configuration file {} does not exist", file.display());
            figment = figment.merge(Toml::file_exact(file));
        }
        let environment = Env::prefixed(PREFIX).filter(|key| key.as_str().contains("__")).split("__");
        let figment = figment.merge(environment);
        anyhow::ensure!(!figment.contains("provider"), RENAMED);
        let mut settings: Self = figment.extract().map_err(|error| anyhow::anyhow!(explained(error)))?;
        settings.poll_as_the_providers_are();
        settings.check().map_err(|rule| anyhow::anyhow!("configuration: {rule}"))?;
        Ok(settings)
    }

    /// What a provider asks for between two polls goes before our own rhythm, and one that calls back is polled less often.
    fn poll_as_the_providers_are(&mut self) {
        for (name, provider) in &self.providers {
            let can = provider.capabilities();
            let asked = u64::try_from(can.min_poll_interval.as_millis()).unwrap_or(u64::MAX);
            if asked > 0 {
                self.policy.poll_at_least_ms.entry(name.clone()).or_insert(asked);
            }
            if can.webhook != WebhookScheme::None {
                self.policy.calling_back.insert(name.clone());
            }
        }
    }

    /// Refuses rules under which a promise could not be kept. The lease of media work and what a try of it may take are known
    /// together only here.
    fn check(&self) -> Result<(), String> {
        self.policy.check()?;
        self.audit.check()?;
        self.retention.check()?;
        self.admission.check()?;
        if self.catalogue.file.is_some() && self.catalogue.models.is_some() {
            return Err("catalogue.file and catalogue.models are both given: keep the models in one place".to_owned());
        }
        if self.catalogue.reload_seconds == 0 {
            return Err("catalogue.reload_seconds must be at least 1".to_owned());
        }
        let transfers = self.limits.transfer_seconds.saturating_mul(2);
        let longest = self.media.longest_work_seconds().saturating_add(transfers).saturating_add(RECORDING_SECONDS);
        let lease = self.policy.processing_lease_seconds;
        if lease <= longest {
            return Err(format!(
                "policy.processing_lease_seconds is {lease}, and must be more than {longest}: one try of media work may take two \
                 transfers (limits.transfer_seconds), four runs of a tool (media.timeout_seconds) and a render \
                 (media.render_timeout_seconds); were the lease shorter, another worker would begin the same work beside it"
            ));
        }
        Ok(())
    }

    /// A section that the command needs.
    ///
    /// # Errors
    /// Says which section is missing and by which variable it can be given.
    pub fn need<'a, T>(section: &'a Option<T>, name: &str, example: &str) -> anyhow::Result<&'a T> {
        section.as_ref().with_context(|| format!("the configuration has no [{name}] section: set {PREFIX}{example}"))
    }

    /// The database section.
    ///
    /// # Errors
    /// See [`Self::need`].
    pub fn database(&self) -> anyhow::Result<&DatabaseConfig> {
        Self::need(&self.database, "database", "DATABASE__URL")
    }

    /// The API section.
    ///
    /// # Errors
    /// See [`Self::need`].
    pub fn api(&self) -> anyhow::Result<&api::ApiConfig> {
        Self::need(&self.api, "api", "API__LISTEN")
    }
}

/// figment's error without the value it met.
pub(crate) fn explained(error: figment::Error) -> String {
    let mut lines = Vec::new();
    for one in error {
        let key = one.path.join(".");
        let what = match &one.kind {
            figment::error::Kind::InvalidType(_, expected) | figment::error::Kind::InvalidValue(_, expected) => {
                format!("is not {expected}")
            }
            figment::error::Kind::UnknownField(field, known) => {
                format!("has an unknown key `{field}`; known are {}", known.join(", "))
            }
            figment::error::Kind::MissingField(field) => format!("lacks `{field}`"),
            other => other.to_string(),
        };
        lines.push(format!("configuration: `{key}` {what}"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Settings, String> {
        Figment::new().merge(Toml::string(text)).extract().map_err(explained)
    }

    #[test]
    fn an_unknown_key_is_refused_and_named() {
        let error = load("[policy]\nsubmit_timeout = 5\n").expect_err("the key is misspelt");
        assert!(error.contains("submit_timeout") && error.contains("submit_timeout_ms"), "{error}");
        let error = load("[polcy]\n").expect_err("the section is misspelt");
        assert!(error.contains("polcy"), "{error}");
    }

    #[test]
    fn providers_are_named_and_say_their_kind() {
        let text = "[providers.main]\nkind = 'replicate'\ntoken = 't'\nwebhook_secret = 'hunter2'\n\
                    callback_base_url = 'https://v.example'\nrequest_timeout_ms = 900\n";
        let settings = load(text).expect("it is complete");
        assert_eq!(settings.providers["main"].kind(), "replicate");
        assert!(!format!("{settings:?}").contains("hunter2"));
        for (change, said) in [
            (text.replace("kind = 'replicate'\n", ""), "kind"),
            (text.replace("'replicate'", "'acme'"), "acme"),
            (text.replace("request_timeout_ms", "request_timeout"), "request_timeout"),
            (text.replace("token = 't'\n", ""), "token"),
        ] {
            let error = load(&change).expect_err("it can not be used");
            assert!(error.contains(said) && error.contains("providers"), "{said}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn the_catalogue_is_in_one_place() {
        let model = "provider = 'replicate'\nprice_per_second = 1\nmin_seconds = 1\nmax_seconds = 2\n";
        let text = format!("[catalogue.models.'acme/x']\n{model}");
        assert!(load(&text).expect("it is complete").check().is_ok());
        let both = format!("[catalogue]\nfile = '/x'\n{text}");
        let rule = load(&both).expect("it is complete").check().expect_err("two places");
        assert!(rule.contains("catalogue.file"), "{rule}");
        let earlier =
            load(&format!("[catalogue.'acme/x']\n{model}")).expect_err("models have a section of their own now");
        assert!(earlier.contains("acme/x") && earlier.contains("models"), "{earlier}");
    }

    #[test]
    fn the_lease_of_media_work_exceeds_what_a_try_may_take() {
        load("").expect("it is complete").check().expect("the defaults fit");
        for text in [
            "[policy]\nprocessing_lease_seconds = 800\n",
            "[media]\nrender_timeout_seconds = 600\n",
            "[media]\ntimeout_seconds = 120\n",
            "[limits]\ntransfer_seconds = 300\n",
        ] {
            let rule = load(text).expect("it is complete").check().expect_err("another worker would begin");
            assert!(rule.contains("policy.processing_lease_seconds"), "{rule}");
        }
        let short = load("[policy]\nprocessing_lease_seconds = 59\n").expect("it is complete");
        assert!(short.check().expect_err("too short in any case").contains("at least 60"));
    }

    #[test]
    fn the_signing_key_is_read_and_not_shown() {
        let text = "[audit]\nsigning_key = 'AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE='\n";
        let settings = load(text).expect("it is complete");
        assert!(!settings.audit.trusted().is_empty());
        assert!(!format!("{settings:?}").contains("AQEB"));
        let error = load("[audit]\nsigning_key = 'hunter2'\n").expect_err("not a key");
        assert!(error.contains("openssl rand") && !error.contains("hunter"), "{error}");
        let rule = load("[audit]\nseal_seconds = 0\n").expect("it is complete").check().expect_err("never");
        assert!(rule.contains("audit.seal_seconds"), "{rule}");
    }

    #[test]
    fn admission_is_read_with_its_names() {
        let text = "[admission]\nkind = 'redis'\nurl = 'redis://:hunter2@h:6379/0'\n\
                    [admission.providers]\ndefault = 20\nby = { replicate = 8 }\n\
                    [admission.provider_rate]\nby = { replicate = { requests = 10, seconds = 1 } }\n\
                    [admission.weights]\n\"01920000-0000-7000-8000-000000000000\" = 3.0\n";
        let settings = load(text).expect("it is complete");
        settings.check().expect("it can work");
        assert_eq!(settings.admission.providers.by["replicate"], 8);
        assert!(!format!("{settings:?}").contains("hunter2"));
        let rule = load("[admission]\nkind = 'redis'\n").expect("it is complete").check().expect_err("no address");
        assert!(rule.contains("AIVIDEO_ADMISSION__URL"), "{rule}");
        let error = load("[admission.providers]\nreplicate = 8\n").expect_err("names are under `by`");
        assert!(error.contains("replicate") && error.contains("by"), "{error}");
    }

    #[test]
    fn a_secret_is_not_shown() {
        let text = "[database]\nurl = 'postgres://aivideo:hunter2@127.0.0.1/aivideo'\n";
        let settings = load(text).expect("it is complete");
        assert!(!format!("{settings:?}").contains("hunter2"));
        let error = load("[database]\nurl = 'postgres://u:hunter2@h/d'\nmax_connections = 'hunter3'\n")
            .expect_err("not a number");
        assert!(!error.contains("hunter"), "{error}");
    }
}
