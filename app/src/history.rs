//! `aivideo history`: what a task, an attempt or an account was at any version or time, what changed, and by which events.
//!
//! Folded from the events, never from a snapshot. Everything that is printed is made by functions that only return text.

use anyhow::Context;
use chrono::{DateTime, SecondsFormat};
use clap::{Args, Subcommand, ValueEnum};
use domain::aggregate::Category;
use domain::id::{AccountId, AttemptId, TaskId};
use domain::process::StreamId;
use domain::time::Timestamp;
use eventstore::{Difference, History, LoggedEvent, Moment, Past};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use uuid::Uuid;

/// What to look at.
#[derive(Clone, Debug, Subcommand)]
pub enum HistoryAction {
    /// Show what it was at a version or a time. Default: what it is.
    Show {
        /// Of what.
        #[command(flatten)]
        of: StreamArg,
        /// After the event of this version; 0: before the first one.
        #[arg(long, conflicts_with = "at", allow_negative_numbers = true)]
        version: Option<i64>,
        /// As of this time, such as 2026-11-30T12:00:00Z.
        #[arg(long, value_parser = instant)]
        at: Option<Timestamp>,
        /// How it is printed.
        #[arg(long, value_enum, default_value_t = HistoryFormat::Text)]
        format: HistoryFormat,
    },
    /// Show what is not the same at two versions.
    Diff {
        /// Of what.
        #[command(flatten)]
        of: StreamArg,
        /// The one version; 0: before the first event.
        #[arg(long, allow_negative_numbers = true)]
        from: i64,
        /// The other version, before or after it.
        #[arg(long, allow_negative_numbers = true)]
        to: i64,
        /// How it is printed.
        #[arg(long, value_enum, default_value_t = HistoryFormat::Text)]
        format: HistoryFormat,
    },
    /// List the events: version, time, who acted, and what happened.
    Events {
        /// Of what.
        #[command(flatten)]
        of: StreamArg,
        /// Begin after this version.
        #[arg(long, default_value_t = 0)]
        after: u32,
        /// At most so many.
        #[arg(long, default_value_t = 200)]
        limit: u32,
        /// How they are printed; as JSON they are whole.
        #[arg(long, value_enum, default_value_t = HistoryFormat::Text)]
        format: HistoryFormat,
    },
}

/// Whose history. One of them.
#[derive(Clone, Copy, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct StreamArg {
    /// A task.
    #[arg(long)]
    task: Option<Uuid>,
    /// An attempt.
    #[arg(long)]
    attempt: Option<Uuid>,
    /// A credit account: it has its tenant's id.
    #[arg(long)]
    account: Option<Uuid>,
}

impl StreamArg {
    fn stream(self) -> anyhow::Result<StreamId> {
        let task = self.task.map(|id| StreamId::task(TaskId(id)));
        let attempt = self.attempt.map(|id| StreamId::attempt(AttemptId(id)));
        let account = self.account.map(|id| StreamId::account(AccountId(id)));
        task.or(attempt).or(account).context("say whose history: --task, --attempt or --account")
    }
}

/// How a history is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HistoryFormat {
    /// For people.
    Text,
    /// One JSON document.
    Json,
}

fn instant(text: &str) -> Result<Timestamp, String> {
    let at = DateTime::parse_from_rfc3339(text).map_err(|_| "write it as in 2026-11-30T12:00:00Z".to_owned())?;
    Ok(at.to_utc())
}

impl HistoryAction {
    /// Whose history is looked at.
    ///
    /// # Errors
    /// A sentence for the terminal.
    pub fn stream(&self) -> anyhow::Result<StreamId> {
        match self {
            Self::Show { of, .. } | Self::Diff { of, .. } | Self::Events { of, .. } => of.stream(),
        }
    }
}

