//! The schema is a contract: committed, described to its last argument, and not broken by accident.

use crate::contract::{Contract, breaking};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::path::PathBuf;

const BASE: &str = "type Query { a(x: Int, y: Int = 1, z: [Int]): [B!] c: B! }
    interface I { id: ID } type B implements I { id: ID } scalar S union U = B | Query
    enum E { ONE TWO } input In { a: Int! b: Int } schema { query: Query }";

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> Result<String> {
    std::fs::read_to_string(file(name)).with_context(|| format!("api/{name} can not be read"))
}

/// The breaking changes that were decided on since the last release: a line each, as the test prints them; `#` begins a comment.
fn declared() -> Result<BTreeSet<String>> {
    let lines = read("breaking-changes.txt")?;
    let lines = lines.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

fn undeclared(old: &str, new: &str, since: &str) -> Result<()> {
    let broken = breaking(&Contract::read(old)?, &Contract::read(new)?);
    let undeclared: Vec<String> = broken.difference(&declared()?).cloned().collect();
    ensure!(
        undeclared.is_empty(),
        "this breaks clients of {since}. Keep what they use and mark it deprecated, or declare each of these lines in \
         api/breaking-changes.txt, with the reason as a comment:\n{}",
        undeclared.join("\n")
    );
    Ok(())
}

#[test]
fn the_committed_schema_is_up_to_date() -> Result<()> {
    let (generated, committed) = (api::schema_sdl(), read("schema.graphql").unwrap_or_default());
    if std::env::var_os("UPDATE_SCHEMA").is_some() && generated != committed {
        undeclared(&committed, &generated, "the committed schema")?;
        std::fs::write(file("schema.graphql"), &generated).context("api/schema.graphql can not be written")?;
        return Ok(());
    }
    assert!(
        committed == generated,
        "api/schema.graphql differs from the code: write it again with `UPDATE_SCHEMA=1 cargo test -p api schema`, and look at \
         the difference before you commit it"
    );
    Ok(())
}

/// `BLESS=released cargo test -p api schema`, at a release: what is committed is what clients may rely on from now on.
#[test]
fn nothing_that_was_released_is_broken_without_saying_so() -> Result<()> {
    let generated = api::schema_sdl();
    if std::env::var_os("BLESS").is_some_and(|what| what == "released") {
        std::fs::write(file("schema.released.graphql"), &generated)?;
        let comments = read("breaking-changes.txt")?;
        let comments = comments.lines().take_while(|line| line.starts_with('#'));
        std::fs::write(file("breaking-changes.txt"), comments.map(|line| format!("{line}\n")).collect::<String>())?;
        return Ok(());
    }
    let released = read("schema.released.graphql")?;
    undeclared(&released, &generated, "the last release")
}

#[test]
fn everything_is_described() -> Result<()> {
    let schema = Contract::read(&api::schema_sdl())?;
    assert!(schema.undescribed.is_empty(), "these need a description: {:#?}", schema.undescribed);
    let bare = Contract::read("type Query { a(x: Int): E } enum E { ONE } input In { b: Int }")?;
    let places = ["Query", "Query.a", "Query.a(x)", "E", "E.ONE", "In", "In(b)"];
    assert_eq!(bare.undescribed, places, "what has none is found wherever it is");
    Ok(())
}

#[test]
fn each_kind_of_breaking_change_is_found() -> Result<()> {
    let changes = [
        ("c: B!", "", "Query.c removed"),
        ("c: B!", "c: B", "Query.c was B! and is B"),
        ("[B!]", "[B]", "Query.a was [B!] and is [B]"),
        ("[B!]", "B", "Query.a was [B!] and is B"),
        ("c: B!", "c: I!", "Query.c was B! and is I!"),
        ("x: Int,", "", "Query.a(x) removed"),
        ("x: Int,", "x: Int!", "Query.a(x) was Int and is Int!"),
        ("x: Int,", "x: Int w: Int!", "Query.a(w) is new and required"),
        ("z: [Int]", "z: [Int!]", "Query.a(z) was [Int] and is [Int!]"),
        ("y: Int = 1", "y: Int = 2", "Query.a(y) has another default"),
        ("y: Int = 1", "y: Int", "Query.a(y) has another default"),
        ("type B implements I", "type B", "B no longer implements I"),
        ("scalar S", "", "S removed"),
        ("scalar S", "enum S { A }", "S was of kind scalar and is of kind enum"),
        ("B | Query", "B", "U.Query removed"),
        ("ONE TWO", "ONE", "E.TWO removed"),
        ("b: Int }", "}", "In(b) removed"),
        ("b: Int }", "b: Int! }", "In(b) was Int and is Int!"),
        ("b: Int }", "b: Int d: Int! }", "In(d) is new and required"),
        ("schema { query: Query }", "type Q { a: Int } schema { query: Q }", "the root of query is no longer Query"),
    ];
    let base = Contract::read(BASE)?;
    for (from, to, expected) in changes {
        assert!(BASE.contains(from), "{from}");
        let broken = breaking(&base, &Contract::read(&BASE.replacen(from, to, 1))?);
        assert_eq!(broken, BTreeSet::from([expected.to_owned()]), "{from} -> {to}");
    }
    Ok(())
}

#[test]
fn what_only_adds_breaks_nothing() -> Result<()> {
    let changes = [
        ("c: B!", "c: B! d: Int"),
        ("[B!]", "[B!]!"),
        ("x: Int,", "x: Int w: Int v: Int! = 3"),
        ("ONE TWO", "ONE TWO THREE"),
        ("a: Int! b", "a: Int b"),
        ("b: Int }", "b: Int d: Int e: Int! = 4 }"),
        ("scalar S", "scalar S scalar T"),
    ];
    let base = Contract::read(BASE)?;
    for (from, to) in changes {
        assert!(BASE.contains(from), "{from}");
        let broken = breaking(&base, &Contract::read(&BASE.replacen(from, to, 1))?);
        assert_eq!(broken, BTreeSet::new(), "{from} -> {to}");
    }
    Ok(())
}

/// Of the real schema: no member can go without being missed.
#[test]
fn every_member_of_the_schema_is_guarded() -> Result<()> {
    let sdl = api::schema_sdl();
    let whole = Contract::read(&sdl)?;
    let members = whole.members();
    assert!(members.len() > 100, "{}", members.len());
    for member in members {
        let broken = breaking(&whole, &Contract::read(&sdl)?.without(&member));
        assert_eq!(broken.len(), 1, "{member}: {broken:?}");
    }
    Ok(())
}
