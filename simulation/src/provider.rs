//! The providers, of four kinds: one that refuses a client-chosen id twice, one whose list is looked through, one that only calls
//! back, and one that offers nothing. Each counts the jobs it accepted for a reference: the oracle for "no double submit".

use crate::clock::{HOUR, MILLI, MINUTE, Micros, SECOND};
use crate::dice::{Fault, Site, Subject};
use crate::store::Map;
use crate::world::{Step, World};
use domain::id::AttemptId;
use domain::outcome::{
    Answer, Call, CancelAsked, Created, FaultClass, Fetched, Found, JobState, Polled, Probe, Processed, ProviderFault,
    Rendered, StoredObject,
};
use std::time::Duration;

/// What a provider offers to recover a lost create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The caller chooses the job's id; a second create with it is refused.
    ClientId,
    /// Jobs can be listed, and carry the caller's reference.
    List,
    /// The callback's address carries the reference; nothing can be asked.
    Webhook,
    /// Nothing.
    Nothing,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::ClientId, Self::List, Self::Webhook, Self::Nothing];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::ClientId => "client-id",
            Self::List => "list",
            Self::Webhook => "webhook",
            Self::Nothing => "nothing",
        }
    }

    pub(crate) fn of(name: &str) -> Self {
        Self::ALL.into_iter().find(|it| it.name() == name).unwrap_or(Self::Nothing)
    }

    const fn calls_back(self) -> bool {
        !matches!(self, Self::Nothing)
    }
}

/// How a job ends if nobody cancels it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Succeeds,
    Fails(FaultClass),
    Canceled,
    Never,
}

/// A job at a provider.
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) attempt: AttemptId,
    subject: Subject,
    kind: Kind,
    fate: Fate,
    begins_at: Micros,
    ends_at: Micros,
    /// From then on a look-up finds it.
    listed_at: Micros,
    canceled_at: Option<Micros>,
    forgotten: bool,
    /// Later in the list than the provider promises: a second submission is then its fault, not ours.
    excused: bool,
}

/// A create call that has left for an attempt.
struct Asked {
    round: u32,
    /// The provider said that nothing was created.
    denied: bool,
    absences: u32,
    last_absence: Micros,
}

/// All providers.
#[derive(Default)]
pub(crate) struct Providers {
    pub(crate) jobs: Vec<Job>,
    by_id: Map<String, usize>,
    by_attempt: Map<AttemptId, Vec<usize>>,
    asked: Map<AttemptId, Vec<Asked>>,
}

impl Providers {
    /// The jobs that were accepted for an attempt.
    pub(crate) fn jobs_of(&self, attempt: AttemptId) -> impl Iterator<Item = &Job> {
        self.by_attempt.get(&attempt).into_iter().flatten().filter_map(|job| self.jobs.get(*job))
    }
}

impl Providers {
    /// Whether there is a job for an attempt that its provider shows as promised.
    pub(crate) fn has_job_in_time(&self, attempt: AttemptId) -> bool {
        self.jobs_of(attempt).any(|it| !it.excused)
    }
}

impl Job {
    fn state(&self, now: Micros) -> JobState {
        if self.forgotten {
            return JobState::NotFound;
        }
        if self.canceled_at.is_some_and(|at| at <= now) {
            return JobState::Canceled;
        }
        if now < self.begins_at {
            return JobState::Queued;
        }
        if now < self.ends_at || self.fate == Fate::Never {
            let span = self.ends_at.saturating_sub(self.begins_at).max(1);
            let percent = u8::try_from(((now - self.begins_at) * 100 / span).min(99)).ok();
            return JobState::Running { percent: percent.filter(|_| self.kind != Kind::Webhook) };
        }
        match self.fate {
            Fate::Succeeds => JobState::Succeeded {
                output_url: format!("https://out/{}", self.id),
                usage_millis: Some((self.ends_at - self.begins_at) / MILLI),
            },
            Fate::Fails(class) => JobState::Failed(fault(class)),
            Fate::Canceled | Fate::Never => JobState::Canceled,
        }
    }

