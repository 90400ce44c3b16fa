//! Asking a provider for a job. Everything that can fail before the request leaves is `NotSent`; nothing is repeated.

use super::{Outside, input_of};
use crate::ports::{CreateOrder, GenerationRequest};
use domain::id::AttemptId;
use domain::outcome::{Created, FaultClass, ProviderFault};
use domain::task::Order;
use eventstore::CallContext;
use std::time::Duration;

impl Outside {
    pub(super) async fn create(&self, attempt: AttemptId, timeout: Duration, context: &CallContext) -> Created {
        let order = &context.order;
        let Some(provider) = self.provider(order) else {
            return Created::NotSent { cause: "the provider is not configured".to_owned() };
        };
        // One budget for preparing and asking, which began with the decision to ask: past it others may take the answer for
        // lost, and nothing may leave any more.
        let too_slow = || Created::NotSent { cause: "preparing the request took too long".to_owned() };
        let left = timeout.saturating_sub(context.decided.elapsed());
        let request = match tokio::time::timeout(left, self.request(order)).await {
            Ok(Ok(request)) => request,
            Ok(Err(created)) => return created,
            Err(_) => return too_slow(),
        };
        let left = timeout.saturating_sub(context.decided.elapsed());
        if left.is_zero() {
            return too_slow();
        }
        let create = CreateOrder { attempt, request, timeout: left };
        // The adapter keeps the time itself; this is for one that does not.
        let patience = left + Duration::from_secs(2);
        tokio::time::timeout(patience, provider.create(&create))
            .await
            .unwrap_or_else(|_| Created::Unknown { cause: "no answer in time".to_owned() })
    }

    async fn request(&self, order: &Order) -> Result<GenerationRequest, Created> {
        let stored = self.store.generation_request(order.tenant, order.task).await;
        let stored = stored.map_err(|_| Created::NotSent { cause: "the request could not be read".to_owned() })?;
        let Some(stored) = stored else {
            return Err(refused("request_missing", "the stored request is gone"));
        };
        let image_url = self.image_url(order).await?;
        let catalogue = self.catalogue.now();
        // An operator can put the model back: the task waits for that as long as it waits for a provider.
        let model = catalogue.of(order).map_err(|cause| Created::NotSent { cause })?;
        Ok(GenerationRequest {
            model: model.at_provider(&order.model, input_of(order)).to_owned(),
            parameters: model.parameters.clone(),
            // As the order was made, not as the catalogue is now: a look-up goes by it.
            accepts_seed: order.seeded,
            prompt: stored.prompt,
            duration_seconds: order.duration_seconds,
            image_url,
        })
    }

    async fn image_url(&self, order: &Order) -> Result<Option<String>, Created> {
        let Some(first) = order.input_assets.first() else { return Ok(None) };
        let uploads = self.store.uploads(order.tenant, &[*first]).await;
        let uploads = uploads.map_err(|_| Created::NotSent { cause: "the upload could not be read".to_owned() })?;
        let Some(upload) = uploads.first() else {
            return Err(refused("input_missing", "the input image is gone"));
        };
        let life = Duration::from_secs(self.limits.image_link_seconds);
        match self.objects.signed_url(&upload.object.key, life).await {
            Ok(url) => Ok(Some(url)),
            Err(_) => Err(Created::NotSent { cause: "the input image could not be linked".to_owned() }),
        }
    }
}

fn refused(code: &str, message: &str) -> Created {
    Created::Rejected(ProviderFault {
        class: FaultClass::BadRequest,
        code: code.to_owned(),
        message: message.to_owned(),
    })
}
