//! Looking a task up when the create reply was lost: by its seed, in the list of all tasks, those that wait or run among them.
//!
//! Without a seed a task that looks like ours may be another one's, so it is never taken: it is for a person to look at.

use super::wire::{Page, Task};
use super::{Ark, seed};
use crate::shared::MAX_PAGE_BYTES;
use chrono::TimeDelta;
use reqwest::Method;
use std::collections::{BTreeMap, BTreeSet};
use workers::ports::{FindOrder, Found};

pub(super) async fn find(adapter: &Ark, order: &FindOrder) -> Found {
    let inconclusive = |cause: &str| Found::Inconclusive { cause: cause.to_owned() };
    let mut seen = Seen::new(order, adapter.config.clock_slack_s);
    for number in 1..=adapter.config.find_max_pages {
        let (page, server_now) = match page(adapter, number).await {
            Ok(read) => read,
            Err(cause) => return Found::Inconclusive { cause },
        };
        let retention = i64::try_from(adapter.config.list_retention_s).unwrap_or(i64::MAX);
        seen.is_out_of_reach = order.not_before.timestamp() < server_now.saturating_sub(retention);
        let is_last = page.items.is_empty();
        let total = page.total;
        seen.take(page.items);
        // While it is read, new tasks push others onto the next page, and removed ones pull others back: only who has seen as
        // many as there are has seen all.
        if u64::try_from(seen.all.len()).unwrap_or(u64::MAX) >= total {
            return seen.verdict();
        }
        if is_last {
            return seen.matches().unwrap_or_else(|| inconclusive("the list has changed while it was read"));
        }
    }
    seen.matches().unwrap_or_else(|| inconclusive("the list is longer than the page limit"))
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
    /// Tasks that look like ours, and whether by their seed.
    alike: BTreeMap<String, bool>,
    /// Whether a task that could be ours does not show its seed.
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
            alike: BTreeMap::new(),
            has_illegible: false,
            is_out_of_reach: false,
        }
    }

    fn take(&mut self, tasks: Vec<Task>) {
        let seed = i64::from(seed(self.order.attempt));
        for task in tasks {
            let is_young = task.created_at.is_none_or(|created| created >= self.earliest);
            let is_as_long = task.duration.is_none_or(|it| it == i64::from(self.order.duration_seconds));
            let is_its_model = task.model.as_ref().is_none_or(|it| *it == self.order.model);
            if is_young && self.order.accepts_seed && task.seed == Some(seed) {
                self.alike.insert(task.id.clone(), true);
            } else if is_young && is_as_long && is_its_model {
                if !self.order.accepts_seed {
                    self.alike.insert(task.id.clone(), false);
                }
                self.has_illegible |= task.seed.is_none();
            }
            self.all.insert(task.id);
        }
    }

    /// Everything was read.
    fn verdict(self) -> Found {
        let cause = if self.is_out_of_reach {
            "the list does not reach back to the task"
        } else if self.order.accepts_seed && self.has_illegible {
            "some tasks do not show their seed"
        } else {
            return self.matches().unwrap_or(Found::Absent);
        };
        self.matches().unwrap_or(Found::Inconclusive { cause: cause.to_owned() })
    }

    /// What was found, whether or not everything was read.
    fn matches(&self) -> Option<Found> {
        let mut jobs = self.alike.iter();
        match (jobs.next(), jobs.next()) {
            (None, _) => None,
            (Some((job, true)), None) => Some(Found::Job { job: job.clone() }),
            _ => Some(Found::Ambiguous { jobs: self.alike.keys().cloned().collect() }),
        }
    }
}
