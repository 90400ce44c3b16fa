//! One cell of the matrix: a task at a provider with one fault, during which a process dies once; and what is asked of it.

use crate::faults::{Crashed, Fault};
use crate::stage::{HOLD, Place, Stage};
use crate::steps::Point;
use anyhow::{Context, ensure};
use domain::attempt::Attempt;
use domain::id::{AccountId, AttemptId, CausationId, CorrelationId, TaskId, TenantId};
use domain::ledger::Hold;
use domain::money::Credits;
use domain::process::{Case, CaseKey, Turn, cancel, grant, resolve_failed, submit};
use domain::task::{Order, State, Work};
use domain::time::Timestamp;
use eventstore::{ExecuteError, Meta, Request, Submission};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use uuid::Uuid;

/// The longest that a cell may take.
const PATIENCE: Duration = Duration::from_secs(120);
const GRANTED: i64 = 100;

/// See the module.
pub struct Cell {
    pub fault: Fault,
    task: TaskId,
    tenant: TenantId,
    /// Where the process dies.
    point: Option<Point>,
    state: Mutex<Inner>,
    /// Something was handled for it.
    pub heard: Notify,
}

#[derive(Default)]
struct Inner {
    fired: bool,
    reached: BTreeSet<Point>,
    notes: Vec<String>,
}

/// What a cell came to.
pub struct Ended {
    pub state: State,
    /// Whether the process died as it should.
    pub fired: bool,
    /// Every step that the task went through.
    pub reached: BTreeSet<Point>,
}

impl Cell {
    pub fn new(fault: Fault, point: Option<Point>) -> Arc<Self> {
        Arc::new(Self {
            fault,
            task: TaskId(Uuid::new_v4()),
            tenant: TenantId(Uuid::new_v4()),
            point,
            state: Mutex::default(),
            heard: Notify::new(),
        })
    }

    fn attempt(&self) -> AttemptId {
        AttemptId::of(self.task, 1)
    }

    /// A handler is at this step; whether its process dies here, which it does once.
    pub fn reaches(&self, point: Point) -> bool {
        let mut inner = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        inner.reached.insert(point);
        let fires = !inner.fired && self.point == Some(point);
        inner.fired |= fires;
        fires
    }

