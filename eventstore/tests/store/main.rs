//! The store on a real PostgreSQL. Each test has a database of its own.

mod consume;
mod execute;
mod retention;
mod support;
