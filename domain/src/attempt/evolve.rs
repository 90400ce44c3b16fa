//! The state after an event.

use super::{Attempt, Core, Event};
use crate::aggregate::Misfit;
use crate::stored::StoredEvent;

impl Attempt {
    pub(super) fn fold(self, event: &Event) -> Result<Self, Misfit> {
        let misfit = Misfit { aggregate: "attempt", state: self.state().name(), event: event.name() };
        Ok(match (self, event) {
            (Self::Absent, Event::Planned { task, number, provider }) => Self::Planned(Core {
                task: *task,
                number: *number,
                provider: provider.clone(),
                round: 0,
                job: None,
                unclear_once: false,
                orphans: Vec::new(),
            }),
            (Self::Planned(core), Event::SubmissionBegun { round, give_up_at }) => {
                Self::Submitting { core: Core { round: *round, ..core }, give_up_at: *give_up_at }
            }
            (
                Self::Planned(core) | Self::Submitting { core, .. } | Self::Unclear { core, .. },
                Event::Accepted { job, next_poll_at, give_up_at, .. },
            ) => Self::Running {
                core: Core { job: Some(job.clone()), ..core },
                job: job.clone(),
                polls: 0,
                next_poll_at: *next_poll_at,
                give_up_at: *give_up_at,
                percent: None,
            },
            (Self::Submitting { core, .. } | Self::Unclear { core, .. }, Event::Deferred { .. }) => Self::Planned(core),
            (Self::Submitting { core, .. }, Event::AnswerLost { at, next_lookup_at, .. }) => {
                let core = Core { unclear_once: true, ..core };
                Self::Unclear { core, since: *at, lookups: 0, absences: 0, next_lookup_at: *next_lookup_at }
            }
            (Self::Unclear { core, since, lookups, absences, .. }, Event::LookedUp { absent, next_lookup_at, .. }) => {
                Self::Unclear {
                    core,
                    since,
                    lookups: lookups + 1,
                    absences: if *absent { absences + 1 } else { 0 },
                    next_lookup_at: *next_lookup_at,
                }
            }
            (
                Self::Running { core, job, polls, give_up_at, percent: before, .. },
                Event::Polled { percent, next_poll_at, .. },
            ) => Self::Running {
                core,
                job,
                polls: polls + 1,
                next_poll_at: *next_poll_at,
                give_up_at,
                // Progress never goes back, whatever a provider says.
                percent: before.max(*percent),
            },
            (Self::Running { core, job, .. }, Event::Succeeded { .. }) => Self::Succeeded { core, job },
            (
                Self::Submitting { core, .. } | Self::Unclear { core, .. } | Self::Running { core, .. },
                Event::Failed { .. },
            ) => Self::Failed(core),
            (Self::Planned(core) | Self::Running { core, .. }, Event::Canceled {}) => Self::Canceled(core),
            (Self::Planned(core) | Self::Unclear { core, .. }, Event::GivenUp { .. }) => {
                Self::GivenUp { core, job: None }
            }
            (Self::Running { core, job, .. }, Event::GivenUp { .. }) => Self::GivenUp { core, job: Some(job) },
            (state, Event::OrphanRecorded { job }) => state.with_orphan(job).ok_or(misfit)?,
            _ => return Err(misfit),
        })
    }

    fn with_orphan(mut self, orphan: &str) -> Option<Self> {
        match &mut self {
            Self::Running { core, .. }
            | Self::Succeeded { core, .. }
            | Self::Failed(core)
            | Self::Canceled(core)
            | Self::GivenUp { core, .. } => core.orphans.push(orphan.to_owned()),
            Self::Absent | Self::Planned(_) | Self::Submitting { .. } | Self::Unclear { .. } => return None,
        }
        Some(self)
    }
}
