//! What is recorded: the history of an attempt, as the service records it, with values of the same lengths.

use chrono::{DateTime, Duration, Utc};
use uuid::Uuid;

/// Events of a stream that `load` reads, and after which `append` turns to a new one.
pub const EVENTS_OF_A_STREAM: usize = 30;
/// Events that begin a stream, in one transaction: planned, submission begun, accepted.
pub const BEGINNING: usize = 3;
/// Streams that `load` chooses from.
pub const STREAMS: usize = 100;

/// The provider of all attempts.
pub const PROVIDER: &str = "simulated";
/// What a poll found.
pub const FINDING: &str = "running";
/// The topic of the outbox row that a poll writes.
pub const TOPIC: &str = "poll-due";

/// The provider's job id.
pub fn job() -> String {
    Uuid::new_v4().simple().to_string()
}

/// A time ahead, with six digits of a second like the database's.
pub fn soon() -> DateTime<Utc> {
    let now = Utc::now();
    DateTime::from_timestamp_micros(now.timestamp_micros()).unwrap_or(now) + Duration::seconds(10)
}
