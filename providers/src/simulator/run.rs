//! The life of a job, and telling the customer about its end.

use super::render;
use super::script::Failure;
use super::world::{Job, Stage, World, now_ms};
use std::sync::Arc;
use std::time::Duration;

/// How long a job is `starting`.
const QUEUE: Duration = Duration::from_millis(50);
/// How often a callback is tried.
const TRIES: u32 = 5;
/// The wait after the first try; it doubles.
const BACK_OFF: Duration = Duration::from_millis(200);

const INTERNAL: &str = "Director: unexpected error handling prediction (E6716)";
const MODERATION: &str = "The input or output was flagged as sensitive. Please try again with different inputs. (E005)";

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
        Some(Failure::Internal) => Stage::Failed(INTERNAL.to_owned()),
        Some(Failure::Moderation) => Stage::Failed(MODERATION.to_owned()),
        None => match render::video(world, job.video_seconds()).await {
            Ok(_) => Stage::Succeeded,
            Err(error) => {
                tracing::error!(%error, "the simulator can not make a video");
                Stage::Failed("the simulator can not make a video".to_owned())
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
        let Some(shown) = world.job(id).map(|job| world.render(&job)) else {
            return;
        };
        // Written with line breaks: a receiver that parses and writes the body again before it checks the signature fails.
        let body = format!("{shown:#}\n");
        let delivery = format!("msg_{id}");
        let timestamp = (now_ms() / 1_000).to_string();
        let signature = world.key.sign(&delivery, &timestamp, body.as_bytes());
        let request = world
            .http
            .post(address)
            .header("content-type", "application/json")
            .header("webhook-id", &delivery)
            .header("webhook-timestamp", &timestamp)
            .header("webhook-signature", signature)
            .body(body);
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
