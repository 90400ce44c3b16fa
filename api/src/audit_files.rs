//! `GET /audit/…`: the log and the ledgers as files, and proofs. For auditors and operators; each request is recorded before it is
//! answered.
//!
//! A file is sent part by part, as it is read: however long it is, no more than a part is in memory. One that breaks off (then the
//! transfer is broken, not ended) is taken up again after its last row.

use crate::auth::{Caller, Role};
use crate::http::{Problem, caller, log_fault};
use crate::router::Shared;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use chrono::{DateTime, SecondsFormat};
use domain::id::{CorrelationId, TaskId, TenantId};
use domain::time::Timestamp;
use eventstore::audit::bundle::{ExportError, Subject, export};
use eventstore::{Access, LoggedEvent};
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use projections::query::{LedgerRow, LogFilter, ReadError, Reader, Viewer};
use serde::Deserialize;
use std::sync::Arc;
use uuid::Uuid;

/// Rows in one part.
const PART: u32 = 1_000;

/// What is asked for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Asked {
    /// `ndjson`, or `csv`.
    format: Option<String>,
    /// After which row: a position of the log; of postings `ACCOUNT/VERSION`.
    after: Option<String>,
    /// Up to which position of the log; by default the end, which the header `x-log-end` names.
    end: Option<i64>,
    /// Of this tenant only.
    tenant: Option<Uuid>,
    /// Of streams of this kind only.
    category: Option<String>,
    /// Recorded at this time or later.
    from: Option<String>,
    /// Recorded before this time.
    before: Option<String>,
    /// The task that a proof is of.
    task: Option<Uuid>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Lines,
    Table,
}

pub(crate) async fn serve(
    State(shared): State<Arc<Shared>>,
    axum::Extension(correlation): axum::Extension<CorrelationId>,
    Path(what): Path<String>,
    headers: HeaderMap,
    asked: Result<Query<Asked>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Problem> {
    let caller = auditor(&shared, &headers)?;
    let Query(asked) = asked.map_err(|_| bad("a parameter is not known, or can not be read"))?;
    if !["events", "postings", "proof"].contains(&what.as_str()) {
        return Err(Problem::new(StatusCode::NOT_FOUND, "NOT_FOUND", "there are events, postings and proof"));
    }
    let access = Access {
        actor: caller.actor(),
        actor_tenant: caller.tenant,
        what: format!("GET /audit/{what}"),
        subject: format!("{asked:?}"),
        correlation,
    };
    let store = &shared.state.store;
    store.record_access(&access).await.map_err(|error| Problem::unavailable(&error, correlation))?;
    match what.as_str() {
        "events" => events(&shared, &asked, correlation).await,
        "postings" => postings(&shared, &asked, correlation),
        _ => proof(&shared, &asked, correlation).await,
    }
}

fn bad(message: impl Into<String>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "BAD_REQUEST", message)
}

fn auditor(shared: &Shared, headers: &HeaderMap) -> Result<Caller, Problem> {
    let missing =
        || Problem::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", "a token is needed: the header Authorization");
    let caller = caller(headers, &shared.keys)?.ok_or_else(missing)?;
    if caller.has(Role::Auditor) || caller.has(Role::Operator) {
        return Ok(caller);
    }
    Err(Problem::new(StatusCode::FORBIDDEN, "FORBIDDEN", "your roles do not allow this"))
}

impl Asked {
    fn format(&self) -> Result<Format, Problem> {
        match self.format.as_deref() {
            None | Some("ndjson") => Ok(Format::Lines),
            Some("csv") => Ok(Format::Table),
            Some(_) => Err(bad("format is ndjson or csv")),
        }
    }

    fn filter(&self) -> Result<LogFilter, Problem> {
        if let Some(unknown) = self.category.as_deref().filter(|it| !["task", "attempt", "account"].contains(it)) {
            return Err(bad(format!(
                "category is task, attempt or account, not {:?}",
                unknown.chars().take(40).collect::<String>()
            )));
        }
        Ok(LogFilter {
            tenant: self.tenant.map(TenantId),
            category: self.category.clone(),
            from: instant(self.from.as_deref())?,
            before: instant(self.before.as_deref())?,
        })
    }
}

