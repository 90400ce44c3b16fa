//! The one place of this crate that reads a clock or makes an id: everything below it is given them.

use domain::time::Timestamp;
use std::time::SystemTime;
use uuid::Uuid;

/// Now, by this machine's clock: for tokens, links and callbacks. Facts are stamped by the database's clock.
pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}

/// A fresh id that sorts by time, which keeps new rows together in indexes.
// Where other crates are kept from making ids of their own, this is where they come from.
pub(crate) fn fresh_id() -> Uuid {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let timestamp = uuid::Timestamp::from_unix(uuid::NoContext, since_epoch.as_secs(), since_epoch.subsec_nanos());
    Uuid::new_v7(timestamp)
}