    /// For whoever reads a failure.
    pub fn note(&self, note: String) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).notes.push(note);
    }

    fn crashed(&self, fired: bool) -> Crashed {
        match self.point {
            Some(point) if fired && point.may_lose_the_answer() => Crashed::AtSubmit,
            Some(_) if fired => Crashed::Elsewhere,
            _ => Crashed::Nowhere,
        }
    }

    fn request(&self) -> Request {
        let correlation = CorrelationId(self.task.0);
        Request {
            meta: Meta {
                tenant: self.tenant,
                correlation,
                causation: CausationId(correlation.0),
                actor: "user:matrix".to_owned(),
                trace: correlation.0.simple().to_string(),
            },
            key: None,
            tenant_wall: false,
        }
    }

    fn key(&self) -> CaseKey {
        CaseKey { with_account: true, account: Some(AccountId::of(self.tenant)), ..CaseKey::task(self.task) }
    }

    async fn ask<F>(&self, stage: &Stage, key: CaseKey, what: Option<&Submission>, act: F) -> Result<(), ExecuteError>
    where
        F: Fn(&mut Turn<'_>) -> Result<(), domain::aggregate::Refusal> + Send + Sync,
    {
        stage.store().execute(&self.request(), key, what, act).await.map(drop)
    }

    /// Lives the task from its submission to its end, and judges it.
    ///
    /// # Errors
    /// What does not hold.
    pub async fn live(self: &Arc<Self>, stage: &Stage, place: &Place) -> anyhow::Result<Ended> {
        stage.cells.add(Arc::clone(self));
        let told = |notes: &[String]| if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
        let lived = tokio::time::timeout(PATIENCE, self.to_its_end(stage, place)).await;
        let (fired, reached, notes) = {
            let inner = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            (inner.fired, inner.reached.clone(), told(&inner.notes))
        };
        let state = match lived {
            Ok(state) => state?,
            Err(_) => {
                let state = self.case(stage).await?.task.state.state().name();
                anyhow::bail!("task {} hangs in {state}{notes}", self.task);
            }
        };
        let ends = self.fault.ends(&place.can, self.crashed(fired));
        ensure!(ends.contains(&state), "task {} ended as {}, not as one of {ends:?}{notes}", self.task, state.name());
        Ok(Ended { state, fired, reached })
    }

    async fn to_its_end(&self, stage: &Stage, place: &Place) -> anyhow::Result<State> {
        let account = CaseKey::account(AccountId::of(self.tenant));
        self.ask(stage, account, None, |turn| grant(turn, "welcome".to_owned(), Credits(GRANTED))).await?;
        let now = Timestamp::from(SystemTime::now());
        let order = self.order(place, now);
        // Runway's simulator knows a job's reference by the prompt alone.
        let prompt = format!("[sim: {}] a boat [ref {}]", self.fault.words, self.attempt());
        let submission = Submission { task: self.task, prompt };
        self.ask(stage, self.key(), Some(&submission), |turn| submit(turn, order.clone())).await?;
        let mut cancels_at = self.fault.cancel;
        let state = loop {
            let case = self.case(stage).await?;
            let state = case.task.state.state();
            if cancels_at == Some(state) {
                match self.ask(stage, self.key(), None, |turn| cancel(turn, "user:matrix".to_owned())).await {
                    Ok(()) => cancels_at = None,
                    // It went on meanwhile; where it got past the point, it can not be cancelled any more.
                    Err(ExecuteError::Refused(_)) => {}
                    Err(other) => return Err(other.into()),
                }
                continue;
            }
            if state == State::ManualReview || (state.is_terminal() && !is_open(&case, self.task)) {
                break state;
            }
            // Looked at again now and then: what ends it may have been heard between the look and the wait.
            drop(tokio::time::timeout(Duration::from_secs(2), self.heard.notified()).await);
        };
        self.judge(stage, place, state).await?;
        Ok(state)
    }

    fn order(&self, place: &Place, now: Timestamp) -> Order {
        Order {
            task: self.task,
            tenant: self.tenant,
            account: AccountId::of(self.tenant),
            provider: place.name.to_owned(),
            model: place.model(),
            duration_seconds: 1,
            input_assets: vec![],
            request_ref: format!("generation_request/{}", self.task),
            hold: Credits(HOLD),
            price_per_second: Credits(25),
            submitted_at: now,
            give_up_at: now + stage_patience(),
            retry_of: None,
            work: Work::Generate,
            seeded: true,
            alternatives: vec![],
        }
    }

    async fn case(&self, stage: &Stage) -> anyhow::Result<Case> {
        Ok(stage.store().load_case(self.key()).await?)
    }

    /// At most one job for the attempt, none of them lost from sight, and every credit where it belongs.
    async fn judge(&self, stage: &Stage, place: &Place, state: State) -> anyhow::Result<()> {
        let jobs = place.jobs_of(self.attempt()).await?;
        ensure!(jobs.len() <= 1, "the provider accepted {} jobs for attempt {}: {jobs:?}", jobs.len(), self.attempt());
        let case = self.case(stage).await?;
        let known = known_jobs(&case.attempt.state);
        match jobs.first() {
            Some(job) => {
                // A job whose id nobody can find out is why a person is asked.
                let seen = known.iter().any(|it| it.ends_with(job.as_str()));
                ensure!(
                    seen || state == State::ManualReview,
                    "job {job} is lost from sight: {known:?} in {}",
                    state.name()
                );
            }
            None => ensure!(known.is_empty() && state != State::Succeeded, "{} without a job: {known:?}", state.name()),
        }
        self.credits(stage, state).await?;
        if state == State::ManualReview {
            let asked = stage.question(self.task).await?.context("nobody was asked anything")?;
            ensure!(
                asked.contains(place.name) || asked.contains("cancel of job"),
                "a person is told too little: {asked}"
            );
            self.ask(stage, self.key(), None, |turn| resolve_failed(turn, "op:matrix")).await?;
            loop {
                let case = self.case(stage).await?;
                if !is_open(&case, self.task) {
                    break;
                }
                drop(tokio::time::timeout(Duration::from_secs(1), self.heard.notified()).await);
            }
            self.credits(stage, State::Failed).await?;
        }
        Ok(())
    }

    async fn credits(&self, stage: &Stage, state: State) -> anyhow::Result<()> {
        let case = self.case(stage).await?;
        let (available, charged) = (case.account.state.available, case.account.state.charged);
        let open = is_open(&case, self.task);
        let expected = match state {
            State::ManualReview => (Credits(GRANTED - HOLD), Credits(0), true),
            State::Succeeded => (Credits(GRANTED - 25), Credits(25), false),
            _ => (Credits(GRANTED), Credits(0), false),
        };
        ensure!(
            (available, charged, open) == expected,
            "in {}: {available:?} available, {charged:?} charged, the hold is {}",
            state.name(),
            if open { "open" } else { "closed" }
        );
        Ok(())
    }
}

fn stage_patience() -> chrono::TimeDelta {
    chrono::TimeDelta::seconds(90)
}

fn is_open(case: &Case, task: TaskId) -> bool {
    matches!(case.account.state.hold(task), Some(Hold::Open(_)))
}

fn known_jobs(attempt: &Attempt) -> Vec<String> {
    attempt.core().map(|core| core.job.iter().chain(&core.orphans).cloned().collect()).unwrap_or_default()
}

/// All cells, by what their messages and callbacks name.
#[derive(Default)]
pub struct Cells {
    by_task: Mutex<HashMap<TaskId, Arc<Cell>>>,
    by_attempt: Mutex<HashMap<AttemptId, Arc<Cell>>>,
}

impl Cells {
    fn add(&self, cell: Arc<Cell>) {
        self.by_attempt.lock().unwrap_or_else(PoisonError::into_inner).insert(cell.attempt(), Arc::clone(&cell));
        self.by_task.lock().unwrap_or_else(PoisonError::into_inner).insert(cell.task, cell);
    }

    pub fn of_task(&self, task: TaskId) -> Option<Arc<Cell>> {
        self.by_task.lock().unwrap_or_else(PoisonError::into_inner).get(&task).cloned()
    }

    pub fn of_attempt(&self, attempt: AttemptId) -> Option<Arc<Cell>> {
        self.by_attempt.lock().unwrap_or_else(PoisonError::into_inner).get(&attempt).cloned()
    }
}