fn instant(text: Option<&str>) -> Result<Option<Timestamp>, Problem> {
    let read = |text| DateTime::parse_from_rfc3339(text).map(|at| at.to_utc());
    text.map(read).transpose().map_err(|_| bad("from and before are written as 2026-01-31T08:15:00Z"))
}

/// A file that is read as it is sent. A fault on the way breaks the transfer off.
fn file(format: Format, parts: BoxStream<'static, Result<Bytes, ReadError>>, correlation: CorrelationId) -> Response {
    let content_type = match format {
        Format::Lines => "application/x-ndjson",
        Format::Table => "text/csv; charset=utf-8; header=present",
    };
    let parts = parts.inspect_err(move |error| log_fault(error, correlation));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (headers, Body::from_stream(parts)).into_response()
}

/// Where a file that is being sent has come to.
struct Sending<P> {
    reader: Reader,
    format: Format,
    /// The next part begins after this; `None` when everything was sent.
    place: Option<P>,
    rows: u64,
    first: bool,
}

impl<P> Sending<P> {
    /// The rows as they are sent, with the names of the columns before the first.
    fn render<R>(&mut self, rows: &[R], line: impl Fn(&R) -> serde_json::Value, columns: &[&str]) -> Vec<u8> {
        self.rows += rows.len() as u64;
        let mut text = Vec::with_capacity(rows.len() * 512);
        if std::mem::take(&mut self.first) && self.format == Format::Table {
            text.extend_from_slice(columns.join(",").as_bytes());
            text.extend_from_slice(b"\r\n");
        }
        for row in rows {
            let line = line(row);
            match self.format {
                Format::Lines => text.extend_from_slice(line.to_string().as_bytes()),
                Format::Table => table_row(&line, columns, &mut text),
            }
            text.extend_from_slice(if self.format == Format::Lines { &b"\n"[..] } else { &b"\r\n"[..] });
        }
        text
    }

    /// The line that says that nothing is missing.
    fn end(&self, text: &mut Vec<u8>, after: &str) {
        if self.format == Format::Lines {
            let end = serde_json::json!({"end": {"rows": self.rows, "after": after}});
            text.extend_from_slice(format!("{end}\n").as_bytes());
        }
    }
}

/// One row as RFC 4180 has it: what could be read as something else is quoted.
fn table_row(line: &serde_json::Value, columns: &[&str], text: &mut Vec<u8>) {
    for (number, column) in columns.iter().enumerate() {
        if number > 0 {
            text.push(b',');
        }
        let cell = match &line[*column] {
            serde_json::Value::String(cell) => cell.clone(),
            serde_json::Value::Null => String::new(),
            other => other.to_string(),
        };
        if cell.contains(['"', ',', '\r', '\n']) {
            text.extend_from_slice(format!("\"{}\"", cell.replace('"', "\"\"")).as_bytes());
        } else {
            text.extend_from_slice(cell.as_bytes());
        }
    }
}

const EVENT_COLUMNS: &[&str] = &[
    "position",
    "recorded_at",
    "category",
    "stream_id",
    "version",
    "name",
    "schema_version",
    "tenant_id",
    "actor",
    "correlation_id",
    "causation_id",
    "event_id",
    "body",
];

