//! Golden files: `golden/<name>.v<version>.json` holds a body of every event ever written. Files are only ever added.
//! `BLESS=1 cargo test -p domain golden` writes the missing ones.

use super::support;
use domain::aggregate::{Aggregate, Decision};
use domain::attempt::Attempt;
use domain::ledger::Account;
use domain::money::Credits;
use domain::stored::{Stored, StoredEvent};
use domain::task::{Event as TaskEvent, Order, Place, Task};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

type Anyhow = Result<(), Box<dyn std::error::Error>>;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// One sample of each event that the sample commands lead to.
fn samples<A: Aggregate>(commands: &[A::Command]) -> Result<BTreeMap<String, Stored>, Box<dyn std::error::Error>>
where
    A::Command: Clone,
    A::Event: StoredEvent,
{
    let mut found = BTreeMap::new();
    let mut seen: Vec<A> = vec![];
    let mut todo = std::collections::VecDeque::from([A::absent()]);
    while let Some(state) = todo.pop_front() {
        if seen.contains(&state) || seen.len() > 2_000 {
            continue;
        }
        seen.push(state.clone());
        for command in commands {
            if let Ok(Decision::Record(events)) = state.decide(command.clone(), support::now()) {
                let mut next = state.clone();
                for event in &events {
                    found.entry(event.name().to_owned()).or_insert(event.encode()?);
                    next = next.evolve(event)?;
                }
                todo.push_back(next);
            }
        }
    }
    Ok(found)
}

fn check<A: Aggregate>(commands: &[A::Command], names: &[(&str, i16)]) -> Anyhow
where
    A::Command: Clone,
    A::Event: StoredEvent + PartialEq + std::fmt::Debug,
{
    let samples = samples::<A>(commands)?;
    for (name, version) in names {
        let sample = samples.get(*name).ok_or_else(|| format!("no sample command leads to {name}"))?;
        compare(&format!("{name}.v{version}.json"), sample)?;
        let event = A::Event::decode(sample.clone())?;
        assert_eq!(event.encode()?, *sample, "{name} does not survive a round trip");
    }
    Ok(())
}

/// Compares a sample with its golden file, which is written where it is missing and may be.
fn compare(file: &str, sample: &Stored) -> Anyhow {
    let path = folder().join(file);
    let text = format!("{}\n", serde_json::to_string_pretty(&sample.body)?);
    if !path.exists() && std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &text)?;
    }
    let golden = std::fs::read_to_string(&path).map_err(|_| format!("{file} is missing: BLESS=1 writes it"))?;
    assert_eq!(golden, text, "{file}: it is encoded otherwise than it was, which needs a new version");
    Ok(())
}

#[test]
fn todays_encoding_is_the_newest_golden_file() -> Anyhow {
    check::<Task>(&support::task_commands(), domain::task::Event::NAMES)?;
    check::<Attempt>(&support::attempt_commands(), domain::attempt::Event::NAMES)?;
    check::<Account>(&support::account_commands(), domain::ledger::Event::NAMES)
}

/// Bodies of the same version that look different: `<name>+<variant>.v<version>.json`.
#[test]
fn every_variant_of_a_body_has_a_golden_file() -> Anyhow {
    use domain::attempt::{Event as Attempted, Heard};
    let heard = |how| Attempted::Accepted {
        job: "job-a".to_owned(),
        how,
        next_poll_at: support::later(2),
        give_up_at: support::later(600),
    };
    let without = TaskEvent::Succeeded { probe: support::probe(), thumbnail: None, charge: Credits(100) };
    let exported = Order { retry_of: Some(support::order().task), ..support::export_order(720) };
    let elsewhere = Place { provider: "runway".to_owned(), model: "aivideo/paper-boat-2".to_owned(), seeded: true };
    let anywhere = Order { alternatives: vec![elsewhere], ..support::order() };
    let samples = [
        ("operator", heard(Heard::Operator { by: "op:1".to_owned() }).encode()?),
        ("answer", heard(Heard::Answer).encode()?),
        ("callback", heard(Heard::Callback).encode()?),
        ("no_thumbnail", without.encode()?),
        ("export", TaskEvent::Submitted { order: exported }.encode()?),
        ("alternatives", TaskEvent::Submitted { order: anywhere }.encode()?),
    ];
    for (variant, sample) in samples {
        compare(&format!("{}+{variant}.v{}.json", sample.name, sample.version), &sample)?;
    }
    Ok(())
}

#[test]
fn older_bodies_are_lifted() -> Anyhow {
    let read = |file: &str| -> Result<serde_json::Value, Box<dyn std::error::Error>> {
        Ok(serde_json::from_str(&std::fs::read_to_string(folder().join(file))?)?)
    };
    let old = |name: &str, body| Stored { name: name.to_owned(), version: 1, body };
    let submitted = TaskEvent::decode(old("task.submitted", read("task.submitted.v1.json")?))?;
    let unnamed = Order { user: String::new(), priority: 0, ..support::order() };
    assert_eq!(submitted, TaskEvent::Submitted { order: unnamed.clone() }, "an old order is to generate");
    let second = Stored { version: 2, ..old("task.submitted", read("task.submitted.v2.json")?) };
    let submitted = TaskEvent::decode(second)?;
    assert_eq!(submitted, TaskEvent::Submitted { order: unnamed }, "at one provider only, and nobody knows who asked");
    let succeeded = TaskEvent::decode(old("task.succeeded", read("task.succeeded.v1.json")?))?;
    assert!(matches!(succeeded, TaskEvent::Succeeded { thumbnail: Some(_), .. }));
    let accepted = domain::attempt::Event::decode(old("attempt.accepted", read("attempt.accepted.v1.json")?))?;
    assert!(matches!(accepted, domain::attempt::Event::Accepted { how: domain::attempt::Heard::Answer, .. }));
    Ok(())
}

#[test]
fn every_golden_file_decodes() -> Anyhow {
    let mut count = 0;
    for entry in std::fs::read_dir(folder())? {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|it| it.to_str()).ok_or("a file without a name")?;
        let (name, version) = stem.rsplit_once(".v").ok_or_else(|| format!("{stem} has no version"))?;
        let body = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
        let name = name.split_once('+').map_or(name, |(name, _)| name);
        let stored = Stored { name: name.to_owned(), version: version.parse()?, body };
        match name.split_once('.').map(|(category, _)| category) {
            Some("task") => drop(domain::task::Event::decode(stored)?),
            Some("attempt") => drop(domain::attempt::Event::decode(stored)?),
            Some("account") => drop(domain::ledger::Event::decode(stored)?),
            _ => return Err(format!("{stem} belongs to no aggregate").into()),
        }
        count += 1;
    }
    let names =
        domain::task::Event::NAMES.len() + domain::attempt::Event::NAMES.len() + domain::ledger::Event::NAMES.len();
    assert!(count >= names, "{count} golden files for {names} events");
    Ok(())
}

#[test]
fn an_unknown_version_or_name_is_named() -> Anyhow {
    let body = serde_json::json!({ "attempt_no": 1 });
    let newer = Stored { name: "task.submission_begun".to_owned(), version: 99, body: body.clone() };
    let text = domain::task::Event::decode(newer).expect_err("a newer version is not read").to_string();
    assert!(text.contains("task.submission_begun") && text.contains("99"), "{text}");
    let unknown = Stored { name: "task.exploded".to_owned(), version: 1, body };
    let text = domain::task::Event::decode(unknown).expect_err("an unknown name is not read").to_string();
    assert!(text.contains("task.exploded"), "{text}");
    Ok(())
}
