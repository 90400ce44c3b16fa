//! The life of a job, and telling the customer about its end.

use super::render;
use super::script::Failure;
use super::world::{Job, Stage, World};
use std::sync::Arc;
use std::time::Duration;

/// How long a job is `starting`.
const QUEUE: Duration = Duration::from_millis(50);
/// How often a callback is tried.
const TRIES: u32 = 5;
/// The wait after the first try; it doubles.
const BACK_OFF: Duration = Duration::from_millis(200);

/// Lives a job from its acceptance to its end.
pub(super) async fn live(world: Arc<World>, job: Job) {
    let id = job.facts.id.as_str();
    let run = Duration::from_millis(job.script.run_ms.unwrap_or(world.config.default_duration_ms));
    world.wait(QUEUE).await;
    if job.script.weird_status {
        world.move_to(id, Stage::Weird);
        world.wait(run / 2).await;
        world.move_to(id, Stage::Processing);
        world.wait(run / 2).await;
    } else {
        world.move_to(id, Stage::Processing);
        world.wait(run).await;
    }
    if !job.script.never && finish(&world, &job).await {
        tell(&world, id).await;
    }
}

/// Brings a job to the end that its script asks for; `false` if it has ended otherwise meanwhile.
pub(super) async fn finish(world: &World, job: &Job) -> bool {
    let stage = match job.script.fail {
        Some(failure) => Stage::Failed(failure),
        None => match render::video(world, job.video_seconds()).await {
            Ok(_) => Stage::Succeeded,
            Err(error) => {
                tracing::error!(%error, "the simulator can not make a video");
                Stage::Failed(Failure::Internal)
            }
        },
    };
    world.end(&job.facts.id, stage)
}

/// Sends the callback of an ended job as its script asks.
pub(super) async fn tell(world: &World, id: &str) {
    let Some(job) = world.job(id) else { return };
    let Some(address) = job.facts.webhook.as_deref().filter(|_| !job.script.callback_none) else {
        return;
    };
    world.wait(Duration::from_millis(job.script.callback_delay_ms)).await;
    for _ in 0..job.script.callback_copies {
        deliver(world, id, address).await;
    }
}

/// Tries one callback until the customer answers 2xx.
async fn deliver(world: &World, id: &str, address: &str) {
    let mut pause = BACK_OFF;
    for attempt in 1..=TRIES {
        let Some(notice) = world.job(id).map(|job| world.dialect.notice(world, &job)) else {
            return;
        };
        let request = world.http.post(address).header("content-type", "application/json").headers(notice.headers);
        let request = request.body(notice.body);
        if request.send().await.is_ok_and(|answer| answer.status().is_success()) {
            return;
        }
        if attempt < TRIES {
            world.wait(pause).await;
            pause *= 2;
        }
    }
    tracing::warn!(job = id, "the simulator gave a callback up");
}

/// Takes a cancel as the job's script says: `None` for an unknown job, `false` where it is to fail.
pub(super) fn cancel(world: &Arc<World>, id: &str) -> Option<bool> {
    let (fails, ignored) = world.change(id, |job| {
        job.cancels += 1;
        (job.cancels <= job.script.cancel_fails, job.script.cancel_ignored)
    })?;
    if !fails && !ignored && world.end(id, Stage::Canceled) {
        let (teller, id) = (Arc::clone(world), id.to_owned());
        world.start(async move { tell(&teller, &id).await });
    }
    Some(!fails)
}
