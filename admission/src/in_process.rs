//! Each process for itself.

use crate::book::Book;
use crate::config::{AdmissionConfig, Rules};
use crate::port::{Admission, AdmissionError, Asked, Called, Count, InFlight, Swept};
use domain::id::AttemptId;
use domain::process::Slot;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Counts in this process's memory: for development, for one process, and as the net for when Redis is down.
pub struct InProcess {
    book: Mutex<Book>,
    began: Instant,
}

impl InProcess {
    /// By these limits.
    #[must_use]
    pub fn new(config: &AdmissionConfig) -> Self {
        Self { book: Mutex::new(Book::new(Rules::of(config))), began: Instant::now() }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everybody leaves the line.
    pub(crate) fn disband(&self) -> Vec<Called> {
        self.book().disband()
    }
}

impl Admission for InProcess {
    fn ask<'a>(&'a self, slot: &'a Slot) -> BoxFuture<'a, Result<Asked, AdmissionError>> {
        ready(Ok(self.book().ask(slot, self.now()))).boxed()
    }

    fn keep<'a>(&'a self, slot: &'a Slot) -> BoxFuture<'a, Result<(), AdmissionError>> {
        self.book().keep(slot, self.now());
        ready(Ok(())).boxed()
    }

    fn give_back(&self, attempt: AttemptId, round: u32) -> BoxFuture<'_, Result<Vec<Called>, AdmissionError>> {
        ready(Ok(self.book().give_back(attempt, round, self.now()))).boxed()
    }

    fn withdraw(&self, attempt: AttemptId) -> BoxFuture<'_, Result<Vec<Called>, AdmissionError>> {
        ready(Ok(self.book().withdraw(attempt, self.now()))).boxed()
    }

    fn tick(&self) -> BoxFuture<'_, Result<Vec<Called>, AdmissionError>> {
        ready(Ok(self.book().tick(self.now()))).boxed()
    }

    fn sweep<'a>(&'a self, facts: &'a dyn InFlight) -> BoxFuture<'a, Result<Option<Swept>, AdmissionError>> {
        Box::pin(async move {
            let started = self.now();
            let slots = facts.slots().await.map_err(AdmissionError::Facts)?;
            Ok(Some(self.book().sweep(&slots, started, self.now())))
        })
    }

    fn count(&self) -> BoxFuture<'_, Result<Count, AdmissionError>> {
        ready(Ok(self.book().count())).boxed()
    }
}
