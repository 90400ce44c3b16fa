//! While a release is rolled out, the old binary runs on the new schema. `migrations/previous.sql` holds every statement
//! of the previous release; each must still prepare here and run as the service, with sample values.
//!
//! At a release, `BLESS=previous cargo test -p eventstore --test rules previous` writes the file anew from the sources: the
//! statements of what is released now are the next one's previous ones.

use super::Anyhow;
use super::migrations::folder;
use super::script::{Statement, statements};
use eventstore::testkit::TestDatabase;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use std::collections::BTreeMap;
use std::path::Path;

/// The crates that may hold SQL.
const SOURCES: &[&str] = &["eventstore/src", "projections/src"];

/// A string literal's value from its text in the source, after the opening quote, and what follows it.
fn literal(source: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut rest = source.char_indices();
    while let Some((at, it)) = rest.next() {
        match it {
            '"' => return Some((value, &source[at + 1..])),
            '\\' => match rest.next()?.1 {
                'n' => value.push('\n'),
                // The line goes on.
                '\n' => value.push(' '),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

/// The next part inside of a `concat!`: a literal, or a macro of the same source that is one.
fn next_part<'a>(source: &'a str, rest: &'a str) -> Option<(String, &'a str)> {
    let part = rest.trim_start().strip_prefix(',')?.trim_start();
    if let Some(quoted) = part.strip_prefix('"') {
        return literal(quoted);
    }
    let (name, after) = part.split_once("!()")?;
    let (_, made) = source.split_once(&format!("macro_rules! {name} {{"))?;
    Some((literal(made.split_once('"')?.1)?.0, after))
}

/// Tools of one release, which nobody runs while another one is rolled out.
const TOOLS: &[&str] = &["rebuild.", "verify.", "doctor.", "roles."];

/// Every statement of a source: by its name, which opens it as a comment. Those that `format!` makes are the tools' own.
fn extract(source: &str) -> Vec<(String, String)> {
    let mut found = vec![];
    let mut rest = source;
    while let Some(at) = rest.find("\"/* ") {
        let made = rest[..at].trim_end().ends_with("format!(");
        let joined = rest[..at].trim_end().ends_with("concat!(");
        let Some((mut text, after)) = literal(&rest[at + 1..]) else { break };
        rest = after;
        while joined && let Some((more, after)) = next_part(source, rest) {
            text.push_str(&more);
            rest = after;
        }
        let Some((name, statement)) = text.trim_start_matches("/* ").split_once(" */") else { continue };
        let words = statement.split_whitespace().collect::<Vec<_>>().join(" ");
        let kind = words.split(' ').next().unwrap_or_default();
        let of_a_tool = made || TOOLS.iter().any(|it| name.starts_with(it));
        if !of_a_tool && ["SELECT", "WITH", "INSERT", "UPDATE", "DELETE"].contains(&kind) {
            // The beginning of a query that is built goes on with its conditions.
            let open = if words.ends_with(" WHERE") { " true" } else { "" };
            found.push((name.to_owned(), format!("{}{open}", statement.trim())));
        }
    }
    found
}

/// All statements of today's sources.
fn todays() -> Anyhow<BTreeMap<String, String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut todo: Vec<_> = SOURCES.iter().map(|it| root.join(it)).collect();
    let mut found = BTreeMap::new();
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(std::fs::read_dir(&path)?.map(|it| it.map(|it| it.path())).collect::<Result<Vec<_>, _>>()?);
        } else if path.extension().is_some_and(|it| it == "rs") {
            for (name, statement) in extract(&std::fs::read_to_string(&path)?) {
                if let Some(other) = found.insert(name.clone(), statement.clone())
                    && other != statement
                {
                    return Err(format!("two statements are called {name}").into());
                }
            }
        }
    }
    Ok(found)
}

const HEADER: &str = "-- Every statement of the previous release, as its sources have them: made by\n\
    --   BLESS=previous cargo test -p eventstore --test rules previous\n\
    -- at a release, never by hand. The test prepares and runs each on the newest schema.\n";

fn previous() -> Anyhow<Vec<Statement>> {
    let path = folder().join("previous.sql");
    if std::env::var_os("BLESS").is_some_and(|it| it == "previous") {
        let mut text = HEADER.to_owned();
        for (name, statement) in todays()? {
            text.push_str(&format!("\n-- {name}\n{statement};\n"));
        }
        std::fs::write(&path, text)?;
    }
    Ok(statements(&std::fs::read_to_string(&path)?))
}

/// A value of a type, as SQL.
fn sample(of: &str) -> Option<String> {
    if let Some(element) = of.strip_suffix("[]") {
        return sample(element).map(|it| format!("ARRAY[{it}]::{of}"));
    }
    let value = match of {
        "uuid" => "'00000000-0000-0000-0000-000000000001'",
        "text" | "name" | "character varying" => "'sample'",
        "bigint" | "integer" | "smallint" | "double precision" | "numeric" => "1",
        "boolean" => "true",
        "jsonb" | "json" => "'{}'",
        "timestamp with time zone" => "now()",
        "interval" => "'1 second'",
        "bytea" => r"'\x00'",
        _ => return None,
    };
    Some(format!("({value})::{of}"))
}

fn code(error: &sqlx::Error) -> String {
    error.as_database_error().and_then(|it| it.code()).unwrap_or_default().into_owned()
}

/// Whether a failure is one of the sample values only: a check, a unique index or a conversion refuses them. Any other means
/// that the schema no longer fits: something is missing (42), or a column wants a value that the statement does not give (23502).
fn of_the_sample(code: &str) -> bool {
    ["23505", "23514"].contains(&code) || code.starts_with("22")
}