    fn has_ended(&self, now: Micros) -> bool {
        !matches!(self.state(now), JobState::Queued | JobState::Running { .. })
    }
}

pub(crate) fn fault(class: FaultClass) -> ProviderFault {
    ProviderFault { class, code: format!("{class:?}").to_lowercase(), message: "the provider said no".to_owned() }
}

fn class_of(draw: u64) -> FaultClass {
    [FaultClass::Moderation, FaultClass::BadRequest, FaultClass::Account, FaultClass::Internal]
        [usize::try_from(draw % 4).unwrap_or(0)]
}

impl World {
    /// A create call arrives. Answers with what is said, and how long that takes.
    pub(crate) fn create(&mut self, subject: Subject, kind: Kind, attempt: AttemptId, round: u32) -> (Created, Micros) {
        let mut quick = self.dice.between(subject, Site::Network, 20 * MILLI, 2 * SECOND);
        if self.dice.strikes(subject, Fault::SlowAnswer) {
            quick = self.dice.between(subject, Site::Network, 2 * SECOND, 25 * SECOND);
        }
        let lost = |cause: &str| Created::Unknown { cause: cause.to_owned() };
        if self.dice.strikes(subject, Fault::DropBefore) {
            return (lost("no answer"), Micros::MAX);
        }
        self.watch_create(attempt, round);
        if self.dice.strikes(subject, Fault::Throttle) || self.has_curse(subject, Fault::NeverTaken) {
            self.deny(attempt, round);
            let asked = self.dice.below(subject, Site::Network, 40);
            let retry_after = (asked > 10).then(|| Duration::from_secs(asked));
            return (Created::Throttled { retry_after }, quick);
        }
        if self.dice.strikes(subject, Fault::Refuse) {
            self.deny(attempt, round);
            let class = class_of(self.dice.below(subject, Site::Fate, 4));
            return (Created::Rejected(fault(class)), quick);
        }
        if self.dice.strikes(subject, Fault::ErrorBefore) {
            return (lost("502"), quick);
        }
        let dropped = self.dice.strikes(subject, Fault::AcceptThenDrop);
        let error = self.dice.strikes(subject, Fault::ErrorAfter);
        let job = self.accept_job(subject, kind, attempt, dropped || error);
        if dropped {
            let pause = if self.dice.below(subject, Site::Network, 2) == 0 { quick } else { Micros::MAX };
            return (lost("the connection was reset"), pause);
        }
        if error {
            return (lost("504"), quick);
        }
        (Created::Accepted { job }, quick)
    }

    fn accept_job(&mut self, subject: Subject, kind: Kind, attempt: AttemptId, lost: bool) -> String {
        if kind == Kind::ClientId
            && let Some(job) = self.providers.jobs_of(attempt).next()
        {
            // Refused as a duplicate: the adapter knows that the first one was accepted.
            return job.id.clone();
        }
        let number = self.providers.by_attempt.get(&attempt).map_or(0, Vec::len);
        let id = format!("job-{subject}-{}-{number}", &attempt.0.simple().to_string()[..6]);
        let job = self.new_job(subject, kind, attempt, id.clone(), lost);
        self.watch_jobs(&job);
        self.trace.tell(kind.name(), format_args!("creates {id}, {:?}", job.fate));
        let index = self.providers.jobs.len();
        self.plan_callbacks(&job, index);
        self.providers.by_id.insert(id.clone(), index);
        self.providers.by_attempt.entry(attempt).or_default().push(index);
        self.providers.jobs.push(job);
        id
    }

