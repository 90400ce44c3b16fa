//! Believing a callback, or not.

use super::wire::CallbackBody;
use crate::shared::{SigningKey, is_job_id, plain_header, reference, reference_in_query, whole_seconds};
use domain::time::Timestamp;
use std::time::Duration;
use workers::ports::{Callback, CallbackRefused};

/// Longest delivery id that is taken: it becomes a key.
const MAX_DELIVERY_ID: usize = 200;

pub(super) fn read(
    keys: &[SigningKey],
    tolerance: Duration,
    header: &dyn Fn(&str) -> Option<String>,
    query: &str,
    body: &[u8],
    now: Timestamp,
) -> Result<Callback, CallbackRefused> {
    let required = |name: &str| plain_header(header, name).ok_or(CallbackRefused::Unsigned);
    let delivery = required("webhook-id")?;
    let timestamp = required("webhook-timestamp")?;
    let signatures = required("webhook-signature")?;
    let is_printable = delivery.bytes().all(|byte| byte.is_ascii_graphic());
    let seconds = whole_seconds(&timestamp).ok_or(CallbackRefused::Unsigned)?;
    if !is_printable || delivery.len() > MAX_DELIVERY_ID {
        return Err(CallbackRefused::Unsigned);
    }
    // The raw bytes, as they came: a body that was parsed and written again has another signature.
    if !keys.iter().any(|key| key.matches(&delivery, &timestamp, body, &signatures)) {
        return Err(CallbackRefused::Forged);
    }
    if now.timestamp().abs_diff(seconds) > tolerance.as_secs() {
        return Err(CallbackRefused::Stale);
    }
    let told: CallbackBody = serde_json::from_slice(body).map_err(|_| CallbackRefused::Unreadable)?;
    let attempt = reference_in_query(query).ok_or(CallbackRefused::Unreadable)?;
    // The query is not signed. Where the signed body repeats the address, they must agree, or a captured callback could be
    // replayed against another attempt.
    match told.webhook.as_str().map(reference) {
        Some(signed) if signed != Some(attempt) => return Err(CallbackRefused::Forged),
        _ if !is_job_id(&told.id) => return Err(CallbackRefused::Unreadable),
        _ => {}
    }
    Ok(Callback { delivery, attempt, job: told.id })
}
