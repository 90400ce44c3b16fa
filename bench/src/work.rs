//! How a rate is measured: so many tasks do the same work again and again, for so long.

use std::future::Future;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Work that is done again and again.
pub trait Work: Send + 'static {
    /// Does it once.
    fn once(&mut self) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// Before the clock starts: connections are made, statements prepared, caches filled.
const WARM_UP: Duration = Duration::from_millis(500);

/// How often a second it is done by all together. What was begun in time is counted, and so is the time until it was done.
///
/// # Errors
/// The work's own.
pub async fn rate<W: Work>(works: Vec<W>, seconds: f64) -> anyhow::Result<f64> {
    let from = Instant::now() + WARM_UP;
    let until = from + Duration::from_secs_f64(seconds);
    let mut running = JoinSet::new();
    for mut work in works {
        running.spawn(async move {
            let mut done = 0_u32;
            while Instant::now() < until {
                work.once().await?;
                done += u32::from(Instant::now() >= from);
            }
            anyhow::Ok(done)
        });
    }
    let mut done = 0.0;
    while let Some(task) = running.join_next().await {
        done += f64::from(task??);
    }
    Ok(done / from.elapsed().as_secs_f64())
}
