//! Idempotency keys: their shape, and where they come from.

use axum::http::HeaderMap;

/// The header that carries a key, for clients that set it there rather than in the mutation's argument.
pub(crate) const HEADER: &str = "idempotency-key";
/// The longest key, in characters.
const MAX_KEY: usize = 255;

/// What the `Idempotency-Key` header of a request says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum HeaderKey {
    /// Nothing.
    #[default]
    Absent,
    /// This.
    Given(String),
    /// Something that can not be a key.
    Bad,
}

/// A key that can not be used, or none where one is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadKey {
    #[error("an idempotency key has 1 to 255 visible ASCII characters")]
    Shape,
    #[error("the argument and the Idempotency-Key header name different keys")]
    Different,
    #[error("an idempotency key is needed: the argument idempotencyKey or the header Idempotency-Key")]
    Missing,
}

impl HeaderKey {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut values = headers.get_all(HEADER).iter();
        match (values.next(), values.next()) {
            (None, _) => Self::Absent,
            (Some(value), None) => match value.to_str().ok().and_then(|it| clean(it).ok()) {
                Some(key) => Self::Given(key),
                None => Self::Bad,
            },
            (Some(_), Some(_)) => Self::Bad,
        }
    }
}

/// Brings a key into the form it is compared in: spaces around it do not count (RFC 9110 section 5.5), case does.
fn clean(key: &str) -> Result<String, BadKey> {
    let key = key.trim_matches([' ', '\t']);
    let fits = (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { Ok(key.to_owned()) } else { Err(BadKey::Shape) }
}

/// The key of a request, from the argument or the header; `None` where neither gives one.
pub(crate) fn choose(argument: Option<&str>, header: &HeaderKey) -> Result<Option<String>, BadKey> {
    match (argument.map(clean).transpose()?, header) {
        (_, HeaderKey::Bad) => Err(BadKey::Shape),
        (Some(argument), HeaderKey::Given(header)) if argument != *header => Err(BadKey::Different),
        (Some(key), _) => Ok(Some(key)),
        (None, HeaderKey::Given(key)) => Ok(Some(key.clone())),
        (None, HeaderKey::Absent) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        let longest = "x".repeat(255);
        for good in ["a", "A", "order-1", longest.as_str(), "  a\t"] {
            assert_eq!(clean(good).as_deref(), Ok(good.trim()), "{good:?}");
        }
        let too_long = "x".repeat(256);
        for bad in ["", "   ", too_long.as_str(), "a b", "ä", "a\u{1}", "a\n", "a\0"] {
            assert_eq!(clean(bad), Err(BadKey::Shape), "{bad:?}");
        }
    }

    #[test]
    fn argument_and_header() {
        let header = HeaderKey::Given("k".into());
        assert_eq!(choose(Some("k "), &header), Ok(Some("k".into())));
        assert_eq!(choose(Some("K"), &header), Err(BadKey::Different));
        assert_eq!(choose(None, &header), Ok(Some("k".into())));
        assert_eq!(choose(Some("k"), &HeaderKey::Bad), Err(BadKey::Shape));
        assert_eq!(choose(None, &HeaderKey::Absent), Ok(None));
    }
}
