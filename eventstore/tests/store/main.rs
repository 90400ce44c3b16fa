//! The store on a real PostgreSQL. Each test has a database of its own.

mod consume;
mod contention;
mod execute;
mod kill;
mod pool;
mod resets;
mod support;
mod workload;
