//! Proof that something is durable.

/// A value whose intent has been committed. An outside call takes one, so no call can be made from inside a transaction, or
/// before the fact that announces it.
///
/// ```compile_fail
/// let call = eventstore::Committed { value: () };
/// ```
#[derive(Debug)]
pub struct Committed<T> {
    value: T,
}

impl<T> Committed<T> {
    /// Only after `COMMIT` has been answered.
    pub(crate) const fn after_commit(value: T) -> Self {
        Self { value }
    }

    /// The value.
    #[must_use]
    pub const fn get(&self) -> &T {
        &self.value
    }
}
