//! The published schemas: `schemas/` holds one of every version that can be read. What a released one demands never changes.
//! `BLESS=1 cargo test -p domain schemas` writes the missing ones, and those of which only the words changed.

use domain::id::{AccountId, CausationId, CorrelationId, EventId, TenantId};
use domain::message::{Envelope, Topic};
use domain::schema::{Published, one_of_each, published};
use jsonschema::Validator;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use uuid::Uuid;

type Anyhow<T = ()> = Result<T, Box<dyn std::error::Error>>;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Every file below a folder, by its path from there.
fn files(root: &Path) -> Anyhow<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(folder) = todo.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                todo.push(path);
            } else {
                found.insert(path.strip_prefix(root)?.to_string_lossy().into_owned(), path);
            }
        }
    }
    Ok(found)
}

/// A schema without its words: what it demands. Names of fields and definitions are not words.
fn demands(schema: &Value) -> Value {
    match schema {
        Value::Object(members) => Value::Object(
            members
                .iter()
                .filter(|(key, _)| !["description", "title"].contains(&key.as_str()))
                .map(|(key, value)| match (key.as_str(), value) {
                    ("properties" | "$defs", Value::Object(named)) => {
                        let named: Map<_, _> = named.iter().map(|(name, it)| (name.clone(), demands(it))).collect();
                        (key.clone(), Value::Object(named))
                    }
                    _ => (key.clone(), demands(value)),
                })
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(demands).collect()),
        other => other.clone(),
    }
}

/// What is wrong with a committed schema.
#[derive(Debug, PartialEq)]
struct Difference {
    /// As a sentence.
    says: String,
    /// Whether writing it anew puts it right: it is missing, or only its words changed.
    may_be_written: bool,
}

/// Compares a committed schema with what the types say.
fn compare(file: &str, committed: Option<&str>, schema: &Value) -> Option<Difference> {
    let differs = |may_be_written, says: String| Some(Difference { says, may_be_written });
    let Some(committed) = committed else {
        return differs(true, format!("{file} is not committed: BLESS=1 writes it"));
    };
    let Ok(before) = serde_json::from_str::<Value>(committed) else {
        return differs(false, format!("{file} is not JSON: take the committed one back"));
    };
    if demands(&before) != demands(schema) {
        let says = format!(
            "{file} is published and would change: other programs rely on it. Raise the version and add an upcaster, keep the old \
             shape in src/schema/earlier.rs, and BLESS=1 writes the schema of the new version"
        );
        return differs(false, says);
    }
    if before == *schema {
        return None;
    }
    differs(true, format!("the words of {file} have changed, and nothing else: BLESS=1 writes them"))
}

fn text(schema: &Value) -> Result<String, serde_json::Error> {
    Ok(format!("{}\n", serde_json::to_string_pretty(schema)?))
}