    fn new_job(&mut self, subject: Subject, kind: Kind, attempt: AttemptId, id: String, lost: bool) -> Job {
        let now = self.now;
        let begins_at = now + self.dice.between(subject, Site::Job, 0, 10 * SECOND);
        let mut length = self.dice.between(subject, Site::Job, 2 * SECOND, 60 * SECOND);
        if self.dice.strikes(subject, Fault::Slowness) {
            length += self.dice.between(subject, Site::Job, MINUTE, 20 * MINUTE);
        }
        let fate = if self.dice.strikes(subject, Fault::NeverFinishes) {
            Fate::Never
        } else if self.dice.strikes(subject, Fault::FailsLater) {
            Fate::Fails(class_of(self.dice.below(subject, Site::Fate, 4)))
        } else if self.dice.strikes(subject, Fault::CanceledByProvider) {
            Fate::Canceled
        } else {
            Fate::Succeeds
        };
        let settle = self.policy.settle_delay_ms * MILLI;
        let (listed_at, excused) = if !lost {
            (now, false)
        } else if self.dice.strikes(subject, Fault::CommitVeryLate) {
            (now + self.dice.between(subject, Site::Job, 3 * settle, 10 * MINUTE), kind != Kind::ClientId)
        } else if self.dice.strikes(subject, Fault::CommitLate) {
            // Within the promise: two look-ups, a settle delay apart, see it.
            (now + self.dice.between(subject, Site::Job, settle / 2, settle * 19 / 10), false)
        } else {
            (now, false)
        };
        let excused = excused && kind == Kind::List;
        let listed_at = if kind == Kind::List { listed_at } else { now };
        let ends_at = begins_at + length;
        Job {
            id,
            attempt,
            subject,
            kind,
            fate,
            begins_at,
            ends_at,
            listed_at,
            canceled_at: None,
            forgotten: false,
            excused,
        }
    }

    fn deny(&mut self, attempt: AttemptId, round: u32) {
        for asked in self.providers.asked.get_mut(&attempt).into_iter().flatten().filter(|it| it.round == round) {
            asked.denied = true;
        }
    }

    /// no-blind-resubmit: what was asked before must have been denied, by an answer or by enough look-ups.
    fn watch_create(&mut self, attempt: AttemptId, round: u32) {
        let needed = self.honest_policy.absences_needed;
        let before = self.providers.asked.entry(attempt).or_default();
        let blind = before.iter().find(|it| !it.denied && it.absences < needed).map(|it| it.round);
        before.push(Asked { round, denied: false, absences: 0, last_absence: 0 });
        let excused = self.providers.jobs_of(attempt).any(|it| it.excused);
        if let Some(first) = blind
            && !excused
        {
            let text = format!("round {round} was submitted, and nobody had said that round {first} created nothing");
            self.violate("no-blind-resubmit", text);
        }
    }

    fn watch_jobs(&mut self, new: &Job) {
        let double = self.providers.jobs_of(new.attempt).any(|it| !it.excused);
        if double && !new.excused {
            let text = format!("{} is the second job that the provider was paid for, for one attempt", new.id);
            self.violate("no-blind-resubmit", text);
        }
    }

    fn plan_callbacks(&mut self, job: &Job, index: usize) {
        if !job.kind.calls_back() {
            return;
        }
        let subject = job.subject;
        let mut at = Vec::with_capacity(3);
        if self.dice.strikes(subject, Fault::CallbackEarly) {
            at.push((self.now + self.dice.between(subject, Site::Callback, 1, 30 * SECOND), "start"));
        }
        if job.fate != Fate::Never && !self.dice.strikes(subject, Fault::CallbackLost) {
            let mut pause = self.dice.between(subject, Site::Callback, 100 * MILLI, 3 * SECOND);
            if self.dice.strikes(subject, Fault::CallbackLate) {
                pause = self.dice.between(subject, Site::Callback, MINUTE, 4 * HOUR);
            }
            at.push((job.ends_at + pause, "end"));
            if self.dice.strikes(subject, Fault::CallbackDuplicate) {
                let again = self.dice.between(subject, Site::Callback, 1, 20 * MINUTE);
                at.push((job.ends_at + pause + again, "end"));
            }
        }
        for (at, word) in at {
            self.queue.plan(at, Step::Callback { job: index, word, tries: 0 });
        }
    }

