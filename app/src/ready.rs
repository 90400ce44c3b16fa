//! Whether this process can do its work: what `GET /ready` answers.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Parts of the process that are not ready, with the reason. Empty: ready.
#[derive(Debug, Default)]
pub struct Health {
    not_ready: Mutex<BTreeMap<&'static str, String>>,
}

impl Health {
    /// A part can not work, and why.
    pub fn not_ready(&self, part: &'static str, reason: impl Into<String>) {
        self.not_ready.lock().unwrap_or_else(PoisonError::into_inner).insert(part, reason.into());
    }

    /// A part works.
    pub fn ready(&self, part: &'static str) {
        self.not_ready.lock().unwrap_or_else(PoisonError::into_inner).remove(part);
    }

    /// Why the process is not ready.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let not_ready = self.not_ready.lock().unwrap_or_else(PoisonError::into_inner);
        not_ready.iter().map(|(part, reason)| format!("{part}: {reason}")).collect()
    }
}
