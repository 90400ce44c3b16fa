//! Asking how a job is doing.

use super::Replicate;
use super::wire::{self, Prediction};
use crate::shared::{MAX_REPLY_BYTES, Reply, is_job_id, not_readable, polled};
use reqwest::Method;
use workers::ports::{JobState, Polled};

pub(super) async fn poll(adapter: &Replicate, job: &str) -> Polled {
    if !is_job_id(job) {
        return Polled::State(JobState::NotFound);
    }
    let request = adapter.service.request(Method::GET, adapter.service.at(&["predictions", job]));
    let reply = adapter.service.ask(request, MAX_REPLY_BYTES).await;
    let state = |reply: &Reply| {
        let found: Prediction = reply.json().ok_or_else(not_readable)?;
        if found.id != job {
            return Err("the answer is about another job".to_owned());
        }
        Ok(found.state(&adapter.service))
    };
    polled(reply, state, |reply| wire::refusal(reply).is_some())
}
