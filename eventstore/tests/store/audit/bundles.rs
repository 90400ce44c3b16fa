//! Bundles: they prove what is in them to somebody who has nothing but the file and a key.

use super::{Anyhow, key, record, sealed_history, sealer, trusted};
use crate::support::{submitted, tenant_with};
use domain::id::{AccountId, AttemptId, TaskId};
use eventstore::audit::bundle::{CheckError, Checked, ExportError, Exported, Subject, check, export};
use eventstore::audit::{PublicKey, SigningKey, TrustedKeys};
use eventstore::testkit::TestDatabase;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

async fn bundle(database: &TestDatabase, subject: &Subject) -> Anyhow<(Vec<u8>, Exported)> {
    let mut file = vec![];
    let exported = export(database.pool(), &trusted(), subject, &mut file).await?;
    Ok((file, exported))
}

fn stream(number: u128) -> Anyhow<Subject> {
    Ok(Subject::Stream(format!("task/{}", uuid::Uuid::from_u128(number)).parse()?))
}

fn checked(file: &[u8], key: Option<PublicKey>) -> Result<Checked, CheckError> {
    check(file, key.as_slice())
}

fn is_believed(file: &[u8]) -> bool {
    checked(file, Some(key().public())).is_ok_and(|it| it.flaws.is_empty())
}

/// A task's bundle: its stream, its attempts, and of the account the postings for it alone.
#[tokio::test]
async fn a_task_is_exported_with_its_attempts_and_postings() -> Anyhow {
    let database = TestDatabase::create().await?;
    let tenant = tenant_with(database.store(), 1000).await?;
    let task = submitted(database.store(), tenant, None).await?.task.ok_or("a task")?;
    submitted(database.store(), tenant, None).await?;
    for (number, versions) in [(1, 3), (2, 2)] {
        for version in 1..=versions {
            let body = json!({ "task": task, "number": number });
            record(&database, "attempt", AttemptId::of(task, number).0, version, body).await?;
        }
    }
    let whole = Subject::Task(task);
    assert!(matches!(export(database.pool(), &trusted(), &whole, vec![]).await, Err(ExportError::Unsealed(_))));
    sealer(&database, 3).catch_up().await?;
    record(&database, "attempt", AttemptId::of(task, 2).0, 3, json!({})).await?;
    let (file, exported) = bundle(&database, &whole).await?;
    assert_eq!((exported.events, exported.unsealed), (7, 1));
    let said = checked(&file, Some(key().public()))?;
    assert_eq!(said.flaws, []);
    assert_eq!((said.events, said.seals, &said.subject), (7, exported.seals, &whole));
    let parts: Vec<_> = said.streams.iter().map(|(name, it)| (name.category.as_str(), *it)).collect();
    assert!(parts.contains(&("attempt", (3, 3))) && parts.contains(&("attempt", (2, 2))), "{parts:?}");
    assert!(parts.contains(&("account", (1, 2))) && parts.contains(&("task", (1, 1))), "{parts:?}");
    let (file, exported) = bundle(&database, &Subject::Account(AccountId::of(tenant))).await?;
    assert_eq!((exported.events, exported.unsealed), (3, 0));
    assert!(is_believed(&file));
    Ok(())
}

#[tokio::test]
async fn what_can_not_be_proven_is_not_exported() -> Anyhow {
    let database = sealed_history().await?;
    let nobody = Subject::Task(TaskId(uuid::Uuid::from_u128(77)));
    assert!(matches!(export(database.pool(), &trusted(), &nobody, vec![]).await, Err(ExportError::NoEvents(_))));
    let strange = export(database.pool(), &TrustedKeys::default(), &stream(1)?, vec![]).await;
    assert!(matches!(strange, Err(ExportError::UnknownKey { number: 1, .. })), "{strange:?}");
    for edit in [
        "UPDATE events SET actor = 'me' WHERE position = 4",
        "UPDATE event_hashes SET hash = sha256('x') WHERE position = 2",
        "UPDATE seals SET root = sha256('x') WHERE number = 1",
    ] {
        database.sql(edit).await?;
        let refused = export(database.pool(), &trusted(), &stream(1)?, vec![]).await;
        assert!(matches!(refused, Err(ExportError::Tampered(_))), "{edit}: {refused:?}");
        super::restore(&database).await?;
    }
    Ok(())
}