#[test]
fn every_schema_is_committed_and_stays_what_it_is() -> Anyhow {
    let root = folder("schemas");
    let bless = std::env::var_os("BLESS").is_some();
    let mut faults = vec![];
    for Published { file, schema } in published() {
        let path = root.join(&file);
        let committed = std::fs::read_to_string(&path).ok();
        let Some(difference) = compare(&file, committed.as_deref(), &schema) else { continue };
        if bless && difference.may_be_written {
            std::fs::create_dir_all(path.parent().ok_or("a file in no folder")?)?;
            std::fs::write(&path, text(&schema)?)?;
        } else {
            faults.push(difference.says);
        }
    }
    let known: BTreeSet<String> = published().into_iter().map(|it| it.file).collect();
    for file in files(&root)?.into_keys().filter(|file| !known.contains(file)) {
        faults.push(format!("{file} is published, but the types say nothing of it: what was published stays"));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

#[test]
fn a_change_is_told_from_a_change_of_words() -> Anyhow {
    let schema =
        json!({ "properties": { "title": { "type": "string", "description": "Its title." } }, "required": ["title"] });
    let verdict = |other: &Value| text(other).map(|it| compare("it", Some(&it), &schema));
    let never = |it: &Difference| !it.may_be_written && it.says.contains("Raise the version and add an upcaster");
    assert_eq!(verdict(&schema)?, None);
    let mut words = schema.clone();
    words["properties"]["title"]["description"] = json!("What it is called.");
    assert!(verdict(&words)?.is_some_and(|it| it.may_be_written && it.says.contains("the words")));
    for (path, value) in [("/properties/title/type", json!("integer")), ("/required", json!([]))] {
        let mut other = schema.clone();
        *other.pointer_mut(path).ok_or(path)? = value;
        assert!(verdict(&other)?.as_ref().is_some_and(never), "{path}");
    }
    let mut renamed = schema.clone();
    renamed["properties"] = json!({ "name": { "type": "string" } });
    assert!(verdict(&renamed)?.as_ref().is_some_and(never));
    assert!(compare("it", None, &schema).is_some_and(|it| it.may_be_written && it.says.contains("not committed")));
    Ok(())
}

/// What checks against a committed schema, formats included.
fn validator(file: &str) -> Anyhow<Validator> {
    let path = folder("schemas").join(file);
    let schema: Value = serde_json::from_str(
        &std::fs::read_to_string(&path)
            .map_err(|_| format!("{file} is missing: every version that can be read has a schema"))?,
    )?;
    Ok(jsonschema::options().should_validate_formats(true).build(&schema)?)
}

/// The golden files: name, version, body.
fn golden() -> Anyhow<Vec<(String, String, Value)>> {
    let mut found = vec![];
    for path in files(&folder("golden"))?.into_values() {
        let stem = path.file_stem().and_then(|it| it.to_str()).ok_or("a file without a name")?;
        let (name, version) = stem.rsplit_once(".v").ok_or_else(|| format!("{stem} has no version"))?;
        let name = name.split_once('+').map_or(name, |(name, _)| name);
        found.push((name.to_owned(), version.to_owned(), serde_json::from_str(&std::fs::read_to_string(&path)?)?));
    }
    Ok(found)
}

/// Every way to spoil one value inside a body: its members taken away one at a time, and other kinds in its place.
fn spoiled(body: &Value) -> Vec<(String, Value)> {
    let mut found = vec![];
    if let Value::Object(members) = body {
        for (key, value) in members {
            let with = |new: Option<Value>| {
                let mut other = members.clone();
                match new {
                    Some(new) => drop(other.insert(key.clone(), new)),
                    None => drop(other.remove(key)),
                }
                Value::Object(other)
            };
            found.push((format!("without {key}"), with(None)));
            found.push((format!("{key} is a list of lists"), with(Some(json!([[1]])))));
            found.extend(spoiled(value).into_iter().map(|(how, value)| (format!("{key}: {how}"), with(Some(value)))));
        }
    }
    found
}

#[test]
fn golden_files_fit_their_schema_and_spoiled_ones_do_not() -> Anyhow {
    let (mut fit, mut refused) = (0, 0);
    for (name, version, body) in golden()? {
        let validator = validator(&format!("events/{name}.v{version}.json"))?;
        validator.validate(&body).map_err(|error| format!("{name} v{version}: {error}"))?;
        fit += 1;
        for (how, body) in spoiled(&body) {
            assert!(!validator.is_valid(&body), "{name} v{version}, {how}: {body} fits its schema");
            refused += 1;
        }
    }
    assert!(fit >= 49 && refused >= 300, "{fit} golden files, {refused} spoiled ones");
    Ok(())
}

#[test]
fn ids_and_times_have_formats() -> Anyhow {
    let held = validator("events/account.held.v2.json")?;
    let good = json!({ "task": Uuid::nil(), "amount": 120, "expires_at": "2026-09-21T14:13:20.123456Z" });
    assert!(held.is_valid(&good));
    for (field, value) in
        [("task", json!("task-1")), ("expires_at", json!("tomorrow")), ("amount", json!(1.5)), ("amount", json!("120"))]
    {
        let mut bad = good.clone();
        bad[field] = value;
        assert!(!held.is_valid(&bad), "{bad}");
    }
    Ok(())
}

/// Each name with all its versions from the first: what an upcaster can read has a schema.
#[test]
fn every_version_that_can_be_read_has_a_schema() -> Anyhow {
    let published: BTreeSet<String> = published().into_iter().map(|it| it.file).collect();
    let names = [domain::task::Event::NAMES, domain::attempt::Event::NAMES, domain::ledger::Event::NAMES];
    for (name, current) in names.into_iter().flatten() {
        for version in 1..=*current {
            let file = format!("events/{name}.v{version}.json");
            assert!(published.contains(&file), "{file}: keep the old shape in src/schema/earlier.rs");
        }
    }
    Ok(())
}

#[test]
fn messages_fit_their_schemas() -> Anyhow {
    let messages = one_of_each();
    let topics: BTreeSet<Topic> = messages.iter().map(domain::message::Message::topic).collect();
    assert_eq!(topics, BTreeSet::from(Topic::ALL), "one_of_each() names every kind");
    let envelopes = validator("messages/envelope.v1.json")?;
    for message in messages {
        let payload = message.payload()?;
        let file = format!("messages/{}.v{}.json", message.event_type(), message.schema_version());
        let payloads = validator(&file)?;
        payloads.validate(&payload).map_err(|error| format!("{file}: {error}"))?;
        for (how, payload) in spoiled(&payload) {
            assert!(!payloads.is_valid(&payload), "{file}, {how}: {payload} fits");
        }
        let envelope = Envelope {
            event_id: EventId(Uuid::nil()),
            original_event_id: None,
            event_type: message.event_type().to_owned(),
            schema_version: message.schema_version(),
            producer: "test".to_owned(),
            occurred_at: super::support::now(),
            aggregate_type: "task".to_owned(),
            aggregate_id: message.task_id().0,
            tenant_id: TenantId(Uuid::nil()),
            trace_id: Uuid::nil().simple().to_string(),
            correlation_id: CorrelationId(Uuid::nil()),
            causation_id: CausationId(Uuid::nil()),
            payload,
        };
        let mut body: Value = serde_json::from_slice(&envelope.to_body()?)?;
        envelopes.validate(&body).map_err(|error| format!("the envelope: {error}"))?;
        body["original_event_id"] = json!(AccountId(Uuid::nil()));
        assert!(envelopes.is_valid(&body), "a replay");
        body["tenant_id"] = json!("me");
        assert!(!envelopes.is_valid(&body));
    }
    Ok(())
}

/// Words that no field of an event or message may have in its name: such things stay out of the log for good.
const NEVER: &[&str] = &[
    "prompt",
    "secret",
    "token",
    "password",
    "credential",
    "authorization",
    "signature",
    "url",
    "uri",
    "email",
    "phone",
    "address",
    "header",
    "cookie",
];

fn field_names(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(members) => {
            for (key, value) in members {
                if let ("properties", Value::Object(properties)) = (key.as_str(), value) {
                    found.extend(properties.keys().cloned());
                }
                field_names(value, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| field_names(item, found)),
        _ => {}
    }
}

#[test]
fn no_field_holds_a_prompt_or_a_secret() {
    let mut found = BTreeSet::new();
    for it in published() {
        field_names(&it.schema, &mut found);
    }
    assert!(found.len() > 60 && found.contains("source_key"), "{found:?}");
    let bad: Vec<&String> = found.iter().filter(|name| name.split('_').any(|word| NEVER.contains(&word))).collect();
    assert!(bad.is_empty(), "{bad:?}: events and messages hold ids, amounts, times and object keys only");
}
