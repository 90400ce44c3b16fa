//! Read models.

use super::{Parts, Supervisor};
use projections::projector::{Projector, ProjectorConfig};

pub(super) fn start(supervisor: &mut Supervisor, parts: &Parts) {
    let projector = Projector::new(parts.store.pool().clone(), ProjectorConfig::default());
    let stop = parts.stop.clone();
    supervisor.watch("projections", async move {
        projector.run(stop).await;
        Ok(())
    });
}
