//! Measures a query's text before it is parsed. The parser recurses, so how deep it goes is decided here, in one pass over the
//! bytes and no more memory than a counter.

/// Deepest nesting of brackets that is handed to the parser.
const MAX_NESTING: usize = 64;
/// Longest query text, in bytes.
const MAX_TEXT: usize = 64 * 1024;

/// A query that is not parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Misshapen {
    #[error("the query nests too deeply")]
    Nesting,
    #[error("the query is too long")]
    Length,
}

/// Refuses what would be dear to parse. Brackets in strings and comments count too: that errs on the safe side, and a text with
/// sixty-four unclosed brackets inside strings belongs into variables.
pub(crate) fn check(query: &str) -> Result<(), Misshapen> {
    if query.len() > MAX_TEXT {
        return Err(Misshapen::Length);
    }
    let mut depth = 0_usize;
    for byte in query.bytes() {
        match byte {
            b'{' | b'[' | b'(' => depth += 1,
            b'}' | b']' | b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_NESTING {
            return Err(Misshapen::Nesting);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_and_long_texts_are_refused() {
        assert_eq!(check("query { task(id: \"x\") { id attempts { number } } }"), Ok(()));
        assert_eq!(check(&"{a".repeat(64)), Ok(()));
        assert_eq!(check(&"{a".repeat(65)), Err(Misshapen::Nesting));
        assert_eq!(check(&format!("{{a(b:{}", "[".repeat(20_000))), Err(Misshapen::Nesting));
        assert_eq!(check(&"# filler\n".repeat(10_000)), Err(Misshapen::Length));
    }
}
