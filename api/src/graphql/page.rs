//! Pages: what may be asked for, and cursors.

use super::account::AccountEntry;
use super::error::coded;
use super::task::Task;
use async_graphql::{Error, OutputType, SimpleObject};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use projections::query::{Page, Window};

/// Largest page.
pub(crate) const MAX_PAGE: u32 = 100;
/// Page size where none is asked for.
pub(crate) const DEFAULT_PAGE: u32 = 20;

/// Where a page lies in its list.
#[derive(Clone, Debug, SimpleObject)]
pub(crate) struct PageInfo {
    /// Whether there are others after it; with `before`, whether a place was given.
    has_next_page: bool,
    /// Whether there are others before it; with `after`, whether a place was given.
    has_previous_page: bool,
    /// Cursor of its first element.
    start_cursor: Option<String>,
    /// Cursor of its last element.
    end_cursor: Option<String>,
}

/// An element of a list, with its place.
#[derive(SimpleObject)]
#[graphql(concrete(name = "TaskEdge", params(Task)), concrete(name = "AccountEntryEdge", params(AccountEntry)))]
pub(crate) struct Edge<T: OutputType> {
    /// Its place: for `after` and `before`.
    cursor: String,
    /// The element; null, with an error, where it could not be shown.
    node: Option<T>,
}

/// The place of an element in its list, as it is written into cursors.
pub(crate) trait Place: Sized {
    /// The list and the form of its cursors: a cursor of another list is refused.
    const LIST: &'static str;

    fn write(&self) -> String;

    fn read(text: &str) -> Option<Self>;
}

/// The elements of a page as they are answered.
pub(crate) fn edges<R, P: Place, T: OutputType>(
    page: Page<R>,
    place: impl Fn(&R) -> P,
    element: impl Fn(R) -> T,
) -> (Vec<Edge<T>>, PageInfo) {
    let edge = |row| Edge { cursor: encode(&place(&row)), node: Some(element(row)) };
    let edges: Vec<Edge<T>> = page.rows.into_iter().map(edge).collect();
    let page_info = PageInfo {
        has_next_page: page.has_next,
        has_previous_page: page.has_previous,
        start_cursor: edges.first().map(|edge| edge.cursor.clone()),
        end_cursor: edges.last().map(|edge| edge.cursor.clone()),
    };
    (edges, page_info)
}

fn encode<P: Place>(place: &P) -> String {
    URL_SAFE_NO_PAD.encode(format!("{}:{}", P::LIST, place.write()))
}

fn decode<P: Place>(text: &str) -> Result<P, Error> {
    let read = || {
        let decoded = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
        P::read(decoded.strip_prefix(P::LIST)?.strip_prefix(':')?)
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
pub(crate) fn window<P: Place>(
    first: Option<i32>,
    after: Option<&str>,
    last: Option<i32>,
    before: Option<&str>,
) -> Result<Window<P>, Error> {
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
