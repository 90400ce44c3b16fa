//! The input of a generation: what is accepted, and what is ordered for it.

use super::context::state;
use super::error::{Refusal, fault};
use super::mutation::fingerprint;
use super::node_id::Kind;
use crate::sniff::is_image;
use async_graphql::{Context, Error, ID, InputObject};
use domain::id::{AccountId, AssetId, TaskId, TenantId};
use domain::money::Credits;
use domain::process::Policy;
use domain::task::{Order, Place, Work};
use domain::time::{Timestamp, seconds};
use std::collections::HashSet;
use std::ops::RangeInclusive;
use workers::catalogue::Model;

/// Longest prompt, in characters and in bytes of UTF-8.
const MAX_PROMPT_CHARS: usize = 4_000;
const MAX_PROMPT_BYTES: usize = 16 * 1024;
/// What a priority may be.
const PRIORITIES: RangeInclusive<i16> = -100..=100;

/// What a video is to be made of.
#[derive(InputObject)]
pub(crate) struct GenerationInput {
    /// What is to be seen: 1 to 4000 characters, without U+0000. Spaces around it do not count.
    prompt: String,
    /// The model, as `models` names it.
    model: String,
    /// Length in whole seconds, within the model's range.
    duration_seconds: i32,
    /// Uploaded images of the caller's tenant, as many as the model takes. UUIDs or global ids.
    #[graphql(default)]
    input_asset_ids: Vec<ID>,
    /// Whether another provider may make it where the model's own one breaks or does not take it, and certainly has not begun.
    /// The price stays the same.
    #[graphql(default)]
    other_providers: bool,
    /// From -100 to 100: among the tasks of the caller's tenant that wait for their turn, the higher goes first. It changes nothing
    /// between tenants.
    #[graphql(default)]
    priority: i32,
}

impl GenerationInput {
    /// Digest of what is asked for: the same key with anything else is refused. `None` where an id can not be read: such an
    /// input was never accepted.
    pub(crate) fn fingerprint(&self) -> Option<[u8; 32]> {
        let assets = asset_ids(&self.input_asset_ids)?;
        let (prompt, model, seconds) = (self.prompt.trim(), &self.model, self.duration_seconds);
        // Keys from before there were these choices stay what they are.
        Some(fingerprint(&if (self.other_providers, self.priority) == (false, 0) {
            serde_json::json!(["submitGeneration/1", prompt, model, seconds, assets])
        } else {
            let choices = (self.other_providers, self.priority);
            serde_json::json!(["submitGeneration/2", prompt, model, seconds, assets, choices])
        }))
    }
}

/// An input that was accepted. Not `Debug`: the prompt must not reach a log.
pub(crate) struct Ordered {
    pub(crate) prompt: String,
    name: String,
    model: Model,
    duration_seconds: u32,
    assets: Vec<AssetId>,
    alternatives: Vec<Place>,
    priority: i16,
    hold: Credits,
}

