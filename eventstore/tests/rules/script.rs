//! SQL scripts, cut into statements: comments, quoted words and function bodies are seen for what they are.

/// A statement with the comment right before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Its comment, line by line, without `--`.
    pub comment: String,
    /// Its words, without comments, with single spaces; what is quoted is kept.
    pub text: String,
}

/// Where a quoted piece that begins at `text` ends; `None` where none begins.
fn quoted(text: &str) -> Option<usize> {
    let after = |from: usize, end: &str| text[from..].find(end).map_or(text.len(), |at| from + at + end.len());
    if text.starts_with('\'') || text.starts_with('"') {
        return Some(after(1, &text[..1]));
    }
    if let Some(tag) = text.strip_prefix('$').and_then(|rest| rest.find('$').map(|at| &text[..at + 2]))
        && tag[1..tag.len() - 1].chars().all(|it| it.is_ascii_alphanumeric() || it == '_')
        && !tag[1..].starts_with(|it: char| it.is_ascii_digit())
    {
        return Some(after(tag.len(), tag));
    }
    None
}

/// Cuts a script at its semicolons.
pub fn statements(script: &str) -> Vec<Statement> {
    let (mut found, mut comment, mut text) = (vec![], String::new(), String::new());
    let mut rest = script;
    while let Some(first) = rest.chars().next() {
        let mut length = first.len_utf8();
        if rest.starts_with("--") {
            length = rest.find('\n').unwrap_or(rest.len());
            if text.trim().is_empty() {
                comment.push_str(rest[2..length].trim());
                comment.push('\n');
            }
        } else if rest.starts_with("/*") {
            length = rest.find("*/").map_or(rest.len(), |at| at + 2);
        } else if let Some(end) = quoted(rest) {
            length = end;
            text.push_str(&rest[..length]);
        } else if first == ';' {
            push(&mut found, &mut comment, &mut text);
        } else {
            text.push(first);
        }
        rest = &rest[length..];
        // A comment that stands apart belongs to what is above it.
        if text.trim().is_empty() && rest.starts_with("\n\n") {
            comment.clear();
        }
    }
    push(&mut found, &mut comment, &mut text);
    found
}

fn push(found: &mut Vec<Statement>, comment: &mut String, text: &mut String) {
    let words: Vec<&str> = text.split_whitespace().collect();
    if !words.is_empty() {
        found.push(Statement { comment: std::mem::take(comment), text: words.join(" ") });
    }
    text.clear();
}

#[test]
fn a_script_is_cut_at_its_semicolons() {
    let script = "-- The first.\nCREATE TABLE a (b text DEFAULT ';');\n\n-- Apart.\n\n-- A function.\n\
                  CREATE FUNCTION f() RETURNS void LANGUAGE sql AS $x$ SELECT 1; SELECT $1 -- no\n $x$; /* ; */ SELECT '--'";
    let cut = statements(script);
    let comments: Vec<&str> = cut.iter().map(|it| it.comment.as_str()).collect();
    assert_eq!(comments, ["The first.\n", "A function.\n", ""]);
    assert_eq!(cut[0].text, "CREATE TABLE a (b text DEFAULT ';')");
    assert!(cut[1].text.ends_with("SELECT $1 -- no $x$"), "{}", cut[1].text);
    assert_eq!(cut[2].text, "SELECT '--'");
}
