//! The outside calls, one file each.

mod create;
mod fetch;
mod media;
mod render;

use crate::catalogue::{Input, SharedCatalogue};
use crate::ports::{CancelKind, FindOrder, LookUp, Media, ObjectStore, Provider, TransferLimits};
use crate::slots::Slots;
use domain::id::AttemptId;
use domain::outcome::{Answer, Call, CancelAsked, Found, JobState, Polled, ProviderFault};
use domain::process::{Entry, Slot, SlotNote};
use domain::task::Order;
use domain::time::Timestamp;
use eventstore::{CallContext, Caller, Committed, Store};
use futures_util::future::BoxFuture;
use serde::Deserialize;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Limits of outside calls.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CallLimits {
    /// The largest video that is fetched, in bytes.
    pub max_video_bytes: u64,
    /// The largest thumbnail that is stored, in bytes.
    pub max_thumbnail_bytes: u64,
    /// The longest a transfer may take, in seconds.
    pub transfer_seconds: u64,
    /// How long a provider can read an input image, in seconds.
    pub image_link_seconds: u64,
    /// The longest a poll, a look-up or a cancel may take, in seconds.
    pub ask_seconds: u64,
}

impl Default for CallLimits {
    fn default() -> Self {
        Self {
            max_video_bytes: 2 << 30,
            max_thumbnail_bytes: 8 << 20,
            transfer_seconds: 120,
            image_link_seconds: 3_600,
            ask_seconds: 30,
        }
    }
}

impl CallLimits {
    pub(crate) const fn transfer(&self, max_bytes: u64) -> TransferLimits {
        TransferLimits { max_bytes, deadline: Duration::from_secs(self.transfer_seconds) }
    }
}

/// The outside world, as far as workers touch it.
pub struct Outside {
    /// For the stored requests and uploads of a task.
    pub store: Store,
    /// Providers by their stored names.
    pub providers: HashMap<String, Arc<dyn Provider>>,
    /// What the models of tasks mean at their providers.
    pub catalogue: SharedCatalogue,
    /// Who may submit now.
    pub slots: Slots,
    /// Where bytes go.
    pub objects: Arc<dyn ObjectStore>,
    /// The media tools.
    pub media: Arc<dyn Media>,
    /// Limits.
    pub limits: CallLimits,
    /// Where files lie while they are worked on.
    pub scratch: PathBuf,
}

impl Caller for Outside {
    fn call<'a>(&'a self, call: &'a Committed<Call>, context: CallContext) -> BoxFuture<'a, Answer> {
        Box::pin(async move { self.answer(call.get(), &context).await })
    }

    fn admit<'a>(&'a self, slot: &'a Slot) -> BoxFuture<'a, Entry> {
        Box::pin(self.slots.ask(slot))
    }

    fn noted<'a>(&'a self, note: &'a SlotNote) -> BoxFuture<'a, ()> {
        Box::pin(self.slots.note(note))
    }
}

impl Outside {
    async fn answer(&self, call: &Call, context: &CallContext) -> Answer {
        let order = &context.order;
        match call {
            Call::Create { attempt, timeout, .. } => Answer::Created(self.create(*attempt, *timeout, context).await),
            Call::Find { attempt, since, .. } => Answer::Found(self.find(*attempt, *since, order).await),
            Call::Poll { job, .. } => Answer::Polled(self.poll(job, order).await),
            Call::Cancel { job } => Answer::CancelAsked(self.cancel(job, order).await),
            Call::Fetch { job, key } => Answer::Fetched(self.fetch(job, key, order).await),
            Call::Process { key, thumbnail_key } => Answer::Processed(self.process(key, thumbnail_key).await),
            Call::Render { source_key, key, spec } => Answer::Rendered(self.render(source_key, key, *spec).await),
        }
    }

    fn provider(&self, order: &Order) -> Option<&Arc<dyn Provider>> {
        self.providers.get(order.provider.as_str())
    }

