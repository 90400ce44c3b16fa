//! Asking for a job to be cancelled.

use super::Replicate;
use super::wire::{self, Prediction};
use crate::shared::{MAX_REPLY_BYTES, is_job_id};
use reqwest::Method;
use workers::ports::CancelAsked;

pub(super) async fn cancel(adapter: &Replicate, job: &str) -> CancelAsked {
    if !is_job_id(job) {
        return CancelAsked::NotFound;
    }
    let request = adapter.service.request(Method::POST, adapter.service.at(&["predictions", job, "cancel"]));
    let Ok(reply) = adapter.service.ask(request, MAX_REPLY_BYTES).await else {
        return CancelAsked::Unknown;
    };
    if reply.status.is_success() {
        // The reply is the job as it now is; a body we can not read still means that the request was taken.
        let status = reply.json::<Prediction>().map(|job| job.status).unwrap_or_default();
        return match status.as_str() {
            "succeeded" | "failed" => CancelAsked::AlreadyEnded,
            _ => CancelAsked::Requested,
        };
    }
    match (reply.status.as_u16(), wire::refusal(&reply).is_some()) {
        (404, true) => CancelAsked::NotFound,
        (409, true) => CancelAsked::AlreadyEnded,
        _ => CancelAsked::Unknown,
    }
}