/// Looks at the history of one stream, and answers with what is to be printed.
///
/// # Errors
/// A sentence that says what there is instead, or which event can not be read.
pub async fn look(history: &impl History, action: HistoryAction) -> anyhow::Result<String> {
    let stream = action.stream()?;
    match action {
        HistoryAction::Show { version, at, format, .. } => {
            let moment = version.map(Moment::Version).or(at.map(Moment::Time)).unwrap_or(Moment::Newest);
            let past = history.past(stream, moment).await?;
            let state = past.folded.to_readable()?;
            match format {
                HistoryFormat::Json => document(&shown(stream, &past, &state)),
                HistoryFormat::Text => Ok(shown_to_people(stream, &past, state)),
            }
        }
        HistoryAction::Diff { from, to, format, .. } => {
            let found = history.differences(stream, from, to).await?;
            match format {
                HistoryFormat::Json => document(&found),
                HistoryFormat::Text => Ok(differences_for_people(&found)),
            }
        }
        HistoryAction::Events { after, limit, format, .. } => {
            let newest = history.newest_version(stream).await?;
            let events = history.stream_events(stream, after.into(), limit.into()).await?;
            match format {
                HistoryFormat::Json => document(&events),
                HistoryFormat::Text => Ok(events_for_people(&events, newest)),
            }
        }
    }
}

fn document(value: &impl serde::Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)?)
}

fn shown(stream: StreamId, past: &Past, state: &Value) -> Value {
    json!({
        "category": stream.category.name(),
        "id": stream.id,
        "version": past.folded.version(),
        "newest_version": past.newest,
        "event": past.event,
        "state": state,
    })
}

fn shown_to_people(stream: StreamId, past: &Past, mut state: Value) -> String {
    let (version, newest) = (past.folded.version(), past.newest);
    let mut lines = vec![format!("{} {} at version {version} of {newest}", stream.category.name(), stream.id)];
    lines.push(past.event.as_ref().map_or("before its first event".to_owned(), |event| {
        format!("since {}: {} by {}", utc(event.recorded_at), event.name, event.actor)
    }));
    let mut rows = Vec::new();
    // First what people look for first.
    let name = state.as_object_mut().and_then(|it| it.remove("state"));
    rows.extend(name.map(|name| ("state".to_owned(), readable(&name))));
    if stream.category == Category::Account {
        rows.extend(summarized(&mut state));
    }
    flatten("", ".", &state, &mut rows);
    lines.extend(aligned(&rows));
    if stream.category != Category::Attempt && version > 0 {
        lines.push("Credits are in minor units: 100 are one credit.".to_owned());
    }
    lines.join("\n")
}

/// The most entries of one kind that people are shown of an account.
const FEW: usize = 20;

/// Leaves the open holds in an account's state, and of everything else what can be read; says what else there is.
fn summarized(account: &mut Value) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    let Some(account) = account.as_object_mut() else { return rows };
    if let Some(Value::Object(holds)) = account.get_mut("holds") {
        let mut states: BTreeMap<String, usize> = BTreeMap::new();
        for hold in holds.values() {
            *states.entry(hold["state"].as_str().unwrap_or("?").to_owned()).or_default() += 1;
        }
        rows.extend(states.into_iter().map(|(state, count)| (format!("holds {state}"), count.to_string())));
        holds.retain(|_, hold| hold["state"] == "OPEN");
    }
    for (name, entries) in account.iter_mut() {
        if let Value::Object(all) = entries
            && all.len() > FEW
        {
            rows.push((name.clone(), format!("{} entries; --format json lists them", all.len())));
            *entries = Value::Object(Map::new());
        }
    }
    rows
}

/// One row for each value, under its path.
fn flatten(path: &str, separator: &str, value: &Value, rows: &mut Vec<(String, String)>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                let path = if path.is_empty() { name.clone() } else { format!("{path}{separator}{name}") };
                flatten(&path, separator, value, rows);
            }
        }
        plain => rows.push((path.to_owned(), readable(plain))),
    }
}

