//! What roles share: the store, the broker's client, the outside world. Each is made once, and only where a role needs it.

use crate::Settings;
use crate::models::Models;
use crate::ready::Health;
use admission::{Desk, InFlight};
use anyhow::Context;
use domain::process::Slot;
use eventstore::Store;
use futures_util::future::BoxFuture;
use media::{Ffmpeg, Objects};
use messaging::client::Client;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use workers::{Outside, Slots, Usher};

/// See the module.
pub struct Parts {
    /// Facts.
    pub store: Store,
    /// Told when the process has to stop.
    pub stop: CancellationToken,
    /// What is well and what is not.
    pub health: Arc<Health>,
    /// How long work in flight may go on.
    pub grace: Duration,
    client: OnceLock<Arc<Client>>,
    objects: OnceLock<Arc<Objects>>,
    models: OnceLock<Arc<Models>>,
}

impl Parts {
    /// Opens the database and refuses a schema that this build does not know.
    ///
    /// # Errors
    /// The database is not configured, not there, or not migrated.
    pub async fn open(settings: &Settings, stop: CancellationToken) -> anyhow::Result<Self> {
        let store = Store::open(settings.database()?, settings.policy.clone()).await?;
        Ok(Self {
            store,
            stop,
            health: Arc::default(),
            grace: Duration::from_millis(settings.process.grace_ms),
            client: OnceLock::new(),
            objects: OnceLock::new(),
            models: OnceLock::new(),
        })
    }

    /// The broker's client: one for all roles of the process.
    ///
    /// # Errors
    /// A configuration that the client refuses.
    pub fn client(&self, settings: &Settings) -> anyhow::Result<Arc<Client>> {
        if let Some(client) = self.client.get() {
            return Ok(Arc::clone(client));
        }
        let client = Client::new(settings.broker.clone())?;
        Ok(Arc::clone(self.client.get_or_init(|| client)))
    }

    /// The object store.
    ///
    /// # Errors
    /// It is not configured, or can not be opened.
    pub fn objects(&self, settings: &Settings) -> anyhow::Result<Arc<Objects>> {
        if let Some(objects) = self.objects.get() {
            return Ok(Arc::clone(objects));
        }
        let objects = Arc::new(objects_of(settings)?);
        Ok(Arc::clone(self.objects.get_or_init(|| objects)))
    }

    /// The providers and the catalogue of models: one for all roles of the process, so that a change reaches all at once.
    ///
    /// # Errors
    /// A provider or a model that is configured wrongly.
    pub fn models(&self, settings: &Settings) -> anyhow::Result<Arc<Models>> {
        if let Some(models) = self.models.get() {
            return Ok(Arc::clone(models));
        }
        let models = Arc::new(Models::load(settings)?);
        Ok(Arc::clone(self.models.get_or_init(|| models)))
    }

    /// The models, where a role needed them.
    #[must_use]
    pub fn models_in_use(&self) -> Option<Arc<Models>> {
        self.models.get().cloned()
    }

    /// The outside world of the workers, and the usher that has to run beside it.
    ///
    /// # Errors
    /// A part that is not configured, or media tools that are missing.
    pub async fn outside(&self, settings: &Settings) -> anyhow::Result<(Arc<Outside>, Usher)> {
        let media = Ffmpeg::new(settings.media.clone());
        media.check().await?;
        let models = self.models(settings)?;
        let desk = Arc::new(Desk::new(&settings.admission)?);
        let facts = Arc::new(Facts(projections::in_flight::InFlight::new(self.store.pool().clone())));
        let sweep = Duration::from_secs(settings.admission.sweep_seconds);
        let (slots, usher) = Slots::new(desk, self.store.clone(), facts, sweep);
        let outside = Arc::new(Outside {
            store: self.store.clone(),
            providers: models.providers(),
            catalogue: models.shared(),
            slots,
            objects: self.objects(settings)?,
            media: Arc::new(media),
            limits: settings.limits.clone(),
            scratch: scratch(settings)?,
        });
        Ok((outside, usher))
    }

    /// Stops what outlives the roles.
    pub async fn close(self) {
        if let Some(client) = self.client.get() {
            client.stop(Duration::from_secs(3)).await;
        }
        self.store.close().await;
    }
}

struct Facts(projections::in_flight::InFlight);

impl InFlight for Facts {
    fn slots(&self) -> BoxFuture<'_, Result<Vec<Slot>, String>> {
        Box::pin(async move { self.0.slots().await.map_err(|error| error.to_string()) })
    }
}

/// The configured object store.
///
/// # Errors
/// It is not configured, or can not be opened.
pub fn objects_of(settings: &Settings) -> anyhow::Result<Objects> {
    let config = Settings::need(&settings.objects, "objects", "OBJECTS__KIND")?;
    Objects::new(config).context("the object store can not be opened")
}

/// Where files lie while they are worked on.
///
/// # Errors
/// The folder can not be made.
pub fn scratch(settings: &Settings) -> anyhow::Result<PathBuf> {
    let folder = settings.process.scratch.clone().unwrap_or_else(std::env::temp_dir);
    std::fs::create_dir_all(&folder).with_context(|| format!("{} can not be made", folder.display()))?;
    Ok(folder)
}
