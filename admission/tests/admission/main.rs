//! Admission on a real Redis, and in the process beside it: what holds for one holds for the other.

mod alike;
mod desk;
mod fair;
mod limits;
mod losses;
mod server;
mod support;