    /// A callback arrives at the API; until it is answered with success it comes again.
    pub(crate) fn callback(&mut self, index: usize, word: &'static str, tries: u32) {
        let Some(job) = self.providers.jobs.get(index) else { return };
        let (attempt, subject) = (job.attempt, job.subject);
        let (delivery, id) = (format!("{}:{word}", job.id), job.id.clone());
        self.trace.tell(job.kind.name(), format_args!("calls back: {delivery}"));
        let taken = self.take_callback(subject, attempt, &delivery, id);
        if !taken && tries < 8 {
            let at = self.now + ((5 * SECOND) << tries);
            self.queue.plan(at, Step::Callback { job: index, word, tries: tries + 1 });
        }
    }

    pub(crate) fn find(&mut self, subject: Subject, kind: Kind, attempt: AttemptId) -> Found {
        let nothing = |cause: &str| Found::Inconclusive { cause: cause.to_owned() };
        if matches!(kind, Kind::Webhook | Kind::Nothing) {
            return nothing("this provider can not be asked");
        }
        if self.dice.strikes(subject, Fault::LookupFails) {
            return nothing("503");
        }
        let now = self.now;
        let mut seen: Vec<String> =
            self.providers.jobs_of(attempt).filter(|it| it.listed_at <= now).map(|it| it.id.clone()).collect();
        if kind == Kind::List && self.dice.strikes(subject, Fault::AmbiguousList) {
            seen.extend(["stranger-1".to_owned(), "stranger-2".to_owned()]);
        }
        let settle = self.honest_policy.settle_delay_ms * MILLI;
        match seen.len() {
            0 => {
                for asked in self.providers.asked.get_mut(&attempt).into_iter().flatten() {
                    if asked.last_absence + settle / 2 <= now {
                        asked.absences += 1;
                        asked.last_absence = now;
                    }
                }
                Found::Absent
            }
            1 => Found::Job { job: seen.swap_remove(0) },
            _ => Found::Ambiguous { jobs: seen },
        }
    }

    pub(crate) fn poll(&mut self, subject: Subject, job: &str) -> Polled {
        let unavailable = |cause: &str, seconds: Option<u64>| Polled::Unavailable {
            cause: cause.to_owned(),
            retry_after: seconds.map(Duration::from_secs),
        };
        if self.dice.strikes(subject, Fault::PollUnavailable) {
            return unavailable("503", None);
        }
        if self.dice.strikes(subject, Fault::PollThrottled) {
            return unavailable("429", Some(20));
        }
        if self.dice.strikes(subject, Fault::PollNotFound) {
            return Polled::State(JobState::NotFound);
        }
        if self.dice.strikes(subject, Fault::UnknownWord) {
            return Polled::State(JobState::Unrecognised { raw: "expired_maybe".to_owned() });
        }
        let now = self.now;
        let known = self.providers.by_id.get(job).and_then(|index| self.providers.jobs.get(*index));
        Polled::State(known.map_or(JobState::NotFound, |it| it.state(now)))
    }

    pub(crate) fn cancel_job(&mut self, subject: Subject, job: &str) -> CancelAsked {
        if self.dice.strikes(subject, Fault::CancelLost) || self.dice.strikes(subject, Fault::CancelRefused) {
            return CancelAsked::Unknown;
        }
        let ignored = self.dice.strikes(subject, Fault::CancelIgnored);
        let forgets = self.dice.strikes(subject, Fault::CancelForgets);
        let now = self.now;
        let index = self.providers.by_id.get(job).copied();
        let Some(it) = index.and_then(|index| self.providers.jobs.get_mut(index)) else { return CancelAsked::NotFound };
        if it.forgotten {
            return CancelAsked::NotFound;
        }
        if it.has_ended(now) {
            return CancelAsked::AlreadyEnded;
        }
        if !ignored {
            it.canceled_at = Some(now);
            it.forgotten = forgets;
        }
        CancelAsked::Requested
    }

