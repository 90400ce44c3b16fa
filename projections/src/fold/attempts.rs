//! `read_attempts`: one row an attempt; and when its task goes on, which the current attempt's events say.

use super::rows::Rows;
use super::tables::AttemptRow;
use super::{At, array, extend, integer};
use crate::error::FoldCause;
use domain::attempt::{Event, State};
use domain::time::Timestamp;
use uuid::Uuid;

/// The end states of a task: nothing wakes it any more, late news of an attempt included.
const ENDED: [&str; 4] = {
    use domain::task::State;
    [State::Succeeded.name(), State::Failed.name(), State::Canceled.name(), State::CanceledWithOutput.name()]
};

/// What an event changes in an attempt's row; what it does not name stays.
#[derive(Default)]
struct Change<'a> {
    state: Option<State>,
    wake_at: Option<Timestamp>,
    round: Option<u32>,
    job: Option<&'a str>,
    percent: Option<u8>,
    polled: bool,
    orphan: Option<&'a str>,
    error: Option<(Option<&'static str>, &'a str, &'a str)>,
    /// A submission leaves now.
    starts: bool,
    /// It is now known what came of the submission.
    ends: bool,
}

/// The attempt's task.
pub(super) fn fold(rows: &mut Rows, at: At, event: &Event) -> Result<Uuid, FoldCause> {
    if let Event::Planned { task, number, provider } = event {
        insert(rows, at, task.0, integer(*number), provider)?;
        return Ok(task.0);
    }
    let change = change(event);
    let row = rows.attempts.change(&at.stream).filter(|row| row.version == at.version - 1);
    let row = row.ok_or(FoldCause::OutOfOrder)?;
    update(row, at, &change);
    let (task, number) = (row.task_id, row.number);
    if let Some(wake_at) = change.wake_at {
        wake_task(rows, task, number, wake_at)?;
    }
    Ok(task)
}

fn change(event: &Event) -> Change<'_> {
    let to = |state| Change { state: Some(state), ..Change::default() };
    match event {
        Event::Planned { .. } => to(State::Planned),
        Event::SubmissionBegun { round, give_up_at } => {
            Change { round: Some(*round), wake_at: Some(*give_up_at), starts: true, ..to(State::Submitting) }
        }
        Event::Accepted { job, next_poll_at, .. } => {
            Change { job: Some(job), wake_at: Some(*next_poll_at), ends: true, ..to(State::Running) }
        }
        Event::Deferred { .. } => Change { ends: true, ..to(State::Planned) },
        Event::AnswerLost { next_lookup_at, .. } | Event::LookedUp { next_lookup_at, .. } => {
            Change { wake_at: Some(*next_lookup_at), ..to(State::Unclear) }
        }
        Event::Polled { percent, next_poll_at, .. } => {
            Change { percent: *percent, polled: true, wake_at: Some(*next_poll_at), ..to(State::Running) }
        }
        Event::Succeeded { .. } => to(State::Succeeded),
        Event::Failed { class, code, message } => {
            Change { error: Some((Some(class.name()), code, message)), ends: true, ..to(State::Failed) }
        }
        Event::Canceled {} => to(State::Canceled),
        Event::GivenUp { reason } => Change { error: Some((None, "given_up", reason)), ..to(State::GivenUp) },
        Event::OrphanRecorded { job } => Change { orphan: Some(job), ..Change::default() },
    }
}

fn insert(rows: &mut Rows, at: At, task: Uuid, number: i32, provider: &str) -> Result<(), FoldCause> {
    if at.version != 1 {
        return Err(FoldCause::OutOfOrder);
    }
    if rows.attempts.get(&at.stream).is_some() {
        return Err(FoldCause::Repeated("read_attempts_pkey".to_owned()));
    }
    if !rows.numbers.insert((task, number)) {
        return Err(FoldCause::Repeated("read_attempts_task_id_number_key".to_owned()));
    }
    let row = AttemptRow {
        attempt_id: at.stream,
        task_id: task,
        tenant_id: at.tenant,
        version: 1,
        number,
        provider: provider.to_owned(),
        state: State::Planned.name().to_owned(),
        provider_job_id: None,
        round: 0,
        polls: 0,
        percent: None,
        orphans: array(std::iter::empty::<&str>()),
        error_class: None,
        error_code: None,
        error_message: None,
        submit_started_at: None,
        submit_finished_at: None,
        wake_at: None,
        created_at: at.recorded_at,
        updated_at: at.recorded_at,
        position: at.position,
    };
    rows.attempts.add(at.stream, row);
    Ok(())
}

fn update(row: &mut AttemptRow, at: At, change: &Change<'_>) {
    if let Some(state) = change.state {
        row.state = state.name().to_owned();
        row.wake_at = change.wake_at;
    }
    if let Some(round) = change.round {
        row.round = integer(round);
    }
    if let Some(job) = change.job {
        row.provider_job_id = Some(job.to_owned());
    }
    // Progress never goes back, whatever a provider says.
    row.percent = row.percent.max(change.percent.map(i32::from));
    row.polls = row.polls.saturating_add(i32::from(change.polled));
    if let Some(job) = change.orphan {
        extend(&mut row.orphans, job);
    }
    if let Some((class, code, message)) = change.error {
        if let Some(class) = class {
            row.error_class = Some(class.to_owned());
        }
        row.error_code = Some(code.to_owned());
        row.error_message = Some(message.to_owned());
    }
    if change.starts {
        row.submit_started_at = Some(at.recorded_at);
        row.submit_finished_at = None;
    } else if change.ends {
        row.submit_finished_at = row.submit_finished_at.or(Some(at.recorded_at));
    }
    row.version = at.version;
    row.updated_at = at.recorded_at;
    row.position = at.position;
}

fn wake_task(rows: &mut Rows, task: Uuid, number: i32, wake_at: Timestamp) -> Result<(), FoldCause> {
    let row = rows.tasks.change(&task).ok_or(FoldCause::Dangling("task"))?;
    if row.attempt_no == number && !ENDED.contains(&row.state.as_str()) {
        row.wake_at = Some(wake_at);
    }
    Ok(())
}
