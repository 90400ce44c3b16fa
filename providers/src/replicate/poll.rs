//! Asking how a job is doing.

use super::Replicate;
use super::exchange::{MAX_REPLY_BYTES, exchange};
use super::wire::{Prediction, is_job_id};
use workers::ports::{JobState, Polled};

pub(super) async fn poll(adapter: &Replicate, job: &str) -> Polled {
    if !is_job_id(job) {
        return Polled::State(JobState::NotFound);
    }
    let request = adapter.clients.other.get(adapter.addresses.api(["predictions", job]));
    let reply = match exchange(request, adapter.config.request_timeout(), MAX_REPLY_BYTES).await {
        Ok(reply) => reply,
        Err(no) => {
            return Polled::Unavailable { cause: no.cause(), retry_after: None };
        }
    };
    let unavailable = |cause: String| Polled::Unavailable { cause, retry_after: reply.retry_after() };
    if reply.status.is_success() {
        return match serde_json::from_slice::<Prediction>(&reply.body) {
            Ok(found) if found.id == job => {
                Polled::State(found.state(&adapter.config.moderation_markers, adapter.config.token.expose()))
            }
            Ok(_) => unavailable("the answer is about another job".to_owned()),
            Err(_) => unavailable("the answer is not readable".to_owned()),
        };
    }
    // A proxy's 404 says nothing about the job.
    if reply.status.as_u16() == 404 && reply.problem().is_some() {
        return Polled::State(JobState::NotFound);
    }
    unavailable(format!("http {}", reply.status.as_u16()))
}
