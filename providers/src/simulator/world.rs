//! All that the simulator knows: jobs, counters, and whether it is down or paused.

use super::dialect::Dialect;
use super::journal::{Accepted, Journal, Line};
use super::script::{Failure, Script};
use super::{SimulatorConfig, SimulatorError};
use chrono::{DateTime, SecondsFormat, Utc};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{mpsc, watch};

/// A status word that no provider has.
pub(super) const WEIRD: &str = "migrating";

/// Where a job is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Starting,
    /// Running, and shown under a status word that nobody knows.
    Weird,
    Processing,
    Succeeded,
    Failed(Failure),
    Canceled,
}

impl Stage {
    pub(super) const fn word(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Weird => WEIRD,
            Self::Processing => "processing",
            Self::Succeeded => "succeeded",
            Self::Failed(_) => "failed",
            Self::Canceled => "canceled",
        }
    }

    /// How it failed, where it did.
    pub(super) const fn failure(&self) -> Option<Failure> {
        if let Self::Failed(failure) = self { Some(*failure) } else { None }
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
    /// Whether its record was removed: it can not be asked about any more, and was paid for all the same.
    pub(super) removed: bool,
    pub(super) downloads: u32,
    /// Number of the current output address, from 1.
    pub(super) address: u32,
    /// Whether the current address was refused, so that the next look at the job makes a new one.
    pub(super) address_refused: bool,
}

impl Job {
    fn new(facts: Accepted) -> Self {
        let script = Script::of(&facts.prompt).unwrap_or_default();
        Self {
            facts,
            script,
            stage: Stage::Starting,
            ended_ms: None,
            cancels: 0,
            removed: false,
            downloads: 0,
            address: 1,
            address_refused: false,
        }
    }

    /// Length of the video, as far as one is made: from 1 to 10 seconds.
    pub(super) fn video_seconds(&self) -> u64 {
        self.facts.seconds.clamp(1, 10)
    }

    /// How long it took, in seconds, once it has ended.
    pub(super) fn took(&self) -> Option<f64> {
        self.ended_ms.map(|ended| ended.saturating_sub(self.facts.created_ms) as f64 / 1_000.0)
    }

    /// Whether a list or a look-up shows it already.
    pub(super) fn is_visible(&self) -> bool {
        let delay = i64::try_from(self.script.list_delay_ms).unwrap_or(i64::MAX);
        now_ms().saturating_sub(self.facts.created_ms) >= delay
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
    pub(super) dialect: Box<dyn Dialect>,
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
        let dialect = config.kind.dialect(&config)?;
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
            dialect,
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
        let error = stage.failure().map(|failure| failure.word().to_owned());
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
        let mut billed = BTreeMap::<&str, u64>::new();
        for job in &book.jobs {
            *by_ref.entry(&job.facts.client_ref).or_default() += 1;
            if job.stage == Stage::Succeeded {
                *billed.entry(&job.facts.client_ref).or_default() += job.video_seconds();
            }
        }
        let most = by_ref.values().max().copied().unwrap_or(0);
        json!({
            "accepted": book.jobs.len(),
            "by_ref": by_ref,
            "creates": book.asked,
            "max_per_ref": most,
            "most_at_once": book.most_at_once(),
            "billed_seconds": billed,
        })
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

    /// A look at a job by its id: one whose output address was refused has a fresh one from then on.
    pub(super) fn look(&self, id: &str) -> Option<Job> {
        self.change(id, |job| {
            if std::mem::take(&mut job.address_refused) {
                job.address += 1;
            }
            job.clone()
        })
    }

    /// The current address of a job's output, once it has one.
    pub(super) fn output(&self, job: &Job) -> Option<String> {
        (job.stage == Stage::Succeeded).then(|| self.output_url(&job.facts.id, job.address))
    }

    fn output_url(&self, id: &str, number: u32) -> String {
        format!("{}/files/{id}.mp4?n={number}&key={}", self.public_url, self.output_key(id, number))
    }

    /// What makes an output address work: nobody can make one up.
    pub(super) fn output_key(&self, id: &str, number: u32) -> String {
        let text = format!("{id}\n{number}\n{}", self.config.token.expose());
        hex::encode(Sha256::digest(text))
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
                            _ => Stage::Failed(error.as_deref().and_then(Failure::of).unwrap_or(Failure::Internal)),
                        };
                    }
                }
            }
        }
        book
    }

    /// The most jobs that ever ran at the same time.
    fn most_at_once(&self) -> i64 {
        let spans = self.jobs.iter().map(|job| (job.facts.created_ms, job.ended_ms.unwrap_or(i64::MAX)));
        let mut steps: Vec<(i64, i64)> = spans.flat_map(|(begun, ended)| [(begun, 1), (ended, -1)]).collect();
        // At the same moment, ends come first.
        steps.sort_unstable();
        let mut running = 0;
        steps.into_iter().fold(0, |most, (_, step)| {
            running += step;
            most.max(running)
        })
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
