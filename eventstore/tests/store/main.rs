//! The store on a real PostgreSQL. Each test has a database of its own.

mod archive;
mod audit;
mod batches;
mod consume;
mod contention;
mod execute;
mod history;
mod kill;
mod log;
mod pauses;
mod pool;
mod resets;
mod retention;
mod snapshots;
mod support;
mod workload;