    async fn find(&self, attempt: AttemptId, lost_at: Timestamp, order: &Order) -> Found {
        let Some(provider) = self.provider(order) else {
            return Found::Inconclusive { cause: "the provider is not configured".to_owned() };
        };
        if provider.capabilities().look_up == LookUp::None {
            return Found::Impossible;
        }
        let catalogue = self.catalogue.now();
        let model = match catalogue.of(order) {
            Ok(model) => model,
            Err(cause) => return Found::Inconclusive { cause },
        };
        let find = FindOrder {
            attempt,
            model: model.at_provider(&order.model, input_of(order)).to_owned(),
            accepts_seed: order.seeded,
            duration_seconds: order.duration_seconds,
            not_before: order.submitted_at,
            lost_at,
        };
        tokio::time::timeout(self.ask_timeout(), provider.find(&find))
            .await
            .unwrap_or_else(|_| Found::Inconclusive { cause: "no answer in time".to_owned() })
    }

    pub(crate) async fn poll(&self, job: &str, order: &Order) -> Polled {
        let Some(provider) = self.provider(order) else {
            return Polled::Unavailable { cause: "the provider is not configured".to_owned(), retry_after: None };
        };
        let polled = tokio::time::timeout(self.ask_timeout(), provider.poll(job)).await;
        match polled {
            Ok(Polled::State(JobState::Failed(fault))) => {
                Polled::State(JobState::Failed(self.discreet(fault, order).await))
            }
            Ok(polled) => polled,
            Err(_) => Polled::Unavailable { cause: "no answer in time".to_owned(), retry_after: None },
        }
    }

    /// A fault becomes a fact for ever. Providers like to quote the prompt, and the adapter of a poll does not know it.
    async fn discreet(&self, fault: ProviderFault, order: &Order) -> ProviderFault {
        match self.store.generation_request(order.tenant, order.task).await {
            Ok(Some(request)) if quotes(&fault.message, &request.prompt) => {
                ProviderFault { message: "the provider's words quote the request".to_owned(), ..fault }
            }
            Ok(_) => fault,
            Err(_) => ProviderFault { message: "what the provider said could not be checked".to_owned(), ..fault },
        }
    }

    async fn cancel(&self, job: &str, order: &Order) -> CancelAsked {
        let Some(provider) = self.provider(order) else { return CancelAsked::Unknown };
        if provider.capabilities().cancel == CancelKind::None {
            return CancelAsked::NotPossible;
        }
        tokio::time::timeout(self.ask_timeout(), provider.cancel(job)).await.unwrap_or(CancelAsked::Unknown)
    }

    const fn ask_timeout(&self) -> Duration {
        Duration::from_secs(self.limits.ask_seconds)
    }
}

/// Whether a text repeats so much of a prompt that it says something about it.
fn quotes(text: &str, prompt: &str) -> bool {
    const RUN: usize = 20;
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (text, prompt): (Vec<char>, Vec<char>) = (plain(text).chars().collect(), plain(prompt).chars().collect());
    // Shorter ones say nothing about a person.
    if prompt.len() < 3 {
        return false;
    }
    let run = prompt.len().min(RUN);
    let runs: HashSet<&[char]> = prompt.windows(run).collect();
    text.windows(run).any(|it| runs.contains(it))
}

/// What the video of an order is made from.
const fn input_of(order: &Order) -> Input {
    if order.input_assets.is_empty() { Input::Text } else { Input::Image }
}

#[cfg(test)]
mod tests {
    use super::quotes;

    #[test]
    fn a_quotation_of_the_prompt_is_seen() {
        let prompt = "A portrait of Maria Beispiel at her\nkitchen table, raining outside";
        assert!(quotes(&format!("input '{prompt}' failed"), prompt));
        assert!(quotes("refused: Maria Beispiel at her kitchen ta... (cut)", prompt), "in part, and over a line break");
        assert!(quotes("my cat is too odd", "my cat"));
        assert!(!quotes("CUDA out of memory at her kitchen", prompt) && !quotes("no", "no") && !quotes("", prompt));
    }
}
