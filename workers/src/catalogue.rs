//! The models on offer: what a name in a request means, where it is made, and what it costs.
//!
//! The catalogue is data that operators change while the service runs. A task keeps the name and the price it was submitted
//! with; what the name means at the provider is looked up at each call. So a model that is no longer to be sold stays in the
//! catalogue with `offered = false` until its last task is done.

use domain::money::Credits;
use domain::task::{Order, Place};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Longest name of a model, in bytes.
const MAX_NAME: usize = 200;
/// Longest video that can be offered, in seconds.
const MAX_SECONDS: u32 = 3_600;

/// What a video can be made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// A text alone.
    Text,
    /// A text and an image.
    Image,
}

/// A model that tasks can be submitted for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// The provider's name in the configuration.
    pub provider: String,
    /// The model's name at the provider. Default: the name in the catalogue.
    #[serde(default)]
    pub provider_model: Option<String>,
    /// The model's name at the provider for requests with an image, where that is another one.
    #[serde(default)]
    pub provider_image_model: Option<String>,
    /// What it can be given.
    #[serde(default = "text_and_image")]
    pub inputs: Vec<Input>,
    /// Price of each started second, in minor units.
    pub price_per_second: Credits,
    /// Shortest video, in seconds.
    pub min_seconds: u32,
    /// Longest video, in seconds.
    pub max_seconds: u32,
    /// How many input images it takes.
    #[serde(default = "one")]
    pub max_input_images: u32,
    /// Whether it takes a seed. Some look-ups recognise a job by its seed.
    #[serde(default)]
    pub accepts_seed: bool,
    /// Whether new tasks may name it. Those that already do go on.
    #[serde(default = "yes")]
    pub offered: bool,
    /// Other models of this catalogue, at other providers, that make what this one makes, the first first. They are tried for
    /// tasks whose users allow that, after an attempt of which it is certain that nothing runs; the price stays this one's.
    #[serde(default)]
    pub alternatives: Vec<String>,
    /// Fields of the provider's own request body that are the same for every request, such as a size.
    #[serde(default)]
    pub parameters: Map<String, Value>,
}

const fn one() -> u32 {
    1
}

const fn yes() -> bool {
    true
}

fn text_and_image() -> Vec<Input> {
    vec![Input::Text, Input::Image]
}

impl Model {
    /// Whether it can be given this.
    #[must_use]
    pub fn takes(&self, input: Input) -> bool {
        self.inputs.contains(&input)
    }

    /// How many input images a request may have: none where the model does not take images.
    #[must_use]
    pub fn images(&self) -> std::ops::RangeInclusive<u32> {
        let least = u32::from(!self.takes(Input::Text));
        least..=if self.takes(Input::Image) { self.max_input_images } else { 0 }
    }

    /// Its name at the provider, for a request with or without an image. `name` is its name in the catalogue.
    #[must_use]
    pub fn at_provider<'a>(&'a self, name: &'a str, input: Input) -> &'a str {
        let own = self.provider_model.as_deref().unwrap_or(name);
        match input {
            Input::Text => own,
            Input::Image => self.provider_image_model.as_deref().unwrap_or(own),
        }
    }

    fn check(&self) -> Result<(), String> {
        let blank = |text: &str| text.trim().is_empty() || text.chars().any(char::is_control);
        let rules = [
            (!blank(&self.provider), "provider is empty"),
            (
                !self.provider_model.iter().chain(&self.provider_image_model).any(|name| blank(name)),
                "provider_model and provider_image_model must not be empty; leave them out instead",
            ),
            (!self.inputs.is_empty(), "inputs is empty: it takes \"text\", \"image\" or both"),
            (self.min_seconds >= 1, "min_seconds must be at least 1"),
            (self.min_seconds <= self.max_seconds, "min_seconds is more than max_seconds"),
            (self.max_seconds <= MAX_SECONDS, "max_seconds must be at most 3600"),
            (
                !self.takes(Input::Image) || self.max_input_images >= 1,
                "max_input_images must be at least 1 for a model that takes an image",
            ),
        ];
        rules.iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, rule)| Err((*rule).to_owned()))
    }
}

/// The models by name.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Catalogue {
    models: BTreeMap<String, Model>,
}

impl Catalogue {
    /// These models.
    #[must_use]
    pub fn new(models: impl IntoIterator<Item = (String, Model)>) -> Self {
        Self { models: models.into_iter().collect() }
    }

    /// A model that new tasks may name.
    #[must_use]
    pub fn offered(&self, name: &str) -> Option<&Model> {
        self.models.get(name).filter(|model| model.offered)
    }

