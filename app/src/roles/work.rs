//! Consumer groups, and the scan for stalled tasks.

use super::{Parts, Supervisor, patiently};
use crate::Settings;
use crate::ready::Health;
use anyhow::Context;
use domain::process::{MANAGERS, ProcessManager};
use eventstore::{Ack, Again, Delivery};
use futures_util::future::BoxFuture;
use messaging::admin::{AdminError, check};
use messaging::catalogue::Group;
use messaging::client::Client;
use messaging::listener::{Handler, Listener};
use projections::projector::projection_status;
use projections::stalled::StalledTasks;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use workers::{StallScan, Worker};

struct Handling(Worker);

impl Handler for Handling {
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<Ack, Again>> {
        Box::pin(async move { self.0.handle(&delivery).await })
    }
}

/// The consumer group of a process manager: the same name, in the letters that the broker allows.
#[must_use]
pub fn group_of(manager: &dyn ProcessManager) -> Option<Group> {
    let physical = manager.name().replace('.', "_");
    Group::ALL.into_iter().find(|group| group.name() == physical)
}

pub(super) async fn start(
    supervisor: &mut Supervisor,
    parts: &Parts,
    settings: &Settings,
    only: &[String],
) -> anyhow::Result<()> {
    let client = parts.client(settings)?;
    let (outside, usher) = parts.outside(settings).await?;
    let managers: Vec<_> =
        MANAGERS.into_iter().filter(|it| only.is_empty() || only.iter().any(|name| name == it.name())).collect();
    if let Some(unknown) = only.iter().find(|name| !managers.iter().any(|it| it.name() == *name)) {
        let known: Vec<_> = MANAGERS.iter().map(|it| it.name()).collect();
        anyhow::bail!("there is no consumer group {unknown}; there are {}", known.join(", "));
    }
    let outages = super::outages::follow(parts.store.clone(), outside.providers.clone(), parts.stop.clone());
    supervisor.watch("outages", outages);
    parts.health.not_ready("consumers", "starting");
    let (stop, health, grace) = (parts.stop.clone(), Arc::clone(&parts.health), parts.grace);
    let store = parts.store.clone();
    let config = settings.broker.clone();
    supervisor.watch("consumers", async move {
        if !catalogue_holds(&client, &stop).await? {
            return Ok(());
        }
        let mut listeners = Vec::new();
        for manager in managers {
            let group = group_of(manager).context("a process manager without a consumer group")?;
            let worker = Worker::new(store.clone(), manager, Arc::clone(&outside));
            let handler: Arc<dyn Handler> = Arc::new(Handling(worker));
            let threads = config.threads(group);
            let listener = patiently("the broker", &stop, || {
                Listener::start(&client, group, threads, Arc::clone(&handler), tokio::runtime::Handle::current())
            });
            match listener.await {
                Some(listener) => listeners.push(listener),
                None => break,
            }
        }
        health.ready("consumers");
        tracing::info!(groups = listeners.len(), "consuming");
        stop.cancelled().await;
        // All at once: each may wait for its own work in flight.
        let stopping = listeners.into_iter().map(|listener| listener.stop(grace));
        futures_util::future::join_all(stopping).await;
        Ok(())
    });
    let stop = parts.stop.clone();
    supervisor.watch("admission", async move {
        usher.run(stop).await;
        Ok(())
    });
    let scan = StallScan::new(
        parts.store.clone(),
        Stalls {
            found: StalledTasks::new(parts.store.pool().clone()),
            store: parts.store.clone(),
            health: Arc::clone(&parts.health),
        },
        settings.scan.clone(),
    );
    let stop = parts.stop.clone();
    supervisor.watch("scan for stalled tasks", async move {
        scan.run(stop).await;
        Ok(())
    });
    Ok(())
}

/// Waits for the broker, and refuses topics and groups that are not as the catalogue says. `false`: told to stop.
async fn catalogue_holds(client: &Arc<Client>, stop: &CancellationToken) -> anyhow::Result<bool> {
    loop {
        match check(client).await {
            Ok(_) => return Ok(true),
            Err(error @ AdminError::Mismatch(_)) => {
                return Err(error).context("the broker is not set up for this build");
            }
            Err(error) => tracing::warn!(%error, "the broker is not there yet; trying again"),
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(false),
            () = tokio::time::sleep(std::time::Duration::from_secs(1)) => {}
        }
    }
}

struct Stalls {
    found: StalledTasks,
    store: eventstore::Store,
    health: Arc<Health>,
}

impl Stalls {
    /// The scan sees what the read models show: when they stand still it is blind, and says so.
    async fn read_models_move(&self) -> Result<(), String> {
        let status = projection_status(self.store.pool()).await.map_err(|error| error.to_string())?;
        let trouble = match &status.fault {
            Some(fault) => Some(format!("stopped: {fault}")),
            None if status.behind_seconds > 60.0 => Some(format!("{:.0} s behind", status.behind_seconds)),
            None => None,
        };
        match &trouble {
            Some(trouble) => {
                tracing::error!(trouble, "the read models stand still: stalled tasks may not be seen");
                self.health.not_ready("read models", trouble.clone());
            }
            None => self.health.ready("read models"),
        }
        Ok(())
    }
}

impl workers::Stalled for Stalls {
    fn stalled(
        &self,
        slack: std::time::Duration,
        limit: i64,
    ) -> BoxFuture<'_, Result<Vec<workers::StalledTask>, String>> {
        Box::pin(async move {
            self.read_models_move().await?;
            let found = self.found.find(slack, limit).await.map_err(|error| error.to_string())?;
            Ok(found.into_iter().map(|(task, round)| workers::StalledTask { task, round }).collect())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::process::manager_of;
    use std::collections::BTreeSet;

    #[test]
    fn every_consumer_group_has_one_process_manager() {
        let handled: Vec<Group> = MANAGERS.iter().filter_map(|it| group_of(*it)).collect();
        assert_eq!(handled.len(), MANAGERS.len(), "a process manager without a group");
        let distinct: BTreeSet<Group> = handled.iter().copied().collect();
        assert_eq!(distinct, Group::ALL.into_iter().collect::<BTreeSet<_>>(), "a group without a process manager");
        assert_eq!(distinct.len(), handled.len(), "two process managers for one group");
    }

    #[test]
    fn each_group_hears_the_topics_that_its_process_manager_is_for() {
        for group in Group::ALL {
            for topic in group.topics() {
                assert_eq!(group_of(manager_of(*topic)), Some(group), "{topic:?}");
            }
        }
    }
}
