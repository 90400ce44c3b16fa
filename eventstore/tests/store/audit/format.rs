//! The format is what docs/event-store.md says: another program comes to the same hashes.

use super::{Anyhow, events, hashes, sealed_history, trusted};
use crate::support::{submitted, tenant_with};
use eventstore::audit::bundle::{Subject, export};
use eventstore::testkit::TestDatabase;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::process::{Command, Stdio};

const DOCUMENT: &str = include_str!("../../../../docs/event-store.md");

/// JSON whose writer knows nothing of ours.
#[derive(Deserialize)]
#[serde(untagged)]
enum Json {
    Null(()),
    Bool(bool),
    Whole(i64),
    Large(u64),
    Text(String),
    List(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

impl std::fmt::Display for Json {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let quoted = |text: &str| -> String {
            let escaped = text.chars().map(|it| match it {
                '"' => "\\\"".to_owned(),
                '\\' => "\\\\".to_owned(),
                '\u{8}' => "\\b".to_owned(),
                '\u{c}' => "\\f".to_owned(),
                '\n' => "\\n".to_owned(),
                '\r' => "\\r".to_owned(),
                '\t' => "\\t".to_owned(),
                it if u32::from(it) < 0x20 => format!("\\u{:04x}", u32::from(it)),
                it => it.to_string(),
            });
            format!("\"{}\"", escaped.collect::<String>())
        };
        match self {
            Self::Null(()) => f.write_str("null"),
            Self::Bool(it) => write!(f, "{it}"),
            Self::Whole(it) => write!(f, "{it}"),
            Self::Large(it) => write!(f, "{it}"),
            Self::Text(it) => f.write_str(&quoted(it)),
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(ToString::to_string).collect();
                write!(f, "[{}]", items.join(","))
            }
            Self::Object(members) => {
                let members: Vec<String> = members.iter().map(|(name, it)| format!("{}:{it}", quoted(name))).collect();
                write!(f, "{{{}}}", members.join(","))
            }
        }
    }
}

/// Every character that JSON escapes, and some that it does not.
const ODD: &str = "\u{1}\u{8}\t\n\u{b}\u{c}\r\u{1f} \"\\/ \u{7f}\u{80}é€\u{2028}\u{ffff}🎞";

async fn odd_history() -> Anyhow<TestDatabase> {
    let database = sealed_history().await?;
    let body =
        serde_json::json!({ "text": ODD, ODD: [1, -1, i64::MAX, i64::MIN, u64::MAX], "z": {}, "a": [], "Z": false });
    super::record(&database, "task", uuid::Uuid::from_u128(1), 6, body).await?;
    super::sealer(&database, 6).catch_up().await?;
    Ok(database)
}

#[tokio::test]
async fn another_implementation_comes_to_the_same_hashes() -> Anyhow {
    let database = odd_history().await?;
    let mut ends: HashMap<String, String> = HashMap::new();
    let mut computed = vec![];
    for event in events(&database).await? {
        let Json::Object(mut members) = serde_json::from_str(&serde_json::to_string(&event)?)? else {
            return Err("an event is an object".into());
        };
        let end = ends.entry(format!("{}/{}", event.category, event.stream_id)).or_insert_with(|| "0".repeat(64));
        members.insert("previous".to_owned(), Json::Text(end.clone()));
        *end = hex::encode(Sha256::digest(Json::Object(members).to_string()));
        computed.push(end.clone());
    }
    let stored: Vec<String> = hashes(&database).await?.iter().map(ToString::to_string).collect();
    assert_eq!(computed, stored);
    assert_eq!(computed.len(), 16);
    Ok(())
}

/// The program in the document, as it stands there, on a bundle: it says that all is well, and says so of nothing else.
#[tokio::test]
async fn the_program_in_the_document_verifies_a_bundle() -> Anyhow {
    let (_, program) = DOCUMENT.split_once("```python\n").ok_or("the document has no program")?;
    let (program, _) = program.split_once("```").ok_or("the program has no end")?;
    assert!(program.contains("sort_keys=True, separators=(\",\", \":\"), ensure_ascii=False"), "{program}");
    let database = odd_history().await?;
    let tenant = tenant_with(database.store(), 1000).await?;
    let task = submitted(database.store(), tenant, None).await?.task.ok_or("a task")?;
    super::sealer(&database, 6).catch_up().await?;
    for subject in [Subject::Stream("task/00000000-0000-0000-0000-000000000001".parse()?), Subject::Task(task)] {
        let mut bundle = vec![];
        export(database.pool(), &trusted(), &subject, &mut bundle).await?;
        // Where there is no Python, the test above is the other program.
        let Some(said) = python(program, &bundle)? else { return Ok(()) };
        assert!(said.starts_with("ok"), "{said}");
        let text = String::from_utf8(bundle)?;
        let forged = text.replacen("user:test", "user:best", 1);
        assert_ne!(forged, text);
        let said = python(program, forged.as_bytes())?.unwrap_or_default();
        assert!(said.contains("AssertionError"), "{said}");
    }
    Ok(())
}

/// What a program says of a file; `None` where there is no Python.
pub fn python(program: &str, content: &[u8]) -> Anyhow<Option<String>> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(content)?;
    let output = Command::new("python3")
        .args(["-c", program])
        .arg(file.path())
        .env("PYTHONIOENCODING", "utf-8")
        .stdin(Stdio::null())
        .output();
    match output {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        other => {
            let output = other?;
            Ok(Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()))
        }
    }
}