    /// Fetching an output: asks for its address first, then streams it into the object store.
    pub(crate) fn fetch(&mut self, subject: Subject, job: &str, key: &str) -> Fetched {
        let not_now = |cause: &str| Fetched::NotNow { cause: cause.to_owned() };
        match self.poll(subject, job) {
            Polled::State(JobState::Succeeded { .. }) => {}
            Polled::State(JobState::NotFound) if !self.is_calm && self.is_gone(job) => {
                return Fetched::Never {
                    code: "output_gone",
                    cause: "the provider no longer knows the job".to_owned(),
                };
            }
            _ => return not_now("the provider does not say where it is"),
        }
        if self.dice.strikes(subject, Fault::FetchNever) {
            return Fetched::Never { code: "output_refused", cause: "403".to_owned() };
        }
        if self.dice.strikes(subject, Fault::FetchNotNow) || self.has_curse(subject, Fault::NeverReady) {
            return not_now("cut short");
        }
        let video = !self.dice.strikes(subject, Fault::NotAVideo);
        Fetched::Stored(object(key, if video { "video/mp4" } else { "text/html" }))
    }

    fn is_gone(&self, job: &str) -> bool {
        self.providers.by_id.get(job).is_none_or(|index| self.providers.jobs[*index].forgotten)
    }

    pub(crate) fn process_media(&mut self, subject: Subject, thumbnail_key: &str) -> Processed {
        if self.dice.strikes(subject, Fault::Corrupt) {
            return Processed::Corrupt { cause: "no video stream".to_owned() };
        }
        if self.dice.strikes(subject, Fault::ProcessNotNow) || self.has_curse(subject, Fault::NeverProcessed) {
            return Processed::NotNow { cause: "the tool was killed".to_owned() };
        }
        let length = self.dice.between(subject, Site::Media, 1_000, 12_000);
        let probe = Probe {
            duration_millis: Some(length),
            width: 640,
            height: 360,
            video_codec: "h264".to_owned(),
            audio_codec: None,
            millihertz: Some(25_000),
        };
        if self.dice.strikes(subject, Fault::ThumbnailFails) || self.has_curse(subject, Fault::NeverThumbnail) {
            return Processed::Partial { probe, cause: "no thumbnail".to_owned() };
        }
        Processed::Ready { probe, thumbnail: object(thumbnail_key, "image/jpeg") }
    }

    fn render(&mut self, subject: Subject, key: &str) -> Rendered {
        if self.dice.strikes(subject, Fault::RenderNever) {
            return Rendered::Never { code: "source_gone", cause: "404".to_owned() };
        }
        if self.dice.strikes(subject, Fault::RenderNotNow) || self.has_curse(subject, Fault::NeverRendered) {
            return Rendered::NotNow { cause: "cut short".to_owned() };
        }
        Rendered::Stored(object(key, "video/mp4"))
    }

    /// Makes a call that arrives now. The answer comes after the pause; [`Micros::MAX`]: not before the caller's patience ends.
    pub(crate) fn answer(&mut self, subject: Subject, kind: Kind, call: &Call) -> (Answer, Micros) {
        let quick = self.dice.between(subject, Site::Network, 10 * MILLI, SECOND);
        let slow = self.dice.between(subject, Site::Media, 200 * MILLI, 25 * SECOND);
        match call {
            Call::Create { attempt, round, .. } => {
                let (created, pause) = self.create(subject, kind, *attempt, *round);
                (Answer::Created(created), pause)
            }
            Call::Find { attempt, .. } => (Answer::Found(self.find(subject, kind, *attempt)), quick),
            Call::Poll { job, .. } => (Answer::Polled(self.poll(subject, job)), quick),
            Call::Cancel { job } => (Answer::CancelAsked(self.cancel_job(subject, job)), quick),
            Call::Fetch { job, key } => (Answer::Fetched(self.fetch(subject, job, key)), slow),
            Call::Render { key, .. } => (Answer::Rendered(self.render(subject, key)), slow),
            Call::Process { thumbnail_key, .. } => {
                (Answer::Processed(self.process_media(subject, thumbnail_key)), slow)
            }
        }
    }
}

fn object(key: &str, content_type: &str) -> StoredObject {
    StoredObject {
        key: key.to_owned(),
        bytes: 1_000_000,
        sha256: "ab".repeat(32),
        content_type: content_type.to_owned(),
    }
}
