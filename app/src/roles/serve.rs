//! HTTP: GraphQL, uploads, links, provider callbacks.

use super::{Parts, Supervisor, keys};
use crate::Settings;
use crate::ready::Health;
use anyhow::Context;
use api::{ApiState, KeySet, LinkRefused, LinkVerifier, Readiness};
use domain::time::Timestamp;
use futures_util::future::BoxFuture;
use media::Objects;
use projections::query::Reader;
use std::sync::Arc;
use tokio::net::TcpListener;

struct Links(Arc<Objects>);

impl LinkVerifier for Links {
    fn verify(&self, key: &str, expires: u64, signature: &str, now: Timestamp) -> Result<(), LinkRefused> {
        let links = self.0.links().ok_or(LinkRefused::Forged)?;
        links.verify(key, expires, signature, now).map_err(|refused| match refused {
            media::LinkRefused::Forged => LinkRefused::Forged,
            media::LinkRefused::Expired => LinkRefused::Expired,
        })
    }
}

struct Ready {
    health: Arc<Health>,
    reader: Reader,
}

impl Readiness for Ready {
    fn reasons(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async move {
            let mut reasons = self.health.reasons();
            if let Err(error) = self.reader.ping().await {
                tracing::warn!(error = &error as &dyn std::error::Error, "the database does not answer");
                reasons.push("database: does not answer".to_owned());
            }
            reasons
        })
    }
}

pub(super) async fn start(supervisor: &mut Supervisor, parts: &Parts, settings: &Settings) -> anyhow::Result<()> {
    let config = settings.api()?.clone();
    let listen = config.listen;
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("{listen} can not be listened on: is the port taken? Set AIVIDEO_API__LISTEN"))?;
    let objects = parts.objects(settings)?;
    let reader = Reader::new(&parts.store);
    let models = parts.models(settings)?;
    let keys = KeySet::default();
    if let Some(jwks) = config.jwks.clone() {
        keys::start(supervisor, parts, jwks, keys.clone())?;
    }
    let router = api::router(ApiState {
        store: parts.store.clone(),
        reader: reader.clone(),
        objects: Arc::<Objects>::clone(&objects),
        providers: models.providers(),
        catalogue: models.shared(),
        config,
        readiness: Arc::new(Ready { health: Arc::clone(&parts.health), reader: reader.clone() }),
        keys,
        links: Arc::new(Links(objects)),
        audit_keys: settings.audit.trusted(),
    })?;
    let stop = parts.stop.clone();
    supervisor.watch("changes for subscribers", async move {
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            never = reader.listen() => match never {},
        }
    });
    let stop = parts.stop.clone();
    supervisor.watch("http", async move {
        tracing::info!(%listen, "serving");
        axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await.context("the HTTP server")
    });
    Ok(())
}
