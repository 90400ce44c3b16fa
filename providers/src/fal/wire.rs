//! The provider's JSON, read leniently.

use crate::shared::{Refusal, Reply, Service, is_job_id, media_address, not_readable, text};
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;
use workers::ports::{FaultClass, JobState, ProviderFault};

#[derive(Deserialize)]
struct Submitted {
    request_id: String,
}

/// The request that a submit made.
pub(super) fn accepted(reply: &Reply) -> Option<String> {
    reply.json::<Submitted>().map(|submitted| submitted.request_id).filter(|id| is_job_id(id))
}

/// How a request is doing.
#[derive(Deserialize)]
pub(super) struct Status {
    status: String,
    #[serde(default)]
    error: Value,
    #[serde(default)]
    error_type: Value,
    #[serde(default)]
    metrics: Value,
}

impl Status {
    /// The state in the port's words, as far as the status tells it: what is completed may be a failure all the same.
    pub(super) fn state(&self, service: &Service, cancelled: &[String]) -> JobState {
        match self.status.as_str() {
            "IN_QUEUE" => JobState::Queued,
            "IN_PROGRESS" => JobState::Running { percent: None },
            "COMPLETED" if !self.has_failed() => JobState::Running { percent: None },
            "COMPLETED" => {
                let code = self.error_type.as_str().unwrap_or("failed");
                if cancelled.iter().any(|it| it == code) {
                    return JobState::Canceled;
                }
                JobState::Failed(service.fault(FaultClass::Internal, code, &plain(&self.error), &[]))
            }
            other => JobState::Unrecognised { raw: text::code(other) },
        }
    }

    /// For a request whose output is to be asked for: the time it took, in milliseconds.
    pub(super) fn finished(&self) -> Option<Option<u64>> {
        (self.status == "COMPLETED" && !self.has_failed()).then(|| {
            let seconds = self.metrics.get("inference_time").and_then(Value::as_f64)?;
            let took = Duration::try_from_secs_f64(seconds).ok()?;
            u64::try_from(took.as_millis()).ok()
        })
    }

    fn has_failed(&self) -> bool {
        !self.error.is_null() || self.error_type.is_string()
    }
}

/// The output that a completed request has.
pub(super) fn output(reply: &Reply, usage_millis: Option<u64>) -> Result<JobState, String> {
    // A page of a proxy, or half of the answer: the video may be there.
    let body: Value = reply.json().ok_or_else(not_readable)?;
    // Where the address is differs between models.
    let places = ["/video/url", "/videos/0/url", "/video_url", "/output/url", "/url"];
    Ok(match places.iter().find_map(|place| media_address(body.pointer(place)?)) {
        Some(output_url) => JobState::Succeeded { output_url, usage_millis },
        None => JobState::Unrecognised { raw: "completed without a video".to_owned() },
    })
}

/// The failure that shows only where the output should be: in fal's own words, and not "still in progress".
pub(super) fn failed_output(reply: &Reply, service: &Service) -> Option<ProviderFault> {
    let refusal = refusal(reply)?;
    let class = match reply.status.as_u16() {
        422 => FaultClass::BadRequest,
        // A runner that broke or ran out of time; without a type it may be any proxy's.
        500 | 503 | 504 if !refusal.code.starts_with("http_") => FaultClass::Internal,
        _ => return None,
    };
    Some(service.fault(class, &refusal.code, &refusal.said, &[]))
}

/// The provider's own refusal: a `detail`, which is a sentence or a list of what is wrong.
pub(super) fn refusal(reply: &Reply) -> Option<Refusal> {
    let body: Value = reply.json()?;
    let detail = body.get("detail")?;
    let first = detail.get(0);
    let of_first = first.and_then(|it| it.get("type"));
    let code = body.get("error_type").or(of_first).and_then(Value::as_str);
    let code = code.map_or_else(|| format!("http_{}", reply.status.as_u16()), str::to_owned);
    let said = first.and_then(|it| it.get("msg")).unwrap_or(detail);
    Some(Refusal { code, said: plain(said), retry_after: None })
}

/// The body of a callback.
#[derive(Deserialize)]
pub(super) struct Told {
    pub(super) request_id: String,
    #[serde(default)]
    pub(super) status: String,
}

/// A sentence. What is no text may hold the whole request again, and is left out.
fn plain(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
