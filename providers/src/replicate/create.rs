//! Asking for a job. Sent once; what came of it is told by what may have left this machine.

use super::Replicate;
use super::wire::{self, CreateBody};
use crate::shared::{created, named_by_id, request_fields};
use serde_json::json;
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
        input: request_fields(
            &order.request,
            ("image", |url| json!(url)),
            [("prompt", json!(order.request.prompt)), ("duration", json!(order.request.duration_seconds))],
        ),
        webhook: &webhook,
        // Output and log events would come twice a second and tell us nothing that a poll does not.
        webhook_events_filter: ["completed"],
    };
    let url = adapter.service.at(&["models", owner, name, "predictions"]);
    let request = adapter.service.create(url).json(&body);
    match adapter.service.send(request, order.timeout).await {
        Ok(reply) => created(&adapter.service, order, &reply, named_by_id, wire::refusal),
        Err(no) => no.into(),
    }
}

/// Splits `owner/name`. Anything else would address another resource with our token.
pub(super) fn model_path(model: &str) -> Option<(&str, &str)> {
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
