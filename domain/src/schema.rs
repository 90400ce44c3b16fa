//! JSON Schemas (draft 2020-12) of everything that other programs read: each event's body in every version that can still be
//! read, each message's payload, and the envelope.
//!
//! They are generated from the types that are written, so they can not say something else, and committed in
//! `domain/schemas/`, so that a change shows. They describe what is *written*: every field is there, a field without a value
//! is null. A reader ignores fields that it does not know.

mod earlier;

use crate::id::{AttemptId, TaskId};
use crate::message::kinds::{AttemptRef, CallbackRef, TaskRef};
use crate::message::{Envelope, Message};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::Value;
use uuid::Uuid;

/// The version of the envelope. Fields that a reader may miss can be added to it; anything else is a new version.
const ENVELOPE_VERSION: i16 = 1;

/// A schema with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// The path below `domain/schemas/`, such as `events/task.submitted.v2.json`.
    pub file: String,
    /// The schema.
    pub schema: Value,
}

/// All schemas, in the order of their files.
#[must_use]
pub fn published() -> Vec<Published> {
    let today = [crate::task::Event::schemas(), crate::attempt::Event::schemas(), crate::ledger::Event::schemas()];
    let events = today.into_iter().flatten().chain(earlier::schemas());
    let mut all: Vec<_> = events.map(|(name, version, schema)| publish("event", name, version, schema)).collect();
    all.extend(one_of_each().iter().map(|message| {
        let version = i16::try_from(message.schema_version()).unwrap_or(i16::MAX);
        publish("message", message.event_type(), version, message.payload_schema())
    }));
    all.push(publish("message", "envelope", ENVELOPE_VERSION, of::<Envelope>()));
    all.sort_by(|a, b| a.file.cmp(&b.file));
    all
}

/// One message of each kind; the tests hold the list to the topics.
#[must_use]
pub fn one_of_each() -> [Message; 13] {
    let (task_id, attempt_id) = (TaskId(Uuid::nil()), AttemptId(Uuid::nil()));
    let task = TaskRef { task_id, task_version: 1 };
    let attempt = AttemptRef { task_id, attempt_id, version: 1 };
    let callback = CallbackRef { task_id, attempt_id, job: "job-a".to_owned() };
    [
        Message::SubmitRequested(task),
        Message::SubmitDue(task),
        Message::PollDue(attempt),
        Message::CallbackReceived(callback),
        Message::FetchRequested(attempt),
        Message::FetchDue(attempt),
        Message::PostprocessRequested(attempt),
        Message::PostprocessDue(task),
        Message::RenderRequested(task),
        Message::RenderDue(task),
        Message::SettleRequested(task),
        Message::StateChanged(task),
        Message::ReconcileDue(attempt),
    ]
}

/// The schema of what is written of a type.
pub(crate) fn of<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>()
}

fn publish(kind: &str, name: &str, version: i16, mut schema: Schema) -> Published {
    schema.insert("$id".to_owned(), format!("urn:aivideo:{kind}:{name}:v{version}").into());
    schema.insert("title".to_owned(), format!("{name} v{version}").into());
    Published { file: format!("{kind}s/{name}.v{version}.json"), schema: schema.into() }
}
