//! The provider's JSON, read leniently: only what we need must be there, so that a new or odd field elsewhere changes nothing.

use super::text;
use domain::id::AttemptId;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;
use workers::ports::{FaultClass, JobState, ProviderFault};

/// Body of a create call.
#[derive(Serialize)]
pub(super) struct CreateBody<'a> {
    pub(super) input: Input<'a>,
    pub(super) webhook: &'a str,
    pub(super) webhook_events_filter: [&'static str; 1],
}

/// The model's input.
#[derive(Serialize)]
pub(super) struct Input<'a> {
    pub(super) prompt: &'a str,
    pub(super) duration: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) image: Option<&'a str>,
}

/// All that a create reply must hold.
#[derive(Deserialize)]
pub(super) struct CreateReply {
    pub(super) id: String,
}

/// A page of the job list.
#[derive(Deserialize)]
pub(super) struct Page {
    #[serde(default)]
    pub(super) next: Option<String>,
    pub(super) results: Vec<Prediction>,
}

/// A job. Optional parts are plain JSON values: their shape differs between models and must not fail the whole.
#[derive(Deserialize)]
pub(super) struct Prediction {
    pub(super) id: String,
    pub(super) status: String,
    #[serde(default)]
    input: Value,
    #[serde(default)]
    output: Value,
    #[serde(default)]
    error: Value,
    #[serde(default)]
    metrics: Value,
    #[serde(default)]
    webhook: Value,
    #[serde(default)]
    created_at: Value,
    #[serde(default)]
    data_removed: Value,
}

/// The body of a callback: the job again, of which only these parts are believed.
#[derive(Deserialize)]
pub(super) struct CallbackBody {
    pub(super) id: String,
    #[serde(default)]
    pub(super) webhook: Value,
}

/// RFC 7807, as this provider writes it.
#[derive(Deserialize)]
pub(super) struct Problem {
    #[serde(default)]
    title: Value,
    #[serde(default)]
    detail: Value,
    #[serde(default)]
    status: Value,
    #[serde(default)]
    pub(super) retry_after: Option<Value>,
}

impl Problem {
    /// Whether this is the provider's own refusal for this HTTP status: it names the trouble, and does not name another status.
    pub(super) fn speaks_for(&self, status: u16) -> bool {
        let named = is_said(&self.detail) || is_said(&self.title);
        named && self.status.as_u64().is_none_or(|said| said == u64::from(status))
    }

    /// Title and detail in one line.
    fn said(&self) -> String {
        [&self.title, &self.detail].into_iter().filter(|value| is_said(value)).map(plain).collect::<Vec<_>>().join(": ")
    }

    /// The refusal as a fault. `private` must not show in it.
    pub(super) fn fault(&self, status: u16, markers: &[String], private: &[&str]) -> ProviderFault {
        let message = text::message(&self.said(), private);
        let class = match status {
            401..=403 if !is_moderation(&message, markers) => FaultClass::Account,
            _ if is_moderation(&message, markers) => FaultClass::Moderation,
            _ => FaultClass::BadRequest,
        };
        ProviderFault { class, code: format!("http_{status}"), message }
    }
}

impl Prediction {
    /// The attempt that this job was made for, from the callback address that we gave it.
    pub(super) fn reference(&self) -> Option<AttemptId> {
        self.webhook.as_str().and_then(reference)
    }

    /// A finished job's data are removed after a while. If its callback address went with them, nobody can tell whose it was.
    pub(super) fn may_have_lost_its_reference(&self) -> bool {
        self.data_removed.as_bool() == Some(true) && self.webhook.as_str().is_none()
    }

    /// When the provider made it; `None` if it does not say so legibly.
    pub(super) fn created_at(&self) -> Option<chrono::DateTime<chrono::Utc>> {
        let text = self.created_at.as_str()?;
        chrono::DateTime::parse_from_rfc3339(text).ok().map(|instant| instant.to_utc())
    }

    /// The job's state in the port's words.
    pub(super) fn state(&self, markers: &[String], token: &str) -> JobState {
        match self.status.as_str() {
            "starting" => JobState::Queued,
            "processing" => JobState::Running { percent: None },
            "succeeded" => self.succeeded(),
            "failed" => JobState::Failed(self.failure(markers, token)),
            // `aborted` is a cancellation before the job had started.
            "canceled" | "aborted" => JobState::Canceled,
            other => JobState::Unrecognised { raw: text::code(other) },
        }
    }

    fn succeeded(&self) -> JobState {
        match output_url(&self.output) {
            Some(output_url) => JobState::Succeeded { output_url, usage_millis: self.usage_millis() },
            None => {
                let code = if self.data_removed.as_bool() == Some(true) { "output_removed" } else { "output_missing" };
                let message = "the provider says succeeded, but gives no output".to_owned();
                JobState::Failed(ProviderFault { class: FaultClass::Internal, code: code.to_owned(), message })
            }
        }
    }

    fn failure(&self, markers: &[String], token: &str) -> ProviderFault {
        let prompt = self.input.get("prompt").and_then(Value::as_str).unwrap_or_default();
        let message = text::message(&plain(&self.error), &[prompt, token]);
        let class = if is_moderation(&message, markers) { FaultClass::Moderation } else { FaultClass::Internal };
        ProviderFault { class, code: error_code(&message).unwrap_or_else(|| "failed".to_owned()), message }
    }

    fn usage_millis(&self) -> Option<u64> {
        let seconds = self.metrics.get("predict_time").and_then(Value::as_f64)?;
        // A float above u64 would saturate; no job runs for a year, so anything longer is not a duration.
        const YEAR: f64 = 366.0 * 24.0 * 3600.0;
        (0.0..=YEAR)
            .contains(&seconds)
            .then(|| std::time::Duration::from_secs_f64(seconds))
            .and_then(|used| u64::try_from((used + std::time::Duration::from_micros(500)).as_millis()).ok())
    }
}

/// Our reference in a callback address; `None` for addresses that are not ours.
pub(super) fn reference(callback_url: &str) -> Option<AttemptId> {
    let url = Url::parse(callback_url).ok()?;
    reference_in_query(url.query()?)
}

/// Our reference in a callback's query. Two of them are no reference: we never write two.
pub(super) fn reference_in_query(query: &str) -> Option<AttemptId> {
    let mut values = url::form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == "ref");
    let (_, value) = values.next()?;
    if values.next().is_some() {
        return None;
    }
    value.parse().ok()
}

/// Whether a text can be a job id that we may put into an address.
pub(super) fn is_job_id(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// Output is a URL or a list of them, depending on the model; of a list the first is the video.
fn output_url(output: &Value) -> Option<String> {
    let text = output.as_str().or_else(|| output.get(0).and_then(Value::as_str))?;
    let url = Url::parse(text).ok()?;
    (matches!(url.scheme(), "http" | "https") && url.host().is_some()).then(|| text.to_owned())
}

fn is_moderation(message: &str, markers: &[String]) -> bool {
    let message = message.to_lowercase();
    markers.iter().any(|marker| !marker.is_empty() && message.contains(&marker.to_lowercase()))
}

/// Codes stand in brackets at the end of an error text, such as `(E005)`.
fn error_code(message: &str) -> Option<String> {
    let (_, after) = message.rsplit_once("(E")?;
    let (digits, _) = after.split_once(')')?;
    let is_code = (1..=8).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_code.then(|| format!("E{digits}"))
}

fn is_said(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.trim().is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => false,
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
