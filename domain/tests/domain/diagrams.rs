//! The diagrams in the README are the tables. Write them anew with `BLESS=1 cargo test -p domain diagrams`.

use domain::diagram::{account_rows, attempt_rows, mermaid, task_rows};

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");

#[test]
fn the_readme_shows_the_tables() -> Result<(), std::io::Error> {
    let text = std::fs::read_to_string(README)?;
    let wanted = [mermaid(&task_rows()), mermaid(&attempt_rows()), mermaid(&account_rows())];
    let mut parts = text.split("```mermaid\n");
    let mut fresh = parts.next().unwrap_or_default().to_owned();
    for (part, diagram) in parts.zip(&wanted) {
        let after = part.split_once("```").map_or("", |(_, after)| after);
        fresh.push_str("```mermaid\n");
        fresh.push_str(diagram);
        fresh.push_str("```");
        fresh.push_str(after);
    }
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(README, &fresh)?;
    }
    assert_eq!(
        std::fs::read_to_string(README)?,
        fresh,
        "the README's diagrams are not the tables: BLESS=1 writes them"
    );
    Ok(())
}
