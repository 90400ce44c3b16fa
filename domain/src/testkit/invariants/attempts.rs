//! What holds for attempts.

use super::{Recorded, Violation, Watch};
use crate::attempt::Event;
use crate::id::{AttemptId, TaskId};
use crate::process::Change;
use std::collections::HashMap;

/// no-blind-resubmit: nothing is submitted again unless it is certain that nothing was created; a further attempt is made only when
/// the one before it is over; and an attempt has at most one job.
#[derive(Debug, Default)]
pub struct NoBlindResubmit {
    attempts: HashMap<AttemptId, Submission>,
}

#[derive(Debug, Default)]
struct Submission {
    rounds: u32,
    place: Place,
}

/// Where an attempt's request may be.
#[derive(Debug, Default, PartialEq, Eq)]
enum Place {
    /// Here: it never left, or nothing was made of it.
    #[default]
    Here,
    /// It may have reached the provider.
    Out,
    /// The provider has made this job of it.
    Job(String),
    /// Nobody waits for it any more.
    Over,
}

impl NoBlindResubmit {
    fn plan(&mut self, id: AttemptId, task: TaskId, number: u32) -> Result<(), String> {
        if AttemptId::of(task, number) != id {
            return Err(format!("attempt {number} of task {task} has another id than its own"));
        }
        if number > 1 {
            match self.attempts.get(&AttemptId::of(task, number - 1)).map(|before| &before.place) {
                None => return Err(format!("attempt {number} is made, and the one before it never was")),
                Some(Place::Over) => {}
                Some(_) => return Err(format!("attempt {number} is made while the one before it is not over")),
            }
        }
        if self.attempts.insert(id, Submission::default()).is_some() {
            return Err(format!("attempt {number} is made twice"));
        }
        Ok(())
    }

    fn submit(&mut self, id: AttemptId, round: u32) -> Result<(), String> {
        let submission = self.attempts.entry(id).or_default();
        if submission.place != Place::Here {
            return Err(format!("submitted again, round {round}, without the word that nothing was created"));
        }
        submission.rounds += 1;
        submission.place = Place::Out;
        if submission.rounds != round {
            return Err(format!("round {round} is the {}. one", submission.rounds));
        }
        Ok(())
    }

    fn accept(&mut self, id: AttemptId, job: &str) -> Result<(), String> {
        let submission = self.attempts.entry(id).or_default();
        match &submission.place {
            Place::Job(known) if known != job => Err(format!("accepted as job {job}, and is job {known}")),
            // Taken for not created once, and found after all: it has left at least once.
            Place::Here if submission.rounds == 0 => Err(format!("accepted as job {job}, and has never left")),
            Place::Over => Err(format!("accepted as job {job}, and is over")),
            _ => {
                submission.place = Place::Job(job.to_owned());
                Ok(())
            }
        }
    }

    fn place(&mut self, id: AttemptId, place: Place) {
        self.attempts.entry(id).or_default().place = place;
    }
}

impl Watch for NoBlindResubmit {
    fn invariant(&self) -> &'static str {
        "no-blind-resubmit"
    }

    fn observe(&mut self, recorded: &Recorded) -> Result<(), Violation> {
        let Change::Attempt(id, event) = &recorded.change else { return Ok(()) };
        match event {
            Event::Planned { task, number, .. } => self.plan(*id, *task, *number),
            Event::SubmissionBegun { round, .. } => self.submit(*id, *round),
            Event::Accepted { job, .. } => self.accept(*id, job),
            Event::Deferred { .. } => {
                self.place(*id, Place::Here);
                Ok(())
            }
            Event::Succeeded { .. } | Event::Failed { .. } | Event::Canceled {} | Event::GivenUp { .. } => {
                self.place(*id, Place::Over);
                Ok(())
            }
            _ => Ok(()),
        }
        .map_err(|sentence| self.broken(recorded, sentence))
    }
}