impl Ordered {
    /// Checks an input. The outer error is a fault, the inner one a refusal.
    pub(crate) async fn check(
        ctx: &Context<'_>,
        tenant: TenantId,
        input: GenerationInput,
    ) -> Result<Result<Self, Refusal>, Error> {
        let state = state(ctx)?;
        let prompt = match prompt(&input.prompt) {
            Ok(prompt) => prompt,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let catalogue = state.catalogue.now();
        let Some(model) = catalogue.offered(&input.model) else {
            return Ok(Err(Refusal::new(
                "UNKNOWN_MODEL",
                "there is no such model; `models` lists them",
                Some("model"),
            )));
        };
        let range = model.min_seconds..=model.max_seconds;
        let Some(duration_seconds) = u32::try_from(input.duration_seconds).ok().filter(|it| range.contains(it)) else {
            let message = format!("from {} to {} seconds", model.min_seconds, model.max_seconds);
            return Ok(Err(Refusal::new("INVALID_DURATION", message, Some("durationSeconds"))));
        };
        let Some(priority) = i16::try_from(input.priority).ok().filter(|it| PRIORITIES.contains(it)) else {
            return Ok(Err(Refusal::new("INVALID_PRIORITY", "from -100 to 100", Some("priority"))));
        };
        let assets = match assets(&input.input_asset_ids, model) {
            Ok(assets) => assets,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if !assets.is_empty() {
            let uploads = state.store.uploads(tenant, &assets).await.map_err(|error| fault(ctx, &error))?;
            if uploads.len() != assets.len() || !uploads.iter().all(|upload| is_image(&upload.object.content_type)) {
                return Ok(Err(bad_assets("an input asset is an uploaded image of your tenant")));
            }
        }
        let Some(hold) = state.store.policy().hold(model.price_per_second, duration_seconds) else {
            return Ok(Err(Refusal::new(
                "INVALID_DURATION",
                "its price is beyond what can be counted",
                Some("durationSeconds"),
            )));
        };
        let images = u32::try_from(assets.len()).unwrap_or(u32::MAX);
        let alternatives =
            if input.other_providers { catalogue.elsewhere(&input.model, images, duration_seconds) } else { vec![] };
        let (name, model) = (input.model, model.clone());
        Ok(Ok(Self { prompt, name, model, duration_seconds, assets, alternatives, priority, hold }))
    }

    /// The order, as of a time by the database's clock.
    pub(crate) fn order(
        &self,
        task: TaskId,
        (tenant, user): (TenantId, &str),
        now: Timestamp,
        policy: &Policy,
    ) -> Order {
        Order {
            task,
            tenant,
            account: AccountId::of(tenant),
            provider: self.model.provider.clone(),
            model: self.name.clone(),
            duration_seconds: self.duration_seconds,
            input_assets: self.assets.clone(),
            request_ref: format!("generation_request/{task}"),
            hold: self.hold,
            price_per_second: self.model.price_per_second,
            submitted_at: now,
            give_up_at: now + seconds(policy.max_waiting_seconds),
            retry_of: None,
            user: user.to_owned(),
            priority: self.priority,
            work: Work::Generate,
            seeded: self.model.accepts_seed,
            alternatives: self.alternatives.clone(),
        }
    }
}

fn prompt(given: &str) -> Result<String, Refusal> {
    let refuse = |message: &str| Err(Refusal::new("INVALID_PROMPT", message, Some("prompt")));
    let prompt = given.trim();
    if prompt.contains('\0') {
        return refuse("a prompt can not hold the character U+0000");
    }
    if prompt.is_empty() {
        return refuse("a prompt is needed");
    }
    if prompt.len() > MAX_PROMPT_BYTES || prompt.chars().count() > MAX_PROMPT_CHARS {
        return refuse("a prompt has at most 4000 characters and 16 KiB");
    }
    Ok(prompt.to_owned())
}

fn assets(ids: &[ID], model: &Model) -> Result<Vec<AssetId>, Refusal> {
    let images = model.images();
    let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    if count > *images.end() {
        return Err(bad_assets(&format!("this model takes at most {} input images", images.end())));
    }
    if count < *images.start() {
        return Err(bad_assets("this model makes a video from an image: give it one"));
    }
    let assets = asset_ids(ids).ok_or_else(|| bad_assets("not an id of an asset"))?;
    let distinct: HashSet<&AssetId> = assets.iter().collect();
    if distinct.len() == assets.len() { Ok(assets) } else { Err(bad_assets("an asset is named twice")) }
}

fn asset_ids(ids: &[ID]) -> Option<Vec<AssetId>> {
    ids.iter().map(|id| Kind::Asset.read(id).ok().map(AssetId)).collect()
}

fn bad_assets(message: &str) -> Refusal {
    Refusal::new("INVALID_INPUT_ASSETS", message, Some("inputAssetIds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts() {
        assert_eq!(prompt("  a boat\n").as_deref(), Ok("a boat"));
        assert!(prompt(&"雨".repeat(4_000)).is_ok());
        for bad in ["", " \n", "a\0b", "\0", &"x".repeat(4_001), &"𝕏".repeat(4_097)] {
            assert_eq!(prompt(bad).map_err(|refusal| refusal.code), Err("INVALID_PROMPT".to_owned()));
        }
    }
}