/// Only the key that the checker brings counts; without one, the bundle's own.
#[tokio::test]
async fn a_bundle_is_believed_by_the_key_of_whoever_checks() -> Anyhow {
    let database = sealed_history().await?;
    let (file, exported) = bundle(&database, &stream(2)?).await?;
    assert_eq!(exported, Exported { events: 5, seals: 3, unsealed: 0 });
    let by_itself = checked(&file, None)?;
    assert_eq!((by_itself.flaws.len(), &by_itself.keys[..]), (0, &[key().public()][..]));
    let strange = checked(&file, Some(SigningKey::from_seed([8; 32]).public()))?;
    assert!(strange.flaws.iter().any(|it| it.what.contains("not the one to believe")), "{:?}", strange.flaws);
    assert!(matches!(checked(b"{}\n", None), Err(CheckError::NotABundle)));
    assert!(matches!(checked(b"", None), Err(CheckError::NotABundle)));
    Ok(())
}

/// A bit anywhere: all over the file, in every line.
#[tokio::test]
async fn a_changed_byte_anywhere_is_found() -> Anyhow {
    let database = sealed_history().await?;
    let (file, _) = bundle(&database, &stream(1)?).await?;
    assert!(is_believed(&file));
    let step = file.len() / 120 + 1;
    for at in (0..file.len()).step_by(step).chain([file.len() - 1, file.len() - 2]) {
        let mut changed = file.clone();
        changed[at] ^= 1 << (at % 7);
        assert!(!is_believed(&changed), "byte {at}: {}", String::from_utf8_lossy(&changed[at.saturating_sub(20)..=at]));
    }
    // Cut off anywhere, and with something behind it.
    let text = String::from_utf8(file)?;
    let lines: Vec<&str> = text.lines().collect();
    for kept in 0..lines.len() {
        assert!(!is_believed(lines[..kept].join("\n").as_bytes()), "{kept} lines");
    }
    assert!(!is_believed([&text, lines[1]].concat().as_bytes()));
    Ok(())
}

/// Every value in every line is edited by somebody who makes the end fit again.
#[tokio::test]
async fn a_changed_value_is_found_although_the_end_was_made_to_fit() -> Anyhow {
    let database = sealed_history().await?;
    let (file, _) = bundle(&database, &stream(1)?).await?;
    let lines: Vec<Value> = String::from_utf8(file)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    assert!(is_believed(&ended(&lines)?), "unchanged, it is as good as before");
    let mut edits = 0;
    // All lines but the end, which is made anew.
    for line in 0..lines.len() - 1 {
        for pointer in leaves(&lines[line], "") {
            let mut edited = lines.clone();
            let value = edited[line].pointer_mut(&pointer).ok_or("it was there")?;
            *value = other_than(value);
            assert!(!is_believed(&ended(&edited)?), "line {line}, {pointer}: {}", edited[line]);
            edits += 1;
        }
        let mut shorter = lines.clone();
        shorter.remove(line);
        // The bundle's key is for those who have none. And what comes after its last event, a bundle can not say.
        let not_needed = lines[line]["line"] == "key" || line == lines.len() - 2;
        assert_eq!(is_believed(&ended(&shorter)?), not_needed, "without line {line}: {}", lines[line]);
    }
    assert!(edits > 100, "{edits}");
    Ok(())
}

/// The lines with an end that fits them.
fn ended(lines: &[Value]) -> Anyhow<Vec<u8>> {
    let mut file = vec![];
    let (mut events, mut seals) = (0, 0);
    for line in &lines[..lines.len() - 1] {
        events += u64::from(line["line"] == "event");
        seals += u64::from(line["line"] == "seal");
        file.extend(serde_json::to_vec(line)?);
        file.push(b'\n');
    }
    let digest = hex::encode(Sha256::digest(&file));
    let end = json!({ "line": "end", "events": events, "seals": seals, "digest": digest });
    file.extend(serde_json::to_vec(&end)?);
    file.push(b'\n');
    Ok(file)
}

/// Where the plain values of a JSON value are.
fn leaves(value: &Value, at: &str) -> Vec<String> {
    match value {
        Value::Object(members) => members.iter().flat_map(|(name, it)| leaves(it, &format!("{at}/{name}"))).collect(),
        Value::Array(items) => {
            items.iter().enumerate().flat_map(|(index, it)| leaves(it, &format!("{at}/{index}"))).collect()
        }
        _ => vec![at.to_owned()],
    }
}

/// Another value of the same kind: a text gets another last letter that still reads as what it was, where it can.
fn other_than(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_i64().unwrap_or_default() + 1),
        Value::Bool(it) => json!(!it),
        Value::String(text) => {
            let at = text.len() / 2;
            let changed = text.char_indices().map(|(index, it)| match it {
                _ if index != at => it,
                '0'..='8' | 'a'..='e' => char::from(it as u8 + 1),
                '9' => '0',
                _ => 'a',
            });
            let changed: String = changed.collect();
            json!(if changed == *text { format!("{text}x") } else { changed })
        }
        _ => json!(1),
    }
}