/// Prepares and runs one statement, and takes back what it did.
async fn run(connection: &mut PgConnection, statement: &str) -> Result<(), sqlx::Error> {
    let mut tx = connection.begin().await?;
    sqlx::raw_sql(AssertSqlSafe(format!("PREPARE previous AS {statement}"))).execute(&mut *tx).await?;
    let types: Vec<String> =
        sqlx::query_scalar("SELECT unnest(parameter_types)::text FROM pg_prepared_statements WHERE name = 'previous'")
            .fetch_all(&mut *tx)
            .await?;
    let values: Option<Vec<String>> = types.iter().map(|of| sample(of)).collect();
    let values = values.ok_or_else(|| sqlx::Error::Protocol(format!("no sample of one of {types:?}")))?;
    let values = if values.is_empty() { String::new() } else { format!("({})", values.join(", ")) };
    sqlx::raw_sql(AssertSqlSafe(format!("EXECUTE previous{values}"))).execute(&mut *tx).await?;
    tx.rollback().await
}

/// Statements that no longer work, with why; and how many ran to their end.
async fn broken(pool: &PgPool, statements: &[Statement]) -> Anyhow<(Vec<String>, usize)> {
    let (mut found, mut ran) = (vec![], 0);
    let mut connection = pool.acquire().await?;
    for Statement { comment, text } in statements {
        let result = run(&mut connection, text).await;
        // It outlives its transaction; where it could not be prepared there is none.
        drop(sqlx::raw_sql("DEALLOCATE previous").execute(&mut *connection).await);
        match result {
            Ok(()) => ran += 1,
            Err(error) if of_the_sample(&code(&error)) => {}
            Err(error) => found.push(format!("{}: {error}", comment.trim())),
        }
    }
    Ok((found, ran))
}

#[tokio::test]
async fn statements_of_the_previous_release_run_on_this_schema() -> Anyhow {
    let statements = previous()?;
    let database = TestDatabase::create().await?;
    let (found, ran) = broken(database.pool(), &statements).await?;
    assert!(found.is_empty(), "the old binary would break:\n{}", found.join("\n"));
    assert!(statements.len() >= 60 && ran + 5 >= statements.len(), "{ran} of {} ran to their end", statements.len());
    Ok(())
}

/// Changes that an old binary does not survive, what undoes them, and a statement that they break.
const CHANGES: &[(&str, &str, &str)] = &[
    (
        "ALTER TABLE outbox_events DROP COLUMN last_error",
        "ALTER TABLE outbox_events ADD COLUMN last_error text",
        "relay.mark_failed",
    ),
    (
        "ALTER TABLE uploads ADD COLUMN origin text NOT NULL",
        "ALTER TABLE uploads DROP COLUMN origin",
        "eventstore.record_upload",
    ),
    (
        "ALTER TABLE events ADD COLUMN origin text NOT NULL",
        "ALTER TABLE events DROP COLUMN origin",
        "eventstore.append",
    ),
    (
        "ALTER TABLE read_tasks RENAME COLUMN wake_at TO due_at",
        "ALTER TABLE read_tasks RENAME COLUMN due_at TO wake_at",
        "projections.stalled",
    ),
    (
        "ALTER TABLE inbox_dedup DROP CONSTRAINT inbox_dedup_pkey",
        "ALTER TABLE inbox_dedup ADD PRIMARY KEY (consumer_name, event_id)",
        "eventstore.claim",
    ),
    (
        "REVOKE INSERT ON repairs FROM aivideo_service",
        "GRANT INSERT ON repairs TO aivideo_service",
        "eventstore.repair",
    ),
];

#[tokio::test]
async fn a_change_that_breaks_the_old_binary_is_found() -> Anyhow {
    let statements = previous()?;
    let database = TestDatabase::create().await?;
    for (change, undo, victim) in CHANGES {
        database.sql(change).await?;
        let (found, _) = broken(database.pool(), &statements).await?;
        assert!(found.iter().any(|it| it.starts_with(&format!("{victim}: "))), "{change}: {found:?}");
        database.sql(undo).await?;
    }
    assert_eq!(broken(database.pool(), &statements).await?.0, Vec::<String>::new(), "all is undone");
    Ok(())
}

/// The reading of sources does not rot: it finds the statements of today.
#[test]
fn statements_are_found_in_the_sources() -> Anyhow {
    let found = extract(
        "sqlx::query(\n \"/* a.b */\n SELECT \\\"x\\\" \\\n FROM t\"); format!(\"/* c.d */ SELECT {x}\"); \"/* e.f */ SET x = 1\"",
    );
    assert_eq!(found, [("a.b".to_owned(), "SELECT \"x\"   FROM t".to_owned())]);
    let todays = todays()?;
    assert!(todays.len() >= 60, "{}: {:?}", todays.len(), todays.keys());
    for name in [
        "eventstore.append",
        "eventstore.load",
        "eventstore.claim",
        "relay.claim",
        "projector.lock",
        "projections.tasks_where",
    ] {
        assert!(todays.contains_key(name), "{name} is not found");
    }
    // Those that are put together are found whole.
    for (name, end) in [("eventstore.read_log", "LIMIT $3"), ("audit.newest_seals", "LIMIT $1")] {
        let statement = &todays[name];
        assert!(statement.contains(" AS ") && statement.ends_with(end), "{name}: {statement}");
    }
    Ok(())
}
