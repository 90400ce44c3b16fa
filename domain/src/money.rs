//! Credits: whole minor units, never a fraction, never silently wrapped.

use serde::{Deserialize, Serialize};
use std::fmt;

/// An amount of credits in minor units (1 credit = 100 units). Integer arithmetic only; overflow is refused, not wrapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Credits(pub i64);

impl Credits {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// The sum, or `None` where it does not fit.
    #[must_use]
    pub fn plus(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// The difference, or `None` where it does not fit.
    #[must_use]
    pub fn minus(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }

    /// `self` times `count`, or `None` where it does not fit.
    #[must_use]
    pub fn times(self, count: u64) -> Option<Self> {
        self.0.checked_mul(i64::try_from(count).ok()?).map(Self)
    }

    /// Whether it is more than nothing.
    #[must_use]
    pub const fn is_positive(self) -> bool {
        self.0 > 0
    }
}

impl fmt::Display for Credits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
