//! All that the simulator knows: jobs, counters, and whether it is down or paused.

use super::journal::{Accepted, Journal, Line};
use super::script::Script;
use super::{SimulatorConfig, SimulatorError};
use crate::signature::SigningKey;
use chrono::{DateTime, SecondsFormat, Utc};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{mpsc, watch};

/// Where a job is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Starting,
    /// Running, and shown under a status word that nobody knows.
    Weird,
    Processing,
    Succeeded,
    Failed(String),
    Canceled,
}

impl Stage {
    pub(super) const fn word(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Weird => "migrating",
            Self::Processing => "processing",
            Self::Succeeded => "succeeded",
            Self::Failed(_) => "failed",
            Self::Canceled => "canceled",
        }
    }

    pub(super) const fn is_end(&self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed(_) | Self::Canceled)
    }
}

/// A job and what was done with it.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) facts: Accepted,
    pub(super) script: Script,
    pub(super) stage: Stage,
    pub(super) ended_ms: Option<i64>,
    pub(super) cancels: u32,
    pub(super) downloads: u32,
    /// Number of the current output address, from 1.
    pub(super) address: u32,
    /// Whether the current address was refused, so that the next look at the job makes a new one.
    pub(super) address_refused: bool,
}

impl Job {
    fn new(facts: Accepted) -> Self {
        let prompt = facts.input.get("prompt").and_then(Value::as_str).unwrap_or_default();
        let script = Script::of(prompt).unwrap_or_default();
        Self {
            facts,
            script,
            stage: Stage::Starting,
            ended_ms: None,
            cancels: 0,
            downloads: 0,
            address: 1,
            address_refused: false,
        }
    }

    /// Length of the video that was asked for, in whole seconds from 1 to 10.
    pub(super) fn video_seconds(&self) -> u64 {
        self.facts
            .input
            .get("duration")
            .and_then(Value::as_f64)
            .map_or(5, |asked| asked.clamp(1.0, 10.0).round() as u64)
    }
}

#[derive(Default)]
struct Book {
    jobs: Vec<Job>,
    index: HashMap<String, usize>,
    asked: BTreeMap<String, u32>,
}

/// The simulator's state, shared by all handlers. Locks are held for moments, never across an await.
pub(super) struct World {
    pub(super) config: SimulatorConfig,
    pub(super) key: SigningKey,
    pub(super) public_url: String,
    pub(super) http: reqwest::Client,
    pub(super) rendering: tokio::sync::Mutex<()>,
    pub(super) paused: watch::Sender<bool>,
    pub(super) stopping: watch::Receiver<bool>,
    work: mpsc::UnboundedSender<BoxFuture<'static, ()>>,
    book: Mutex<Book>,
    journal: Mutex<Journal>,
    down_until: Mutex<Option<Instant>>,
}

