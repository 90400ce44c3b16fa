//! Loading a case as a process does that has met none of its streams before.

use crate::work::Work;
use anyhow::ensure;
use domain::process::CaseKey;
use eventstore::Store;
use std::sync::Arc;

/// Loads cases in turn, cold: nothing is kept in memory.
pub struct Loader {
    store: Store,
    cases: Arc<Vec<CaseKey>>,
    next: usize,
    /// The version that each of them has at least.
    version: i64,
}

impl Loader {
    /// Loaders of these cases, so many, which begin at different places.
    pub fn several(store: &Store, cases: Vec<CaseKey>, version: i64, number: usize) -> anyhow::Result<Vec<Self>> {
        ensure!(!cases.is_empty(), "there is nothing to load");
        let cases = Arc::new(cases);
        let one = |next| Self { store: store.clone(), cases: Arc::clone(&cases), next, version };
        Ok((0..number).map(|task| one(task * 7)).collect())
    }
}

impl Work for Loader {
    async fn once(&mut self) -> anyhow::Result<()> {
        let key = self.cases[self.next % self.cases.len()];
        self.next += 1;
        let case = self.store.load_cold(key).await?;
        let version = case.attempt.version.max(case.account.version);
        ensure!(version >= self.version, "version {version} was loaded, {} was expected", self.version);
        Ok(())
    }
}
