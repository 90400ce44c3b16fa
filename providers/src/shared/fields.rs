//! Request bodies: what the catalogue says of the model, and over it what the order says.

use serde_json::{Map, Value};
use std::collections::BTreeSet;
use workers::ports::GenerationRequest;

/// Stands in a model's parameters where the address of the input image belongs. Models of one provider differ in that.
const IMAGE: &str = "{image}";
/// Stands where the length belongs as text: some models want it so.
const SECONDS: &str = "{seconds}";

/// The fields of a request body. The image goes where the parameters say; where they do not, into the field of `image`.
pub(crate) fn request_fields<const N: usize>(
    request: &GenerationRequest,
    image: (&str, fn(&str) -> Value),
    own: [(&str, Value); N],
) -> Map<String, Value> {
    let mut body = Map::new();
    let (mut placed, mut spoken) = (false, BTreeSet::new());
    for (name, value) in &request.parameters {
        let mut value = value.clone();
        if mentions(&value, IMAGE) {
            // A field for an image has no meaning without one.
            let Some(url) = &request.image_url else { continue };
            place(&mut value, IMAGE, url);
            placed = true;
        }
        if mentions(&value, SECONDS) {
            place(&mut value, SECONDS, &request.duration_seconds.to_string());
            spoken.insert(name.as_str());
        }
        body.insert(name.clone(), value);
    }
    if let (false, Some(url)) = (placed, &request.image_url) {
        body.insert(image.0.to_owned(), (image.1)(url));
    }
    let own = own.into_iter().filter(|(name, _)| !spoken.contains(name));
    body.extend(own.map(|(name, value)| (name.to_owned(), value)));
    body
}

fn mentions(value: &Value, mark: &str) -> bool {
    match value {
        Value::String(text) => text == mark,
        Value::Array(items) => items.iter().any(|item| mentions(item, mark)),
        Value::Object(fields) => fields.values().any(|field| mentions(field, mark)),
        _ => false,
    }
}

fn place(value: &mut Value, mark: &str, what: &str) {
    match value {
        Value::String(text) if text == mark => what.clone_into(text),
        Value::Array(items) => items.iter_mut().for_each(|item| place(item, mark, what)),
        Value::Object(fields) => fields.values_mut().for_each(|field| place(field, mark, what)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn body(parameters: &Value, image: Option<&str>) -> Value {
        let request = GenerationRequest {
            model: "m".to_owned(),
            parameters: parameters.as_object().cloned().unwrap_or_default(),
            accepts_seed: false,
            prompt: "p".to_owned(),
            duration_seconds: 4,
            image_url: image.map(str::to_owned),
        };
        let own = [("prompt", json!("p")), ("duration", json!(4))];
        Value::Object(request_fields(&request, ("image", |url| json!(url)), own))
    }

    #[test]
    fn the_order_goes_over_the_catalogue_and_the_image_where_that_says() {
        assert_eq!(
            body(&json!({ "prompt": "x", "size": 1 }), None),
            json!({ "prompt": "p", "duration": 4, "size": 1 })
        );
        assert_eq!(body(&json!({}), Some("u")), json!({ "prompt": "p", "duration": 4, "image": "u" }));
        let placed = json!({ "frames": [{ "at": "first", "url": "{image}" }], "n": 1 });
        let expected = json!({ "prompt": "p", "duration": 4, "frames": [{ "at": "first", "url": "u" }], "n": 1 });
        assert_eq!(body(&placed, Some("u")), expected);
        assert_eq!(body(&json!({ "duration": "{seconds}" }), None), json!({ "prompt": "p", "duration": "4" }));
        assert_eq!(body(&placed, None), json!({ "prompt": "p", "duration": 4, "n": 1 }));
    }
}
