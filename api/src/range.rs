//! The `Range` header of video players: one range of bytes (RFC 9110 section 14).

/// What a request wants of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All of it.
    Whole,
    /// From the first up to, not including, the second byte.
    Part(u64, u64),
    /// A range that lies outside: to be refused.
    Outside,
}

/// Reads the header for an object of `size` bytes. What is not one range of bytes is ignored, as the standard allows.
pub(crate) fn wanted(header: Option<&str>, size: u64) -> Wanted {
    let Some((first, last)) = header
        .and_then(|value| value.trim().strip_prefix("bytes="))
        .filter(|ranges| !ranges.contains(','))
        .and_then(|range| range.trim().split_once('-'))
    else {
        return Wanted::Whole;
    };
    let number = |digits: &str| -> Option<u64> {
        (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
            // More digits than a number holds is beyond every object.
            .then(|| digits.parse().unwrap_or(u64::MAX))
    };
    match (number(first), number(last), first, last) {
        (Some(first), Some(last), ..) if first > last => Wanted::Whole,
        (Some(first), Some(_), ..) | (Some(first), None, _, "") if first >= size => Wanted::Outside,
        (Some(first), Some(last), ..) => Wanted::Part(first, last.saturating_add(1).min(size)),
        (Some(first), None, _, "") => Wanted::Part(first, size),
        (None, Some(0), "", _) => Wanted::Outside,
        (None, Some(suffix), "", _) if size > 0 => Wanted::Part(size.saturating_sub(suffix), size),
        _ => Wanted::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_a_hundred_bytes() {
        let cases = [
            (None, Wanted::Whole),
            (Some("bytes=0-0"), Wanted::Part(0, 1)),
            (Some("bytes=10-19"), Wanted::Part(10, 20)),
            (Some("bytes=90-"), Wanted::Part(90, 100)),
            (Some("bytes=0-1000"), Wanted::Part(0, 100)),
            (Some("bytes=-10"), Wanted::Part(90, 100)),
            (Some("bytes=-1000"), Wanted::Part(0, 100)),
            (Some("bytes=0-18446744073709551616"), Wanted::Part(0, 100)),
            (Some("bytes=100-"), Wanted::Outside),
            (Some("bytes=100-200"), Wanted::Outside),
            (Some("bytes=-0"), Wanted::Outside),
            (Some("bytes=20-10"), Wanted::Whole),
            (Some("bytes=0-1,5-6"), Wanted::Whole),
            (Some("bytes=a-b"), Wanted::Whole),
            (Some("bytes=1-b"), Wanted::Whole),
            (Some("bytes=+1-2"), Wanted::Whole),
            (Some("bytes=-"), Wanted::Whole),
            (Some("items=0-1"), Wanted::Whole),
        ];
        for (header, expected) in cases {
            assert_eq!(wanted(header, 100), expected, "{header:?}");
        }
    }
}
