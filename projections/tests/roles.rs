//! Everything that the service's roles do (handle, relay, project, read, scan, prune) with no more rights than the service has.

mod support;

use anyhow::{Result, ensure};
use domain::id::{TaskId, TenantId};
use eventstore::roles::Roles;
use eventstore::testkit::in_role;
use projections::operations::operations;
use projections::projector::{Projector, ProjectorConfig, projection_status};
use projections::query::{Reader, Viewer};
use projections::rebuild::verify;
use projections::relay::relay_status;
use projections::retention::{RetentionConfig, maintain};
use projections::stalled::StalledTasks;
use std::time::Duration;
use support::on_database;
use support::world::World;
use uuid::Uuid;

#[tokio::test(flavor = "multi_thread")]
async fn the_service_needs_no_more_than_its_rights() -> Result<()> {
    on_database(|owner| async move {
        let service = in_role(&owner, owner.connect_options().as_ref().clone(), &Roles::default()).await?;
        let world = World::on(&service);
        world.live(20).await?;
        Projector::new(service.clone(), ProjectorConfig::default()).catch_up().await?;
        let (tenant, task): (Uuid, Uuid) =
            sqlx::query_as("SELECT tenant_id, task_id FROM read_tasks LIMIT 1").fetch_one(&service).await?;
        let reader = Reader::new(&world.store);
        ensure!(reader.task(Viewer::of(TenantId(tenant)), TaskId(task)).await?.is_some());
        StalledTasks::new(service.clone()).find(Duration::from_secs(60), 10).await?;
        relay_status(&service).await?;
        operations(&service).await?;
        projection_status(&service).await?;
        // Made before, as `aivideo migrate` does: there is nothing to be refused, and nothing to be done.
        let round = maintain(&service, &RetentionConfig::default()).await?;
        ensure!(round.is_some_and(|round| round.kept.is_empty()));
        ensure!(verify(&service, |_| ()).await?.iter().all(|table| table.is_equal() && table.rows > 0));
        service.close().await;
        Ok(())
    })
    .await
}
