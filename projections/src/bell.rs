//! Wake-ups by `NOTIFY`. They only make things faster: whoever waits for one also has a timer, because notifications that
//! are sent while the connection is down are lost.

use sqlx::PgPool;
use sqlx::postgres::PgListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Longest pause between two tries to listen.
const RECONNECT_CAP: Duration = Duration::from_secs(10);

/// Rings when something was notified on one channel, and when the connection was lost meanwhile. Holds one connection of the
/// pool for as long as it lives.
pub(crate) struct Bell {
    rung: Arc<Notify>,
    /// Ends with the bell.
    _listening: JoinSet<()>,
}

impl Bell {
    pub(crate) fn on(pool: &PgPool, channel: &'static str) -> Self {
        let rung = Arc::new(Notify::new());
        let mut listening = JoinSet::new();
        listening.spawn(listen(pool.clone(), channel, Arc::clone(&rung)));
        Self { rung, _listening: listening }
    }

    /// Waits for a ring, at most this long. A ring that came before counts, any number of them once.
    pub(crate) async fn wait(&self, longest: Duration) {
        tokio::time::timeout(longest, self.rung.notified()).await.ok();
    }
}

async fn listen(pool: PgPool, channel: &'static str, rung: Arc<Notify>) {
    let mut pause = Duration::from_millis(100);
    loop {
        match open(&pool, channel).await {
            Ok(mut listener) => {
                pause = Duration::from_millis(100);
                // Whatever was sent before now was not heard.
                rung.notify_one();
                while hear(&mut listener, &rung).await {}
            }
            Err(error) => {
                tracing::warn!(channel, error = &error as &dyn std::error::Error, "can not listen; the timer goes on");
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RECONNECT_CAP);
    }
}

async fn open(pool: &PgPool, channel: &str) -> Result<PgListener, sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(channel).await?;
    Ok(listener)
}

/// Waits for what comes next; `false` where the connection is of no use any more.
async fn hear(listener: &mut PgListener, rung: &Notify) -> bool {
    let heard = listener.try_recv().await;
    // `Ok(None)`: the connection was lost and is there again; what was sent meanwhile was not heard.
    let alive = heard.is_ok();
    while listener.next_buffered().is_some() {}
    rung.notify_one();
    alive
}
