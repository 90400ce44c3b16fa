//! What replies mean, where that is the same for every provider.

use super::{NoReply, Reply, Service};
use serde::Deserialize;
use serde_json::Value;
use url::Url;
use workers::ports::{CreateOrder, Created, FaultClass, JobState, Polled};

/// A refusal in the provider's own words.
pub(crate) struct Refusal {
    /// Its code.
    pub(crate) code: String,
    /// Its sentence.
    pub(crate) said: String,
    /// What it asks us to wait, where it says so in the body.
    pub(crate) retry_after: Option<Value>,
}

/// What a create call came to. `accepted` is the job that a 2xx names, `refusal` the provider's own error document: only its
/// own words count, for a proxy may answer for an origin that has already taken the job.
pub(crate) fn created(
    service: &Service,
    order: &CreateOrder,
    reply: &Reply,
    accepted: impl FnOnce(&Reply) -> Option<String>,
    refusal: impl FnOnce(&Reply) -> Option<Refusal>,
) -> Created {
    let status = reply.status.as_u16();
    if reply.status.is_success() {
        return match accepted(reply) {
            Some(job) => Created::Accepted { job },
            None => Created::Unknown { cause: format!("http {status} without a job id") },
        };
    }
    match (status, refusal(reply)) {
        (400..=404 | 422, Some(refusal)) => Created::Rejected(refused(service, order, status, &refusal)),
        (429, Some(refusal)) => Created::Throttled { retry_after: reply.retry_after(refusal.retry_after.as_ref()) },
        _ => Created::Unknown { cause: format!("http {status}") },
    }
}

/// The job that a create reply names by its `id`, where nothing else in it counts.
pub(crate) fn named_by_id(reply: &Reply) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        id: String,
    }
    reply.json::<Named>().map(|named| named.id).filter(|id| is_job_id(id))
}

/// A refusal as a fault: without prompt, image address and token.
pub(crate) fn refused(
    service: &Service,
    order: &CreateOrder,
    status: u16,
    refusal: &Refusal,
) -> workers::ports::ProviderFault {
    let class = if matches!(status, 401..=403) { FaultClass::Account } else { FaultClass::BadRequest };
    let image = order.request.image_url.as_deref().unwrap_or_default();
    service.fault(class, &refusal.code, &refusal.said, &[order.request.prompt.as_str(), image])
}

impl From<NoReply> for Created {
    fn from(no: NoReply) -> Self {
        match no {
            NoReply::NotSent(cause) => Self::NotSent { cause: cause.to_owned() },
            NoReply::Lost(cause) => Self::Unknown { cause: cause.to_owned() },
        }
    }
}

/// What a poll came to. `state` reads a 2xx, `is_unknown` whether the provider itself says that there is no such job: a
/// proxy's 404 says nothing about the job.
pub(crate) fn polled(
    reply: Result<Reply, NoReply>,
    state: impl FnOnce(&Reply) -> Result<JobState, String>,
    is_unknown: impl FnOnce(&Reply) -> bool,
) -> Polled {
    let reply = match reply {
        Ok(reply) => reply,
        Err(no) => return Polled::Unavailable { cause: no.cause(), retry_after: None },
    };
    if reply.status.is_success() {
        return match state(&reply) {
            Ok(state) => Polled::State(state),
            Err(cause) => Polled::Unavailable { cause, retry_after: reply.retry_after(None) },
        };
    }
    if reply.status.as_u16() == 404 && is_unknown(&reply) {
        return Polled::State(JobState::NotFound);
    }
    let in_body = reply.json::<Value>().and_then(|body| body.get("retry_after").cloned());
    Polled::Unavailable {
        cause: format!("http {}", reply.status.as_u16()),
        retry_after: reply.retry_after(in_body.as_ref()),
    }
}

/// The cause of a 2xx that can not be read.
pub(crate) fn not_readable() -> String {
    "the answer is not readable".to_owned()
}

/// Whether a text can be a job id that we may put into an address.
pub(crate) fn is_job_id(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// A text that is the address of a file.
pub(crate) fn media_address(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    let url = Url::parse(text).ok()?;
    (matches!(url.scheme(), "http" | "https") && url.host().is_some()).then(|| text.to_owned())
}

/// A required header of a callback: there, and not empty.
pub(crate) fn plain_header(header: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    header(name).filter(|value| !value.is_empty())
}

/// A Unix time in whole seconds. Digits only: `i64::from_str` would also take a sign.
pub(crate) fn whole_seconds(text: &str) -> Option<i64> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}
