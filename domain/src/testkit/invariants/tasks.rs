//! What holds for tasks.

use super::{Recorded, Violation, Watch};
use crate::aggregate::Aggregate;
use crate::attempt;
use crate::id::{AssetId, AttemptId, TaskId};
use crate::process::{Change, StreamId};
use crate::stored::StoredEvent;
use crate::task::{self, State, Task, Video};
use std::collections::{HashMap, HashSet};

/// terminal-is-terminal: a task that has ended has no further event.
#[derive(Debug, Default)]
pub struct TerminalIsTerminal {
    open: HashMap<TaskId, Task>,
    ended: HashMap<TaskId, State>,
}

impl Watch for TerminalIsTerminal {
    fn invariant(&self) -> &'static str {
        "terminal-is-terminal"
    }

    fn observe(&mut self, recorded: &Recorded) -> Result<(), Violation> {
        let Change::Task(id, event) = &recorded.change else { return Ok(()) };
        if let Some(end) = self.ended.get(id) {
            let sentence = format!("{} comes after the task had ended as {}", event.name(), end.name());
            return Err(self.broken(recorded, sentence));
        }
        let before = self.open.remove(id).unwrap_or_else(Task::absent);
        // A history that does not fold is not replayable; whether it is over, nobody can say.
        let Ok(after) = before.evolve(event) else { return Ok(()) };
        if after.state().is_terminal() {
            self.ended.insert(*id, after.state());
        } else {
            self.open.insert(*id, after);
        }
        Ok(())
    }
}

/// no-silent-stall, of which a history can tell: at rest no task is open, but with a person.
#[derive(Debug, Default)]
pub struct NoSilentStall {
    watched: TerminalIsTerminal,
}

impl Watch for NoSilentStall {
    fn invariant(&self) -> &'static str {
        "no-silent-stall"
    }

    fn observe(&mut self, recorded: &Recorded) -> Result<(), Violation> {
        // What is wrong with an event is for the invariant to say that is about events.
        self.watched.observe(recorded).ok();
        Ok(())
    }

    fn at_rest(&self) -> Result<(), Violation> {
        let stalled =
            self.watched.open.iter().filter(|(_, task)| task.state() != State::ManualReview).min_by_key(|it| it.0);
        match stalled {
            None => Ok(()),
            Some((id, task)) => Err(Violation {
                invariant: self.invariant(),
                stream: StreamId::task(*id),
                version: 0,
                sentence: format!("nothing is on its way, and the task is {}", task.state().name()),
            }),
        }
    }
}

/// one-winner: at most one video of a task is delivered. A generation's is of the current attempt, which has succeeded; an export's
/// is of its own render. A video that was handed out stays: the task can only succeed.
#[derive(Debug, Default)]
pub struct OneWinner {
    tasks: HashMap<TaskId, Delivery>,
    /// Attempts that succeeded and whose task has not delivered yet.
    succeeded: HashSet<AttemptId>,
}

#[derive(Debug, Default)]
struct Delivery {
    source: Source,
    video: Option<AssetId>,
    handed_out: bool,
    succeeded: bool,
}

/// Where a task's video is to come from.
#[derive(Clone, Copy, Debug, Default)]
enum Source {
    /// Nobody is at work.
    #[default]
    Nobody,
    /// The attempt of this number is.
    Attempt(u32),
    /// The render of an export is.
    Render,
}

impl OneWinner {
    fn deliver(&mut self, id: TaskId, video: &Video) -> Result<(), String> {
        let task = self.tasks.entry(id).or_default();
        if let Some(known) = task.video {
            return Err(format!("the task delivers video {known} already, and now {}", video.asset));
        }
        task.video = Some(video.asset);
        let number = match task.source {
            Source::Nobody => return Err("a video that nobody made".to_owned()),
            Source::Render if video.asset == AssetId::of_export(id, "video") => return Ok(()),
            Source::Render => return Err("the video is not of the export's own render".to_owned()),
            Source::Attempt(number) => number,
        };
        let attempt = AttemptId::of(id, number);
        if AssetId::of(attempt, "video") != video.asset {
            return Err(format!("the video is not of attempt {attempt}, the task's current one"));
        }
        if !self.succeeded.remove(&attempt) {
            return Err(format!("the video is of attempt {attempt}, which has not succeeded"));
        }
        Ok(())
    }

    fn hand_out(&mut self, id: TaskId) -> Result<(), String> {
        let task = self.tasks.entry(id).or_default();
        if task.video.is_none() {
            return Err("a video is handed out that is not there".to_owned());
        }
        if std::mem::replace(&mut task.handed_out, true) {
            return Err("the video is handed out twice".to_owned());
        }
        Ok(())
    }

    fn succeed(&mut self, id: TaskId) -> Result<(), String> {
        let task = self.tasks.entry(id).or_default();
        if task.video.is_none() {
            return Err("the task succeeded without a video".to_owned());
        }
        if std::mem::replace(&mut task.succeeded, true) {
            return Err("the task succeeded twice".to_owned());
        }
        Ok(())
    }

    fn of_task(&mut self, id: TaskId, event: &task::Event) -> Result<(), String> {
        match event {
            task::Event::SubmissionBegun { attempt_no } => {
                self.tasks.entry(id).or_default().source = Source::Attempt(*attempt_no);
                Ok(())
            }
            task::Event::RenderBegun { .. } => {
                self.tasks.entry(id).or_default().source = Source::Render;
                Ok(())
            }
            task::Event::VideoStored { video, .. } => self.deliver(id, video),
            task::Event::VideoReady { .. } => self.hand_out(id),
            task::Event::Succeeded { .. } => self.succeed(id),
            task::Event::Failed { .. } | task::Event::Canceled { .. } | task::Event::CanceledWithOutput {} => {
                match self.tasks.get(&id) {
                    Some(task) if task.handed_out => {
                        Err("the user has the video, and the task ends without".to_owned())
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

impl Watch for OneWinner {
    fn invariant(&self) -> &'static str {
        "one-winner"
    }

    fn observe(&mut self, recorded: &Recorded) -> Result<(), Violation> {
        match &recorded.change {
            Change::Attempt(id, attempt::Event::Succeeded { .. }) => {
                self.succeeded.insert(*id);
                Ok(())
            }
            Change::Task(id, event) => self.of_task(*id, event),
            _ => Ok(()),
        }
        .map_err(|sentence| self.broken(recorded, sentence))
    }
}