    /// Where else than at `name` a video of `seconds` from so many images can be made: the alternatives on offer that can do it.
    #[must_use]
    pub fn elsewhere(&self, name: &str, images: u32, seconds: u32) -> Vec<Place> {
        let input = if images == 0 { Input::Text } else { Input::Image };
        let can = |model: &Model| {
            model.takes(input)
                && model.images().contains(&images)
                && (model.min_seconds..=model.max_seconds).contains(&seconds)
        };
        let names = self.models.get(name).map(|model| model.alternatives.as_slice()).unwrap_or_default();
        let found = names.iter().filter_map(|name| Some((name, self.offered(name).filter(|model| can(model))?)));
        found
            .map(|(name, model)| Place {
                provider: model.provider.clone(),
                model: name.clone(),
                seeded: model.accepts_seed,
            })
            .collect()
    }

    /// All models, by name, also those that are no longer offered.
    pub fn models(&self) -> impl Iterator<Item = (&str, &Model)> {
        self.models.iter().map(|(name, model)| (name.as_str(), model))
    }

    /// The model of a task that was accepted.
    ///
    /// # Errors
    /// It is gone, or made elsewhere than when the task was accepted: a sentence for the log.
    pub fn of(&self, order: &Order) -> Result<&Model, String> {
        let model = self.models.get(&order.model).ok_or("the catalogue no longer has the model")?;
        if model.provider != order.provider {
            return Err("the catalogue now has the model at another provider".to_owned());
        }
        Ok(model)
    }

    /// Refuses a catalogue that tasks could not be made from. `at_provider` asks the model's provider, and says so where there
    /// is none of that name.
    ///
    /// # Errors
    /// One sentence for each model that is wrong, which names it.
    pub fn check(&self, at_provider: impl Fn(&str, &Model) -> Result<(), String>) -> Result<(), String> {
        let own = |(name, model): (&str, &Model)| {
            fault(name, model, &at_provider)
                .or_else(|| self.bad_alternative(model).map(|wrong| format!("model {name:?}: {wrong}")))
        };
        let wrong: Vec<String> = self.models().filter_map(own).collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    }

    fn bad_alternative(&self, model: &Model) -> Option<String> {
        model.alternatives.iter().find_map(|name| match self.models.get(name) {
            None => Some(format!("its alternative {name:?} is not in the catalogue")),
            Some(it) if it.provider == model.provider => {
                Some(format!("its alternative {name:?} is at the same provider"))
            }
            Some(_) => None,
        })
    }
}

fn fault(name: &str, model: &Model, at_provider: impl Fn(&str, &Model) -> Result<(), String>) -> Option<String> {
    if name.trim() != name || name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Some(format!("model {name:?}: a name has 1 to {MAX_NAME} bytes and no blank at its ends"));
    }
    let wrong = model.check().and_then(|()| at_provider(name, model)).err()?;
    Some(format!("model {name:?}: {wrong}"))
}

impl Default for Catalogue {
    /// One model, so that a fresh checkout can make a video.
    fn default() -> Self {
        let model = Model {
            provider: "replicate".to_owned(),
            provider_model: None,
            provider_image_model: None,
            inputs: text_and_image(),
            price_per_second: Credits(25),
            min_seconds: 1,
            max_seconds: 10,
            max_input_images: 1,
            accepts_seed: false,
            offered: true,
            alternatives: vec![],
            parameters: Map::new(),
        };
        Self::new([("aivideo/paper-boat-1".to_owned(), model)])
    }
}

/// The catalogue as it is now, shared by all parts of a process.
#[derive(Clone, Debug, Default)]
pub struct SharedCatalogue(Arc<RwLock<Arc<Catalogue>>>);

