//! Looking a job up by our reference, when the create reply was lost.
//!
//! The API has no search by reference, so the list is read, newest first, until it reaches past the window. Only a look-up
//! that read everything in the window may say [`Found::Absent`]: the caller submits again on that word.

use super::Replicate;
use super::wire::Page;
use crate::shared::{MAX_PAGE_BYTES, Reply};
use chrono::{DateTime, Utc};
use domain::id::AttemptId;
use reqwest::Method;
use std::collections::BTreeSet;
use std::time::Duration;
use url::Url;
use workers::ports::Found;

pub(super) async fn find(adapter: &Replicate, attempt: AttemptId) -> Found {
    let mut url = adapter.service.at(&["predictions"]);
    let mut seen = Seen::default();
    for _ in 0..adapter.config.find_max_pages {
        let (page, oldest_wanted) = match page(adapter, url).await {
            Ok(read) => read,
            Err(cause) => return Found::Inconclusive { cause },
        };
        seen.take(&page, attempt);
        if page.results.last().and_then(|job| job.created_at()).is_some_and(|created| created < oldest_wanted) {
            return seen.verdict();
        }
        match page.next {
            None => return seen.verdict(),
            Some(next) => match adapter.page(&next) {
                Some(next) => url = next,
                None => {
                    return Found::Inconclusive { cause: "the list leads to another address".to_owned() };
                }
            },
        }
    }
    seen.verdict_of_a_part()
}

/// Reads one page; with it comes the instant before which jobs no longer matter, by the provider's clock.
async fn page(adapter: &Replicate, url: Url) -> Result<(Page, DateTime<Utc>), String> {
    let request = adapter.service.request(Method::GET, url);
    let reply = adapter.service.ask(request, MAX_PAGE_BYTES).await.map_err(|no| no.cause())?;
    if !reply.status.is_success() {
        return Err(format!("http {}", reply.status.as_u16()));
    }
    let page = reply.json().ok_or("the list is not readable")?;
    Ok((page, oldest_wanted(&reply, adapter.config.find_window_s)))
}

fn oldest_wanted(reply: &Reply, window_s: u64) -> DateTime<Utc> {
    let start = reply.now().checked_sub(Duration::from_secs(window_s));
    start.map_or(DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::from)
}

/// What the pages held so far. Jobs are a set: one may show on two pages while new ones come in.
#[derive(Default)]
struct Seen {
    jobs: BTreeSet<String>,
    illegible: bool,
}

impl Seen {
    fn take(&mut self, page: &Page, attempt: AttemptId) {
        for job in &page.results {
            if job.reference() == Some(attempt) {
                self.jobs.insert(job.id.clone());
            }
            self.illegible |= job.may_have_lost_its_reference();
        }
    }

    /// The whole window was read.
    fn verdict(self) -> Found {
        if self.jobs.is_empty() && self.illegible {
            return Found::Inconclusive { cause: "some jobs no longer show whose they are".to_owned() };
        }
        self.matches().unwrap_or(Found::Absent)
    }

    /// The page limit came first: what was found counts, what was not found says nothing.
    fn verdict_of_a_part(self) -> Found {
        self.matches().unwrap_or(Found::Inconclusive { cause: "the list is longer than the page limit".to_owned() })
    }

    fn matches(self) -> Option<Found> {
        let mut jobs: Vec<String> = self.jobs.into_iter().collect();
        match jobs.len() {
            0 => None,
            1 => jobs.pop().map(|job| Found::Job { job }),
            _ => Some(Found::Ambiguous { jobs }),
        }
    }
}
