//! What one task meets outside: a provider that knows what it created, media tools, and luck.

use super::support::{object, probe};
use domain::id::AttemptId;
use domain::outcome::{
    Answer, Call, CancelAsked, Created, FaultClass, Fetched, Found, JobState, Polled, Processed, ProviderFault,
    Rendered,
};
use std::collections::BTreeMap;

/// Numbers drawn by proptest; when they are used up, everything goes well.
#[derive(Debug)]
pub struct Luck {
    drawn: std::vec::IntoIter<u8>,
}

impl Luck {
    pub fn new(drawn: Vec<u8>) -> Self {
        Self { drawn: drawn.into_iter() }
    }

    /// Below `bound`; 0 is the best that can happen.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.drawn.next().unwrap_or(0)) % bound
    }

    pub fn is_used_up(&self) -> bool {
        self.drawn.len() == 0
    }
}

/// What a provider does with a job once it has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Succeeds,
    Fails(FaultClass),
    Cancels,
    NeverEnds,
    Unrecognised,
}

#[derive(Debug)]
struct Job {
    ending: Ending,
    polls: usize,
    canceled: bool,
}

/// What is the matter outside, all the time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Troubles {
    /// How many media calls a worker survives; `None`: all.
    pub survives_media: Option<usize>,
    /// The first thumbnail fails, whatever luck says.
    pub first_thumbnail_fails: bool,
    /// The provider takes cancels, and does nothing about them.
    pub ignores_cancels: bool,
    /// The provider can not say what it has.
    pub no_look_up: bool,
}

/// The outside of one task.
#[derive(Debug)]
pub struct Outside {
    /// How the first job ends, the second, and so on; the last one counts for all that follow.
    endings: Vec<Ending>,
    troubles: Troubles,
    made: BTreeMap<AttemptId, Vec<String>>,
    jobs: BTreeMap<String, Job>,
    creations: BTreeMap<AttemptId, usize>,
    media_calls: usize,
}

impl Outside {
    pub fn new(endings: Vec<Ending>, troubles: Troubles) -> Self {
        Self {
            endings,
            troubles,
            made: BTreeMap::new(),
            jobs: BTreeMap::new(),
            creations: BTreeMap::new(),
            media_calls: 0,
        }
    }

    fn job(&mut self, job: &str) -> &mut Job {
        let number = self.jobs.len().min(self.endings.len() - 1);
        let ending = self.endings[number];
        self.jobs.entry(job.to_owned()).or_insert(Job { ending, polls: 0, canceled: false })
    }

    fn create(&mut self, attempt: AttemptId, luck: &mut Luck) -> Created {
        let fault = || ProviderFault { class: FaultClass::Moderation, code: "no".to_owned(), message: "no".to_owned() };
        match luck.below(10) {
            5 => Created::Unknown { cause: "reset before it arrived".to_owned() },
            4 => Created::Throttled { retry_after: None },
            3 => Created::NotSent { cause: "refused".to_owned() },
            7 => Created::Rejected(fault()),
            8 => Created::Rejected(ProviderFault { class: FaultClass::Internal, ..fault() }),
            chance => {
                *self.creations.entry(attempt).or_default() += 1;
                let job = self.make(attempt);
                if chance == 9 {
                    // A proxy on the provider's side sent the request on twice.
                    self.make(attempt);
                }
                if matches!(chance, 2 | 6 | 9) {
                    Created::Unknown { cause: "answer lost".to_owned() }
                } else {
                    Created::Accepted { job }
                }
            }
        }
    }

    fn make(&mut self, attempt: AttemptId) -> String {
        let job = format!("job-{}", self.jobs.len() + 1);
        self.job(&job);
        self.made.entry(attempt).or_default().push(job.clone());
        job
    }

    fn find(&self, attempt: AttemptId, luck: &mut Luck) -> Found {
        match self.made.get(&attempt).map_or(&[][..], Vec::as_slice) {
            _ if self.troubles.no_look_up || luck.below(4) == 3 => Found::Inconclusive { cause: "503".to_owned() },
            [] => Found::Absent,
            [job] => Found::Job { job: job.clone() },
            jobs => Found::Ambiguous { jobs: jobs.to_vec() },
        }
    }

