//! What was ordered, and what kind of work that is.

use crate::id::{AccountId, AssetId, AttemptId, TaskId, TenantId, derived};
use crate::money::Credits;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// What was ordered: fixed when the task is submitted. The prompt is not here: it stays in the stored request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Order {
    /// The task.
    pub task: TaskId,
    /// Its owner.
    pub tenant: TenantId,
    /// Who pays.
    pub account: AccountId,
    /// The provider that is to do it.
    pub provider: String,
    /// The model at the provider.
    pub model: String,
    /// Length asked for, in seconds.
    pub duration_seconds: u32,
    /// Uploaded input images.
    pub input_assets: Vec<AssetId>,
    /// Where the full request is stored: `generation_request/{task}`.
    pub request_ref: String,
    /// Credits held while it runs: the most it can cost.
    pub hold: Credits,
    /// Credits for each started second of the finished video.
    pub price_per_second: Credits,
    /// When the user asked.
    pub submitted_at: Timestamp,
    /// When waiting for a provider to take it ends.
    pub give_up_at: Timestamp,
    /// The task that this one tries again, where the user asked for that.
    pub retry_of: Option<TaskId>,
    /// Who of the tenant asked, by the caller's name; empty where that was not written down.
    pub user: String,
    /// Among the tenant's own tasks that wait for a slot, the higher goes first. It moves nothing between tenants.
    pub priority: i16,
    /// What is to be done.
    pub work: Work,
    /// Whether its requests carry a seed that follows from the attempt. Some look-ups know a job again by nothing else, so this is
    /// fixed with the order, whatever the catalogue says later.
    pub seeded: bool,
    /// Where else it may be made, the first first, should an attempt end of which it is certain that nothing runs. Empty: nowhere.
    pub alternatives: Vec<Place>,
}

/// A provider, and a model there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Place {
    /// The provider's stored name.
    pub provider: String,
    /// The model, as the catalogue names it.
    pub model: String,
    /// See [`Order::seeded`].
    pub seeded: bool,
}

/// The kinds of work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Work {
    /// A provider makes a video.
    Generate,
    /// A finished video is rendered here in another size.
    Export {
        /// The task whose video it is.
        source: TaskId,
        /// The object key of that video.
        source_key: String,
        /// What is wanted.
        spec: ExportSpec,
    },
}

/// The file format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Container {
    /// MP4 that plays while it loads.
    Mp4,
}

/// What an export is to look like. The width follows from the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExportSpec {
    /// The file format.
    pub container: Container,
    /// Height in pixels as displayed.
    pub height_px: u32,
}

impl ExportSpec {
    /// The lowest height, in pixels.
    pub const MIN_HEIGHT: u32 = 144;
    /// The greatest height, in pixels.
    pub const MAX_HEIGHT: u32 = 2160;

    /// Whether it can be rendered: the height is even, as the codec wants it, and within the bounds.
    #[must_use]
    pub const fn is_sound(self) -> bool {
        self.height_px >= Self::MIN_HEIGHT && self.height_px <= Self::MAX_HEIGHT && self.height_px.is_multiple_of(2)
    }
}

impl Order {
    /// Where attempt number `number` (from 1) is made: here first, then at the alternatives, then from the start.
    #[must_use]
    pub fn place(&self, number: u32) -> Place {
        let places = self.alternatives.len() + 1;
        let turn = usize::try_from(number.saturating_sub(1)).unwrap_or(0) % places;
        match turn.checked_sub(1).and_then(|turn| self.alternatives.get(turn)) {
            Some(place) => place.clone(),
            None => Place { provider: self.provider.clone(), model: self.model.clone(), seeded: self.seeded },
        }
    }

    /// The order as attempt number `number` carries it out: with the provider and the model of its place.
    #[must_use]
    pub fn at_attempt(&self, number: u32) -> Self {
        let Place { provider, model, seeded } = self.place(number);
        Self { provider, model, seeded, ..self.clone() }
    }

    /// How many attempts there may be, where one provider gets `max_attempts`: each alternative gets one at least.
    #[must_use]
    pub fn attempts(&self, max_attempts: u32) -> u32 {
        let places = u32::try_from(self.alternatives.len()).unwrap_or(u32::MAX).saturating_add(1);
        max_attempts.max(places)
    }

    /// The export that is ordered, where it is one.
    #[must_use]
    pub fn export(&self) -> Option<Export> {
        match &self.work {
            Work::Generate => None,
            Work::Export { source_key, spec, .. } => {
                Some(Export { order: self.clone(), source_key: source_key.clone(), spec: *spec })
            }
        }
    }
}

/// A task whose work is at an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// What was ordered.
    pub order: Order,
    /// Number of the current attempt, from 1.
    pub attempt_no: u32,
    /// When waiting for a provider to take it ends: the order's time, or a later one that a person gave it.
    pub give_up_at: Timestamp,
}

impl Live {
    /// The current attempt.
    #[must_use]
    pub fn attempt(&self) -> AttemptId {
        AttemptId::of(self.order.task, self.attempt_no)
    }

    /// The object key of one of the attempt's files: the same however often the work is repeated.
    #[must_use]
    pub fn object_key(&self, file: &str) -> String {
        format!("tenants/{}/tasks/{}/{}/{file}", self.order.tenant, self.order.task, self.attempt())
    }
}

/// An export being rendered. [`Order::export`] makes it, so an order to generate never gets here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// What was ordered.
    pub order: Order,
    /// The object key of the source video.
    pub source_key: String,
    /// What is wanted.
    pub spec: ExportSpec,
}

/// Who made a video. As JSON the one has the number of its attempt, the other has a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Maker {
    /// An attempt at a provider.
    Attempt(Live),
    /// Our own render.
    Render(Export),
}

impl Maker {
    /// What was ordered.
    #[must_use]
    pub const fn order(&self) -> &Order {
        match self {
            Self::Attempt(live) => &live.order,
            Self::Render(export) => &export.order,
        }
    }

    /// The attempt, where it was one.
    #[must_use]
    pub const fn live(&self) -> Option<&Live> {
        match self {
            Self::Attempt(live) => Some(live),
            Self::Render(_) => None,
        }
    }

    /// The object key of one of its files: the same however often the work is repeated.
    #[must_use]
    pub fn object_key(&self, file: &str) -> String {
        match self {
            Self::Attempt(live) => live.object_key(file),
            Self::Render(Export { order, .. }) => {
                format!("tenants/{}/tasks/{}/export/{file}", order.tenant, order.task)
            }
        }
    }

    /// The id of one of its assets: the same however often the work is repeated.
    #[must_use]
    pub fn asset(&self, kind: &str) -> AssetId {
        match self {
            Self::Attempt(live) => AssetId::of(live.attempt(), kind),
            Self::Render(export) => AssetId::of_export(export.order.task, kind),
        }
    }
}

impl AssetId {
    /// The id of an asset that an export's render made.
    #[must_use]
    pub fn of_export(task: TaskId, kind: &str) -> Self {
        Self(derived("export-asset", task.0, kind))
    }
}
