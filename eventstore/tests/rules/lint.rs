//! Statements of migrations that lock or rewrite a table that may be large need a reason: `-- safe because: …` right before them.
//! Bodies of functions are not looked into, as nothing runs them then; a `DO` block is run, and needs a reason in any case.

use super::Anyhow;
use super::migrations::files;
use super::script::{Statement, statements};
use std::collections::BTreeSet;

/// The word after `after`, without a schema or quotes.
fn word_after<'a>(text: &'a str, after: &str) -> Option<&'a str> {
    let at = text.find(after)?;
    let word = text[at + after.len()..].split([' ', '(', ',']).find(|word| !word.is_empty())?;
    Some(word.rsplit('.').next().unwrap_or(word).trim_matches('"'))
}

/// Why a statement is dangerous for a table that has rows; `made` are the tables that the same file makes.
fn danger(statement: &str, made: &BTreeSet<String>) -> Option<&'static str> {
    let text = format!(
        "{} ",
        statement.to_uppercase().replace("IF NOT EXISTS ", "").replace("IF EXISTS ", "").replace(" ONLY ", " ")
    );
    let on = |after: &str| word_after(&text, after).is_some_and(|table| !made.contains(&table.to_lowercase()));
    if text.starts_with("CREATE INDEX ") || text.starts_with("CREATE UNIQUE INDEX ") {
        return (!text.contains(" CONCURRENTLY ") && on(" ON "))
            .then_some("CREATE INDEX without CONCURRENTLY stops all writers");
    }
    if text.starts_with("DO ") {
        return Some("what it does is not looked into");
    }
    if text.starts_with("UPDATE ") || text.starts_with("DELETE FROM ") {
        let after = if text.starts_with("UPDATE ") { "UPDATE " } else { "DELETE FROM " };
        return on(after)
            .then_some("one statement over a whole table holds its rows until it ends: backfill in batches");
    }
    for (start, why) in [
        ("CLUSTER ", "it rewrites the table"),
        ("VACUUM FULL ", "it rewrites the table"),
        ("LOCK TABLE ", "it stops whoever uses the table"),
        ("TRUNCATE ", "it stops whoever uses the table, and an old binary may need the rows"),
        ("DROP TABLE ", "an old binary may still use it"),
    ] {
        if text.starts_with(start) {
            return on(start).then_some(why);
        }
    }
    if !text.starts_with("ALTER TABLE ") || !on("ALTER TABLE ") {
        return None;
    }
    alteration(&text)
}

/// The same for ALTER TABLE on a table that was there.
fn alteration(text: &str) -> Option<&'static str> {
    let actions = text.split(" ADD ").skip(1);
    for action in actions {
        let column = !["CONSTRAINT ", "PRIMARY ", "UNIQUE ", "CHECK ", "FOREIGN ", "EXCLUDE "]
            .iter()
            .any(|it| action.starts_with(it));
        let action = action.split(", ALTER ").next().unwrap_or(action);
        if column && action.contains(" NOT NULL") && !action.contains(" DEFAULT ") && !action.contains(" GENERATED ") {
            return Some("a column that must be given breaks an old binary's INSERT");
        }
        if column && ["CLOCK_TIMESTAMP(", "RANDOM(", "GEN_RANDOM_UUID(", " STORED"].iter().any(|it| action.contains(it))
        {
            return Some("a value for each row rewrites the table");
        }
        if !column && action.contains("USING INDEX") {
            continue;
        }
        if !column && !action.contains(" NOT VALID") {
            return Some(
                "a constraint that is checked at once reads the whole table under a lock: NOT VALID, then VALIDATE",
            );
        }
    }
    [
        (" TYPE ", "another type rewrites the table"),
        (" SET NOT NULL", "it reads the whole table under a lock: a validated check first"),
        (" DROP COLUMN ", "an old binary may still use it"),
        (" DROP CONSTRAINT ", "an old binary may rely on it"),
        (" RENAME ", "an old binary knows the old name only"),
        (" SET LOGGED", "it rewrites the table"),
        (" SET UNLOGGED", "it rewrites the table"),
        (" SET TABLESPACE ", "it rewrites the table"),
        (" ATTACH PARTITION ", "it reads the whole partition under a lock"),
    ]
    .into_iter()
    // A new column may be called `type`.
    .filter(|(words, _)| *words != " TYPE " || text.contains(" ALTER "))
    .find_map(|(words, why)| text.contains(words).then_some(why))
}

