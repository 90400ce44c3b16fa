//! What a provider says, made fit to be stored and shown: cut, without control characters, URLs, prompts or our token.

use std::collections::HashSet;

/// Longest code that is kept, in characters.
const MAX_CODE: usize = 64;
/// Longest message that is kept, in characters.
const MAX_MESSAGE: usize = 500;
/// Longest text that is looked at, in characters.
const MAX_READ: usize = 4_000;
/// A run of this many characters that also stands in the prompt is a quotation of it.
const QUOTATION: usize = 20;

/// A code or a status word: printable, at most 64 characters.
pub(crate) fn code(raw: &str) -> String {
    raw.chars().map(storable).take(MAX_CODE).collect()
}

/// A message of at most 500 characters. `private` are texts that must not show: the prompt, which providers like to quote
/// (whole or in part), and the token.
pub(crate) fn message(raw: &str, private: &[&str]) -> String {
    let mut text: String = raw.chars().take(MAX_READ).map(storable).collect();
    for secret in private {
        let secret: String = secret.chars().map(storable).collect();
        text = without_quotations(&text, secret.trim());
    }
    without_urls(&text).chars().take(MAX_MESSAGE).collect()
}

/// Databases can not hold U+0000, and logs should not hold the other control characters.
fn storable(character: char) -> char {
    match character {
        '\0' => '\u{fffd}',
        other if other.is_control() => ' ',
        other => other,
    }
}

fn without_urls(text: &str) -> String {
    let has_url = |word: &str| word.contains("://") || word.contains("data:") || word.contains("www.");
    let words: Vec<&str> = text.split_whitespace().map(|word| if has_url(word) { "[url]" } else { word }).collect();
    words.join(" ")
}

fn without_quotations(text: &str, secret: &str) -> String {
    let length = secret.chars().count();
    // Shorter ones say nothing about a person, and removing them would only garble the message.
    if length < 3 {
        return text.to_owned();
    }
    if length < QUOTATION {
        return text.replace(secret, "[private]");
    }
    let secret: Vec<char> = secret.chars().collect();
    let runs: HashSet<&[char]> = secret.windows(QUOTATION).collect();
    let text: Vec<char> = text.chars().collect();
    let mut quoted = vec![false; text.len()];
    for (start, window) in text.windows(QUOTATION).enumerate() {
        if runs.contains(window) {
            quoted[start..start + QUOTATION].fill(true);
        }
    }
    let mut out = String::new();
    for (index, character) in text.iter().enumerate() {
        if !quoted[index] {
            out.push(*character);
        } else if index == 0 || !quoted[index - 1] {
            out.push_str("[private]");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced_and_texts_cut() {
        assert_eq!(message("a\0b\nc", &[]), "a\u{fffd}b c");
        assert_eq!(message(&"ü ".repeat(9_000), &[]).chars().count(), 500);
        assert_eq!(code(&"é".repeat(100)).chars().count(), 64);
        assert_eq!(code("a\0b"), "a\u{fffd}b");
    }

    #[test]
    fn urls_do_not_show() {
        let said =
            "could not fetch https://user:pw@store.example/x?sig=abc, see (http://a.b) or data:image/png;base64,AAA";
        let shown = message(said, &[]);
        assert_eq!(shown, "could not fetch [url] see [url] or [url]");
    }

    #[test]
    fn the_prompt_does_not_show_whole_or_in_part() {
        let prompt = "A portrait of Maria Beispiel at her kitchen table, raining outside";
        assert_eq!(message(&format!("input '{prompt}' refused"), &[prompt]), "input '[private]' refused");
        assert_eq!(
            message("refused: portrait of Maria Beispiel at her kit... (cut)", &[prompt]),
            "refused:[private]... (cut)"
        );
        assert_eq!(message("refused: my cat", &["my cat"]), "refused: [private]");
        assert_eq!(message("nothing of it", &[prompt]), "nothing of it");
    }

    #[test]
    fn a_prompt_with_line_breaks_is_recognised() {
        assert_eq!(message("no: one two three four\nfive six", &["one two three four\nfive six"]), "no: [private]");
    }
}
