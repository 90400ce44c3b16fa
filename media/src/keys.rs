//! Object keys: what is accepted, so that no key can leave the folder or mean something else to the store.

/// The longest accepted key, in bytes. S3 takes 1024; file systems are the tighter limit.
pub const MAX_KEY_LENGTH: usize = 512;

/// The longest accepted segment, in bytes: a file name of 255 less the suffix of a name in the making.
const MAX_SEGMENT_LENGTH: usize = 240;

/// A key that is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the object key is not made of segments of [A-Za-z0-9._-], or is too long")]
pub struct KeyRefused;

/// Checks a key: segments of `[A-Za-z0-9._-]` joined by `/`; none empty, `.` or `..`; at most [`MAX_KEY_LENGTH`] bytes.
///
/// # Errors
/// [`KeyRefused`], which never repeats the key.
pub fn check_key(key: &str) -> Result<(), KeyRefused> {
    if key.len() > MAX_KEY_LENGTH {
        return Err(KeyRefused);
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let fine = |segment: &str| {
        !segment.is_empty()
            && segment.len() <= MAX_SEGMENT_LENGTH
            && segment != "."
            // Anything with two dots in a row is refused, not only the segment `..`: nobody needs it.
            && !segment.contains("..")
            && segment.bytes().all(plain)
    };
    if key.split('/').all(fine) { Ok(()) } else { Err(KeyRefused) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_keys_pass() {
        for key in ["a", "tenant-1/tasks/0b/video.mp4", "A_b/c.d-e"] {
            assert_eq!(check_key(key), Ok(()), "{key}");
        }
        assert_eq!(check_key(&vec!["a".repeat(127); 4].join("/")), Ok(()));
    }

    #[test]
    fn everything_else_is_refused() {
        let long = vec!["a".repeat(128); 4].join("/");
        let bad =
            ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/..", "a/./b", "a..b", "a b", "a\\b", "a%2e", "ä"];
        for key in bad.into_iter().chain(["a\0b", "a#1", "a?b", "C:\\x", "a\nb", long.as_str(), &"a".repeat(241)]) {
            assert_eq!(check_key(key), Err(KeyRefused), "{key:?}");
        }
    }
}
