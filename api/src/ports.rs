//! What the API needs from others and does not name them for.

use domain::time::Timestamp;
use futures_util::future::BoxFuture;

/// A signed link that is not honoured. The answer does not say more than this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkRefused {
    /// Not signed by us, or changed since.
    #[error("the link's signature does not match")]
    Forged,
    /// Ours, and over.
    #[error("the link has expired")]
    Expired,
}

/// Checks the parts of a signed link to an object, as they came in. Where the object store serves its own links there is
/// nothing to check: then everything is [`LinkRefused::Forged`].
pub trait LinkVerifier: Send + Sync {
    /// Checks key, expiry (Unix seconds) and signature at a time.
    ///
    /// # Errors
    /// [`LinkRefused`].
    fn verify(&self, key: &str, expires: u64, signature: &str, now: Timestamp) -> Result<(), LinkRefused>;
}

/// Whether this process can do its work.
pub trait Readiness: Send + Sync {
    /// Why it can not, one sentence each, without secrets; empty when it can.
    fn reasons(&self) -> BoxFuture<'_, Vec<String>>;
}
