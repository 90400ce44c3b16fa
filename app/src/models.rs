//! Providers and the catalogue of models, as one process sees them. The catalogue's file is read again when it changes.

use crate::Settings;
use crate::config::{CatalogueConfig, explained};
use anyhow::Context;
use figment::Figment;
use figment::providers::{Format, Toml};
use providers::Registry;
use serde::Deserialize;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use workers::catalogue::{Catalogue, SharedCatalogue};
use workers::ports::Provider;

/// The catalogue's file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    models: Catalogue,
}

/// See the module.
pub struct Models {
    registry: Registry,
    catalogue: SharedCatalogue,
    config: CatalogueConfig,
    /// The file's text as it was when it was loaded, or a moment before: what changes from then on is read again.
    loaded: Option<String>,
}

impl Models {
    /// Builds the providers, reads the catalogue, and checks each model with its provider.
    ///
    /// # Errors
    /// No provider is configured, one is configured wrongly, or a model can not be made.
    pub fn load(settings: &Settings) -> anyhow::Result<Self> {
        anyhow::ensure!(
            !settings.providers.is_empty(),
            "the configuration has no provider: add a section [providers.NAME], such as [providers.replicate] with \
             kind = \"replicate\" (AIVIDEO_PROVIDERS__REPLICATE__KIND=replicate), its token and its addresses"
        );
        let registry = Registry::new(&settings.providers)?;
        let config = settings.catalogue.clone();
        let loaded = config.file.as_deref().and_then(text_of);
        let catalogue = SharedCatalogue::new(read(&config, &registry)?);
        Ok(Self { registry, catalogue, config, loaded })
    }

    /// The providers by their stored names.
    #[must_use]
    pub fn providers(&self) -> HashMap<String, Arc<dyn Provider>> {
        self.registry.providers()
    }

    /// The catalogue, which changes under its holders.
    #[must_use]
    pub fn shared(&self) -> SharedCatalogue {
        self.catalogue.clone()
    }

    /// The configured providers, what they can do, and their models: for people.
    #[must_use]
    pub fn describe(&self, settings: &Settings) -> String {
        let catalogue = self.catalogue.now();
        let mut lines = vec![format!(
            "{:<16} {:<10} {:<20} {:<12} {:<13} models",
            "provider", "kind", "lost answers", "cancel", "callbacks"
        )];
        for (name, config) in &settings.providers {
            let can = config.capabilities();
            let models: Vec<&str> =
                catalogue.models().filter(|(_, it)| it.provider == *name && it.offered).map(|(name, _)| name).collect();
            lines.push(format!(
                "{name:<16} {:<10} {:<20} {:<12} {:<13} {}",
                config.kind(),
                word(&can.look_up),
                word(&can.cancel),
                word(&can.webhook),
                if models.is_empty() { "none".to_owned() } else { models.join(", ") }
            ));
        }
        lines.join("\n")
    }

    /// Reads the catalogue's file again whenever it changes, and on SIGHUP. A file that can not be used is said to be so, and
    /// the catalogue stays as it is.
    pub async fn follow(self: Arc<Self>, stop: CancellationToken) -> anyhow::Result<()> {
        let Some(file) = self.config.file.clone() else {
            stop.cancelled().await;
            return Ok(());
        };
        let mut hang_up = signal(SignalKind::hangup()).context("SIGHUP can not be listened for")?;
        let mut seen = self.loaded.clone();
        loop {
            let asked = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(Duration::from_secs(self.config.reload_seconds)) => false,
                _ = hang_up.recv() => true,
            };
            let now = text_of(&file);
            if now == seen && !asked {
                continue;
            }
            seen = now;
            self.reload();
        }
    }

    fn reload(&self) {
        match read(&self.config, &self.registry) {
            Ok(catalogue) => {
                let models = catalogue.models().count();
                self.catalogue.replace(catalogue);
                tracing::info!(models, "the catalogue was read again");
            }
            Err(error) => tracing::error!("the catalogue stays as it was, for its file can not be used: {error:#}"),
        }
    }
}

/// A capability as the documentation writes it.
fn word(capability: &impl serde::Serialize) -> String {
    match serde_json::to_value(capability) {
        Ok(serde_json::Value::String(word)) => word.replace('_', " "),
        _ => "?".to_owned(),
    }
}

/// The file's text; `None` while it can not be read, as in the moment in which an editor replaces it.
fn text_of(file: &Path) -> Option<String> {
    std::fs::read_to_string(file).ok()
}

