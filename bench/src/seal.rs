//! What sealing the log costs: appends with a sealer at work beside appends without one.

use crate::Taken;
use crate::append::Writer;
use crate::database::Database;
use crate::work::rate;
use bench::report::{Row, median};
use eventstore::audit::{AuditConfig, Sealer, SigningKey};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Writers.
const WRITERS: usize = 16;

/// Oftener than the service seals: within one measure several seals are made, and little is left unsealed at its end.
const EVERY: Duration = Duration::from_millis(500);

/// Takes the runs, with and without in turn; the sealer catches up between its runs.
///
/// # Errors
/// The server's, or nothing was sealed.
pub async fn run(taken: Taken) -> anyhow::Result<Vec<Row>> {
    let database = Database::create("sealed").await?;
    let store = database.store(u32::try_from(WRITERS)? + 2).await?;
    let writers = || (0..WRITERS).map(|_| Writer::new(&store)).collect();
    let sealer =
        Sealer::new(store.pool().clone(), SigningKey::from_seed([7; 32]), AuditConfig::default().seal_events, EVERY);
    let (mut with, mut without) = (vec![], vec![]);
    for _ in 0..taken.runs {
        without.push(rate(writers(), taken.seconds).await?);
        // The sealer has nothing left over from before: it seals what is appended beside it.
        sealer.catch_up().await?;
        let stop = CancellationToken::new();
        let appending = async {
            let measured = rate(writers(), taken.seconds).await;
            stop.cancel();
            measured
        };
        let (measured, ()) = tokio::join!(appending, sealer.run(stop.cancelled()));
        with.push(measured?);
        sealer.catch_up().await?;
    }
    store.close().await;
    database.drop_it().await?;
    let (ours, theirs) = (median(with), median(without));
    Ok(vec![Row {
        measure: format!("appends while the log is sealed, {WRITERS} at once"),
        ours,
        unit: "per second",
        reference: "the same without a sealer".to_owned(),
        theirs: Some(theirs),
        ratio: Some(ours / theirs),
        aim: "85 %",
        met: Some(ours >= 0.85 * theirs),
    }])
}
