//! A task's row, version by version: what the read model shows of it after each of its own events, without the database.

use super::tables::TaskRow;
use super::{Event, Known, Recorded, Rows, tasks};
use crate::error::{FoldCause, FoldFault};
use crate::query;
use domain::id::{AssetId, TaskId, TenantId};
use domain::task::State;

/// A task as the read model shows it at one version.
#[derive(Clone, Debug)]
pub(crate) struct AtVersion(TaskRow);

impl AtVersion {
    /// After the next event of the same task; nothing comes before the first one.
    ///
    /// # Errors
    /// [`FoldFault`]: it is no event of a task, or does not follow.
    pub(crate) fn after(before: Option<Self>, event: &Recorded) -> Result<Self, FoldFault> {
        let fold = || {
            let known = Known::of(event)?;
            let Event::Task(said) = &known.event else { return Err(FoldCause::UnknownCategory) };
            let mut rows = Rows::default();
            if let Some(Self(row)) = before {
                rows.tasks.load(row.task_id, row);
            }
            tasks::fold(&mut rows, known.at, said)?;
            rows.tasks.get(&event.stream_id).cloned().map(Self).ok_or(FoldCause::OutOfOrder)
        };
        fold().map_err(|cause| event.fault(cause))
    }

    /// Whether nothing more can happen to it.
    pub(crate) fn is_at_end(&self) -> bool {
        State::parse(&self.0.state).is_some_and(State::is_terminal)
    }

    /// As queries show it.
    pub(crate) fn shown(&self) -> query::TaskRow {
        let row = self.0.clone();
        query::TaskRow {
            task: TaskId(row.task_id),
            tenant: TenantId(row.tenant_id),
            version: row.version,
            state: row.state,
            provider: row.provider,
            model: row.model,
            duration_seconds: row.duration_seconds,
            input_assets: ids(&row.input_assets),
            hold: row.hold,
            charge: row.charge,
            attempt_no: row.attempt_no,
            error_class: row.error_class,
            error_code: row.error_code,
            error_message: row.error_message,
            review_reason: row.review_reason,
            canceled_by: row.canceled_by,
            wake_at: row.wake_at,
            created_at: row.created_at,
            updated_at: row.updated_at,
            finished_at: row.finished_at,
        }
    }
}

/// The ids in an array in PostgreSQL's writing.
fn ids(array: &str) -> Vec<AssetId> {
    let items = array.trim_matches(['{', '}']).split(',');
    items.filter_map(|item| item.trim_matches('"').parse().ok()).map(AssetId).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn ids_are_read_as_the_fold_and_as_the_database_write_them() {
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        assert_eq!(ids("{}"), []);
        assert_eq!(ids(&super::super::array([one.to_string(), two.to_string()].iter())), [AssetId(one), AssetId(two)]);
        assert_eq!(ids(&format!("{{{one},{two}}}")), [AssetId(one), AssetId(two)]);
    }
}
