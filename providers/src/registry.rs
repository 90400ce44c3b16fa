//! The configured providers, by the names that tasks are stored with.

use crate::ark::{self, Ark, ArkConfig};
use crate::fal::{self, Fal, FalConfig};
use crate::replicate::{self, Replicate, ReplicateConfig};
use crate::runware::{self, Runware, RunwareConfig};
use crate::runway::{self, Runway, RunwayConfig};
use crate::shared::ConfigError;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use workers::catalogue::Model;
use workers::ports::{Capabilities, Provider};

/// Longest name of a provider, in bytes.
const MAX_NAME: usize = 32;

/// A `[providers.NAME]` section: `kind` says which API is spoken there. One API can be configured several times, under several
/// names.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ProviderConfig {
    /// Replicate.
    Replicate(ReplicateConfig),
    /// Runware.
    Runware(RunwareConfig),
    /// Runway.
    Runway(RunwayConfig),
    /// Volcengine Ark (Seedance), or BytePlus.
    Ark(ArkConfig),
    /// fal.
    Fal(FalConfig),
}

impl ProviderConfig {
    /// What the kind of provider can do.
    #[must_use]
    pub const fn capabilities(&self) -> &'static Capabilities {
        match self {
            Self::Replicate(_) => &replicate::CAPABILITIES,
            Self::Runware(_) => &runware::CAPABILITIES,
            Self::Runway(_) => &runway::CAPABILITIES,
            Self::Ark(_) => &ark::CAPABILITIES,
            Self::Fal(_) => &fal::CAPABILITIES,
        }
    }

    /// The kind, as the configuration writes it.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Replicate(_) => "replicate",
            Self::Runware(_) => "runware",
            Self::Runway(_) => "runway",
            Self::Ark(_) => "ark",
            Self::Fal(_) => "fal",
        }
    }

    fn build(&self, name: &str) -> Result<Arc<dyn Provider>, ConfigError> {
        Ok(match self.clone() {
            Self::Replicate(config) => Arc::new(Replicate::new(name, config)?),
            Self::Runware(config) => Arc::new(Runware::new(name, config)?),
            Self::Runway(config) => Arc::new(Runway::new(name, &config)?),
            Self::Ark(config) => Arc::new(Ark::new(name, config)?),
            Self::Fal(config) => Arc::new(Fal::new(name, config)?),
        })
    }
}

/// A provider that can not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// The name can not stand in an address and in the facts.
    #[error("providers.{0}: a provider's name is 1 to 32 small letters, digits, `_` or `-`")]
    Name(String),
    /// A setting is wrong.
    #[error("providers.{name}: {source}")]
    Settings {
        /// The provider's name.
        name: String,
        /// What is wrong.
        source: ConfigError,
    },
}

/// The providers of a process.
#[derive(Clone, Default)]
pub struct Registry {
    providers: HashMap<String, Arc<dyn Provider>>,
}

impl Registry {
    /// Builds an adapter for each section. Nothing is sent.
    ///
    /// # Errors
    /// [`RegistryError`] names the section and the setting.
    pub fn new(sections: &BTreeMap<String, ProviderConfig>) -> Result<Self, RegistryError> {
        let mut providers = HashMap::new();
        for (name, config) in sections {
            let is_plain = name.bytes().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || b"_-".contains(&it));
            if name.is_empty() || name.len() > MAX_NAME || !is_plain {
                return Err(RegistryError::Name(name.clone()));
            }
            let built = config.build(name);
            providers
                .insert(name.clone(), built.map_err(|source| RegistryError::Settings { name: name.clone(), source })?);
        }
        Ok(Self { providers })
    }

    /// The providers by name.
    #[must_use]
    pub fn providers(&self) -> HashMap<String, Arc<dyn Provider>> {
        self.providers.clone()
    }

    /// Whether a model of the catalogue can be made.
    ///
    /// # Errors
    /// A sentence that says what to change.
    pub fn check_model(&self, name: &str, model: &Model) -> Result<(), String> {
        let Some(provider) = self.providers.get(&model.provider) else {
            let mut known: Vec<&str> = self.providers.keys().map(String::as_str).collect();
            known.sort_unstable();
            return Err(format!("provider {:?} is not configured; there are: {}", model.provider, known.join(", ")));
        };
        provider.check_model(name, model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn section(token: &str) -> Result<ProviderConfig, serde_json::Error> {
        serde_json::from_value(json!({ "kind": "runway", "token": token }))
    }

    #[test]
    fn one_kind_can_stand_under_several_names() -> Result<(), Box<dyn std::error::Error>> {
        let sections =
            BTreeMap::from([("main".to_owned(), section("a")?), ("second-account".to_owned(), section("b")?)]);
        let registry = Registry::new(&sections)?;
        let mut names: Vec<String> = registry.providers().values().map(|it| it.name().to_owned()).collect();
        names.sort();
        assert_eq!(names, ["main", "second-account"]);
        Ok(())
    }

    #[test]
    fn what_is_wrong_is_said_with_the_name_of_the_section() -> Result<(), Box<dyn std::error::Error>> {
        for name in ["", "Main", "a/b", "a b", &"x".repeat(33)] {
            let refused = Registry::new(&BTreeMap::from([(name.to_owned(), section("t")?)])).err();
            assert_eq!(refused, Some(RegistryError::Name(name.to_owned())), "{name:?}");
        }
        let refused = Registry::new(&BTreeMap::from([("main".to_owned(), section("")?)])).err();
        let said = refused.map(|it| it.to_string()).unwrap_or_default();
        assert!(said.starts_with("providers.main: token is empty"), "{said}");
        Ok(())
    }
}
