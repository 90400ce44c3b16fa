//! Asking for a job. Sent once; what came of it is told by what may have left this machine.

use super::Replicate;
use super::exchange::{MAX_REPLY_BYTES, NoReply, Reply, exchange};
use super::wire::{CreateBody, CreateReply, Input, is_job_id};
use workers::ports::{CreateOrder, Created, FaultClass, ProviderFault};

pub(super) async fn create(adapter: &Replicate, order: &CreateOrder) -> Created {
    let Some((owner, name)) = model_path(&order.request.model) else {
        return Created::Rejected(ProviderFault {
            class: FaultClass::BadRequest,
            code: "model_name".to_owned(),
            message: "a model is named owner/name".to_owned(),
        });
    };
    let webhook = adapter.callback_url(order.attempt);
    let body = CreateBody {
        input: Input {
            prompt: &order.request.prompt,
            duration: order.request.duration_seconds,
            image: order.request.image_url.as_deref(),
        },
        webhook: &webhook,
        // Output and log events would come twice a second and tell us nothing that a poll does not.
        webhook_events_filter: ["completed"],
    };
    let url = adapter.addresses.api(["models", owner, name, "predictions"]);
    let request = adapter.clients.create.post(url).json(&body);
    match exchange(request, order.timeout, MAX_REPLY_BYTES).await {
        Ok(reply) => outcome(adapter, order, &reply),
        Err(NoReply::NotSent(cause)) => Created::NotSent { cause: cause.to_owned() },
        Err(NoReply::Lost(cause)) => Created::Unknown { cause: cause.to_owned() },
    }
}

/// What a whole reply means. Only the provider's own words count as a refusal: a proxy may answer for an origin that has
/// already taken the job.
fn outcome(adapter: &Replicate, order: &CreateOrder, reply: &Reply) -> Created {
    let status = reply.status.as_u16();
    if reply.status.is_success() {
        return match serde_json::from_slice::<CreateReply>(&reply.body) {
            Ok(created) if is_job_id(&created.id) => Created::Accepted { job: created.id },
            _ => Created::Unknown { cause: format!("http {status} without a job id") },
        };
    }
    match (status, reply.problem()) {
        (400..=404 | 422, Some(problem)) => {
            let image = order.request.image_url.as_deref().unwrap_or_default();
            let private = [order.request.prompt.as_str(), image, adapter.config.token.expose()];
            Created::Rejected(problem.fault(status, &adapter.config.moderation_markers, &private))
        }
        (429, Some(_)) => Created::Throttled { retry_after: reply.retry_after() },
        _ => Created::Unknown { cause: format!("http {status}") },
    }
}

/// Splits `owner/name`. Anything else would address another resource with our token.
fn model_path(model: &str) -> Option<(&str, &str)> {
    let (owner, name) = model.split_once('/')?;
    let is_plain = |part: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        !part.is_empty() && part.bytes().all(allowed) && part.bytes().any(|byte| byte != b'.')
    };
    (is_plain(owner) && is_plain(name)).then_some((owner, name))
}

#[cfg(test)]
mod tests {
    use super::model_path;

    #[test]
    fn only_owner_and_name_make_a_path() {
        assert_eq!(model_path("acme/video-1.5"), Some(("acme", "video-1.5")));
        for bad in ["", "acme", "/x", "x/", "a/b/c", "../predictions", "a/..", "a/b?c", "a /b", "a/b%2f"] {
            assert_eq!(model_path(bad), None, "{bad}");
        }
    }
}
