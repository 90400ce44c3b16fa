//! The provider's JSON, read leniently: only what we need must be there, so that a new or odd field elsewhere changes nothing.

use crate::shared::{Refusal, Reply, Service, media_address, reference, text};
use domain::id::AttemptId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use workers::ports::{FaultClass, JobState, ProviderFault};

/// Body of a create call.
#[derive(Serialize)]
pub(super) struct CreateBody<'a> {
    pub(super) input: Map<String, Value>,
    pub(super) webhook: &'a str,
    pub(super) webhook_events_filter: [&'static str; 1],
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
struct Problem {
    #[serde(default)]
    title: Value,
    #[serde(default)]
    detail: Value,
    #[serde(default)]
    status: Value,
    #[serde(default)]
    retry_after: Option<Value>,
}

/// The provider's own structured refusal, if that is what the body is. A page from a proxy in between is not.
pub(super) fn refusal(reply: &Reply) -> Option<Refusal> {
    let status = reply.status.as_u16();
    let problem: Problem = reply.json()?;
    problem.speaks_for(status).then(|| Refusal {
        code: format!("http_{status}"),
        said: problem.said(),
        retry_after: problem.retry_after,
    })
}

impl Problem {
    /// Whether this is the provider's own refusal for this HTTP status: it names the trouble, and does not name another status.
    fn speaks_for(&self, status: u16) -> bool {
        let named = is_said(&self.detail) || is_said(&self.title);
        named && self.status.as_u64().is_none_or(|said| said == u64::from(status))
    }

    /// Title and detail in one line.
    fn said(&self) -> String {
        [&self.title, &self.detail].into_iter().filter(|value| is_said(value)).map(plain).collect::<Vec<_>>().join(": ")
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
    pub(super) fn state(&self, service: &Service) -> JobState {
        match self.status.as_str() {
            "starting" => JobState::Queued,
            "processing" => JobState::Running { percent: None },
            "succeeded" => self.succeeded(),
            "failed" => JobState::Failed(self.failure(service)),
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

    fn failure(&self, service: &Service) -> ProviderFault {
        let prompt = self.input.get("prompt").and_then(Value::as_str).unwrap_or_default();
        let said = plain(&self.error);
        let code = error_code(&said).unwrap_or_else(|| "failed".to_owned());
        service.fault(FaultClass::Internal, &code, &said, &[prompt])
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

/// Output is a URL or a list of them, depending on the model; of a list the first is the video.
fn output_url(output: &Value) -> Option<String> {
    media_address(output).or_else(|| media_address(output.get(0)?))
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