/// What is wrong with a script, statement by statement.
fn faults(script: &str) -> Vec<String> {
    let all = statements(script);
    let made: BTreeSet<String> = all
        .iter()
        .map(|it| it.text.to_uppercase().replace("IF NOT EXISTS ", ""))
        .filter(|text| text.starts_with("CREATE TABLE "))
        .filter_map(|text| word_after(&text, "CREATE TABLE ").map(str::to_lowercase))
        .collect();
    let bad = |Statement { comment, text }: &Statement| {
        let why = danger(text, &made)?;
        (!comment.lines().any(|line| line.starts_with("safe because: ") && line.len() > 25)).then(|| {
            format!(
                "{}: {why}. Where it is safe all the same, say so right before it: -- safe because: …",
                text.chars().take(70).collect::<String>()
            )
        })
    };
    all.iter().filter_map(bad).collect()
}

#[test]
fn migrations_neither_lock_nor_rewrite_without_a_reason() -> Anyhow {
    let mut found = vec![];
    let files = files()?;
    for (name, text) in &files {
        found.extend(faults(text).into_iter().map(|fault| format!("{name}: {fault}")));
    }
    assert!(files.len() >= 5, "{} files", files.len());
    assert!(found.is_empty(), "{}", found.join("\n"));
    Ok(())
}

#[test]
fn what_is_dangerous_is_found() {
    for bad in [
        "ALTER TABLE events ALTER COLUMN version TYPE numeric",
        "ALTER TABLE public.events ALTER version SET DATA TYPE numeric",
        "ALTER TABLE events ALTER COLUMN actor SET NOT NULL",
        "ALTER TABLE events ADD COLUMN origin text NOT NULL",
        "ALTER TABLE events ADD a text NOT NULL DEFAULT '', ADD origin text NOT NULL",
        "ALTER TABLE events ADD COLUMN seen timestamptz NOT NULL DEFAULT clock_timestamp()",
        "ALTER TABLE events ADD CONSTRAINT positive CHECK (position > 0)",
        "ALTER TABLE events DROP COLUMN actor",
        "ALTER TABLE IF EXISTS ONLY events RENAME COLUMN actor TO who",
        "CREATE INDEX events_actor ON events (actor)",
        "CREATE UNIQUE INDEX IF NOT EXISTS events_actor ON events USING btree (actor)",
        "UPDATE read_tasks SET state = ''",
        "DELETE FROM read_tasks",
        "TRUNCATE read_tasks",
        "DO $$ BEGIN EXECUTE 'DROP TABLE events'; END $$",
        "DROP TABLE repairs",
        "CREATE TABLE mine (id bigint); CREATE INDEX theirs ON events (actor)",
        "-- safe because: no\nDROP TABLE repairs",
    ] {
        assert_eq!(faults(bad).len(), 1, "{bad}: {:?}", faults(bad));
    }
    for good in [
        "CREATE TABLE mine (id bigint NOT NULL); CREATE INDEX mine_id ON mine (id); ALTER TABLE mine ADD x text NOT NULL",
        "CREATE INDEX CONCURRENTLY events_actor ON events (actor)",
        "ALTER TABLE events ADD COLUMN origin text",
        "ALTER TABLE events ADD COLUMN type text",
        "ALTER TABLE events ADD COLUMN origin text NOT NULL DEFAULT ''",
        "ALTER TABLE events ADD CONSTRAINT positive CHECK (position > 0) NOT VALID",
        "ALTER TABLE events VALIDATE CONSTRAINT positive",
        "ALTER TABLE events SET (fillfactor = 90)",
        "-- Nothing uses it since the last release.\n-- safe because: no released binary names this table\nDROP TABLE repairs",
        "CREATE FUNCTION f() RETURNS void LANGUAGE sql AS $$ UPDATE events SET actor = '' $$",
    ] {
        assert_eq!(faults(good), Vec::<String>::new(), "{good}");
    }
}
