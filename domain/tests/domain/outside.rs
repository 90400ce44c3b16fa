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

/// The outside of one task.
#[derive(Debug)]
pub struct Outside {
    /// How the first job ends, the second, and so on; the last one counts for all that follow.
    endings: Vec<Ending>,
    made: BTreeMap<AttemptId, Vec<String>>,
    jobs: BTreeMap<String, Job>,
    /// How many media calls a worker survives; `None`: all.
    survives_media: Option<usize>,
    media_calls: usize,
    /// Whether the first thumbnail fails, whatever luck says.
    first_thumbnail_fails: bool,
}

impl Outside {
    pub fn new(endings: Vec<Ending>) -> Self {
        Self {
            endings,
            made: BTreeMap::new(),
            jobs: BTreeMap::new(),
            survives_media: None,
            media_calls: 0,
            first_thumbnail_fails: false,
        }
    }

    /// Media work kills its worker, each time after the first `survived`.
    pub fn media_kill_after(self, survived: Option<usize>) -> Self {
        Self { survives_media: survived, ..self }
    }

    pub fn first_thumbnail_fails(self, fails: bool) -> Self {
        Self { first_thumbnail_fails: fails, ..self }
    }

    fn job(&mut self, job: &str) -> &mut Job {
        let number = self.jobs.len().min(self.endings.len() - 1);
        let ending = self.endings[number];
        self.jobs.entry(job.to_owned()).or_insert(Job { ending, polls: 0, canceled: false })
    }

    fn create(&mut self, attempt: AttemptId, luck: &mut Luck) -> Created {
        let fault = || ProviderFault { class: FaultClass::Moderation, code: "no".to_owned(), message: "no".to_owned() };
        match luck.below(9) {
            5 => Created::Unknown { cause: "reset before it arrived".to_owned() },
            4 => Created::Throttled { retry_after: None },
            3 => Created::NotSent { cause: "refused".to_owned() },
            7 => Created::Rejected(fault()),
            8 => Created::Rejected(ProviderFault { class: FaultClass::Internal, ..fault() }),
            chance => {
                let job = format!("job-{}", self.jobs.len() + 1);
                self.job(&job);
                self.made.entry(attempt).or_default().push(job.clone());
                if matches!(chance, 2 | 6) {
                    Created::Unknown { cause: "answer lost".to_owned() }
                } else {
                    Created::Accepted { job }
                }
            }
        }
    }

    fn find(&self, attempt: AttemptId, luck: &mut Luck) -> Found {
        match self.made.get(&attempt).map_or(&[][..], Vec::as_slice) {
            _ if luck.below(4) == 3 => Found::Inconclusive { cause: "503".to_owned() },
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
        let job = self.job(job);
        match luck.below(5) {
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

    /// Jobs made for one attempt, at most.
    pub fn most_jobs(&self) -> usize {
        self.made.values().map(Vec::len).max().unwrap_or(0)
    }

    /// All jobs, with the attempts that they were made for.
    pub fn all_jobs(&self) -> Vec<(AttemptId, String)> {
        self.made.iter().flat_map(|(attempt, jobs)| jobs.iter().map(|job| (*attempt, job.clone()))).collect()
    }

    /// The answer to a call; `None` where it killed the worker that made it.
    pub fn answer(&mut self, call: &Call, luck: &mut Luck) -> Option<Answer> {
        if matches!(call, Call::Process { .. } | Call::Render { .. }) {
            self.media_calls += 1;
            if self.survives_media.is_some_and(|survived| self.media_calls > survived) {
                return None;
            }
        }
        Some(match call {
            Call::Create { attempt, .. } => Answer::Created(self.create(*attempt, luck)),
            Call::Find { attempt, .. } => Answer::Found(self.find(*attempt, luck)),
            Call::Poll { job } => Answer::Polled(self.poll(job, luck)),
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
        if std::mem::take(&mut self.first_thumbnail_fails) {
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
