//! Appends of many callers in one statement, which commits by itself.
//!
//! All of a batch is written, or nothing. Where it is refused because of one of them (a version that somebody else took, a message
//! that was handled before), it is halved until that one stands alone: for the others it is as if they had never met it.

use super::{Append, append};
use crate::batches::{Carrier, Prize, Want};
use crate::error::StoreError;
use crate::wakeup::Ringer;
use domain::aggregate::Category;
use sqlx::PgPool;
use std::mem::discriminant;
use std::ops::Range;
use std::sync::Arc;
use uuid::Uuid;

/// Brings appends to the database.
pub(crate) struct Appends {
    pub(crate) pool: PgPool,
    pub(crate) ringer: Arc<Ringer>,
}

impl Want for Append {
    type Answer = Result<(), StoreError>;

    fn goes_with(&self, other: &Self) -> bool {
        discriminant(&self.beside) == discriminant(&other.beside)
    }

    fn prizes(&self) -> Vec<Prize> {
        let versions = self.events.iter().map(|it| (it.stream.category.name(), it.stream.id, it.version));
        let row = self.beside.inbox().map(|row| (row.consumer, row.event_id, 0));
        versions.chain(row).collect()
    }

    fn too_late(answer: &Self::Answer) -> Option<Self::Answer> {
        answer.is_ok().then_some(Err(StoreError::Race))
    }
}

impl Append {
    /// Where its hottest stream stands in the one order that all batches write in, whichever process sends them: accounts are what
    /// many write to, and two batches that each wait for what the other has written would wait for ever.
    fn place(&self) -> Option<Uuid> {
        self.events.iter().filter(|it| it.stream.category == Category::Account).map(|it| it.stream.id).min()
    }
}

impl Carrier for Appends {
    type Want = Append;

    async fn carry(&self, appends: Vec<Append>) -> Vec<Result<(), StoreError>> {
        let mut order: Vec<usize> = (0..appends.len()).collect();
        order.sort_by_key(|at| appends[*at].place());
        let mut sorted: Vec<Option<Append>> = appends.into_iter().map(Some).collect();
        let sorted: Vec<Append> = order.iter().filter_map(|at| sorted[*at].take()).collect();
        let news = sorted.iter().fold(0, |news, it| news | it.news());
        let mut answers: Vec<Result<(), StoreError>> = order.iter().map(|_| Err(StoreError::Race)).collect();
        let mut parts: Vec<Range<usize>> = std::iter::once(0..sorted.len()).collect();
        while let Some(part) = parts.pop() {
            match self.append(&sorted[part.clone()]).await {
                Err(error) if part.len() > 1 && error.may_be_of_one() => {
                    let error = &error as &dyn std::error::Error;
                    tracing::debug!(error, callers = part.len(), "one of many is refused; they go on in two halves");
                    parts.extend(halves(part));
                }
                answer => part.for_each(|at| answers[order[at]] = answer.as_ref().copied().map_err(StoreError::shared)),
            }
        }
        // Also where an answer was lost: it may have been committed.
        self.ringer.ring(news);
        answers
    }
}

impl Appends {
    async fn append(&self, appends: &[Append]) -> Result<(), StoreError> {
        let mut connection = self.pool.acquire().await?;
        Ok(append(&mut connection, appends).await?)
    }
}

/// The first half comes last, so that it is taken first.
fn halves(part: Range<usize>) -> [Range<usize>; 2] {
    let middle = usize::midpoint(part.start, part.end);
    [middle..part.end, part.start..middle]
}
