//! Which providers this process leaves alone because they fail, written down for `aivideo status`.

use domain::time::Timestamp;
use eventstore::{NotedOutage, Store};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio_util::sync::CancellationToken;
use workers::ports::Provider;

/// How often to look: it is said as it changes, and nobody waits for it.
const EVERY: Duration = Duration::from_secs(1);

/// Writes down what changes until it is told to stop. The name of the process is its own, as long as it lives.
pub(super) async fn follow(
    store: Store,
    providers: HashMap<String, Arc<dyn Provider>>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let process = format!("{}-{}", std::process::id(), since.as_millis());
    let mut noted = vec![];
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(EVERY) => {}
        }
        let now = outages(&providers);
        if now == noted {
            continue;
        }
        match store.note_outages(&process, &now).await {
            Ok(()) => noted = now,
            // The breaker itself has told the log; the next look writes it down.
            Err(error) => tracing::debug!(%error, "outages could not be written down"),
        }
    }
}

fn outages(providers: &HashMap<String, Arc<dyn Provider>>) -> Vec<NotedOutage> {
    let mut found: Vec<NotedOutage> = providers
        .iter()
        .filter_map(|(name, provider)| {
            let outage = provider.outage()?;
            Some(NotedOutage {
                provider: name.clone(),
                since: Timestamp::from(outage.since),
                looks_at: Timestamp::from(outage.until),
                cause: outage.cause,
            })
        })
        .collect();
    found.sort_by(|one, other| one.provider.cmp(&other.provider));
    found
}
