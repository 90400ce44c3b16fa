//! The store on a real PostgreSQL. Each test has a database of its own.

mod audit;
mod consume;
mod execute;
mod support;