    fn poll(&mut self, job: &str, luck: &mut Luck) -> Polled {
        let job = self.job(job);
        job.polls += 1;
        if luck.below(6) == 5 {
            return Polled::Unavailable { cause: "503".to_owned(), retry_after: None };
        }
        let fault = |class| ProviderFault { class, code: "broke".to_owned(), message: "it broke".to_owned() };
        Polled::State(match job.ending {
            _ if job.canceled => JobState::Canceled,
            _ if job.polls < 3 => JobState::Running { percent: Some(40) },
            Ending::Succeeds => JobState::Succeeded { output_url: "https://out".to_owned(), usage_millis: None },
            Ending::Fails(class) => JobState::Failed(fault(class)),
            Ending::Cancels => JobState::Canceled,
            Ending::NeverEnds => JobState::Running { percent: None },
            Ending::Unrecognised => JobState::Unrecognised { raw: "pondering".to_owned() },
        })
    }

    fn cancel(&mut self, job: &str, luck: &mut Luck) -> CancelAsked {
        let ignored = self.troubles.ignores_cancels;
        let job = self.job(job);
        match luck.below(5) {
            _ if ignored => CancelAsked::Requested,
            0 => {
                job.canceled |= job.polls < 3 || job.ending != Ending::Succeeds;
                CancelAsked::Requested
            }
            1 => CancelAsked::AlreadyEnded,
            2 => CancelAsked::NotFound,
            3 => CancelAsked::Unknown,
            // The answer is lost, and the provider does it.
            _ => {
                job.canceled = true;
                CancelAsked::Unknown
            }
        }
    }

    /// How often something was made of a request for one attempt, at most.
    pub fn most_creations(&self) -> usize {
        self.creations.values().copied().max().unwrap_or(0)
    }

    /// All jobs, with the attempts that they were made for.
    pub fn all_jobs(&self) -> Vec<(AttemptId, String)> {
        self.made.iter().flat_map(|(attempt, jobs)| jobs.iter().map(|job| (*attempt, job.clone()))).collect()
    }

    /// The answer to a call; `None` where it killed the worker that made it.
    pub fn answer(&mut self, call: &Call, luck: &mut Luck) -> Option<Answer> {
        if matches!(call, Call::Process { .. } | Call::Render { .. }) {
            self.media_calls += 1;
            if self.troubles.survives_media.is_some_and(|survived| self.media_calls > survived) {
                return None;
            }
        }
        Some(match call {
            Call::Create { attempt, .. } => Answer::Created(self.create(*attempt, luck)),
            Call::Find { attempt, .. } => Answer::Found(self.find(*attempt, luck)),
            Call::Poll { job, .. } => Answer::Polled(self.poll(job, luck)),
            Call::Cancel { job } => Answer::CancelAsked(self.cancel(job, luck)),
            Call::Fetch { key, .. } => Answer::Fetched(match luck.below(6) {
                5 => Fetched::NotNow { cause: "503".to_owned() },
                _ => Fetched::Stored(object(key, "video/mp4")),
            }),
            Call::Process { .. } => Answer::Processed(self.process(luck)),
            Call::Render { key, .. } => Answer::Rendered(match luck.below(8) {
                7 => Rendered::Never { code: "source_gone", cause: "the source is gone".to_owned() },
                5 | 6 => Rendered::NotNow { cause: "no room".to_owned() },
                _ => Rendered::Stored(object(key, "video/mp4")),
            }),
        })
    }
    fn process(&mut self, luck: &mut Luck) -> Processed {
        let partial = || Processed::Partial { probe: probe(), cause: "no picture".to_owned() };
        if std::mem::take(&mut self.troubles.first_thumbnail_fails) {
            return partial();
        }
        match luck.below(8) {
            7 => Processed::Corrupt { cause: "no video in it".to_owned() },
            6 => Processed::NotNow { cause: "busy".to_owned() },
            4 | 5 => partial(),
            _ => Processed::Ready { probe: probe(), thumbnail: object("thumbnail.jpg", "image/jpeg") },
        }
    }
}