impl SharedCatalogue {
    /// Starts with this catalogue.
    #[must_use]
    pub fn new(catalogue: Catalogue) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(catalogue))))
    }

    /// The catalogue as it is now. Whoever holds it sees one catalogue, whatever is loaded meanwhile.
    #[must_use]
    pub fn now(&self) -> Arc<Catalogue> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts another in its place.
    pub fn replace(&self, catalogue: Catalogue) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(catalogue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(json: Value) -> Result<Model, serde_json::Error> {
        let mut all = serde_json::json!({
            "provider": "here", "price_per_second": 25, "min_seconds": 2, "max_seconds": 8,
        });
        if let (Some(all), Value::Object(more)) = (all.as_object_mut(), json) {
            all.extend(more);
        }
        serde_json::from_value(all)
    }

    #[test]
    fn what_is_wrong_is_said_with_the_name_of_the_model() -> Result<(), serde_json::Error> {
        let known = |name: &str, model: &Model| match model.provider.as_str() {
            "here" => Ok(()),
            other => Err(format!("there is no provider {other:?} for {name}")),
        };
        for (change, said) in [
            (serde_json::json!({}), None),
            (serde_json::json!({ "provider": "elsewhere" }), Some("there is no provider \"elsewhere\"")),
            (serde_json::json!({ "min_seconds": 9 }), Some("min_seconds is more than max_seconds")),
            (serde_json::json!({ "min_seconds": 0 }), Some("min_seconds must be at least 1")),
            (serde_json::json!({ "inputs": [] }), Some("inputs is empty")),
            (serde_json::json!({ "max_input_images": 0 }), Some("max_input_images")),
            (serde_json::json!({ "provider_model": " " }), Some("provider_model")),
        ] {
            let checked = Catalogue::new([("boat".to_owned(), model(change)?)]).check(known);
            match said {
                None => assert_eq!(checked, Ok(())),
                Some(said) => {
                    assert!(checked.is_err_and(|wrong| wrong.starts_with("model \"boat\": ") && wrong.contains(said)));
                }
            }
        }
        assert!(model(serde_json::json!({ "prize": 1 })).is_err_and(|wrong| wrong.to_string().contains("prize")));
        assert!(Catalogue::new([(" boat".to_owned(), model(serde_json::json!({}))?)]).check(known).is_err());
        Ok(())
    }

    #[test]
    fn a_model_says_what_it_takes_and_what_it_is_called() -> Result<(), serde_json::Error> {
        let both = model(serde_json::json!({ "provider_image_model": "i2v", "max_input_images": 2 }))?;
        assert_eq!((both.images(), both.at_provider("boat", Input::Text)), (0..=2, "boat"));
        assert_eq!(both.at_provider("boat", Input::Image), "i2v");
        let image = model(serde_json::json!({ "inputs": ["image"], "provider_model": "x" }))?;
        assert_eq!((image.images(), image.at_provider("boat", Input::Image)), (1..=1, "x"));
        assert_eq!(model(serde_json::json!({ "inputs": ["text"] }))?.images(), 0..=0);
        Ok(())
    }

    #[test]
    fn alternatives_are_elsewhere_and_can_do_it() -> Result<(), serde_json::Error> {
        let at = |provider: &str, more: Value| {
            let mut json = serde_json::json!({ "provider": provider });
            if let (Some(json), Value::Object(more)) = (json.as_object_mut(), more) {
                json.extend(more);
            }
            model(json)
        };
        let all = |alternatives: &[&str]| -> Result<Catalogue, serde_json::Error> {
            Ok(Catalogue::new([
                ("boat".to_owned(), at("here", serde_json::json!({ "alternatives": alternatives }))?),
                ("ship".to_owned(), at("there", serde_json::json!({ "max_seconds": 5, "max_input_images": 2 }))?),
                ("raft".to_owned(), at("afar", serde_json::json!({ "inputs": ["text"] }))?),
                ("wreck".to_owned(), at("below", serde_json::json!({ "offered": false }))?),
                ("twin".to_owned(), at("here", serde_json::json!({}))?),
            ]))
        };
        let known = |_: &str, _: &Model| Ok(());
        let catalogue = all(&["raft", "wreck", "ship"])?;
        assert_eq!(catalogue.check(known), Ok(()));
        let names = |images, seconds| -> Vec<String> {
            catalogue.elsewhere("boat", images, seconds).into_iter().map(|it| it.model).collect()
        };
        assert_eq!(names(0, 4), ["raft", "ship"]);
        assert_eq!(names(1, 4), ["ship"], "a raft takes no image");
        assert_eq!(names(0, 8), ["raft"], "a ship is too short");
        assert!(names(3, 4).is_empty() && catalogue.elsewhere("ship", 0, 4).is_empty());
        for (wrong, said) in [("barge", "not in the catalogue"), ("twin", "at the same provider")] {
            assert!(
                all(&[wrong])?.check(known).is_err_and(|it| it.contains("\"boat\"") && it.contains(said)),
                "{wrong}"
            );
        }
        Ok(())
    }

    #[test]
    fn a_model_that_is_no_longer_offered_still_means_something() -> Result<(), serde_json::Error> {
        let shared = SharedCatalogue::new(Catalogue::new([("boat".to_owned(), model(serde_json::json!({}))?)]));
        let before = shared.now();
        let ended = model(serde_json::json!({ "offered": false }))?;
        shared.replace(Catalogue::new([("boat".to_owned(), ended)]));
        assert!(before.offered("boat").is_some() && shared.now().offered("boat").is_none());
        assert_eq!(shared.now().models().count(), 1);
        Ok(())
    }
}