impl World {
    /// Opens the store and reads back what an earlier process accepted.
    pub(super) fn open(
        config: SimulatorConfig,
        public_url: String,
        work: mpsc::UnboundedSender<BoxFuture<'static, ()>>,
        stopping: watch::Receiver<bool>,
    ) -> Result<Self, SimulatorError> {
        let key = SigningKey::parse(&config.webhook_secret).map_err(|bad| SimulatorError::Secret(bad.to_string()))?;
        if config.token.expose().is_empty() {
            return Err(SimulatorError::Token);
        }
        std::fs::create_dir_all(&config.store_dir)?;
        let (journal, lines) = Journal::open(&config.store_dir)?;
        // As the real provider: a redirect is not followed, it counts as not delivered.
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(10))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(|_| SimulatorError::Client)?;
        Ok(Self {
            config,
            key,
            public_url,
            http,
            rendering: tokio::sync::Mutex::default(),
            paused: watch::channel(false).0,
            stopping,
            work,
            book: Mutex::new(Book::read(lines)),
            journal: Mutex::new(journal),
            down_until: Mutex::default(),
        })
    }

    /// Hands work to the supervisor. Once the simulator is stopping there is none, and nothing to do.
    pub(super) fn start(&self, work: impl Future<Output = ()> + Send + 'static) {
        if self.work.send(Box::pin(work)).is_err() {
            tracing::debug!("the simulator is stopping");
        }
    }

    /// Counts a create call of a reference: its number, from 1.
    pub(super) fn count_create(&self, client_ref: &str) -> std::io::Result<u32> {
        lock(&self.journal).append(&Line::Asked { client_ref: client_ref.to_owned() })?;
        let mut book = lock(&self.book);
        let count = book.asked.entry(client_ref.to_owned()).or_default();
        *count += 1;
        Ok(*count)
    }

    /// Accepts a job: from here on it counts, whatever becomes of the reply.
    pub(super) fn accept(&self, facts: Accepted) -> std::io::Result<Job> {
        lock(&self.journal).append(&Line::Accepted(facts.clone()))?;
        let job = Job::new(facts);
        lock(&self.book).add(job.clone());
        Ok(job)
    }

    /// A copy of a job.
    pub(super) fn job(&self, id: &str) -> Option<Job> {
        self.change(id, |job| job.clone())
    }

    /// Changes a job in place.
    pub(super) fn change<T>(&self, id: &str, change: impl FnOnce(&mut Job) -> T) -> Option<T> {
        let mut book = lock(&self.book);
        let at = *book.index.get(id)?;
        book.jobs.get_mut(at).map(change)
    }

    /// Moves a job that has not ended.
    pub(super) fn move_to(&self, id: &str, stage: Stage) {
        self.change(id, |job| {
            if !job.stage.is_end() {
                job.stage = stage;
            }
        });
    }

    /// Ends a job; `false` if it had already ended.
    pub(super) fn end(&self, id: &str, stage: Stage) -> bool {
        let at_ms = now_ms();
        let ended = self.change(id, |job| {
            let first = !job.stage.is_end();
            if first {
                (job.stage, job.ended_ms) = (stage.clone(), Some(at_ms));
            }
            first
        });
        if ended != Some(true) {
            return false;
        }
        let error = if let Stage::Failed(error) = &stage { Some(error.clone()) } else { None };
        let line = Line::Ended { id: id.to_owned(), status: stage.word().to_owned(), error, at_ms };
        if let Err(error) = lock(&self.journal).append(&line) {
            tracing::error!(kind = ?error.kind(), "the simulator's journal can not be written");
        }
        true
    }

    /// Copies of jobs, newest first: at most `limit` before `cursor`, and the cursor of the next page.
    pub(super) fn page(&self, cursor: Option<usize>, limit: usize) -> (Vec<Job>, Option<usize>) {
        let book = lock(&self.book);
        let end = cursor.unwrap_or(book.jobs.len()).min(book.jobs.len());
        let start = end.saturating_sub(limit);
        let jobs = book.jobs[start..end].iter().rev().cloned().collect();
        (jobs, (start > 0).then_some(start))
    }

    /// The counters that tests look at.
    pub(super) fn counters(&self) -> Value {
        let book = lock(&self.book);
        let mut by_ref = BTreeMap::<&str, u32>::new();
        for job in &book.jobs {
            *by_ref.entry(&job.facts.client_ref).or_default() += 1;
        }
        let most = by_ref.values().max().copied().unwrap_or(0);
        json!({ "accepted": book.jobs.len(), "by_ref": by_ref, "creates": book.asked, "max_per_ref": most })
    }

    pub(super) fn is_down(&self) -> bool {
        lock(&self.down_until).is_some_and(|until| Instant::now() < until)
    }

    pub(super) fn go_down(&self, time: Duration) {
        *lock(&self.down_until) = Instant::now().checked_add(time);
    }

    /// Waits for `time`, during which a pause does not count.
    pub(super) async fn wait(&self, time: Duration) {
        let mut paused = self.paused.subscribe();
        let mut left = time;
        loop {
            // The sender lives as long as `self`, so neither wait can fail.
            if paused.wait_for(|paused| !paused).await.is_err() {
                return;
            }
            let since = tokio::time::Instant::now();
            tokio::select! {
                () = tokio::time::sleep(left) => return,
                _ = paused.changed() => left = left.saturating_sub(since.elapsed()),
            }
        }
    }

    /// Waits for `time` or until the simulator stops.
    pub(super) async fn wait_or_stop(&self, time: Duration) {
        let mut stopping = self.stopping.clone();
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            _ = stopping.wait_for(|stopping| *stopping) => {}
        }
    }

    /// The job as the provider's JSON. Looking at a job whose output address was refused makes a fresh one.
    pub(super) fn shown(&self, id: &str) -> Option<Value> {
        let job = self.change(id, |job| {
            if std::mem::take(&mut job.address_refused) {
                job.address += 1;
            }
            job.clone()
        })?;
        Some(self.render(&job))
    }

    /// A job as the provider's JSON.
    pub(super) fn render(&self, job: &Job) -> Value {
        let facts = &job.facts;
        let (id, base) = (&facts.id, &self.public_url);
        let error = if let Stage::Failed(error) = &job.stage { json!(error) } else { Value::Null };
        let output =
            if job.stage == Stage::Succeeded { json!([self.output_url(id, job.address)]) } else { Value::Null };
        let seconds = |ended: i64| ended.saturating_sub(facts.created_ms) as f64 / 1_000.0;
        let metrics = job
            .ended_ms
            .map_or(json!({}), |ended| json!({ "predict_time": seconds(ended), "total_time": seconds(ended) }));
        json!({
            "id": id,
            "model": facts.model,
            "version": "simulated",
            "status": job.stage.word(),
            "input": facts.input,
            "output": output,
            "error": error,
            "logs": "",
            "data_removed": false,
            "source": "api",
            "metrics": metrics,
            "webhook": facts.webhook,
            "webhook_events_filter": facts.events,
            "created_at": rfc3339(facts.created_ms),
            "started_at": (job.stage != Stage::Starting).then(|| rfc3339(facts.created_ms)),
            "completed_at": job.ended_ms.map(rfc3339),
            "urls": {
                "get": format!("{base}/v1/predictions/{id}"),
                "cancel": format!("{base}/v1/predictions/{id}/cancel"),
            },
        })
    }

    fn output_url(&self, id: &str, number: u32) -> String {
        format!("{}/files/{id}.mp4?n={number}&key={}", self.public_url, self.output_key(id, number))
    }

    /// What makes an output address work: nobody can make one up.
    pub(super) fn output_key(&self, id: &str, number: u32) -> String {
        hex::encode(self.key.sign(id, &number.to_string(), b"output"))
    }
}

