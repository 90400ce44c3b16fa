//! A thin client of the GraphQL API: what `aivideo submit` does is what any frontend can do.

mod http;
mod live;
mod submit;

pub use http::{Client, Fault};
pub use live::{Snapshot, follow};
pub use submit::submit;