fn read(config: &CatalogueConfig, registry: &Registry) -> anyhow::Result<Catalogue> {
    let (catalogue, place) = match (&config.file, &config.models) {
        (Some(file), _) => {
            anyhow::ensure!(file.is_file(), "the catalogue's file {} does not exist", file.display());
            let place = file.display().to_string();
            let parsed: Result<File, _> = Figment::new().merge(Toml::file_exact(file)).extract();
            (parsed.map_err(|error| anyhow::anyhow!(explained(error))).with_context(|| place.clone())?.models, place)
        }
        (None, Some(models)) => (models.clone(), "[catalogue]".to_owned()),
        (None, None) => (Catalogue::default(), "the catalogue's default (set catalogue.file)".to_owned()),
    };
    catalogue
        .check(|name, model| registry.check_model(name, model))
        .map_err(|wrong| anyhow::anyhow!("{place}:\n{wrong}"))?;
    Ok(catalogue)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROVIDERS: &str = "[providers.replicate]\nkind = 'replicate'\ntoken = 't'\n\
                             webhook_secret = 'whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX'\ncallback_base_url = 'https://v.example'\n";
    const MODEL: &str = "price_per_second = 30\nmin_seconds = 1\nmax_seconds = 8\n";

    fn settings(file: &Path) -> anyhow::Result<Settings> {
        let text = format!("[catalogue]\nfile = '{}'\nreload_seconds = 1\n{PROVIDERS}", file.display());
        Figment::new().merge(Toml::string(&text)).extract().map_err(|error| anyhow::anyhow!(explained(error)))
    }

    #[tokio::test]
    async fn a_changed_file_is_read_again_and_a_broken_one_changes_nothing() -> anyhow::Result<()> {
        let folder = std::env::temp_dir().join(format!("aivideo-models-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let file = folder.join("models.toml");
        let of = |name: &str| format!("[models.'{name}']\nprovider = 'replicate'\n{MODEL}");
        std::fs::write(&file, of("acme/one"))?;
        let models = Arc::new(Models::load(&settings(&file)?)?);
        let stop = CancellationToken::new();
        let has = |name: &str| models.shared().now().offered(name).is_some();
        assert!(has("acme/one"));
        // Before anybody follows it.
        std::fs::write(&file, of("acme/early"))?;
        let change = async {
            for (text, name) in [
                (of("acme/early"), "acme/early"),
                (of("no-owner"), "acme/early"),
                ("[models".to_owned(), "acme/early"),
                (of("acme/two"), "acme/two"),
            ] {
                std::fs::write(&file, text)?;
                tokio::time::sleep(Duration::from_millis(1_300)).await;
                anyhow::ensure!(has(name), "{name}");
            }
            stop.cancel();
            Ok(())
        };
        let (followed, changed) = tokio::join!(Arc::clone(&models).follow(stop.clone()), change);
        std::fs::remove_dir_all(&folder)?;
        followed.and(changed)
    }

    #[test]
    fn the_example_holds_for_every_kind_of_provider() -> anyhow::Result<()> {
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/models.example.toml");
        let keyed =
            "token = 't'\ncallback_base_url = 'https://v.example'\ncallback_secret = 'sixteen or more of them'\n";
        let more = ["runware", "fal", "ark"].map(|kind| format!("[providers.{kind}]\nkind = '{kind}'\n{keyed}"));
        let runway = "[providers.runway]\nkind = 'runway'\ntoken = 't'\n";
        let text = format!("[catalogue]\nfile = '{example}'\n{PROVIDERS}{}{runway}", more.concat());
        let parsed = Figment::new().merge(Toml::string(&text)).extract();
        let settings: Settings = parsed.map_err(|error| anyhow::anyhow!(explained(error)))?;
        let shown = Models::load(&settings)?.describe(&settings);
        assert_eq!(shown.lines().count(), 6, "{shown}");
        assert!(shown.lines().any(|it| it.starts_with("runway ") && it.contains("meadow")), "{shown}");
        assert!(!shown.contains("none\n"), "each has a model: {shown}");
        Ok(())
    }

    #[test]
    fn what_is_wrong_is_said_with_the_file_and_the_model() -> anyhow::Result<()> {
        let folder = std::env::temp_dir().join(format!("aivideo-wrong-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let file = folder.join("models.toml");
        for (text, said) in [
            (
                format!("[models.'acme/one']\nprovider = 'elsewhere'\n{MODEL}"),
                "provider \"elsewhere\" is not configured; there are: replicate",
            ),
            (format!("[models.one]\nprovider = 'replicate'\n{MODEL}"), "owner/name"),
            (format!("[models.'acme/one']\nprovider = 'replicate'\nprize = 1\n{MODEL}"), "prize"),
        ] {
            std::fs::write(&file, text)?;
            let error = Models::load(&settings(&file)?).err().map(|error| format!("{error:#}")).unwrap_or_default();
            assert!(error.contains(said) && error.contains("models.toml"), "{said}: {error}");
        }
        std::fs::remove_dir_all(&folder)?;
        Ok(())
    }
}
