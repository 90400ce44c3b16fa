//! Seals over the log.

use super::{Parts, Supervisor};
use crate::Settings;
use eventstore::audit::Sealer;

/// Without a key a process of this role alone is of no use; one that does everything does the rest.
pub(super) fn start(
    supervisor: &mut Supervisor,
    parts: &Parts,
    settings: &Settings,
    alone: bool,
) -> anyhow::Result<()> {
    let Some(sealer) = Sealer::configured(parts.store.pool(), &settings.audit) else {
        let missing =
            "there is no key to seal with: set AIVIDEO_AUDIT__SIGNING_KEY (`openssl rand -base64 32` makes one)";
        anyhow::ensure!(!alone, "{missing}");
        tracing::warn!("nothing is sealed: {missing}");
        return Ok(());
    };
    let stop = parts.stop.clone();
    supervisor.watch("sealer", async move {
        sealer.run(stop.cancelled_owned()).await;
        Ok(())
    });
    Ok(())
}
