//! How long a provider asks us to wait: a pure function, for every odd value that has been seen in the wild.

use serde_json::Value;
use std::time::{Duration, SystemTime};

/// The longest wait that is believed. A longer one would park a job because of one bad header.
pub const LONGEST: Duration = Duration::from_secs(600);

/// Reads `Retry-After` header values and, where none is usable, the `retry_after` field of the body. `now` is the sender's
/// clock (its `Date` header).
///
/// `None` means "nothing usable": junk, zero, negative and past values must not become "at once", so the caller's own
/// back-off decides. Of several usable headers the longest counts. Whatever comes out is more than zero and at most [`LONGEST`].
#[must_use]
pub fn wait(headers: &[&str], body: Option<&Value>, now: SystemTime) -> Option<Duration> {
    let asked = headers.iter().filter_map(|value| header(value.trim(), now)).max().or_else(|| body.and_then(field))?;
    (!asked.is_zero()).then(|| asked.min(LONGEST))
}

/// RFC 9110, 10.2.3: whole seconds in digits, or an HTTP date.
fn header(value: &str, now: SystemTime) -> Option<Duration> {
    digits(value).or_else(|| httpdate::parse_http_date(value).ok()?.duration_since(now).ok())
}

fn digits(value: &str) -> Option<Duration> {
    let all = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    // Parsing digits fails only where there are too many, and that is a very long time.
    all.then(|| Duration::from_secs(value.parse().unwrap_or(u64::MAX)))
}

/// A number of seconds; fractions are rounded up, so that we are never too early.
fn field(value: &Value) -> Option<Duration> {
    if let Value::String(text) = value {
        return digits(text.trim());
    }
    let seconds = value.as_f64()?;
    (seconds.is_finite() && seconds > 0.0).then(|| Duration::from_secs_f64(seconds.min(LONGEST.as_secs_f64()).ceil()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Sun, 06 Nov 1994 08:49:37 GMT.
    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777)
    }

    #[test]
    fn headers_as_seen_in_the_wild() {
        let table: &[(&[&str], Option<u64>)] = &[
            (&[], None),
            (&["120"], Some(120)),
            (&[" 120 "], Some(120)),
            (&["1"], Some(1)),
            (&["0"], None),
            (&["600"], Some(600)),
            (&["601"], Some(600)),
            (&["99999999999"], Some(600)),
            (&["99999999999999999999999999999999"], Some(600)),
            (&["1000abc"], None),
            (&["-5"], None),
            (&["+5"], None),
            (&["1.5"], None),
            (&["1e3"], None),
            (&["0x10"], None),
            (&["NaN"], None),
            (&["Infinity"], None),
            (&[""], None),
            (&["  "], None),
            (&["120, 60"], None),
            (&["٣"], None),
            (&["Sun, 06 Nov 1994 08:50:37 GMT"], Some(60)),
            (&["Sun, 06 Nov 1994 08:49:37 GMT"], None),
            (&["Sun, 06 Nov 1994 08:48:37 GMT"], None),
            (&["Sat, 06 Nov 2094 08:49:37 GMT"], Some(600)),
            (&["Sun, 32 Nov 1994 08:50:37 GMT"], None),
            (&["30", "60"], Some(60)),
            (&["60", "30"], Some(60)),
            (&["junk", "7"], Some(7)),
            (&["7", "Sun, 06 Nov 1994 08:50:37 GMT"], Some(60)),
            (&["junk", "-1"], None),
        ];
        for (values, expected) in table {
            assert_eq!(wait(values, None, now()), expected.map(Duration::from_secs), "{values:?}");
        }
    }

    #[test]
    fn the_field_of_the_body() {
        let table = [
            (json!(5), Some(5)),
            (json!(1.2), Some(2)),
            (json!(0), None),
            (json!(-5), None),
            (json!(1e300), Some(600)),
            (json!("30"), Some(30)),
            (json!("99999"), Some(600)),
            (json!("soon"), None),
            (json!(null), None),
            (json!([5]), None),
        ];
        for (value, expected) in table {
            assert_eq!(wait(&[], Some(&value), now()), expected.map(Duration::from_secs), "{value}");
        }
    }

    #[test]
    fn a_usable_header_comes_before_the_body_and_junk_does_not() {
        assert_eq!(wait(&["9"], Some(&json!(5)), now()), Some(Duration::from_secs(9)));
        assert_eq!(wait(&["junk"], Some(&json!(5)), now()), Some(Duration::from_secs(5)));
    }
}