impl Book {
    fn read(lines: Vec<Line>) -> Self {
        let mut book = Self::default();
        for line in lines {
            match line {
                Line::Asked { client_ref } => *book.asked.entry(client_ref).or_default() += 1,
                Line::Accepted(facts) => book.add(Job::new(facts)),
                Line::Ended { id, status, error, at_ms } => {
                    if let Some(job) = book.index.get(&id).and_then(|at| book.jobs.get_mut(*at)) {
                        job.ended_ms = Some(at_ms);
                        job.stage = match status.as_str() {
                            "succeeded" => Stage::Succeeded,
                            "canceled" => Stage::Canceled,
                            _ => Stage::Failed(error.unwrap_or_default()),
                        };
                    }
                }
            }
        }
        book
    }

    fn add(&mut self, job: Job) {
        self.index.insert(job.facts.id.clone(), self.jobs.len());
        self.jobs.push(job);
    }
}

/// Unix time in milliseconds.
pub(super) fn now_ms() -> i64 {
    DateTime::<Utc>::from(SystemTime::now()).timestamp_millis()
}

pub(super) fn rfc3339(unix_ms: i64) -> String {
    DateTime::from_timestamp_millis(unix_ms).unwrap_or_default().to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// A panic elsewhere leaves whole values behind: each change is one assignment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