async fn events(shared: &Shared, asked: &Asked, correlation: CorrelationId) -> Result<Response, Problem> {
    let (format, filter) = (asked.format()?, asked.filter()?);
    let after = asked.after.as_deref().map_or(Ok(0), str::parse::<i64>);
    let after = after.map_err(|_| bad("after is a position of the log: a whole number"))?;
    let reader = shared.state.reader.clone();
    let readable = reader.log_end().await.map_err(|error| Problem::unavailable(&error, correlation))?;
    let end = asked.end.map_or(readable, |end| end.min(readable));
    let sending = Sending { reader, format, place: Some(after), rows: 0, first: true };
    let parts = stream::try_unfold(sending, move |mut sending| {
        let filter = filter.clone();
        async move {
            let Some(after) = sending.place else { return Ok(None) };
            let part = sending.reader.log_part(&filter, after, end, PART).await?;
            let line = |event: &LoggedEvent| serde_json::to_value(event).unwrap_or_default();
            let mut text = sending.render(&part.events, line, EVENT_COLUMNS);
            sending.place = Some(part.up_to).filter(|up_to| *up_to < end);
            if sending.place.is_none() {
                sending.end(&mut text, &end.to_string());
            }
            Ok(Some((Bytes::from(text), sending)))
        }
    });
    let mut response = file(format, parts.boxed(), correlation);
    response.headers_mut().insert(HeaderName::from_static("x-log-end"), end.into());
    Ok(response)
}

const POSTING_COLUMNS: &[&str] =
    &["account_id", "version", "created_at", "kind", "business_key", "amount", "charged", "position"];

fn postings(shared: &Shared, asked: &Asked, correlation: CorrelationId) -> Result<Response, Problem> {
    let format = asked.format()?;
    let place = |text: &str| {
        let (account, version) = text.split_once('/')?;
        Some((account.parse::<Uuid>().ok()?, version.parse::<i64>().ok()?))
    };
    let after = match asked.after.as_deref() {
        None => (Uuid::nil(), 0),
        Some(text) => place(text).ok_or_else(|| bad("after is the last posting that you have: ACCOUNT/VERSION"))?,
    };
    let tenant = asked.tenant.map(TenantId);
    let sending = Sending { reader: shared.state.reader.clone(), format, place: Some(after), rows: 0, first: true };
    let parts = stream::try_unfold(sending, move |mut sending| async move {
        let Some(after) = sending.place else { return Ok(None) };
        let rows = sending.reader.ledger_part(Viewer::everything(), tenant, after, PART).await?;
        let mut text = sending.render(&rows, posting, POSTING_COLUMNS);
        let last = rows.last().map_or(after, |row| (row.account_id, row.version));
        sending.place = Some(last).filter(|_| rows.len() == PART as usize);
        if sending.place.is_none() {
            sending.end(&mut text, &format!("{}/{}", last.0, last.1));
        }
        Ok(Some((Bytes::from(text), sending)))
    });
    Ok(file(format, parts.boxed(), correlation))
}

fn posting(row: &LedgerRow) -> serde_json::Value {
    serde_json::json!({
        "account_id": row.account_id,
        "version": row.version,
        "created_at": row.created_at.to_rfc3339_opts(SecondsFormat::Micros, true),
        "kind": row.kind,
        "business_key": row.business_key,
        "amount": row.amount,
        "charged": row.charged,
        "position": row.position,
    })
}

/// A task's events with the proofs that they were sealed, as `aivideo audit check` reads them.
async fn proof(shared: &Shared, asked: &Asked, correlation: CorrelationId) -> Result<Response, Problem> {
    let task = asked.task.map(TaskId).ok_or_else(|| bad("task is needed: whose events are to be proven"))?;
    let mut bundle = Vec::new();
    match export(shared.state.store.pool(), &shared.state.audit_keys, &Subject::Task(task), &mut bundle).await {
        Ok(_) => {}
        Err(error @ ExportError::NoEvents(_)) => {
            return Err(Problem::new(StatusCode::NOT_FOUND, "NOT_FOUND", error.to_string()));
        }
        Err(error @ (ExportError::Unsealed(_) | ExportError::Tampered(_) | ExportError::UnknownKey { .. })) => {
            return Err(Problem::new(StatusCode::CONFLICT, "NO_PROOF", error.to_string()));
        }
        Err(error) => return Err(Problem::unavailable(&error, correlation)),
    }
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((headers, bundle).into_response())
}
