//! The rules of the database: who may do what, how migrations may change it, and how others follow the log.
//! Some of it is about the whole repository; it is here because the package `tests` takes the whole workspace to build.

mod follow;
mod lint;
mod migrations;
mod previous;
mod readers;
mod roles;
mod script;

/// What tests of this crate return.
pub type Anyhow<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
