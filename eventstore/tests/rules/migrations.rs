//! Migrations go forward only: a released file never changes, and a new one comes after all of those.
//! At a release, `BLESS=released cargo test -p eventstore --test rules migrations` adds the new ones to `migrations/released.txt`.

use super::Anyhow;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations")
}

/// Each migration's file name and text.
pub fn files() -> Anyhow<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder())? {
        let path = entry?.path();
        let name = path.file_name().and_then(|it| it.to_str()).ok_or("a file without a name")?.to_owned();
        if name.ends_with(".sql") && name.starts_with(|first: char| first.is_ascii_digit()) {
            found.insert(name, std::fs::read_to_string(&path)?);
        }
    }
    Ok(found)
}

fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is wrong with the files, by the list of released ones.
fn faults(released: &str, files: &BTreeMap<String, String>) -> Vec<String> {
    let listed: BTreeMap<&str, &str> =
        released.lines().filter_map(|line| line.split_once("  ")).map(|(digest, name)| (name, digest)).collect();
    let mut found = vec![];
    for (name, listed) in &listed {
        match files.get(*name) {
            None => found.push(format!("{name} was released and is gone: take it back")),
            Some(text) if digest(text) != *listed => {
                found.push(format!(
                    "{name} was released and has changed: take it back, and put right what is wrong in a new migration"
                ));
            }
            Some(_) => {}
        }
    }
    let last = listed.keys().max().copied().unwrap_or_default();
    let between = files.keys().filter(|name| !listed.contains_key(name.as_str()) && name.as_str() < last);
    found.extend(between.map(|name| format!("{name} comes before {last}, which was released: give it a later number")));
    found
}

#[test]
fn a_released_migration_never_changes() -> Anyhow {
    let (path, files) = (folder().join("released.txt"), files()?);
    let mut released = std::fs::read_to_string(&path).unwrap_or_default();
    if std::env::var_os("BLESS").is_some_and(|it| it == "released") {
        let new: String = files
            .iter()
            .filter(|(name, _)| !released.contains(name.as_str()))
            .map(|(name, text)| format!("{}  {name}\n", digest(text)))
            .collect();
        released.push_str(&new);
        std::fs::write(&path, &released)?;
    }
    assert!(released.lines().count() >= 4, "released.txt lists what was released");
    assert!(faults(&released, &files).is_empty(), "{}", faults(&released, &files).join("\n"));
    Ok(())
}

#[test]
fn a_change_of_the_past_is_found() {
    let files: BTreeMap<String, String> = [("0001_a.sql", "a"), ("0002_b.sql", "b"), ("0004_d.sql", "d")]
        .map(|(name, text)| (name.to_owned(), text.to_owned()))
        .into();
    let list = format!("{}  0001_a.sql\n{}  0002_b.sql\n", digest("a"), digest("b"));
    assert_eq!(faults(&list, &files), Vec::<String>::new());
    assert!(faults(&list.replace("0002_b", "0003_b"), &files)[0].contains("0003_b.sql was released and is gone"));
    let changed = format!("{}  0001_a.sql\n", digest("other"));
    assert!(faults(&changed, &files)[0].contains("0001_a.sql was released and has changed"));
    let later = format!("{}  0004_d.sql\n", digest("d"));
    assert_eq!(faults(&later, &files).len(), 2, "0001 and 0002 come before what was released");
}
