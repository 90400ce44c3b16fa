//! The store on a real PostgreSQL. Each test has a database of its own.

mod audit;
mod consume;
mod contention;
mod execute;
mod history;
mod log;
mod snapshots;
mod kill;
mod pool;
mod resets;
mod support;
mod workload;
