//! Asking for a job to be cancelled.

use super::Replicate;
use super::exchange::{MAX_REPLY_BYTES, exchange};
use super::wire::{Prediction, is_job_id};
use workers::ports::CancelAsked;

pub(super) async fn cancel(adapter: &Replicate, job: &str) -> CancelAsked {
    if !is_job_id(job) {
        return CancelAsked::NotFound;
    }
    let request = adapter.clients.other.post(adapter.addresses.api(["predictions", job, "cancel"]));
    let Ok(reply) = exchange(request, adapter.config.request_timeout(), MAX_REPLY_BYTES).await else {
        return CancelAsked::Unknown;
    };
    if reply.status.is_success() {
        // The reply is the job as it now is; a body we can not read still means that the request was taken.
        let status = serde_json::from_slice::<Prediction>(&reply.body).map(|job| job.status).unwrap_or_default();
        return match status.as_str() {
            "succeeded" | "failed" => CancelAsked::AlreadyEnded,
            _ => CancelAsked::Requested,
        };
    }
    match (reply.status.as_u16(), reply.problem().is_some()) {
        (404, true) => CancelAsked::NotFound,
        (409, true) => CancelAsked::AlreadyEnded,
        _ => CancelAsked::Unknown,
    }
}