/// Text as it is, but for what would move the terminal's cursor.
fn readable(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if !text.is_empty() && !text.contains(char::is_control) => text.clone(),
        other => other.to_string(),
    }
}

fn aligned(rows: &[(String, String)]) -> Vec<String> {
    let width = rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("  {name:<width$}  {value}")).collect()
}

fn differences_for_people(found: &[Difference]) -> String {
    if found.is_empty() {
        return "nothing is different".to_owned();
    }
    let mut rows = Vec::new();
    for Difference { path, before, after } in found {
        match (before, after) {
            (Some(before), Some(after)) => {
                rows.push((path.clone(), format!("{} -> {}", readable(before), readable(after))));
            }
            (None, Some(value)) => one_sided(path, value, |it| format!("(not there) -> {it}"), &mut rows),
            (Some(value), None) => one_sided(path, value, |it| format!("{it} -> (not there)"), &mut rows),
            (None, None) => {}
        }
    }
    aligned(&rows).join("\n")
}

fn one_sided(path: &str, value: &Value, text: impl Fn(&str) -> String, rows: &mut Vec<(String, String)>) {
    let mut values = Vec::new();
    flatten(path, "/", value, &mut values);
    rows.extend(values.into_iter().map(|(path, value)| (path, text(&value))));
}

fn events_for_people(events: &[LoggedEvent], newest: i64) -> String {
    let Some(last) = events.last() else {
        return format!("there is no event after that; the newest version is {newest}");
    };
    let width = events.iter().map(|it| it.actor.chars().count()).max().unwrap_or(0);
    let mut lines: Vec<String> = events
        .iter()
        .map(|it| format!("{:>7}  {}  {:<width$}  {}", it.version, utc(it.recorded_at), it.actor, it.name))
        .collect();
    if last.version < newest {
        lines.push(format!("the newest version is {newest}: --after {} goes on", last.version));
    }
    lines.join("\n")
}

fn utc(at: Timestamp) -> String {
    at.to_rfc3339_opts(SecondsFormat::Micros, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_of_an_account_what_is_open_and_how_much_else_there_is() {
        let hold = |state: &str| json!({"state": state, "amount": 120});
        let mut holds: Map<String, Value> = (0..30).map(|n| (format!("task-{n}"), hold("SETTLED"))).collect();
        holds.insert("task-open".to_owned(), hold("OPEN"));
        let grants: Map<String, Value> = (0..30).map(|n| (format!("voucher-{n}"), json!(1))).collect();
        let mut account = json!({"available": 5, "holds": holds, "grants": grants, "refunds": {"case-1": 7}});
        let mut rows = summarized(&mut account);
        flatten("", ".", &account, &mut rows);
        let text = aligned(&rows).join("\n");
        for line in
            ["holds OPEN", "holds SETTLED", "30 entries", "holds.task-open.amount", "refunds.case-1", "available"]
        {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("task-7") && !text.contains("voucher-7"), "{text}");
    }

    #[test]
    fn differences_say_what_was_not_there() {
        let one = Difference { path: "/order".to_owned(), before: None, after: Some(json!({"hold": 120})) };
        let other =
            Difference { path: "/state".to_owned(), before: Some(json!("QUEUED")), after: Some(json!("a\u{1b}b")) };
        let text = differences_for_people(&[one, other]);
        assert_eq!(text, "  /order/hold  (not there) -> 120\n  /state       QUEUED -> \"a\\u001bb\"");
        assert_eq!(differences_for_people(&[]), "nothing is different");
    }

    #[test]
    fn a_time_is_asked_for_in_one_form() {
        assert!(instant("2026-11-30T12:00:00+01:00").is_ok_and(|at| utc(at) == "2026-11-30T11:00:00.000000Z"));
        assert!(instant("yesterday").is_err_and(|text| text.contains("2026-11-30T12:00:00Z")));
    }
}
