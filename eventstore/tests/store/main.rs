//! The store on a real PostgreSQL. Each test has a database of its own.

mod consume;
mod execute;
mod kill;
mod resets;
mod support;
mod workload;
