//! Pages: what may be asked for, and cursors.

use super::error::coded;
use super::task::Task;
use async_graphql::{Error, SimpleObject};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::id::TaskId;
use domain::time::Timestamp;
use projections::query::{Cursor, Page, Window};

/// Largest page.
pub(crate) const MAX_PAGE: u32 = 100;
/// Page size where none is asked for.
pub(crate) const DEFAULT_PAGE: u32 = 20;

/// Where a page lies in its list.
#[derive(Clone, Debug, SimpleObject)]
pub(crate) struct PageInfo {
    /// Whether there are older ones after it.
    has_next_page: bool,
    /// Whether there are newer ones before it.
    has_previous_page: bool,
    /// Cursor of its first element.
    start_cursor: Option<String>,
    /// Cursor of its last element.
    end_cursor: Option<String>,
}

/// A task in a list.
#[derive(SimpleObject)]
pub(crate) struct TaskEdge {
    /// Its place: for `after` and `before`.
    cursor: String,
    /// The task; null, with an error, where it could not be shown.
    node: Option<Task>,
}

/// A page of tasks, newest first.
#[derive(SimpleObject)]
pub(crate) struct TaskConnection {
    /// The tasks with their places.
    edges: Vec<TaskEdge>,
    /// Where this page lies.
    page_info: PageInfo,
}

impl From<Page> for TaskConnection {
    fn from(page: Page) -> Self {
        let edges: Vec<TaskEdge> =
            page.rows.into_iter().map(|row| TaskEdge { cursor: encode(row.cursor()), node: Some(Task(row)) }).collect();
        let page_info = PageInfo {
            has_next_page: page.has_next,
            has_previous_page: page.has_previous,
            start_cursor: edges.first().map(|edge| edge.cursor.clone()),
            end_cursor: edges.last().map(|edge| edge.cursor.clone()),
        };
        Self { edges, page_info }
    }
}

fn encode(cursor: Cursor) -> String {
    URL_SAFE_NO_PAD.encode(format!("t1:{}:{}", cursor.created_at.timestamp_micros(), cursor.task))
}

fn decode(text: &str) -> Result<Cursor, Error> {
    let read = || {
        let decoded = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
        let (micros, task) = decoded.strip_prefix("t1:")?.split_once(':')?;
        Some(Cursor {
            created_at: Timestamp::from_timestamp_micros(micros.parse().ok()?)?,
            task: task.parse::<TaskId>().ok()?,
        })
    };
    read().ok_or_else(|| coded("BAD_CURSOR", "not a cursor of this list"))
}

/// A page size: 1 to 100.
pub(crate) fn count(name: &str, asked: i32) -> Result<u32, Error> {
    u32::try_from(asked)
        .ok()
        .filter(|count| (1..=MAX_PAGE).contains(count))
        .ok_or_else(|| coded("BAD_PAGE", format!("{name} is from 1 to {MAX_PAGE}")))
}

/// Which part of the list is asked for.
pub(crate) fn window(
    first: Option<i32>,
    after: Option<&str>,
    last: Option<i32>,
    before: Option<&str>,
) -> Result<Window, Error> {
    match (first, after, last, before) {
        (Some(_), _, Some(_), _) => Err(coded("BAD_PAGE", "first and last can not be combined")),
        (_, Some(_), Some(_), _) | (Some(_), _, _, Some(_)) | (None, Some(_), None, Some(_)) => {
            Err(coded("BAD_PAGE", "after goes with first, before goes with last"))
        }
        (None, None, None, Some(before)) => Ok(Window::Last { count: DEFAULT_PAGE, before: Some(decode(before)?) }),
        (None, None, Some(last), before) => {
            Ok(Window::Last { count: count("last", last)?, before: before.map(decode).transpose()? })
        }
        (first, after, None, None) => Ok(Window::First {
            count: first.map_or(Ok(DEFAULT_PAGE), |first| count("first", first))?,
            after: after.map(decode).transpose()?,
        }),
    }
}
