//! Looking a task up when the create reply was lost: by its seed, in the list of all tasks, those that wait or run among them.
//!
//! Without a seed a task that looks like ours may be another one's, so it is never taken: it is for a person to look at.

use super::wire::{Page, Task};
use super::{Ark, seed};
use crate::shared::MAX_PAGE_BYTES;
use chrono::TimeDelta;
use reqwest::Method;
use serde_json::Value;
use std::collections::BTreeSet;
use workers::ports::{FindOrder, Found};

pub(super) async fn find(adapter: &Ark, order: &FindOrder) -> Found {
    let inconclusive = |cause: &str| Found::Inconclusive { cause: cause.to_owned() };
    let mut seen = Seen::new(order, adapter.config.clock_slack_s);
    let mut total = None;
    for number in 1..=adapter.config.find_max_pages {
        let (page, server_now) = match page(adapter, number).await {
            Ok(read) => read,
            Err(cause) => return Found::Inconclusive { cause },
        };
        let retention = i64::try_from(adapter.config.list_retention_s).unwrap_or(i64::MAX);
        seen.is_out_of_reach = order.not_before.timestamp() < server_now.saturating_sub(retention);
        let is_last = page.items.is_empty();
        seen.take(page.items);
        // What was found is found; only who found nothing has to have seen all.
        if let Some(found) = seen.mine() {
            return found;
        }
        // While it is read, new tasks push others onto the next page, and removed ones pull others back, past us.
        if *total.get_or_insert(page.total) != page.total {
            return inconclusive("the list has changed while it was read");
        }
        if u64::try_from(seen.all.len()).unwrap_or(u64::MAX) >= page.total {
            return seen.verdict();
        }
        if is_last {
            return inconclusive("the list has changed while it was read");
        }
    }
    inconclusive("the list is longer than the page limit")
}

/// Reads one page; with it comes the time by the provider's clock, in Unix seconds.
async fn page(adapter: &Ark, number: u32) -> Result<(Page, i64), String> {
    let mut url = adapter.tasks(None);
    url.query_pairs_mut()
        .append_pair("page_num", &number.to_string())
        .append_pair("page_size", &adapter.config.find_page_size.to_string());
    let request = adapter.service.request(Method::GET, url);
    let reply = adapter.service.ask(request, MAX_PAGE_BYTES).await.map_err(|no| no.cause())?;
    if !reply.status.is_success() {
        return Err(format!("http {}", reply.status.as_u16()));
    }
    let now = chrono::DateTime::<chrono::Utc>::from(reply.now()).timestamp();
    Ok((reply.json().ok_or("the list is not readable")?, now))
}

/// What the pages held so far.
struct Seen<'a> {
    order: &'a FindOrder,
    earliest: i64,
    all: BTreeSet<String>,
    /// Tasks with our seed.
    mine: BTreeSet<String>,
    /// Tasks that are like ours, where none has a seed of ours.
    alike: BTreeSet<String>,
    /// Whether a task may be ours and shows nothing that says so or otherwise.
    has_illegible: bool,
    is_out_of_reach: bool,
}

impl<'a> Seen<'a> {
    fn new(order: &'a FindOrder, slack_s: u64) -> Self {
        let slack = TimeDelta::seconds(i64::try_from(slack_s).unwrap_or(0));
        Self {
            order,
            earliest: (order.not_before - slack).timestamp(),
            all: BTreeSet::new(),
            mine: BTreeSet::new(),
            alike: BTreeSet::new(),
            has_illegible: false,
            is_out_of_reach: false,
        }
    }

    fn take(&mut self, items: Vec<Value>) {
        let ours = i64::from(seed(self.order.attempt));
        for item in items {
            let Some(task) = Task::of_page(item) else {
                self.has_illegible = true;
                continue;
            };
            if task.created_at().is_none_or(|created| created >= self.earliest) {
                match (self.order.accepts_seed, task.seed()) {
                    (true, Some(seed)) if seed == ours => drop(self.mine.insert(task.id.clone())),
                    // Its own seed says that it is another one's, whatever else it looks like.
                    (true, Some(_)) => {}
                    // Names and lengths may be written otherwise than we wrote them: what looks different may be ours all the same.
                    (true, None) => self.has_illegible = true,
                    (false, _) if task.is_like(&self.order.model, self.order.duration_seconds) => {
                        self.alike.insert(task.id.clone());
                    }
                    (false, _) => self.has_illegible = true,
                }
            }
            self.all.insert(task.id);
        }
    }

    /// Everything was read, and nothing has our seed.
    fn verdict(self) -> Found {
        let cause = match (self.is_out_of_reach, self.has_illegible) {
            _ if !self.alike.is_empty() => return Found::Ambiguous { jobs: self.alike.into_iter().collect() },
            (true, _) => "the list does not reach back to the task",
            (_, true) => "some tasks do not show whose they are",
            (false, false) => return Found::Absent,
        };
        Found::Inconclusive { cause: cause.to_owned() }
    }

    /// What has our seed, whether or not everything was read.
    fn mine(&self) -> Option<Found> {
        let mut jobs = self.mine.iter();
        match (jobs.next(), jobs.next()) {
            (None, _) => None,
            (Some(job), None) => Some(Found::Job { job: job.clone() }),
            _ => Some(Found::Ambiguous { jobs: self.mine.iter().cloned().collect() }),
        }
    }
}
