//! GraphQL over HTTP as its specification has it (https://graphql.github.io/graphql-over-http/draft/): what a request may look like,
//! which media type and status answer it.

use crate::budget::RATE_LIMITED;
use crate::operations;
use async_graphql::{Request, Response as GraphQlResponse, Value, Variables};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, json};

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    /// `application/json`: a GraphQL response is 200, whatever it says.
    Json,
    /// `application/graphql-response+json`: the status says whether anything was carried out.
    GraphQl,
    /// `text/event-stream`: answers as they come. What never became a GraphQL request is answered in JSON.
    EventStream,
}

impl Media {
    /// What the client prefers of what there is; `None` where it takes neither. Without `Accept`, and for `*/*`, it is
    /// `application/json`.
    pub(crate) fn accepted(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).peekable();
        if values.peek().is_none() {
            return Some(Self::Json);
        }
        let mut best: Option<(Self, u16)> = None;
        for range in values.flat_map(|value| value.split(',')) {
            let Some((media, weight)) = Self::of_range(range) else { continue };
            if weight > 0 && best.is_none_or(|(_, heaviest)| weight > heaviest) {
                best = Some((media, weight));
            }
        }
        best.map(|(media, _)| media)
    }

    /// A media range with its weight in thousandths (RFC 9110 section 12.4.2).
    fn of_range(range: &str) -> Option<(Self, u16)> {
        let mut parts = range.split(';').map(str::trim);
        let media = match parts.next()?.to_ascii_lowercase().as_str() {
            "application/graphql-response+json" => Self::GraphQl,
            "text/event-stream" => Self::EventStream,
            "application/json" | "application/*" | "*/*" => Self::Json,
            _ => return None,
        };
        let mut weight = 1_000;
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name.trim().to_ascii_lowercase().as_str() {
                "q" => {
                    let given: f32 = value.trim().parse().ok()?;
                    // Between 0 and 1, so it fits.
                    weight = (given.clamp(0.0, 1.0) * 1_000.0) as u16;
                }
                "charset" if !is_utf8(value) => return None,
                _ => {}
            }
        }
        Some((media, weight))
    }

    const fn content_type(self) -> HeaderValue {
        match self {
            Self::Json | Self::EventStream => HeaderValue::from_static("application/json; charset=utf-8"),
            Self::GraphQl => HeaderValue::from_static("application/graphql-response+json; charset=utf-8"),
        }
    }
}

fn is_utf8(charset: &str) -> bool {
    let charset = charset.trim().trim_matches('"');
    charset.eq_ignore_ascii_case("utf-8") || charset.eq_ignore_ascii_case("utf8")
}

/// Whether a body is what it has to be: `application/json` in UTF-8. A web form can send neither this nor its like.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let declared = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut parts = declared.split(';').map(str::trim);
    parts.next().is_some_and(|media| media.eq_ignore_ascii_case("application/json"))
        && parts
            .filter_map(|part| part.split_once('='))
            .all(|(name, value)| !name.trim().eq_ignore_ascii_case("charset") || is_utf8(value))
}

/// A request that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadRequest {
    #[error(
        "the body is one GraphQL request as JSON: {{\"query\": text, \"operationName\": text, \"variables\": map, \
         \"extensions\": map}}; all but query may be null or left out"
    )]
    Body,
    #[error("query is needed: the text of a GraphQL document, or the id of one in documentId")]
    Query,
    #[error("variables and extensions are JSON maps, written into the address as text")]
    Parameter,
}

/// The parameters of a request.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Parameters {
    query: Option<String>,
    document_id: Option<String>,
    operation_name: Option<String>,
    variables: Option<Map<String, serde_json::Value>>,
    extensions: Option<Map<String, serde_json::Value>>,
}

impl TryFrom<Parameters> for Request {
    type Error = BadRequest;

    fn try_from(parameters: Parameters) -> Result<Self, BadRequest> {
        let listed = |name: &str| parameters.extensions.as_ref().is_some_and(|it| it.contains_key(name));
        let query = match parameters.query {
            Some(query) => query,
            None if parameters.document_id.is_some() || listed("persistedQuery") => String::new(),
            None => return Err(BadRequest::Query),
        };
        let mut request = Self::new(query);
        request.operation_name = parameters.operation_name;
        if let Some(variables) = parameters.variables {
            request.variables = Variables::from_json(variables.into());
        }
        for (name, value) in parameters.extensions.into_iter().flatten() {
            request.extensions.insert(name, Value::from_json(value).map_err(|_| BadRequest::Parameter)?);
        }
        if let Some(id) = parameters.document_id {
            operations::name(&mut request, id);
        }
        Ok(request)
    }
}

/// The request in a body.
pub(crate) fn from_body(body: &[u8]) -> Result<Request, BadRequest> {
    serde_json::from_slice::<Parameters>(body).map_err(|_| BadRequest::Body)?.try_into()
}

/// The request in an address; `None` where there is none, as when somebody opens the page.
pub(crate) fn from_address(parameters: Vec<(String, String)>) -> Option<Result<Request, BadRequest>> {
    let map = |text: String| {
        (!text.is_empty()).then(|| serde_json::from_str(&text).map_err(|_| BadRequest::Parameter)).transpose()
    };
    let mut read = Parameters::default();
    for (name, value) in parameters {
        match name.as_str() {
            "query" => read.query = Some(value),
            "documentId" => read.document_id = Some(value),
            "operationName" => read.operation_name = Some(value).filter(|name| !name.is_empty()),
            "variables" => match map(value) {
                Ok(map) => read.variables = map,
                Err(bad) => return Some(Err(bad)),
            },
            "extensions" => match map(value) {
                Ok(map) => read.extensions = map,
                Err(bad) => return Some(Err(bad)),
            },
            _ => {}
        }
    }
    let names_one = read.query.is_some() || read.document_id.is_some() || read.extensions.is_some();
    names_one.then(|| read.try_into())
}

