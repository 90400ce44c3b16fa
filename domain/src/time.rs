//! Instants. The domain never reads a clock: `now` comes in with every command.

use chrono::{DateTime, TimeDelta, Utc};

/// An instant in UTC with microseconds, the precision that PostgreSQL stores.
pub type Timestamp = DateTime<Utc>;

/// Seconds as a `TimeDelta`; values beyond what an instant can carry are cut to 100 years.
#[must_use]
pub fn seconds(count: u64) -> TimeDelta {
    const CENTURY: i64 = 100 * 365 * 24 * 3600;
    TimeDelta::seconds(i64::try_from(count).unwrap_or(CENTURY).min(CENTURY))
}