/// An answer to what was a GraphQL request. Every root field is nullable, so where there is no data nothing was carried out.
pub(crate) fn answer(media: Media, response: GraphQlResponse) -> Response {
    let refused = response.data == Value::Null && !response.errors.is_empty();
    let later = retry_after(&response);
    let status = match media {
        _ if later.is_some() => StatusCode::TOO_MANY_REQUESTS,
        Media::GraphQl if refused => StatusCode::BAD_REQUEST,
        Media::GraphQl | Media::Json | Media::EventStream => StatusCode::OK,
    };
    let body = if refused { json!({"errors": response.errors}) } else { json!(response) };
    let mut response = render(media, status, &body);
    if let Some(seconds) = later {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// Seconds after which a request that was refused for what it costs may come again.
fn retry_after(response: &GraphQlResponse) -> Option<u64> {
    let extensions = response.errors.first()?.extensions.as_ref()?;
    match (extensions.get("code")?, extensions.get("retryAfterSeconds")?) {
        (Value::String(code), Value::Number(seconds)) if code == RATE_LIMITED => seconds.as_u64(),
        _ => None,
    }
}

/// An answer in GraphQL's form to what never became a GraphQL request.
pub(crate) fn failure(media: Media, status: StatusCode, code: &str, message: &str) -> Response {
    let error = json!({"message": message, "extensions": {"code": code}});
    let mut response = render(media, status, &json!({"errors": [error]}));
    let headers = response.headers_mut();
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(header::ALLOW, HeaderValue::from_static("POST"));
    }
    response
}

fn render(media: Media, status: StatusCode, body: &serde_json::Value) -> Response {
    let headers = [
        (header::CONTENT_TYPE, media.content_type()),
        // An answer is its caller's, and of its moment.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::VARY, HeaderValue::from_static("accept, authorization")),
    ];
    (status, headers, body.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: header::HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn the_form_that_is_preferred() {
        assert_eq!(Media::accepted(&HeaderMap::new()), Some(Media::Json));
        for (accept, expected) in [
            ("*/*", Some(Media::Json)),
            ("application/json", Some(Media::Json)),
            ("Application/GraphQL-Response+JSON", Some(Media::GraphQl)),
            ("application/graphql-response+json; charset=utf-8", Some(Media::GraphQl)),
            ("application/graphql-response+json, application/json;q=0.9", Some(Media::GraphQl)),
            ("application/graphql-response+json;q=0.5, application/json", Some(Media::Json)),
            ("text/html, application/json;q=0.1", Some(Media::Json)),
            ("application/graphql-response+json;q=0, */*;q=0.1", Some(Media::Json)),
            ("text/event-stream", Some(Media::EventStream)),
            ("text/event-stream;q=0.5, application/json", Some(Media::Json)),
            ("application/json; charset=latin1", None),
            ("text/html", None),
            ("application/json;q=0", None),
            ("application/json;q=x", None),
            ("", None),
        ] {
            assert_eq!(Media::accepted(&headers(header::ACCEPT, accept)), expected, "{accept}");
        }
    }

    #[test]
    fn the_form_of_a_body() {
        for (declared, expected) in [
            ("application/json", true),
            ("APPLICATION/JSON; charset=UTF-8", true),
            ("application/json; charset=\"utf-8\"", true),
            ("application/json; charset=utf-16", false),
            ("application/graphql", false),
            ("text/plain", false),
            ("", false),
        ] {
            assert_eq!(is_json(&headers(header::CONTENT_TYPE, declared)), expected, "{declared}");
        }
    }

    #[test]
    fn a_request_is_read_from_a_body_and_from_an_address() {
        let body =
            br#"{"query": "{ a }", "operationName": null, "variables": {"n": 1}, "extensions": null, "more": 1}"#;
        let request = from_body(body).ok();
        assert_eq!(request.map(|it| (it.query, it.variables.len())), Some(("{ a }".to_owned(), 1)));
        for (body, bad) in [
            ("", BadRequest::Body),
            ("[]", BadRequest::Body),
            (r#"[{"query": "{ a }"}]"#, BadRequest::Body),
            (r#"{"query": 1}"#, BadRequest::Body),
            (r#"{"query": "{ a }", "variables": "{}"}"#, BadRequest::Body),
            (r#"{"query": "{ a }", "query": "{ b }"}"#, BadRequest::Body),
            ("{}", BadRequest::Query),
            (r#"{"query": null}"#, BadRequest::Query),
        ] {
            assert_eq!(from_body(body.as_bytes()).err(), Some(bad), "{body}");
        }
        let address = |pairs: &[(&str, &str)]| {
            from_address(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
        };
        assert!(address(&[]).is_none() && address(&[("operationName", "A")]).is_none());
        let read = address(&[("query", "{ a }"), ("variables", r#"{"n": 1}"#), ("operationName", "")]);
        let read = read.and_then(Result::ok).map(|it| (it.query, it.operation_name, it.variables.len()));
        assert_eq!(read, Some(("{ a }".to_owned(), None, 1)));
        for bad in [("variables", "1"), ("extensions", "x")] {
            assert_eq!(address(&[("query", "{ a }"), bad]).and_then(Result::err), Some(BadRequest::Parameter));
        }
    }
}
